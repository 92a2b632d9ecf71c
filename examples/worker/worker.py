"""An agent that works through a queue, and ends after the task in hand when it is asked to.

    python worker.py seed 30     add tasks
    python worker.py run         work until asked to stop
    python worker.py report      what became of the tasks, as JSON

See README.md for the environment.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import signal
import sys

import asyncpg
from task_queue import LeaseLost, Queue, Task

from tenure.agent import LivenessReporter, run

log = logging.getLogger("worker")


def number(name: str, default: float) -> float:
    """A number from the environment."""
    return float(os.environ.get(name) or default)


def task_seconds() -> tuple[float, float]:
    """TASK_SECONDS: ``2`` or ``1-3``."""
    shortest, _, longest = (os.environ.get("TASK_SECONDS") or "1-3").partition("-")
    return float(shortest), float(longest or shortest)


def queue_for(worker: str) -> Queue:
    """The queue lives in WORKER_DATABASE_URL, or else in the database of the heartbeats."""
    url = os.environ.get("WORKER_DATABASE_URL") or os.environ.get("TENURE_DATABASE_URL")
    if not url:
        sys.exit("worker: set WORKER_DATABASE_URL or TENURE_DATABASE_URL to postgresql://...")
    return Queue(url, worker, lease=number("LEASE_SECONDS", 15))


async def patiently(action, *arguments):  # type: ignore[no-untyped-def]
    """Do it as soon as the database is there: no outage costs a task, or this process."""
    while True:
        try:
            return await action(*arguments)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            log.warning("the queue does not answer (%s), trying again", type(error).__name__)
            await asyncio.sleep(0.5)


async def compute(task: Task) -> str:
    """The work itself: time passes, and a result comes out that anybody can check."""
    await asyncio.sleep(task.seconds)
    return hashlib.sha256(str(task.id).encode()).hexdigest()


def misbehave(when: str) -> None:
    """Switches for tests: WORKER_CRASH_ON and WORKER_HANG_ON name a moment, ``claim`` or ``finish``."""
    if os.environ.get("WORKER_CRASH_ON") == when:
        log.warning("crashing on %s, as told", when)
        os._exit(3)
    if os.environ.get("WORKER_KILL_ON") == when:
        os.kill(os.getpid(), signal.SIGKILL)
    if os.environ.get("WORKER_HANG_ON") == when:
        log.warning("hanging on %s, as told", when)
        import time

        while True:  # blocks the loop, and with it the heartbeat
            time.sleep(60)


class Stubborn(asyncio.Event):
    """With WORKER_IGNORE_STOP=1: a stop is asked for, and nothing happens."""

    def is_set(self) -> bool:
        return False

    async def wait(self):  # type: ignore[no-untyped-def]
        await asyncio.Event().wait()


async def work_until_stopped() -> None:
    stop = Stubborn() if os.environ.get("WORKER_IGNORE_STOP") == "1" else asyncio.Event()
    reporter = LivenessReporter.from_env(stop_event=stop, process_kind="worker")
    queue = queue_for(reporter.instance_id)

    async def claim() -> Task | None:
        with contextlib.suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return await queue.claim()
        return None

    async def work(task: Task) -> None:
        log.info("task %d: started, %.1f s", task.id, task.seconds)
        misbehave("claim")
        async with queue.renewing(task):
            result = await compute(task)
            misbehave("finish")
            try:
                await patiently(queue.finish, task, result)
                log.info("task %d: finished", task.id)
            except LeaseLost:
                log.warning("task %d: another worker has it now, the result is dropped", task.id)

    async with queue:
        await patiently(queue.create)
        await run(claim, work, reporter=reporter, poll_interval=number("POLL_SECONDS", 1))
    log.info("ended")


async def seed(count: int) -> None:
    async with queue_for("seed") as queue:
        await patiently(queue.create)
        await queue.seed(count, *task_seconds())


async def report() -> None:
    async with queue_for("report") as queue:
        await queue.create()
        print(json.dumps(await queue.report(), indent=2))


def main() -> None:
    logging.basicConfig(level="INFO", format="%(asctime)s %(name)s %(message)s", stream=sys.stdout)
    match sys.argv[1:]:
        case ["run"]:
            asyncio.run(work_until_stopped())
        case ["seed", count] if count.isdigit():
            asyncio.run(seed(int(count)))
        case ["report"]:
            asyncio.run(report())
        case _:
            sys.exit("usage: worker.py run | seed COUNT | report")


if __name__ == "__main__":
    main()
