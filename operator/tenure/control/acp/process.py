"""A child process in a session of its own: started, watched and reaped, without asyncio's own child watcher.

The watcher would reap a child as soon as it ended. Here the id of an ended child is kept (as a zombie) until
whatever came from it is gone, too: its session and its group have that id, and nobody else can get it.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from tenure.control.acp.contract import AgentExit, AgentFailed

BLOCKING = ThreadPoolExecutor(max_workers=32, thread_name_prefix="tenure-agents")
"""For walks over ``/proc``: not the loop's own executor, which anything else may have filled."""

NICE = 10
"""How much nicer agents are than the server. In a pod that concerns nobody else: pods share by their requests."""

_children: set[int] = set()


def children() -> frozenset[int]:
    """Ids of the processes that are started and not reaped yet: nobody else may reap them."""
    return frozenset(_children)


class Child:
    """A child process that leads its own session."""

    def __init__(self, popen: "subprocess.Popen[bytes]") -> None:
        self._popen = popen
        self.pid = popen.pid
        self.exit: asyncio.Future[AgentExit] = asyncio.get_running_loop().create_future()
        """Done when it ended; the process is reaped by ``reap``."""
        self._handle: int | None = None
        _children.add(self.pid)
        self._watch()

    @classmethod
    def start(
        cls, argv: Sequence[str], cwd: Path, env: Mapping[str, str], *, one_output: bool = False
    ) -> "Child":
        """Run a program with pipes for its standard input, output and error (one pipe for the last two, and no
        input, with ``one_output``). Raises ``AgentFailed`` ("not_started")."""
        problem = "the program cannot be run"
        try:
            popen = subprocess.Popen(
                list(argv),
                cwd=cwd,
                env=dict(env),
                stdin=subprocess.DEVNULL if one_output else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if one_output else subprocess.PIPE,
                start_new_session=True,
                close_fds=True,
                bufsize=0,
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            if isinstance(error, OSError) and error.errno:
                problem = f"{problem}: {os.strerror(error.errno)}"
        else:
            _make_room(popen.pid)
            return cls(popen)
        # Outside of the handler: the exception quotes the command line.
        raise AgentFailed("not_started", problem)

    @property
    def stdin(self) -> IO[bytes]:
        """Its standard input."""
        assert self._popen.stdin is not None
        return self._popen.stdin

    @property
    def stdout(self) -> IO[bytes]:
        """Its standard output."""
        assert self._popen.stdout is not None
        return self._popen.stdout

    @property
    def stderr(self) -> IO[bytes]:
        """Its standard error."""
        assert self._popen.stderr is not None
        return self._popen.stderr

    @property
    def reaped(self) -> bool:
        """Whether nothing is left of it."""
        return self.pid not in _children

    def signal(self, number: int) -> None:
        """Send a signal to its group. Until it is reaped, its id is nobody else's."""
        if not self.reaped:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, number)

    def reap(self) -> None:
        """Collect its status, if it ended: its id may come again from now on."""
        if self.reaped or not self.exit.done():
            return
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        _children.discard(self.pid)
        # Tells the library that there is nothing left to wait for.
        self._popen.returncode = self.exit.result().code or 0

    def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._handle = os.pidfd_open(self.pid)
        except (AttributeError, OSError):
            threading.Thread(target=self._wait, args=(loop,), daemon=True, name=f"agent-{self.pid}").start()
        else:
            loop.add_reader(self._handle, self._on_end)

    def _on_end(self) -> None:
        assert self._handle is not None
        asyncio.get_running_loop().remove_reader(self._handle)
        os.close(self._handle)
        self._handle = None
        self._ended(_status(self.pid, os.WNOHANG))

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        status = _status(self.pid, 0)
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(self._ended, status)

    def _ended(self, status: AgentExit) -> None:
        if not self.exit.done():
            self.exit.set_result(status)


def _make_room(pid: int) -> None:
    """Let the process, and what comes from it, run when we do not: what ends a fork bomb has to run, too."""
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PGRP, pid, min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICE))


def _status(pid: int, options: int) -> AgentExit:
    """How a child ended, which stays a zombie."""
    try:
        info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | options)
    except ChildProcessError:
        return AgentExit(None, None)
    if info is None:
        return AgentExit(None, None)
    if info.si_code == os.CLD_EXITED:
        return AgentExit(info.si_status, None)
    return AgentExit(None, info.si_status)


def signal_name(number: int) -> str:
    """SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
