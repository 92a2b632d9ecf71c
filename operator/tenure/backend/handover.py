"""Where a backend gets its hand-over: a mounted Secret, or any directory of the same shape.

A source accepts only what is meant for this pod. Its errors name files and keys, never their content.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tenure.backend.errors import Retry, RetryableError
from tenure.protocol.handover import HandOver, Key, UnreadableHandOver, from_data, to_data

if TYPE_CHECKING:
    from tenure.cluster.secrets import SecretReader

log = logging.getLogger("tenure.backend")

_LIMIT = 256 * 1024
_DATA = "..data"


class HandOverSource(Protocol):
    """Where hand-overs come from, and their successors.

    ``sole``: there is no operator: whoever takes this hand-over does what recovery there is. ``incarnation`` is
    then its name; empty otherwise.
    """

    @property
    def sole(self) -> bool: ...

    @property
    def incarnation(self) -> str: ...

    async def current(self) -> HandOver | None:
        """The hand-over as it is now; None when there is none for this pod yet."""

    async def wait_newer(self, than: HandOver | None) -> HandOver:
        """The first hand-over of another server, or of a later rotation, than ``than``: waits without limit.

        Raises ``FinalError`` when there will be none.
        """

    async def aclose(self) -> None:
        """Let go of what it holds."""


def own_pod_uid(environ: Mapping[str, str] | None = None) -> str:
    """This pod's UID, from ``POD_UID`` (set it by the downward API); empty without Kubernetes."""
    return (os.environ if environ is None else environ).get("POD_UID", "")


class PollingSource:
    """The part that sources share: reading again at an interval, until what is read is newer.

    ``pod_uid``: None for ``POD_UID`` of the environment; only a hand-over with just this one is accepted, so
    that a pod never acts on what was meant for its predecessor. ``interval`` is in seconds.
    """

    sole = False
    incarnation = ""

    def __init__(self, pod_uid: str | None, interval: float) -> None:
        self._pod_uid = own_pod_uid() if pod_uid is None else pod_uid
        self._interval = interval
        self._complained = ""

    async def _read(self) -> HandOver | None:
        raise NotImplementedError

    async def current(self) -> HandOver | None:
        """See ``HandOverSource``. Raises ``UnreadableHandOver``, or ``RetryableError`` when it cannot be read
        at present."""
        found = await self._read()
        return found if found is not None and found.backend_pod_uid == self._pod_uid else None

    async def wait_newer(self, than: HandOver | None) -> HandOver:
        """See ``HandOverSource``. What cannot be read now is read again."""
        while True:
            try:
                found = await self.current()
            except (UnreadableHandOver, RetryableError) as error:
                self._complain(str(error))
            else:
                self._complained = ""
                if found is not None and found.supersedes(than):
                    return found
            await asyncio.sleep(self._interval)

    async def aclose(self) -> None:
        """Nothing is held."""

    def _complain(self, text: str) -> None:
        if text != self._complained:
            log.warning("the hand-over cannot be read: %s", text)
        self._complained = text


class HandOverDirectory(PollingSource):
    """A hand-over in a directory: a mounted Secret, or what ``write_handover`` wrote.

    Kubelets (and ``write_handover``) change a mounted Secret by swapping the link ``..data``: all files are
    read below one target of that link, so a mixture of two states is never seen. A directory without the link
    is read twice, and taken when both readings agree. A directory that does not exist holds none.
    """

    def __init__(self, path: Path | str, *, pod_uid: str | None = None, interval: float = 0.25) -> None:
        super().__init__(pod_uid, interval)
        self.path = Path(path)

    async def _read(self) -> HandOver | None:
        try:
            data = await asyncio.to_thread(_snapshot, self.path)
        except UnicodeDecodeError:
            problem = "it is not UTF-8"
        except OSError as error:
            problem = f"not readable ({type(error).__name__})"
        else:
            return from_data(data)
        # Outside of the handler: a UnicodeDecodeError holds what was read.
        raise UnreadableHandOver(f"{self.path}: {problem}")


def _snapshot(directory: Path) -> dict[str, str]:
    for _ in range(20):
        link = directory / _DATA
        if not os.path.lexists(link):
            first = _files(directory)
            if first == _files(directory):
                return first
            continue
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(link)
            data = _files(directory / target)
            # The old state is removed after the swap: what was read before that is whole.
            if os.readlink(link) == target:
                return data
    raise OSError("it keeps changing")


def _files(directory: Path) -> dict[str, str]:
    data = {}
    for key in Key:
        with contextlib.suppress(FileNotFoundError), (directory / key.value).open("rb") as file:
            content = file.read(_LIMIT + 1)
            if len(content) > _LIMIT:
                raise OSError("too long")
            data[key.value] = content.decode()
    return data


def write_handover(directory: Path | str, handover: HandOver | None) -> None:
    """Put a hand-over into a directory as a kubelet does, all of it at once; None empties it.

    Directories have mode 0700 and files 0600. A crash at any moment leaves the former state or the new one.
    Raises ``OSError``. Blocks for as long as the disk takes.
    """
    root = Path(directory)
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = root / f"..{secrets.token_hex(8)}"
    fresh.mkdir(mode=0o700)
    data = {} if handover is None else to_data(handover)
    for key in Key:
        _write_private(fresh / key.value, data.get(key.value, ""))
    _sync_directory(fresh)
    link = root / f"..data-{fresh.name[2:]}"
    link.symlink_to(fresh.name)
    link.replace(root / _DATA)
    _sync_directory(root)
    for key in Key:
        if not os.path.lexists(root / key.value):
            (root / key.value).symlink_to(f"{_DATA}/{key.value}")
    for entry in root.iterdir():
        # Former states, and what a crash left.
        if entry.name.startswith("..") and entry.name not in (_DATA, fresh.name):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)


def _write_private(path: Path, text: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


_SERVICE_ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class HandOverSecret(PollingSource):
    """A hand-over read from its Secret through the API server: a rotation is seen within ``interval`` seconds,
    where a mounted Secret lags by up to two minutes.

    Needs ``get`` on just this Secret. ``namespace``: None for the pod's own. It is asked only while a hand-over
    is waited for. Use ``aclose()`` in the end.
    """

    def __init__(
        self, name: str, namespace: str | None = None, *, pod_uid: str | None = None, interval: float = 1.0
    ) -> None:
        super().__init__(pod_uid, interval)
        self.name = name
        self.namespace = namespace
        self._reader: SecretReader | None = None

    async def _read(self) -> HandOver | None:
        # Here: only this source needs the `kubernetes` package.
        from tenure.cluster.connection import NoCluster
        from tenure.cluster.errors import ApiError
        from tenure.cluster.secrets import SecretReader

        try:
            if self._reader is None:
                self._reader = await SecretReader.connect()
            data = await self._reader.read(self._own_namespace(), self.name)
        except (ApiError, NoCluster) as error:
            raise RetryableError(Retry.NO_ANSWER, f"the Secret {self.name}: {error}") from None
        return None if data is None else from_data({key: text.reveal() for key, text in data.items()})

    def _own_namespace(self) -> str:
        if self.namespace is None:
            try:
                self.namespace = _SERVICE_ACCOUNT_NAMESPACE.read_text().strip()
            except OSError:
                raise RetryableError(
                    Retry.NO_ANSWER, "outside of a pod the Secret's namespace has to be given"
                ) from None
        return self.namespace

    async def aclose(self) -> None:
        """Close the connections to the API server."""
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.aclose()
