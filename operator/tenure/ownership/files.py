"""A credential store in a file, for owners without Kubernetes."""

import fcntl
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tenure.model.masked import Masked
from tenure.ownership.endpoint import Endpoint
from tenure.ownership.holding import Holding, StoreConflict, StoreFailed, same_content
from tenure.protocol.proof import usable

_MAX_BYTES = 256 * 1024


class StoreBusy(StoreFailed):
    """Another local owner has the store open."""

    def __init__(self) -> None:
        super().__init__("the credential file is in use by another owner")


class FileCredentialStore:
    """One holding in one file that only its owner can read, replaced atomically and durably.

    Use it as an async context manager: while it is open nobody else on this machine has it open, also not after
    a crash of whoever had. Entering raises ``StoreBusy`` at once instead of waiting. The file must belong to us
    and be closed to others, or ``StoreFailed`` is raised.
    """

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._lock: int | None = None

    async def __aenter__(self) -> Self:
        with _as_failure("locked"):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
            lock = os.open(self._path.with_name(self._path.name + ".lock"), flags, 0o600)
            try:
                # The kernel gives it up with the process: a crash leaves no lock behind.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                raise StoreBusy from None
            self._lock = lock
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def load(self) -> Holding | None:
        """What is stored, or None. A credential that is none is loaded as None. Raises ``StoreFailed``."""
        self._check_open()
        with _as_failure("read"):
            try:
                file = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW)
            except FileNotFoundError:
                return None
            with os.fdopen(file, "rb") as opened:
                _check_private(os.fstat(opened.fileno()))
                data = opened.read(_MAX_BYTES + 1)
        holding = _parsed(data)
        if holding is None:
            raise StoreFailed("the credential file cannot be read: it holds something else")
        return holding

    async def store(self, holding: Holding) -> Holding:
        """Replace what has ``holding.version``; durable when it returns. See ``CredentialStore.store``."""
        stored = await self.load()
        if (stored.version if stored is not None else "") != holding.version:
            if stored is not None and same_content(stored, holding):
                return stored
            raise StoreConflict("somebody else has stored a credential since")
        new = replace(holding, version=str(int(holding.version or "0") + 1))
        with _as_failure("written"):
            self._replace(_dump(new))
        return new

    def _replace(self, data: bytes) -> None:
        # Under the lock: what lies there is of a crash.
        beside = self._path.with_name(self._path.name + ".new")
        with suppress(FileNotFoundError):
            beside.unlink()
        file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(file, "wb") as opened:
            opened.write(data)
            opened.flush()
            os.fsync(opened.fileno())
        beside.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _check_open(self) -> None:
        if self._lock is None:
            raise StoreFailed("the credential file is not open")


@contextmanager
def _as_failure(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreFailed(f"the credential file cannot be {what}: {error.strerror or 'unknown'}") from error


def _check_private(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise StoreFailed("the credential file must be a file of ours that nobody else can open")


def _dump(holding: Holding) -> bytes:
    secret = holding.credential.reveal() if holding.credential is not None else None
    plain = {
        "version": int(holding.version),
        "server_identity": holding.server_identity,
        "home_dir": holding.home_dir,
        "url": holding.endpoint.url,
        "server_name": holding.endpoint.server_name,
        "certificate": holding.endpoint.certificate,
        "credential": secret,
        "rotation_id": holding.rotation_id,
        "confirmed": holding.confirmed,
        "adopted_by": holding.adopted_by,
    }
    return json.dumps(plain, indent=1).encode()


def _parsed(data: bytes) -> Holding | None:
    """None for what is no holding: the error of a parser, which holds what it read, ends here."""
    try:
        return _parse(data)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _parse(data: bytes) -> Holding:
    if len(data) > _MAX_BYTES:
        raise ValueError
    found = json.loads(data)
    credential = found["credential"]
    masked = Masked(credential) if isinstance(credential, str) else None
    return Holding(
        server_identity=_typed(found, "server_identity", str),
        home_dir=_typed(found, "home_dir", str),
        endpoint=Endpoint(*(_typed(found, name, str) for name in ("url", "server_name", "certificate"))),
        credential=masked if usable(masked) else None,
        rotation_id=_typed(found, "rotation_id", int),
        confirmed=_typed(found, "confirmed", bool),
        adopted_by=_typed(found, "adopted_by", str),
        version=str(_typed(found, "version", int)),
    )


def _typed(found: dict[str, Any], name: str, kind: type) -> Any:
    value = found[name]
    if type(value) is not kind:
        raise TypeError
    return value
