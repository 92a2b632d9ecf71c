"""Rows of sessions that are published at the same time: in few statements, and each for itself all the same."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from tests.integration.servers.recovery.stage import Stage
from tests.support.postgres import PostgresServer
from tests.support.records import INCARNATION, a_launch
from tests.support.wait import eventually

from tenure.model.masked import Masked
from tenure.operator.servers import batches as module
from tenure.operator.servers.batches import MOST, Batches
from tenure.storage.migrations import migrate_schema
from tenure.storage.pool import BoundedPool
from tenure.storage.records import DatabaseUnavailable, EntryRefused, Executor, Records


class CountingPool(BoundedPool):
    """A pool that counts transactions."""

    count = 0

    async def run(self, work: Callable[..., Awaitable[Any]]) -> Any:
        """One transaction."""
        self.count += 1
        return await super().run(work)


class Store:
    """Records with launched sessions."""

    def __init__(self, url: str, *, limit: float = 5.0) -> None:
        self.pool = CountingPool("store", Masked(url), limit=limit, size=4)
        self.records = Records.over(self.pool, "team")

    async def sessions(self, number: int) -> list[Executor]:
        """So many, each with its row."""
        return [await self.records.executions.launch(a_launch(f"s-{i}")) for i in range(number)]

    async def together(self, rows: Sequence[Executor], *, winner: str = "") -> list[bool | BaseException]:
        """Publish them all at once; how each ended."""
        batches = Batches(self.records)

        async def one(row: Executor) -> bool:
            with batches.coming():
                await asyncio.sleep(0)
            return await batches.retracked(row, winner or row.agent_execution_id)

        self.pool.count = 0
        return await asyncio.gather(*(one(row) for row in rows), return_exceptions=True)

    async def seen_again(self, rows: Sequence[Executor]) -> set[str]:
        """Sessions whose rows have been written since."""
        live = {row.session_id: row for row in await self.records.inventory.live()}
        return {row.session_id for row in rows if live[row.session_id].last_seen_at > row.last_seen_at}


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    """An empty one."""
    await migrate_schema(Masked(database_url))
    made = Store(database_url)
    try:
        yield made
    finally:
        await made.pool.aclose()


@asynccontextmanager
async def held(url: str, row: Executor) -> AsyncIterator[None]:
    """Somebody else writes this row meanwhile."""
    connection = await asyncpg.connect(url, timeout=10)
    try:
        async with connection.transaction():
            await connection.execute(
                "SELECT 1 FROM tenure.executors_running WHERE id = $1 FOR UPDATE", row.id
            )
            yield
    finally:
        await connection.close()


async def test_many_rows_are_written_in_few_statements(store: Store) -> None:
    rows = await store.sessions(3 * MOST)
    assert await store.together(rows) == [True] * len(rows)
    assert store.pool.count <= 6
    assert await store.seen_again(rows) == {row.session_id for row in rows}


async def test_a_row_that_comes_alone_waits_for_no_other(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 600.0)
    (row,) = await store.sessions(1)
    async with asyncio.timeout(10):
        assert await store.together([row]) == [True]


async def test_rows_wait_no_longer_than_a_moment_for_one_that_does_not_come(store: Store) -> None:
    batches = Batches(store.records)
    rows = await store.sessions(2)
    with batches.coming():
        async with asyncio.timeout(10):
            found = await asyncio.gather(*(batches.retracked(row, row.agent_execution_id) for row in rows))
    assert found == [True, True]


async def test_a_row_that_is_not_as_it_was_judged_is_not_published_and_the_others_are(store: Store) -> None:
    ended, flagged, *rest = rows = await store.sessions(5)
    await store.records.executions.ended(ended.session_id, ended.agent_execution_id)
    await store.records.inventory.flag_unstopped(flagged.session_id, flagged.agent_execution_id, INCARNATION)
    assert await store.together(rows) == [False, False, True, True, True]
    assert await store.seen_again(rest) == {row.session_id for row in rest}


async def test_the_flag_of_a_former_incarnation_goes(store: Store) -> None:
    flagged, _ = await store.sessions(2)
    await store.records.inventory.flag_unstopped(
        flagged.session_id, flagged.agent_execution_id, "incarnation-0"
    )
    assert await store.together(await store.records.inventory.live()) == [True, True]
    assert [row.unstopped_by for row in await store.records.inventory.live()] == [None, None]


async def test_a_row_that_is_refused_spoils_no_other(store: Store) -> None:
    batches = Batches(store.records)
    rows = await store.sessions(3)
    winners = ["winner-0", "no\0text", "winner-2"]
    with batches.coming():
        found = await asyncio.gather(*map(batches.retracked, rows, winners), return_exceptions=True)
    assert found[0] is found[2] is True
    assert isinstance(found[1], EntryRefused)
    assert {row.agent_execution_id for row in await store.records.inventory.live()} == {
        "winner-0",
        rows[1].agent_execution_id,
        "winner-2",
    }


async def test_a_row_that_somebody_else_holds_delays_no_other(store: Store, database_url: str) -> None:
    first, *rest = rows = await store.sessions(4)
    async with held(database_url, first):
        publishing = asyncio.create_task(store.together(rows))

        async def others() -> bool:
            return await store.seen_again(rest) == {row.session_id for row in rest}

        await eventually(others, within=4.0, what="the other rows")
        assert not publishing.done()
    assert await publishing == [True] * 4


async def test_when_the_one_that_writes_for_all_is_cancelled_the_others_are_written(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 600.0)
    batches = Batches(store.records)
    rows = await store.sessions(3)
    with batches.coming():
        tasks = [asyncio.create_task(batches.retracked(row, row.agent_execution_id)) for row in rows]
        await asyncio.sleep(0)
        tasks[0].cancel()
        async with asyncio.timeout(10):
            found = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert found[1:] == [True, True]


async def test_a_store_that_is_silent_is_waited_for_once(own_postgres: PostgresServer) -> None:
    url = await own_postgres.fresh_database("silent")
    await migrate_schema(Masked(url))
    store = Store(url, limit=3.0)
    try:
        rows = await store.sessions(3)
        own_postgres.freeze()
        began = time.monotonic()
        found = await store.together(rows)
        # Twice would be six seconds at least.
        assert time.monotonic() - began < 5.5
        assert [type(error) for error in found] == [DatabaseUnavailable] * 3
    finally:
        own_postgres.thaw()
        await store.pool.aclose()


async def test_a_recovery_writes_the_rows_of_its_sessions_together(
    stage: Stage, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long this machine needs for the reads of one of them.
    monkeypatch.setattr(module, "PATIENCE", 600.0)
    for number in range(12):
        await stage.session(f"s-{number}")
    pool = CountingPool("store", Masked(database_url))
    try:
        operator = await stage.recovered(records=Records.over(pool, "team"))
    finally:
        await pool.aclose()
    assert len(operator.tracked) == 12
    # One for each row would be 12; others read, and reconcile.
    assert pool.count < 16, pool.count
