"""Commands that an agent has the control server run for it: processes of the instance, like the agent itself."""

import asyncio
import contextlib
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import acp.schema
from acp.exceptions import RequestError

from tenure.control.acp import files
from tenure.control.acp.contract import AgentExit, AgentFailed, Launch
from tenure.control.acp.pipes import Tail, tail_of
from tenure.control.acp.process import Child, signal_name
from tenure.control.acp.proctable import MARK, Family

OUTPUT_LIMIT = 1024 * 1024
"""Bytes of output that are kept of a command at most, and when the agent says nothing."""
TERMINALS = 64
"""Terminals of an instance that are not released; more are refused."""


ENDED_WITHIN = 1.0
"""Seconds for which the ends of commands are waited for when their instance was ended: each of them is dead by then,
and only has to be noticed."""


@dataclass(eq=False)
class _Terminal:
    child: Child
    output: Tail

    async def ended(self) -> AgentExit:
        """Its end, once its output was read, or has been waited for in vain: a process that it left behind may
        hold the pipe."""
        status = await asyncio.shield(self.child.exit)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await self.output.closed.wait()
        return status


class Terminals:
    """The terminals of one agent. Their processes carry the same mark as the agent's."""

    def __init__(self, launch: Launch, family: Family) -> None:
        self._launch = launch
        self._family = family
        self._all: dict[str, _Terminal] = {}
        self._released: set[_Terminal] = set()
        self._next = 1
        self.closed = False
        """Nothing is started any more."""

    @property
    def running(self) -> bool:
        """Whether a command runs."""
        return any(not terminal.child.exit.done() for terminal in self._all.values())

    async def create(self, request: acp.schema.CreateTerminalRequest) -> dict[str, Any]:
        """Run a command; the terminal's id."""
        if len(self._all) >= TERMINALS:
            raise RequestError(-32000, f"more than {TERMINALS} terminals: release some")
        if self.closed:
            raise RequestError(-32000, "the agent ended, or is being stopped")
        cwd = files.inside(self._launch.roots, request.cwd) if request.cwd else self._launch.cwd
        if not cwd.is_dir():
            raise files.refused("the working directory is no directory")
        try:
            argv = (request.command, *(request.args or ()))
            child = Child.start(argv, cwd, self._environment(request.env), one_output=True)
        except AgentFailed as failed:
            raise RequestError(-32000, failed.message) from None
        # First of all: whatever happens now, stopping the instance ends it.
        self._family.lead(child.pid)
        name = f"terminal-{self._next}"
        self._next += 1
        limit = OUTPUT_LIMIT if request.output_byte_limit is None else request.output_byte_limit
        try:
            self._all[name] = _Terminal(child, await tail_of(child.stdout, min(limit, OUTPUT_LIMIT)))
        except BaseException:
            child.signal(signal.SIGKILL)
            child.exit.add_done_callback(lambda _: child.reap())
            child.stdout.close()
            raise
        return {"terminalId": name}

    def _environment(self, more: list[acp.schema.EnvVariable] | None) -> Mapping[str, str]:
        env = dict(self._launch.env)
        env.update({variable.name: variable.value for variable in more or () if variable.name != MARK})
        return env

    def output(self, name: str) -> dict[str, Any]:
        """What it wrote so far, and how it ended, if it did."""
        terminal = self._find(name)
        status = terminal.child.exit.result() if terminal.child.exit.done() else None
        return {
            "output": terminal.output.text(),
            "truncated": terminal.output.dropped,
            **({"exitStatus": _status(status)} if status is not None else {}),
        }

    async def wait(self, name: str) -> dict[str, Any]:
        """Wait until it ended."""
        return _status(await self._find(name).ended())

    def kill(self, name: str) -> None:
        """End the command; its output stays readable."""
        self._find(name).child.signal(signal.SIGKILL)

    def release(self, name: str) -> None:
        """End the command and forget the terminal."""
        terminal = self._find(name)
        terminal.child.signal(signal.SIGKILL)
        del self._all[name]
        self._released.add(terminal)
        terminal.child.exit.add_done_callback(lambda _: self._forget(terminal))

    def _forget(self, terminal: _Terminal) -> None:
        terminal.output.close()
        terminal.child.reap()
        if terminal.child.reaped:
            self._family.leaders.pop(terminal.child.pid, None)
            self._released.discard(terminal)

    async def close(self) -> None:
        """After the instance's processes were ended: let go of pipes and processes. One that ends later is reaped
        then."""
        self.closed = True
        for name in tuple(self._all):
            self.release(name)
        ends = [terminal.child.exit for terminal in self._released]
        if ends:
            await asyncio.wait(ends, timeout=ENDED_WITHIN)
        for terminal in tuple(self._released):
            self._forget(terminal)

    def _find(self, name: str) -> _Terminal:
        if name not in self._all:
            raise RequestError(-32002, "there is no such terminal")
        return self._all[name]


def _status(status: AgentExit) -> dict[str, Any]:
    return {
        "exitCode": status.code,
        "signal": None if status.signal is None else signal_name(status.signal),
    }
