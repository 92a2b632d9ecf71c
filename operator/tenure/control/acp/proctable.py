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
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

MARK = "TENURE_INSTANCE_MARK"
"""Variable that names the instance in the environment of each of its processes."""
_MARK = MARK.encode() + b"="
CROWD = 100
"""More processes than an instance has when all is well."""

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


@dataclass(eq=False)
class Family:
    """The processes of one instance. ``leaders`` are those that the server started for it itself, each of a
    session of its own, with the instants of their starts: an id whose instant is another one is somebody
    else's."""

    mark: str
    leaders: dict[int, int] = field(default_factory=dict)
    known: set[Identity] = field(default_factory=set)

    def __post_init__(self) -> None:
        _families[self.mark] = self

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
                if child.pid not in found and child.pid not in NEVER:
                    found[child.pid] = child
                    rest.append(child)
        self.known = {seen.identity for seen in found.values()}
        return list(found.values())

    def _by_itself(self, seen: Seen) -> bool:
        if seen.pid in NEVER or seen.pid == os.getpid():
            return False
        return (
            seen.pid in self.leaders
            or seen.session in self.leaders
            or seen.group in self.leaders
            or seen.mark == self.mark
            or seen.identity in self.known
        )


NEVER = frozenset({0, 1})
"""What belongs to no instance, whatever it looks like."""
_families: "weakref.WeakValueDictionary[str, Family]" = weakref.WeakValueDictionary()

_reading = threading.Lock()
_latest: tuple[float, tuple[Seen, ...]] = (-1.0, ())
_marks: dict[Identity, str] = {}
"""The marks that the last reading found, and where it found none. They stay: who is of an instance has the
mark from the moment of its fork, and the few that get it later are started by us, and known for that."""


def table() -> tuple[Seen, ...]:
    """All processes, by a reading that began after this call. Callers at one time share a reading."""
    global _latest, _marks
    asked = time.monotonic()
    with _reading:
        if _latest[0] < asked:
            began = time.monotonic()
            _latest = (began, tuple(_read_all()))
            _marks = {seen.identity: seen.mark for seen in _latest[1]}
        return _latest[1]


def _read_all() -> Iterable[Seen]:
    found: dict[int, Seen] = {}
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdigit() and (seen := read(int(name))):
                found[seen.pid] = seen
    marks: dict[int, str] = {}
    uid = os.getuid()
    for seen in found.values():
        # Parents first. Without recursion: a chain of processes may be long.
        line = [seen]
        while line[-1].pid not in marks and line[-1].parent in found and len(line) <= len(found):
            line.append(found[line[-1].parent])
        while line:
            one = line.pop()
            if one.pid not in marks:
                marks[one.pid] = _mark_of(one, marks.get(one.parent, ""), uid)
    return [replace(seen, mark=marks[seen.pid]) for seen in found.values()]


def read(pid: int) -> Seen | None:
    """One process, without its mark; None when there is none."""
    try:
        stat = _content(f"/proc/{pid}/stat", 4096)
        # The name, in brackets, may hold anything.
        fields = stat[stat.rindex(b")") + 2 :].split()
        state = fields[0].decode()
        return Seen(pid, int(fields[19]), state, int(fields[1]), int(fields[2]), int(fields[3]), "")
    except (OSError, ValueError, IndexError):
        return None


def _content(path: str, limit: int) -> bytes:
    # Less than half the time of a file object; there are hundreds of them to read, while a fork bomb goes off.
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = b""
        while len(content) < limit and (piece := os.read(handle, limit - len(content))):
            content += piece
        return content
    finally:
        os.close(handle)


def _mark_of(seen: Seen, inherited: str, uid: int) -> str:
    """The mark of a process: its parent's, if that one is of an instance of ours, or the one in its own
    environment. Environments are slow to read: none is read twice."""
    if inherited in _families:
        return inherited
    if seen.identity in _marks or not seen.alive:
        return _marks.get(seen.identity, "")
    return _mark_in_environment(seen.pid, uid)


def _mark_in_environment(pid: int, uid: int) -> str:
    try:
        if uid and os.stat(f"/proc/{pid}").st_uid != uid:
            return ""
        environ = _content(f"/proc/{pid}/environ", 1024 * 1024)
    except OSError:
        return ""
    for variable in environ.split(b"\0"):
        if variable.startswith(_MARK):
            return variable[len(_MARK) :].decode("ascii", "replace")
    return ""


def send(seen: Seen, number: int) -> None:
    """Send a signal to this process, and to no later one with its id (as far as the system can tell)."""
    try:
        handle = os.pidfd_open(seen.pid)
    except ProcessLookupError:
        return
    except (AttributeError, OSError):
        # Not there, or forbidden.
        handle = -1
    try:
        now = read(seen.pid)
        if now is None or now.start != seen.start:
            return
        if handle < 0:
            os.kill(seen.pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    except OSError:
        # It is gone.
        pass
    finally:
        if handle >= 0:
            os.close(handle)


def send_all(members: Iterable[Seen], number: int) -> None:
    """Send a signal to all: by groups, which the kernel does in one go, and singly to who is in ours."""
    own = os.getsid(0)
    groups: set[int] = set()
    for seen in members:
        if seen.alive and seen.session != own and seen.group > 1:
            groups.add(seen.group)
        elif seen.alive:
            send(seen, number)
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, number)


def _blind() -> bool:
    """Whether ``/proc`` shows nothing: then all that is known is what the server started itself."""
    return read(os.getpid()) is None


def _send_leaders(family: Family, number: int) -> None:
    for pid in tuple(family.leaders):
        with contextlib.suppress(OSError):
            os.killpg(pid, number)


def look(family: Family) -> None:
    """Remember who belongs to the family now. When they are a crowd, all but the leaders are stopped: so a
    fork bomb takes from nobody what it takes to end it."""
    members = living(family)
    if len(members) > CROWD:
        send_all([seen for seen in members if seen.group not in family.leaders], signal.SIGSTOP)
        for seen in members:
            if seen.group in family.leaders and seen.pid not in family.leaders:
                send(seen, signal.SIGSTOP)


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
