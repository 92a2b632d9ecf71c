"""Agents as real processes."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.wait import eventually

ROOT = Path(__file__).parents[3]
WORKER = ROOT / "examples" / "worker" / "worker.py"


@dataclass
class Agent:
    """A running process and what it has printed so far."""

    process: asyncio.subprocess.Process
    lines: list[str] = field(default_factory=list)
    _reader: asyncio.Task[None] | None = None

    def says(self, text: str) -> bool:
        return any(text in line for line in self.lines)

    async def said(self, text: str, *, within: float = 20) -> None:
        await eventually(lambda: self.says(text), within=within, what=f"{text!r} in {self.lines}")

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def ended(self, *, within: float = 20) -> int:
        """The exit code, once all that it printed is in ``lines``; fails when the process still runs."""
        try:
            code = await asyncio.wait_for(asyncio.shield(self.process.wait()), within)
        except TimeoutError:
            raise AssertionError(f"still running after {within} s: {self.lines}") from None
        # Its last words may come after its exit code.
        assert self._reader is not None
        await asyncio.wait([self._reader], timeout=within)
        return code


@contextlib.asynccontextmanager
async def started(*command: str | Path, **environ: str) -> AsyncIterator[Agent]:
    """A process with an environment of its own; killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(
        *map(str, command),
        env={
            "PATH": os.environ["PATH"],
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": str(ROOT / "operator"),
            **environ,
        },
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    agent = Agent(process)
    agent._reader = reader = asyncio.create_task(_read(agent))
    try:
        yield agent
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await reader


async def _read(agent: Agent) -> None:
    assert agent.process.stdout is not None
    async for line in agent.process.stdout:
        agent.lines.append(line.decode(errors="replace").rstrip())


@contextlib.asynccontextmanager
async def a_worker(url: str, **environ: str) -> AsyncIterator[Agent]:
    """The example worker, with short times."""
    defaults = {
        "TENURE_DATABASE_URL": url,
        "TENURE_LIVENESS_INTERVAL": "0.5",
        "POLL_SECONDS": "0.2",
        "LEASE_SECONDS": "2",
    }
    async with started(sys.executable, WORKER, "run", **(defaults | environ)) as agent:
        yield agent


async def worker_command(url: str, *arguments: str, **environ: str) -> str:
    """Output of ``worker.py seed`` or ``report``."""
    async with started(sys.executable, WORKER, *arguments, TENURE_DATABASE_URL=url, **environ) as agent:
        assert await agent.ended() == 0, agent.lines
        await asyncio.sleep(0)
    return "\n".join(agent.lines)
