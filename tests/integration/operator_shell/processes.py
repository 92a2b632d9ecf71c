"""Operators as processes: started, listened to, killed."""

import asyncio
import json
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from tests.cluster.control_plane import ControlPlane
from tests.support.wait import eventually

_CONTENDER = Path(__file__).with_name("contender.py")


@dataclass
class Contender:
    """One operator process and what it said."""

    name: str
    process: asyncio.subprocess.Process
    said: list[dict[str, Any]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    readers: list[asyncio.Task[None]] = field(default_factory=list)

    def times(self, what: str) -> list[float]:
        """When it said that, on the system's monotonic clock."""
        return [line["at"] for line in self.said if line["what"] == what]

    async def says(self, what: str, within: float) -> float:
        """When it first said that."""

        def heard() -> list[float]:
            if self._has_said_all() and not self.times(what):
                raise RuntimeError(f"{self.name} ended: {self.log[-5:]}")
            return self.times(what)

        return (await eventually(heard, within=within, what=f"{self.name} says {what}: {self.log[-3:]}"))[0]

    def _has_said_all(self) -> bool:
        """Whether it has ended and its last words are read, which may come after its exit code."""
        return self.process.returncode is not None and all(reader.done() for reader in self.readers)

    async def port(self) -> int:
        """Where it serves its pages."""
        await self.says("serving", within=30)
        return int(next(line["port"] for line in self.said if line["what"] == "serving"))

    async def page(self, path: str) -> tuple[int, str]:
        """Status and text of one of its pages."""
        url = f"http://127.0.0.1:{await self.port()}{path}"
        timeout = aiohttp.ClientTimeout(total=5)
        async with (
            aiohttp.ClientSession(trust_env=False, timeout=timeout) as session,
            session.get(url) as got,
        ):
            return got.status, await got.text()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this process and to no other."""
        if self.process.returncode is None:
            self.process.send_signal(number)

    async def exit_code(self, within: float) -> int:
        """Wait for its end, and for the last that it said."""
        async with asyncio.timeout(within):
            code = await self.process.wait()
            await asyncio.wait(self.readers)
        return code


class Fleet:
    """Starts contenders, and ends all of them."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._all: list[Contender] = []

    async def start(self, name: str, namespace: str, *, seconds: int, **environ: str) -> Contender:
        """Start an operator whose Lease is in ``namespace``; ``environ`` is added to its environment."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("TENURE_", "POD_"))}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(_CONTENDER),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=kept
            | {
                "KUBECONFIG": str(self._plane.kubeconfig),
                "POD_NAME": name,
                "TENURE_LEASE_NAMESPACE": namespace,
                "TENURE_LEASE_SECONDS": str(seconds),
                "TENURE_HTTP_PORT": "0",
                **environ,
            },
        )
        contender = Contender(name, process)
        contender.readers = [
            asyncio.create_task(_hear(process.stdout, lambda line: contender.said.append(json.loads(line)))),
            asyncio.create_task(_hear(process.stderr, contender.log.append)),
        ]
        self._all.append(contender)
        return contender

    async def end(self) -> None:
        """Kill what still runs, and wait for all."""
        for contender in self._all:
            # A frozen one has to go on to be killed on every system.
            contender.signal(signal.SIGKILL)
            await contender.exit_code(within=10)
            await asyncio.gather(*contender.readers)


async def _hear(stream: asyncio.StreamReader | None, take: Any) -> None:
    assert stream is not None
    async for line in stream:
        take(line.decode(errors="replace"))
