"""A queue in PostgreSQL with leases, and a journal of every start and end."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import asyncpg

SCHEMA = Path(__file__).with_name("schema.sql")

# A task whose lease ran out belonged to a worker that died: it is as free as one that waits.
CLAIM = """
UPDATE worker_queue SET state = 'claimed', claimed_by = $1, claim = claim + 1,
                        lease_until = clock_timestamp() + make_interval(secs => $2)
 WHERE id = (SELECT id FROM worker_queue
              WHERE state = 'waiting' OR (state = 'claimed' AND lease_until < clock_timestamp())
              ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id, type, seconds, claim
"""
RENEW = """
UPDATE worker_queue SET lease_until = clock_timestamp() + make_interval(secs => $3)
 WHERE id = $1 AND claim = $2 AND state = 'claimed'
RETURNING 1
"""
FINISH = """
UPDATE worker_queue SET state = 'done', result = $3 WHERE id = $1 AND claim = $2 AND state = 'claimed' RETURNING 1
"""
# True when an earlier try got through and only its answer was lost.
FINISHED = "SELECT true FROM worker_journal WHERE task_id = $1 AND claim = $2 AND event = 'finished'"
NOTE = """
INSERT INTO worker_journal (task_id, claim, instance_id, event) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING
"""
SEED = """
INSERT INTO worker_queue (seconds)
SELECT $2::float8 + random() * ($3::float8 - $2::float8) FROM generate_series(1, $1::int)
"""
REPORT = """
WITH per_claim AS (
    SELECT task_id, claim, bool_or(event = 'finished') AS finished, bool_or(event = 'lost') AS lost
      FROM worker_journal GROUP BY task_id, claim
), per_task AS (
    SELECT task_id, count(*) FILTER (WHERE event = 'finished') AS ends FROM worker_journal GROUP BY task_id
)
SELECT json_build_object(
    'seeded',     (SELECT count(*) FROM worker_queue),
    'waiting',    (SELECT count(*) FROM worker_queue WHERE state = 'waiting'),
    'in_work',    (SELECT count(*) FROM worker_queue WHERE state = 'claimed' AND lease_until >= clock_timestamp()),
    'finished',   (SELECT count(*) FROM worker_queue WHERE state = 'done'),
    'lost',       (SELECT count(*) FROM worker_queue q WHERE q.state = 'done' AND NOT EXISTS
                      (SELECT FROM worker_journal j WHERE j.task_id = q.id AND j.event = 'finished')),
    'cut',        (SELECT count(*) FROM per_claim p JOIN worker_queue q ON q.id = p.task_id
                    WHERE NOT p.finished AND NOT p.lost
                      AND (q.claim > p.claim OR q.state = 'done' OR q.lease_until < clock_timestamp())),
    'done_twice', (SELECT count(*) FROM per_task WHERE ends > 1),
    'workers',    (SELECT count(DISTINCT instance_id) FROM worker_journal)
)::text
"""


@dataclass(frozen=True, slots=True)
class Task:
    """A claimed task. ``claim`` says which claim of it this is; ``seconds`` is how long the work takes."""

    id: int
    type: str
    seconds: float
    claim: int


class LeaseLost(Exception):
    """Another worker has this task now: whatever we computed must not be handed in."""


class Queue:
    """``lease`` is in seconds; the lease is renewed three times within it."""

    def __init__(self, url: str, worker: str, *, lease: float) -> None:
        self._url = url
        self._worker = worker
        self._lease = lease
        self._pool: asyncpg.Pool | None = None

    async def __aenter__(self) -> "Queue":
        self._pool = await asyncpg.create_pool(
            self._url,
            min_size=0,
            max_size=3,
            command_timeout=10,
            server_settings={"application_name": "tenure-worker"},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._pool is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._pool.close(), 5)
            self._pool.terminate()

    @property
    def pool(self) -> asyncpg.Pool:
        assert self._pool is not None, "use the queue as an async context manager"
        return self._pool

    async def create(self) -> None:
        """Make the tables, if they are not there. Safe when several workers do it at once."""
        async with self.pool.acquire() as connection, connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(4711)")
            await connection.execute(SCHEMA.read_text(encoding="utf-8"))

    async def seed(self, count: int, shortest: float, longest: float) -> None:
        """Add tasks that take between ``shortest`` and ``longest`` seconds."""
        await self.pool.execute(SEED, count, shortest, longest)

    async def report(self) -> dict[str, int]:
        """What became of the tasks; see the README for the words."""
        found: dict[str, int] = json.loads(await self.pool.fetchval(REPORT))
        return found

    async def claim(self) -> Task | None:
        """One task, or None. The claim and its line in the journal are one transaction."""
        async with self.pool.acquire() as connection, connection.transaction():
            row = await connection.fetchrow(CLAIM, self._worker, self._lease)
            if row is None:
                return None
            task = Task(**row)
            await connection.execute(NOTE, task.id, task.claim, self._worker, "started")
            return task

    async def finish(self, task: Task, result: str) -> None:
        """Hand in the result, unless the lease is gone. May be repeated. Raises ``LeaseLost``."""
        async with self.pool.acquire() as connection, connection.transaction():
            done = await connection.fetchval(FINISH, task.id, task.claim, result)
            event = "finished" if done or await connection.fetchval(FINISHED, task.id, task.claim) else "lost"
            await connection.execute(NOTE, task.id, task.claim, self._worker, event)
        if event == "lost":
            raise LeaseLost

    @contextlib.asynccontextmanager
    async def renewing(self, task: Task) -> AsyncIterator[None]:
        """Keep the lease of this task while the block runs. A database that is away is asked again."""
        renewal = asyncio.create_task(self._renew(task))
        try:
            yield
        finally:
            renewal.cancel()
            await asyncio.gather(renewal, return_exceptions=True)

    async def _renew(self, task: Task) -> None:
        while True:
            await asyncio.sleep(self._lease / 3)
            with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                if await self.pool.fetchval(RENEW, task.id, task.claim, self._lease) is None:
                    return
