"""P-9: what the agent library costs the agent that embeds it."""

import asyncio
import json
import os
import subprocess
import sys

from tests.bench.machine import in_ms, median
from tests.bench.report import Figure
from tests.support.postgres import running_postgres

_IMPORT = """
import sys, time
began, cpu = time.perf_counter(), time.process_time()
import {module}
print(time.perf_counter() - began, time.process_time() - cpu)
"""

# A process of its own: its CPU is the reporter's, the event loop's and the driver's, and nothing else's.
_TICKS = """
import asyncio, json, os, socket, time
import asyncpg
from tenure.agent import LivenessReporter
from tenure.model.masked import Masked
from tenure.storage import statements
from tenure.storage.postgres import PostgresLivenessStorage

class Counting(PostgresLivenessStorage):
    ticks = 0
    async def upsert_agent_liveness(self, record, **options):
        Counting.ticks += 1
        return await super().upsert_agent_liveness(record, **options)

async def ours():
    storage = Counting(Masked(os.environ["URL"]), limit=5)
    async with LivenessReporter(storage, "bench", {interval}, stop_event=asyncio.Event()):
        await asyncio.sleep(0.5)
        ticks, cpu = Counting.ticks, time.process_time()
        await asyncio.sleep({seconds})
        ticks, cpu = Counting.ticks - ticks, time.process_time() - cpu
    await storage.aclose()
    return ticks, cpu

async def floor():
    connection = await asyncpg.connect(os.environ["URL"])
    write = statements.upsert(*["timestamp with time zone"] * 2)
    row = ["floor", "bench", socket.gethostname(), os.getpid(), {interval}, None, None, None, None]
    ticks, began, until = 0, time.process_time(), time.monotonic() + {seconds}
    while time.monotonic() < until:
        await connection.execute(write, *row)
        await connection.fetchval(statements.GET, "floor")
        ticks += 1
        await asyncio.sleep({interval})
    cpu = time.process_time() - began
    await connection.close()
    return ticks, cpu

async def main():
    print(json.dumps([*await ours(), *await floor()]))

asyncio.run(main())
"""


async def library(scale: float) -> list[Figure]:
    """Importing, and one tick."""
    rounds = max(5, round(25 * scale))
    return [_import(rounds), await _tick(seconds=max(3.0, 15.0 * scale))]


def _import(rounds: int) -> Figure:
    ours, floor = [], []
    for _ in range(rounds):
        floor.append(_timed("asyncio"))
        ours.append(_timed("tenure.agent"))
    (wall, cpu), (floor_wall, floor_cpu) = _medians(ours), _medians(floor)
    return Figure(
        id="P-9",
        what=f"import tenure.agent in a fresh process, median of {rounds}",
        measured=f"{in_ms(wall)} ({in_ms(cpu)} of CPU)",
        floor=f"import asyncio: {in_ms(floor_wall)} ({in_ms(floor_cpu)} of CPU)",
        ratio=wall / floor_wall,
        target="< 100 ms",
        met=wall < 0.1,
        detail={"seconds_and_cpu": ours, "floor_seconds_and_cpu": floor},
    )


def _medians(taken: list[tuple[float, float]]) -> tuple[float, float]:
    return median([wall for wall, _ in taken]), median([cpu for _, cpu in taken])


def _timed(module: str) -> tuple[float, float]:
    code = _IMPORT.format(module=module)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    wall, cpu = done.stdout.split()
    return float(wall), float(cpu)


async def _tick(seconds: float) -> Figure:
    with running_postgres() as server:
        url = await server.fresh_database("bench")
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            _TICKS.format(interval=0.02, seconds=seconds),
            env={**os.environ, "URL": url},
            stdout=asyncio.subprocess.PIPE,
        )
        output, _ = await process.communicate()
    ticks, cpu, floor_ticks, floor_cpu = json.loads(output)
    each, floor = cpu / ticks, floor_cpu / floor_ticks
    return Figure(
        id="P-9",
        what=f"CPU of one tick of the reporter (PostgreSQL: write the row, read it back), mean of {ticks}",
        measured=in_ms(each),
        floor=f"the two statements, bare: {in_ms(floor)}",
        ratio=each / floor,
        target="< 1 ms",
        met=each < 0.001,
        detail={"ticks": ticks, "cpu_seconds": cpu, "floor_cpu_seconds_each": floor},
    )
