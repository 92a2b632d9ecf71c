"""How a control server ends: three reasons, one way through, and what it leaves for whoever looks afterwards."""

import asyncio
import contextlib
import json
import logging
import os
import sys
import threading
import time
from enum import StrEnum
from pathlib import Path

from tenure.control.hardening import kill_children

EXIT_DONE = 0
"""Ended because somebody said so: an ownership shutdown, SIGTERM or SIGINT."""
EXIT_FAILED = 1
"""Could not start, or broke: no address to listen on, an unreadable certificate, an error of our own."""
EXIT_SETTINGS = 2
"""Refused to start with these settings."""
EXIT_UNOWNED = 10
"""Nobody owned it for the whole unowned period, so it stopped its instances and itself."""

_ROUNDS = 10
log = logging.getLogger(__name__)


class Ending(StrEnum):
    """Why a server ended."""

    UNOWNED = "unowned"
    ORDERED = "ordered"
    TERMINATED = "terminated"


EXIT_CODES: dict[Ending, int] = {
    Ending.UNOWNED: EXIT_UNOWNED,
    Ending.ORDERED: EXIT_DONE,
    Ending.TERMINATED: EXIT_DONE,
}


class Door:
    """The one-way door: the first reason to end stays the reason, and nothing opens it again."""

    def __init__(self) -> None:
        self._passed = asyncio.Event()
        self.ending: Ending | None = None

    def close(self, ending: Ending) -> bool:
        """End for this reason. False when the server was ending already."""
        if self.ending is not None:
            return False
        self.ending = ending
        self._passed.set()
        return True

    async def passed(self) -> Ending:
        """Wait for the decision."""
        await self._passed.wait()
        assert self.ending is not None
        return self.ending


def exit_by(seconds: float, code: int) -> threading.Timer:
    """See that the process is gone after this time, and its children with it, whatever hangs: a thread in a
    system call, or the event loop itself. Cancel it when there is no need."""

    def leave() -> None:
        with contextlib.suppress(Exception):
            for _ in range(_ROUNDS):
                kill_children()
                time.sleep(0.02)
        os._exit(code)

    timer = threading.Timer(seconds, leave)
    timer.daemon = True
    timer.start()
    return timer


def leave_message(file: Path | None, ending: Ending, identity: str, unowned_period_ms: int) -> None:
    """Write the one line that says why the server ended. It is written at the decision and not at the end:
    what comes in between may be cut short. A file that cannot be written changes nothing."""
    if file is None:
        return
    said = {"ended": ending.value, "server_identity": identity, "unowned_period_ms": unowned_period_ms}
    data = (json.dumps(said) + "\n").encode()
    try:
        # In place, and without waiting on what may be a pipe: a kubelet has bound this very file.
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
        with contextlib.closing(os.fdopen(handle, "wb", buffering=0)) as out:
            out.write(data)
    except OSError as error:
        log.warning("the termination message could not be written: %s", error.strerror)


def say(line: str) -> None:
    """One line on standard error, if there still is one."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(line, file=sys.stderr, flush=True)
