"""The table watch on a real PostgreSQL: notified, polling, frozen, gone and back."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.liveness import a_record
from tests.support.postgres import PostgresServer, database_url, own_postgres, postgres_server
from tests.support.wait import eventually

from tenure.model.masked import Masked
from tenure.operator.cache import ObjectKey
from tenure.operator.tables import TableWatch
from tenure.plan.observation import Rows, Unreadable
from tenure.storage.database import Database
from tenure.storage.postgres import PostgresLivenessStorage
from tenure.storage.snapshot import RowLookup

__all__ = ["database_url", "own_postgres", "postgres_server"]

CRITIC = ObjectKey("agents", "critic")
LOOKUP = RowLookup(instance_ids=("one",), hostname="", process_kind="critic")


class Running:
    """A table watch that runs, and the storage of the agent whose rows it reads."""

    def __init__(self, storage: PostgresLivenessStorage, watch: TableWatch, woken: list[ObjectKey]) -> None:
        self.storage = storage
        self.watch = watch
        self.woken = woken

    def stop_requested(self) -> bool:
        reading = self.watch.reading(CRITIC)
        return isinstance(reading, Rows) and any(row.stop_requested for row in reading.rows)

    def readable(self) -> bool:
        return isinstance(self.watch.reading(CRITIC), Rows)

    def unreadable(self) -> bool:
        return isinstance(self.watch.reading(CRITIC), Unreadable)


@asynccontextmanager
async def running(
    url: str, *, migrated: bool = True, poll_seconds: float = 60.0, limit: float = 5.0
) -> AsyncIterator[Running]:
    storage = PostgresLivenessStorage(Masked(url), application="tenure-test")
    if migrated:
        await storage.migrate()
    database = Database("default", Masked(url), limit=limit)
    woken: list[ObjectKey] = []
    watch = TableWatch(database, wake=woken.append, poll_seconds=poll_seconds)
    task = asyncio.create_task(watch.run())
    try:
        yield Running(storage, watch, woken)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await database.aclose()
        await storage.aclose()


async def test_a_stop_asked_for_in_the_table_is_read_within_a_second_of_its_notification(
    database_url: str, postgres_server: PostgresServer
) -> None:
    """Polling is out of the question here: once a minute."""
    async with running(database_url) as agent:
        await agent.storage.upsert_agent_liveness(a_record())
        agent.watch.track(CRITIC, LOOKUP)
        await eventually(agent.readable, within=5)
        await eventually(lambda: postgres_server.sessions("tenure-operator-listen"), within=5)
        agent.woken.clear()
        assert await agent.storage.request_agent_stop("one")
        await eventually(agent.stop_requested, within=1, every=0.01)
        assert agent.woken == [CRITIC]


async def test_without_the_trigger_polling_finds_it(
    database_url: str, postgres_server: PostgresServer
) -> None:
    async with running(database_url, poll_seconds=0.5) as agent:
        await postgres_server.execute(
            "DROP TRIGGER tenure_stop_notify ON cks_agent_liveness", database=database_url.rsplit("/", 1)[1]
        )
        await agent.storage.upsert_agent_liveness(a_record())
        agent.watch.track(CRITIC, LOOKUP)
        await eventually(agent.readable, within=5)
        assert await agent.storage.request_agent_stop("one")
        await eventually(agent.stop_requested, within=10)


async def test_a_table_that_is_not_there_yet_is_unreadable_until_it_is(database_url: str) -> None:
    async with running(database_url, migrated=False, poll_seconds=0.3) as agent:
        agent.watch.track(CRITIC, LOOKUP)
        await eventually(agent.unreadable, within=5)
        reading = agent.watch.reading(CRITIC)
        assert isinstance(reading, Unreadable)
        assert "tenure migrate" in reading.reason
        await agent.storage.migrate()
        await eventually(agent.readable, within=5)


async def test_a_database_that_goes_and_returns_makes_the_reading_unreadable_and_readable_again(
    own_postgres: PostgresServer,
) -> None:
    url = await own_postgres.fresh_database()
    async with running(url, poll_seconds=0.5) as agent:
        await agent.storage.upsert_agent_liveness(a_record())
        agent.watch.track(CRITIC, LOOKUP)
        await eventually(agent.readable, within=5)
        agent.woken.clear()
        await asyncio.to_thread(own_postgres.stop)
        await eventually(agent.unreadable, within=8)
        assert agent.woken == [CRITIC]
        await asyncio.to_thread(own_postgres.start)
        await eventually(agent.readable, within=10)
        assert agent.woken == [CRITIC, CRITIC]


async def test_a_frozen_server_is_unreadable_within_its_time_limit_and_another_database_is_not(
    own_postgres: PostgresServer, database_url: str
) -> None:
    url = await own_postgres.fresh_database()
    async with (
        running(url, poll_seconds=0.5, limit=1.0) as frozen,
        running(database_url, poll_seconds=0.5) as other,
    ):
        for agent in (frozen, other):
            await agent.storage.upsert_agent_liveness(a_record())
            agent.watch.track(CRITIC, LOOKUP)
            await eventually(agent.readable, within=5)
        own_postgres.freeze()
        try:
            began = time.monotonic()
            await eventually(frozen.unreadable, within=8)
            assert time.monotonic() - began < 5
            assert other.readable()
            assert await other.storage.request_agent_stop("one")
            await eventually(other.stop_requested, within=10)
        finally:
            own_postgres.thaw()
        await eventually(frozen.readable, within=10)
