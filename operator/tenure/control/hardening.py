"""What keeps a server's secrets from the agents that run beside it, and its process table clean.

All of it is best effort and Linux only: where a call does not exist, the server runs without.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_HANDLES = 16384
_REAP_SECONDS = 5.0
log = logging.getLogger(__name__)


def harden() -> None:
    """Hide memory, environment and open files of this process from others of the same user, take in the
    orphans of its agents, and have handles enough for its streams."""
    for option, value in ((_PR_SET_DUMPABLE, 0), (_PR_SET_CHILD_SUBREAPER, 1)):
        with contextlib.suppress(OSError, AttributeError):
            _prctl(option, value)
    with contextlib.suppress(OSError, ValueError):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _HANDLES if hard == resource.RLIM_INFINITY else min(_HANDLES, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def hold_standard_handles() -> None:
    """Put nothing in the place of standard handles that came closed: the next file that is opened would get
    their numbers, and what is meant for the terminal would be written into it."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number, which is this one.
            os.open(os.devnull, os.O_RDWR)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def scrub_environment(prefix: str = "TENURE_") -> frozenset[str]:
    """Take our own variables out of this process's environment, and with it out of its children's; their
    names, for whoever builds an environment by hand."""
    names = frozenset(name for name in os.environ if name.startswith(prefix))
    for name in names:
        del os.environ[name]
    return names


async def kill_descendants(within: float = 1.0) -> None:
    """Kill whatever process is still below this one, for the end: as the orphans come to us, a round for each
    generation is enough. What forks faster than that has ``within`` seconds to win."""
    limit = time.monotonic() + within
    while time.monotonic() < limit and kill_children():
        await asyncio.sleep(0.02)


def kill_children() -> bool:
    """Kill the living children of this process; whether there were any. Theirs come to us by it."""
    living = [pid for pid, state, _ in _children() if state != "Z"]
    for pid in living:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    return bool(living)


async def reap_orphans(every: float = _REAP_SECONDS) -> None:
    """Reap what agents left behind and the kernel gave to us, for ever."""
    orphans = Orphans()
    while True:
        await asyncio.sleep(every)
        orphans.look()


class Orphans:
    """Zombies that nobody waits for.

    Our own children are reaped by asyncio, at once, and must be left to it: their exit codes are wanted. So a
    zombie is taken only when it was there at the last look as well: then nobody waits for it.
    """

    def __init__(self) -> None:
        self._seen: frozenset[tuple[int, str]] = frozenset()

    def look(self) -> None:
        """Reap what was there before."""
        zombies = frozenset((pid, started) for pid, state, started in _children() if state == "Z")
        for pid, _ in zombies & self._seen:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        self._seen = zombies - self._seen


def _children() -> Iterator[tuple[int, str, str]]:
    """Our children as (process id, state, start time): the time tells one from another of the same id."""
    for listing in Path("/proc/self/task").glob("*/children"):
        try:
            children = listing.read_text().split()
        except OSError:
            continue
        for child in children:
            with contextlib.suppress(OSError, IndexError):
                # After the name, which is in parentheses and may hold any of them: state is the first field.
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                yield int(child), fields[0], fields[19]
