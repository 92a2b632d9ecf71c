"""P-10: what a control server takes to pass its agents' events on, and whether it still answers its owner."""

import asyncio
import json
import ssl
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tenure.model.masked import Masked
from tenure.ownership.client import ControlClient
from tenure.ownership.endpoint import Endpoint
from tenure.protocol.messages import CreateRequest
from tests.bench.machine import in_ms, precise_cpu_seconds, quantile
from tests.bench.report import Figure
from tests.support.agents import scripted, scripted_command
from tests.support.control import ROOT, RunningServer, running_server, self_signed

INSTANCES = 50
PER_SECOND = 20
TEXT = 200
CLAIM_EVERY = 0.1
NAME = "relay.tenure.invalid"


async def continuity(scale: float) -> list[Figure]:
    """The same agents with the same prompts, behind a relay and behind a control server."""
    instances = max(2, round(INSTANCES * scale))
    frames = PER_SECOND * max(3, round(20 * scale))
    script = "\n".join(f"say #{number:06} {'x' * TEXT}\nsleep {1 / PER_SECOND}" for number in range(frames))
    floor = await _relayed(instances, frames, script)
    ours, claims = await _hosted(instances, frames, script)
    lost = instances * frames - sum(ours["seen"])
    ratio, p99 = ours["cpu"] / floor["cpu"], quantile(claims, 0.99)
    what = f"{instances} instances at {PER_SECOND} events/s, TLS, read and acknowledged"
    return [
        Figure(
            id="P-10",
            what=f"{what}: CPU of the server",
            target="at most 2",
            measured=f"{ours['cpu'] / ours['seconds']:.0%} of a core",
            floor=f"{floor['cpu'] / floor['seconds']:.0%} (a relay)",
            ratio=ratio,
            met=ratio <= 2,
            detail={"ours": ours, "floor": floor},
        ),
        Figure(
            id="P-10",
            what=f"{what}: events lost or out of order",
            target="none",
            measured=f"{lost} lost, {ours['wrong']} out of order, of {instances * frames:,}",
            met=lost == 0 and ours["wrong"] == 0,
        ),
        Figure(
            id="P-10",
            what=f"the same, a claim meanwhile, p99 of {len(claims)}",
            target="under 50 ms",
            measured=in_ms(p99),
            met=p99 < 0.05,
            detail={"median": quantile(claims, 0.5), "max": max(claims)},
        ),
    ]


async def _relayed(instances: int, frames: int, script: str) -> dict[str, Any]:
    pipe = asyncio.subprocess.PIPE
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = Path(folder) / "tls.crt", Path(folder) / "tls.key"
        for file, text in zip((certificate, key), self_signed(NAME), strict=True):
            file.write_text(text)
        relay = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.bench.relay", str(certificate), str(key), str(instances), *scripted(),
            cwd=ROOT, stdin=pipe, stdout=pipe,
        )  # fmt: skip
        assert relay.stdin is not None
        assert relay.stdout is not None
        try:
            base = f"https://127.0.0.1:{int(await relay.stdout.readline())}"
            streams = [
                {"url": f"{base}/{number}", "headers": {}, "send": [script]} for number in range(instances)
            ]
            orders = {"streams": streams, "frames": frames, "acknowledge": False,
                      "certificate": str(certificate), "server_name": NAME}  # fmt: skip
            trusted = ssl.create_default_context(cafile=certificate)
            async with aiohttp.ClientSession(trust_env=False) as session:

                async def claim() -> None:
                    async with session.post(f"{base}/claim", ssl=trusted, server_hostname=NAME) as answer:
                        await answer.read()

                async with _repeated(claim):
                    return await _read(relay.pid, orders)
        finally:
            relay.stdin.close()
            await relay.wait()


async def _hosted(instances: int, frames: int, script: str) -> tuple[dict[str, Any], list[float]]:
    async with running_server(tls=True) as server, _owner(server) as (client, credential):
        streams = []
        for number in range(instances):
            answer = await client.create(
                CreateRequest(
                    id=f"bench-{number}",
                    workspace_path=str(server.workspace(f"w{number}")),
                    agent_command=scripted_command(),
                    session_id=f"session-{number}",
                    auto_start=True,
                )
            )
            streams.append(
                {
                    "url": f"{server.url}/api/v1/instances/{answer.id}/agent/stream?ack=1",
                    "headers": {"Authorization": f"Bearer {credential.reveal()}"},
                    "send": [_request(1, "agent.initialize"), _request(2, "agent.session.new"),
                             _request(3, "agent.prompt", {"text": script, "turn_key": "bench"})],
                }
            )  # fmt: skip
        certificate = server.directory / "tls.crt"
        orders = {"streams": streams, "frames": frames, "acknowledge": True,
                  "certificate": str(certificate), "server_name": server.server_name}  # fmt: skip
        async with _repeated(client.claim) as claims:
            return await _read(server.pid, orders), claims


@asynccontextmanager
async def _owner(server: RunningServer) -> AsyncIterator[tuple[ControlClient, Masked]]:
    endpoint = Endpoint(server.url, server.server_name, server.certificate)
    client = ControlClient(
        endpoint, credential=None, home_dir=server.home_dir, expected_identity=server.identity
    )
    async with client:
        yield client, await client.handshake(server.nonce)


@asynccontextmanager
async def _repeated(claim: Callable[[], Awaitable[None]]) -> AsyncIterator[list[float]]:
    """Claim all the while; the seconds that each took."""
    took: list[float] = []

    async def repeat() -> None:
        while True:
            began = time.perf_counter()
            await claim()
            took.append(time.perf_counter() - began)
            await asyncio.sleep(CLAIM_EVERY)

    task = asyncio.create_task(repeat())
    try:
        yield took
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _request(number: int, action: str, payload: dict[str, Any] | None = None) -> str:
    return json.dumps({"id": str(number), "type": "request", "action": action, "payload": payload or {}})


async def _read(pid: int, orders: dict[str, Any]) -> dict[str, Any]:
    """Read all streams in another process; what it saw, and what the process ``pid`` took of the CPU for it."""
    before = precise_cpu_seconds(pid)
    reader = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.reader",
        cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2**24,
    )  # fmt: skip
    out, _ = await reader.communicate(json.dumps(orders).encode() + b"\n")
    assert reader.returncode == 0, f"the reader ended with {reader.returncode}"
    return {**json.loads(out), "cpu": precise_cpu_seconds(pid) - before}
