"""The operator as users run it: the console script in a process of its own."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp

from tests.bench import machine
from tests.bench.say import say
from tests.support.postgres import free_port
from tests.support.wait import eventually

TENURE = Path(sys.executable).with_name("tenure")
_KEPT = ("PATH", "HOME", "LANG")


class OperatorProcess:
    """``async with OperatorProcess(...)``: started at once, not waited for (``leading()`` does)."""

    def __init__(
        self,
        *,
        kubeconfig: Path,
        databases: Path,
        log: Path,
        namespaces: Sequence[str] = (),
        prefix: Sequence[str] = (),
    ) -> None:
        self.port = free_port("127.0.0.1")
        self.log = log
        self._environment = {
            **_plain_environment(),
            "KUBECONFIG": str(kubeconfig),
            "TENURE_DATABASES_DIR": str(databases),
            "TENURE_NAMESPACES": ",".join(namespaces),
            "TENURE_LEASE_NAMESPACE": "default",
            "TENURE_HTTP_PORT": str(self.port),
        }
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                TENURE,
                "operator",
                env=self._environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        say(f"operator started, pid {self._process.pid}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._process
        assert process is not None
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(15):
                    await process.wait()
                    return

    @property
    def pid(self) -> int:
        """The process's number; raises ``RuntimeError`` with its last words when it has ended."""
        assert self._process is not None
        if self._process.returncode is not None:
            raise RuntimeError(f"the operator ended: {self.last_words()}")
        return self._process.pid

    def last_words(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-2000:]

    async def leading(self, within: float = 60) -> None:
        """Return when it holds the Lease."""

        async def holds() -> bool:
            return self.pid > 0 and await self.metric("tenure_leader") == 1

        await eventually(holds, within=within, every=0.1, what=f"the operator leads; {self.last_words()}")

    async def metric(self, sample: str) -> float:
        """A number from its /metrics, ``name`` or ``name{label="value"}``; 0 while it does not answer."""
        url = f"http://127.0.0.1:{self.port}/metrics"
        text = ""
        with contextlib.suppress(aiohttp.ClientError, OSError):
            async with aiohttp.ClientSession(trust_env=False) as session, session.get(url) as response:
                text = await response.text()
        found = (line for line in text.splitlines() if line.startswith(f"{sample} "))
        return float(next(found, "0").rpartition(" ")[2])

    async def settled(self, seconds: float, *, calm: float = 0.25, within: float = 180) -> None:
        """Return when it has taken less than ``calm`` of a core for ``seconds``."""

        async def quiet() -> bool:
            before = machine.cpu_seconds(self.pid)
            await asyncio.sleep(seconds)
            return machine.cpu_seconds(self.pid) - before < calm * seconds

        await eventually(quiet, within=within, every=0.1, what="the operator comes to rest")


def _plain_environment() -> Mapping[str, str]:
    # No proxy variable, and nothing of the developer's own configuration.
    return {name: os.environ[name] for name in _KEPT if name in os.environ}
