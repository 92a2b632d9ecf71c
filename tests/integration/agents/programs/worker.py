"""An agent on Tenure's library with a queue in PostgreSQL: a task is in hand until its row says ``released``.

Each start and finish of a task is written into a journal, which is what shows that none was cut or done twice.
A database that is down costs it time, never its life.
"""

import asyncio
import os
import signal
import sys
from typing import Any

import asyncpg

from tenure.agent import LivenessReporter, run

URL, NAME = os.environ["TENURE_DATABASE_URL"], os.environ["AGENT_NAME"]
INSTANCE = os.environ["TENURE_INSTANCE_ID"]
NO_ANSWER = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)

CLAIM = """
UPDATE tasks SET claimed_by = $2 WHERE id = (
    SELECT id FROM tasks WHERE agent = $1 AND claimed_by IS NULL ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1
) RETURNING id, kind
"""
NOTE = "INSERT INTO journal (task, instance, what) VALUES ($1, $2, $3)"


async def query(sql: str, *values: object) -> Any:
    connection = await asyncpg.connect(URL, timeout=2, command_timeout=2)
    try:
        return await connection.fetchrow(sql, *values)
    finally:
        connection.terminate()


async def claim() -> dict[str, Any] | None:
    try:
        found = await query(CLAIM, NAME, INSTANCE)
    except NO_ANSWER:
        return None
    return None if found is None else {"id": found["id"], "type": found["kind"]}


async def work(task: dict[str, Any]) -> None:
    await persist(NOTE, task["id"], INSTANCE, "start")
    released = False
    while not released:
        found = await persist("SELECT released FROM tasks WHERE id = $1", task["id"])
        released = found["released"]
        await asyncio.sleep(0.1)
    await persist(NOTE, task["id"], INSTANCE, "finish")


async def persist(sql: str, *values: object) -> Any:
    while True:
        try:
            return await query(sql, *values)
        except NO_ANSWER:
            await asyncio.sleep(0.2)


async def main() -> None:
    reporter = LivenessReporter.from_env()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, os._exit, 3)
    print("started", flush=True)
    await run(claim, work, reporter=reporter, poll_interval=0.3)
    # As PID 1 of a container, which it is not here: the kernel spares that one a SIGTERM that has no handler any more.
    # Not before run(): the stand-in of the kubelet takes a process that ignores it for one that has started.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


if __name__ == "__main__":
    asyncio.run(main())
    sys.exit(0)
