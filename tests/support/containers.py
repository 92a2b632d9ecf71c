"""Containers of the kubelet stand-in: local processes with a container's environment and a container's
status."""

import asyncio
import datetime
import os
import re
import signal
import subprocess
import uuid
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.api import AdminClient, ApiError, Object, path
from tests.support.volumes import StartRefused, namespaces

_REFERENCE = re.compile(r"\$(\$|\(([A-Za-z_][A-Za-z0-9_.-]*)\))")
_MESSAGE_LIMIT = 2048
_SETS_A_TRAP = re.compile(r"\btrap\b.*\bTERM\b", re.DOTALL)


class Container:
    """One run of a container. Without a process (fake mode, or no command in the pod) it goes on until it is
    told to end. ``former``: the run that this one follows in place."""

    def __init__(
        self, spec: Object, log: Path, changed: Callable[[], None], former: "Container | None" = None
    ) -> None:
        self.identifier = f"stand-in://{uuid.uuid4().hex}"
        self.restarts: int = 0 if former is None else former.restarts + 1
        self._last_state = {} if former is None else former.status()["state"]
        self.spec = spec
        self.name: str = spec["name"]
        self.log = log
        self.exit_code: int | None = None
        self.message = ""
        self.started_at = now()
        self.finished_at = ""
        self.pid: int | None = None
        self.never_started = False
        self._changed = changed
        self._process: asyncio.subprocess.Process | None = None
        self._waiter: asyncio.Task[None] | None = None
        self._namespace: int | None = None

    @property
    def ended(self) -> bool:
        """True once there is an exit code."""
        return self.exit_code is not None

    async def start(self, environment: Mapping[str, str], folder: Path, prefix: Sequence[str]) -> None:
        """Start the command, if the pod names one, in its own process group."""
        words = [*(self.spec.get("command") or []), *(self.spec.get("args") or [])]
        if not words:
            return
        command = [expand(word, environment) for word in words]
        working = self.spec.get("workingDir")
        with self.log.open("ab") as log:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *prefix,
                    *command,
                    env=dict(environment),
                    cwd=working if working and Path(working).is_dir() else folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as error:
                self.finish(128, f"failed to start: {error}")
                return
        self.pid = self._process.pid
        if prefix:
            self._namespace = await _own_namespace(self._process)
        if any(_SETS_A_TRAP.search(word) for word in command):
            await _minds_sigterm(self._process)
        self._waiter = asyncio.create_task(self._wait(), name=f"container-{self.name}")

    def signal(self, number: int) -> None:
        """Send a signal to the process; a container without one takes SIGKILL as its end."""
        if self._process is None:
            if number == signal.SIGKILL:
                self.finish(128 + number)
        elif self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def terminate(self) -> None:
        """SIGTERM; a container without a process ends at once with 0."""
        if self._process is None:
            self.finish(0)
        else:
            self.signal(signal.SIGTERM)

    async def kill(self) -> None:
        """SIGKILL to everything in the container; returns when it has ended."""
        if self._process is None:
            self.finish(137)
            return
        # One that was reaped has left its number to others.
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        if self._waiter is not None:
            # Not awaited itself: cancelling whoever waits here must not cancel the waiter.
            await asyncio.wait([self._waiter])

    def finish(self, code: int, message: str = "") -> None:
        """Note the end, once."""
        if self.exit_code is None:
            self.exit_code = code
            self.message = message
            self.finished_at = now()
            self._changed()

    def give_up(self) -> None:
        """End without ever having been started."""
        self.never_started = True
        self.finish(137)

    def status(self) -> Object:
        """The entry in ``status.containerStatuses``."""
        if self.never_started:
            # What a kubelet says of it, kubernetes/pkg/kubelet/status/status_manager.go, TerminatePod.
            lost = {
                "exitCode": 137,
                "reason": "ContainerStatusUnknown",
                "message": "The container could not be located when the pod was terminated",
                "startedAt": None,
                "finishedAt": None,
            }
            image = self.spec.get("image", "")
            return {
                "name": self.name,
                "image": image,
                "imageID": "",
                "restartCount": self.restarts,
                "ready": False,
                "started": False,
                "state": {"terminated": lost},
            }
        common = {
            "name": self.name,
            "image": self.spec.get("image", ""),
            "imageID": "",
            "restartCount": self.restarts,
            "lastState": self._last_state,
        }
        if self.exit_code is None:
            state: Object = {"running": {"startedAt": self.started_at}}
        else:
            ended: Object = {
                "exitCode": self.exit_code,
                "reason": "Completed" if self.exit_code == 0 else "Error",
                "startedAt": self.started_at,
                "finishedAt": self.finished_at,
                "containerID": self.identifier,
            }
            if self.message:
                ended["message"] = self.message
            state = {"terminated": ended}
        running = self.exit_code is None
        return {
            **common,
            "containerID": self.identifier,
            "ready": running,
            "started": running,
            "state": state,
        }

    async def _wait(self) -> None:
        assert self._process is not None
        code = await self._process.wait()
        # The first process was the container's init: whatever it left behind ends with it.
        if self._namespace is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        else:
            try:
                await _end_all_in(self._namespace)
            finally:
                os.close(self._namespace)
        code = code if code >= 0 else 128 - code
        self.finish(code, self._last_words(code))

    @property
    def message_file(self) -> Path:
        """Where the program leaves its termination message: a file of its own, not the machine's in /dev."""
        return self.log.with_name(f"{self.log.name}-{self.restarts}.termination")

    def _last_words(self, code: int) -> str:
        with suppress(OSError):
            if said := self.message_file.read_bytes()[:_MESSAGE_LIMIT]:
                return said.decode(errors="replace")
        if code == 0 or self.spec.get("terminationMessagePolicy") != "FallbackToLogsOnError":
            return ""
        return self.log.read_bytes()[-_MESSAGE_LIMIT:].decode(errors="replace")


