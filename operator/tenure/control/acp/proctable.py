"""Which processes come from an instance, and ending all of them: a walk over ``/proc``.

A process belongs to an instance when its session or group is one that the instance began, when the mark is in
its environment, when its parent belongs to it, or when it was seen to belong to it before. So it may leave its
group, its session, its parent and its environment; not all of them at once and unseen.

Everything here blocks: call it in a thread.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

MARK = "TENURE_INSTANCE_MARK"
"""Variable that names the instance in the environment of each of its processes."""
_MARK = MARK.encode() + b"="

Identity = tuple[int, int]
"""A process: its id, and the instant of its start in ticks since boot, as ids come again."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A process as one reading of ``/proc`` showed it."""

    pid: int
    start: int
    state: str
    parent: int
    group: int
    session: int
    mark: str

    @property
    def identity(self) -> Identity:
        """What tells it from a later process with its id."""
        return self.pid, self.start

    @property
    def alive(self) -> bool:
        """Neither a zombie nor gone."""
        return self.state not in "ZXx"


@dataclass
class Family:
    """The processes of one instance. ``leaders`` are those that the server started for it itself, each of a
    session of its own, with the instants of their starts: an id whose instant is another one is somebody
    else's."""

    mark: str
    leaders: dict[int, int] = field(default_factory=dict)
    known: set[Identity] = field(default_factory=set)

    def lead(self, pid: int) -> None:
        """A process that was just started leads a session of the instance."""
        seen = read(pid)
        self.leaders[pid] = seen.start if seen else -1

    def members(self, table: Iterable[Seen]) -> list[Seen]:
        """Those of the table that belong to it, which it remembers."""
        table = list(table)
        for seen in table:
            if self.leaders.get(seen.pid, seen.start) != seen.start:
                del self.leaders[seen.pid]
        children: dict[int, list[Seen]] = {}
        for seen in table:
            children.setdefault(seen.parent, []).append(seen)
        found = {seen.pid: seen for seen in table if self._by_itself(seen)}
        rest = list(found.values())
        while rest:
            for child in children.get(rest.pop().pid, ()):
                if child.pid not in found and child.pid not in _NEVER:
                    found[child.pid] = child
                    rest.append(child)
        self.known = {seen.identity for seen in found.values()}
        return list(found.values())

    def _by_itself(self, seen: Seen) -> bool:
        if seen.pid in _NEVER or seen.pid == os.getpid():
            return False
        return (
            seen.pid in self.leaders
            or seen.session in self.leaders
            or seen.group in self.leaders
            or seen.mark == self.mark
            or seen.identity in self.known
        )


_NEVER = frozenset({0, 1})

_reading = threading.Lock()
_latest: tuple[float, tuple[Seen, ...]] = (-1.0, ())


def table() -> tuple[Seen, ...]:
    """All processes, by a reading that began after this call. Callers at one time share a reading."""
    global _latest
    asked = time.monotonic()
    with _reading:
        if _latest[0] < asked:
            began = time.monotonic()
            _latest = (began, tuple(_read_all()))
        return _latest[1]


def _read_all() -> Iterable[Seen]:
    own = os.getuid()
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdigit() and (seen := read(int(name), own)):
                yield seen


def read(pid: int, uid: int | None = None) -> Seen | None:
    """One process; None when there is none. Environments are read of ``uid``'s own processes only."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
        # The name, in brackets, may hold anything.
        fields = stat[stat.rindex(b")") + 2 :].split()
        state = fields[0].decode()
        mark = _mark_of(pid, uid) if uid is not None and state not in "ZXx" else ""
        return Seen(pid, int(fields[19]), state, int(fields[1]), int(fields[2]), int(fields[3]), mark)
    except (OSError, ValueError, IndexError):
        return None


def _mark_of(pid: int, uid: int) -> str:
    try:
        if uid and os.stat(f"/proc/{pid}").st_uid != uid:
            return ""
        with open(f"/proc/{pid}/environ", "rb") as file:
            environ = file.read(1024 * 1024)
    except OSError:
        return ""
    for variable in environ.split(b"\0"):
        if variable.startswith(_MARK):
            return variable[len(_MARK) :].decode("ascii", "replace")
    return ""


def send(seen: Seen, number: int) -> None:
    """Send a signal to this process, and to no later one with its id (as far as the system can tell)."""
    with contextlib.suppress(OSError):
        if not hasattr(os, "pidfd_open"):
            now = read(seen.pid)
            if now is not None and now.start == seen.start:
                os.kill(seen.pid, number)
            return
        handle = os.pidfd_open(seen.pid)
        try:
            now = read(seen.pid)
            if now is not None and now.start == seen.start:
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def send_all(members: Iterable[Seen], number: int) -> None:
    """Send a signal to all: by groups, which the kernel does in one go, and to each."""
    own = (os.getpgrp(), os.getsid(0))
    living = [seen for seen in members if seen.alive]
    for group in {seen.group for seen in living if seen.group > 1 and seen.session != own[1]} - {own[0]}:
        with contextlib.suppress(OSError):
            os.killpg(group, number)
    for seen in living:
        send(seen, number)


def _blind() -> bool:
    """Whether ``/proc`` shows nothing: then all that is known is what the server started itself."""
    return read(os.getpid()) is None


def _send_leaders(family: Family, number: int) -> None:
    for pid in tuple(family.leaders):
        with contextlib.suppress(OSError):
            os.killpg(pid, number)


def living(family: Family) -> list[Seen]:
    """The members that live now."""
    return [seen for seen in family.members(table()) if seen.alive]


def terminate(family: Family, keep: Iterable[int]) -> bool:
    """SIGTERM to every member; whether there was any. If there was none, orphans that died are collected, as
    ``reap`` does."""
    members = family.members(table())
    if any(seen.alive for seen in members):
        send_all(members, signal.SIGTERM)
        return True
    if _blind():
        _send_leaders(family, signal.SIGTERM)
        return True
    _reap(family, members, keep)
    return False


def kill(family: Family, deadline: float) -> bool:
    """End every member, and whatever they start meanwhile, until ``deadline`` (monotonic seconds); whether
    none is left.

    First all are stopped, until a reading shows none that is not: what is stopped starts nothing. Then they
    are killed. A fork bomb is caught by this, or by its limit of processes, which the stopped ones hold.
    """
    if _blind():
        _send_leaders(family, signal.SIGKILL)
        return True
    while True:
        stopped: set[Identity] = set()
        while True:
            members = living(family)
            fresh = [seen for seen in members if seen.identity not in stopped]
            if not fresh or time.monotonic() > deadline:
                break
            if len(members) == 1:
                # The usual case: one process, which needs no stopping first.
                break
            send_all(fresh, signal.SIGSTOP)
            stopped |= {seen.identity for seen in fresh}
        if not members:
            return True
        send_all(members, signal.SIGKILL)
        if time.monotonic() > deadline:
            return not living(family)
        time.sleep(0.005)


def reap(family: Family, keep: Iterable[int]) -> None:
    """Collect the members that died as orphans and became our own children. ``keep`` are children that
    somebody waits for."""
    _reap(family, family.members(table()), keep)


def _reap(family: Family, members: Iterable[Seen], keep: Iterable[int]) -> None:
    kept = {*keep, *family.leaders}
    for seen in members:
        if not seen.alive and seen.parent == os.getpid() and seen.pid not in kept:
            with contextlib.suppress(OSError):
                os.waitpid(seen.pid, os.WNOHANG)
