"""An agent on the unmodified reporter of ``cks-mcp`` and the unmodified storage of ``cks-runtime``.

Run by the interpreter of ``tests.support.cks.cks_python()``: nothing of Tenure is imported. It makes its own instance
id. Its loop is the one of that family of agents: work, look at the event, wait on the event.

Environment: CKS_DATABASE_URL (else TENURE_DATABASE_URL), CKS_INTERVAL, CKS_KIND (else what Tenure gives every agent),
CKS_TASK_SECONDS (the task that it holds when a stop arrives; default 0.5).
"""

import asyncio
import os
import signal
import sys
from types import SimpleNamespace

import psycopg_pool
from cks_mcp.agents.agent_loop import LivenessReporter
from cks_runtime.storage import postgres_storage


async def main() -> None:
    environ = os.environ
    url = environ.get("CKS_DATABASE_URL") or environ["TENURE_DATABASE_URL"]
    interval = float(environ.get("CKS_INTERVAL") or environ.get("TENURE_LIVENESS_INTERVAL") or 30)
    kind = environ.get("CKS_KIND") or environ.get("TENURE_PROCESS_KIND") or "critic"
    if "--make-tables" in sys.argv:  # all of that package's tables, by its own DDL
        storage = await postgres_storage.PostgresStorage.connect(url)
        await storage.close()
        return
    if "--make-old-table" in sys.argv:  # as that package made it before there was a desired_state
        await execute(url, postgres_storage._DDL_AGENT_LIVENESS, postgres_storage._DDL_AGENT_LIVENESS_INDEX)
        return
    pool = psycopg_pool.AsyncConnectionPool(url, min_size=1, max_size=2, open=False)
    await pool.open()
    await work_until_stopped(SimpleNamespace(storage=postgres_storage.PostgresStorage(pool)), kind, interval)
    await pool.close()


async def execute(url: str, *statements: str) -> None:
    async with (
        psycopg_pool.AsyncConnectionPool(url, min_size=1, open=False) as pool,
        pool.connection() as connection,
    ):
        for statement in statements:
            await connection.execute(statement)


async def work_until_stopped(runtime: SimpleNamespace, kind: str, interval: float) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    reporter = LivenessReporter(runtime, kind, interval, stop_event=stop)
    await reporter.start()
    print("ready", flush=True)
    try:
        task = 0
        while not stop.is_set():
            task += 1
            reporter.set_current_task(task, "think")
            await asyncio.sleep(float(os.environ.get("CKS_TASK_SECONDS") or 0.5))
            print(f"finished {task}", flush=True)
            reporter.clear_current_task()
    finally:
        await reporter.stop()
    print("ended", flush=True)


asyncio.run(main())