async def resolve_environment(
    client: AdminClient, pod: Object, container: Object, address: str
) -> dict[str, str]:
    """A container's variables: literals with ``$(NAME)``, the downward API, Secret and ConfigMap keys.

    Raises ``StartRefused`` when a Secret or ConfigMap is missing that is not optional.
    """
    values: dict[str, str] = {}
    for source in container.get("envFrom") or []:
        for kind, plural in (("secretRef", "secrets"), ("configMapRef", "configmaps")):
            if kind in source:
                data = await _data(client, plural, pod["metadata"]["namespace"], source[kind])
                values.update({source.get("prefix", "") + key: text for key, text in data.items()})
    for entry in container.get("env") or []:
        text = await _value(client, pod, entry, address)
        if text is not None:
            values[entry["name"]] = expand(text, values) if "value" in entry else text
    return values


async def _value(client: AdminClient, pod: Object, entry: Object, address: str) -> str | None:
    source = entry.get("valueFrom")
    if not source:
        return str(entry.get("value", ""))
    if "fieldRef" in source:
        return downward(pod, source["fieldRef"]["fieldPath"], address)
    for kind, plural in (("secretKeyRef", "secrets"), ("configMapKeyRef", "configmaps")):
        if kind in source:
            data = await _data(client, plural, pod["metadata"]["namespace"], source[kind])
            key = source[kind]["key"]
            if key not in data and not source[kind].get("optional"):
                raise StartRefused(f"couldn't find key {key} in {plural[:-1]} {source[kind]['name']}")
            return data.get(key)
    return ""


async def _data(client: AdminClient, plural: str, namespace: str, reference: Object) -> dict[str, str]:
    try:
        found = await client.get(path(plural, namespace, reference["name"]))
    except ApiError as error:
        if error.status != 404:
            raise
        if reference.get("optional"):
            return {}
        raise StartRefused(f'{plural[:-1]} "{reference["name"]}" not found') from error
    data: dict[str, str] = found.get("data") or {}
    if plural == "secrets":
        return {key: b64decode(text).decode(errors="replace") for key, text in data.items()}
    return data


def downward(pod: Object, field: str, address: str) -> str:
    """The value of a downward API field path."""
    match = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", field)
    if match:
        return str((pod["metadata"].get(match[1]) or {}).get(match[2], ""))
    if field in ("status.podIP", "status.podIPs"):
        return address
    if field == "status.hostIP":
        return "127.0.0.1"
    value: Any = pod
    for part in field.split("."):
        value = (value or {}).get(part, "")
    return str(value)


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replace ``$(NAME)`` as a kubelet does: an unknown name stays as written, ``$$`` is a dollar."""

    def one(match: re.Match[str]) -> str:
        return "$" if match[1] == "$" else values.get(match[2], match[0])

    return _REFERENCE.sub(one, text)


def hostname_prefix() -> list[str]:
    """The words before "HOSTNAME COMMAND..." that give a process a host name of its own, or none where
    that is not allowed."""
    prefix = in_namespaces("")
    try:
        done = subprocess.run([*prefix, "probe", "true"], capture_output=True, check=False, timeout=10)
    except OSError:
        return []
    return prefix if done.returncode == 0 else []


def in_namespaces(script: str) -> list[str]:
    """The words before "HOSTNAME COMMAND...": ``script`` makes the mounts, if it is not empty."""
    return [*namespaces(mounts=bool(script)), "sh", "-c", f'{script}hostname "$0" && exec "$@"']


async def _own_namespace(process: asyncio.subprocess.Process) -> int | None:
    """A descriptor of the namespace that only this container's processes are in; None when it ended at once.

    As long as it is open the kernel gives the namespace's number to no other: a container that starts while this one
    ends would be taken for it.
    """
    ours = os.stat("/proc/self/ns/uts").st_ino
    while process.returncode is None:
        try:
            found = os.open(f"/proc/{process.pid}/ns/uts", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        if os.fstat(found).st_ino != ours:
            return found
        os.close(found)
        await asyncio.sleep(0.005)
    return None


async def _minds_sigterm(process: asyncio.subprocess.Process) -> None:
    """Wait, ten seconds at most, until a script has set its trap: one that is stopped at the very moment at which it
    starts would die of the signal, here as on a real node, and that is what no test is about."""
    loop = asyncio.get_running_loop()
    until = loop.time() + 10.0
    while process.returncode is None and loop.time() < until:
        with suppress(OSError):
            status = Path(f"/proc/{process.pid}/status").read_text()
            masks = [int(mask, 16) for mask in re.findall(r"^Sig(?:Cgt|Ign):\s*(\w+)", status, re.MULTILINE)]
            if any(mask & 1 << (signal.SIGTERM - 1) for mask in masks):
                return
        await asyncio.sleep(0.005)


async def _end_all_in(namespace: int) -> None:
    """SIGKILL for every process in it, and for those that they start meanwhile."""
    while members := _members(os.fstat(namespace).st_ino):
        for pid in members:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(0.01)


def _members(namespace: int) -> list[int]:
    """The processes in the namespace of this number, zombies left out: they have none."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if (entry / "ns" / "uts").stat().st_ino == namespace:
                found.append(int(entry.name))
    return found


def now(*, micro: bool = False) -> str:
    """The time as the API writes it."""
    format_ = "%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ"
    return datetime.datetime.now(datetime.UTC).strftime(format_)
