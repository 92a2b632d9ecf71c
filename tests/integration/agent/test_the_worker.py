"""The example worker as a real process on a real queue: what its journal says after stops, crashes and outages."""

import asyncio
import contextlib
import json
import signal
from datetime import timedelta

import pytest
from tests.integration.agent.processes import a_worker, worker_command
from tests.support.postgres import PostgresServer
from tests.support.wait import eventually

from tenure.model.masked import Masked
from tenure.storage.database import Database
from tenure.storage.liveness import AgentLivenessRecord
from tenure.storage.postgres import PostgresLivenessStorage
from tenure.storage.snapshot import RowLookup


async def report(url: str) -> dict[str, int]:
    found: dict[str, int] = json.loads(await worker_command(url, "report"))
    return found


@contextlib.asynccontextmanager
async def table(url: str):  # type: ignore[no-untyped-def]
    storage = PostgresLivenessStorage(Masked(url), application="tenure-test")
    yield storage
    await storage.aclose()


async def only_row(storage: PostgresLivenessStorage) -> AgentLivenessRecord:
    (row,) = await storage.list_agent_liveness()
    return row


@pytest.mark.accept("L-4")
@pytest.mark.parametrize("way", ["SIGTERM", "SIGINT", "table"])
async def test_however_a_stop_is_asked_for_the_task_in_hand_is_finished_and_no_other_begun(
    database_url: str, postgres_server: PostgresServer, way: str
) -> None:
    await worker_command(database_url, "seed", "3", TASK_SECONDS="2")
    async with a_worker(database_url, TENURE_INSTANCE_ID="w1") as worker, table(database_url) as storage:
        await worker.said("task 1: started")
        if way == "table":
            assert await storage.request_agent_stop("w1")
        else:
            worker.send(signal.Signals[way])
        assert await worker.ended(within=10) == 0
        row = await only_row(storage)
    assert worker.says("task 1: finished")
    assert not worker.says("task 2: started")
    assert row.ended_gracefully
    assert (row.current_task_id, row.current_task_type) == (None, None)
    assert row.desired_state == ("stop_requested" if way == "table" else None)
    await eventually(lambda: _no_session(postgres_server, database_url), within=10)
    found = await report(database_url)
    assert found["finished"] == 1
    assert found["waiting"] == 2
    assert found["cut"] == found["lost"] == found["done_twice"] == 0


async def _no_session(server: PostgresServer, url: str) -> bool:
    return sum([await server.sessions(name, url) for name in ("tenure-agent", "tenure-worker")]) == 0


async def test_while_it_works_the_row_names_the_task(database_url: str) -> None:
    await worker_command(database_url, "seed", "1", TASK_SECONDS="3")
    async with a_worker(database_url, TENURE_INSTANCE_ID="w1", TENURE_PROCESS_KIND="summer") as worker:
        await worker.said("task 1: started")
        async with table(database_url) as storage:
            await eventually(lambda: _names_task(storage, 1), within=10)
            row = await only_row(storage)
            assert (row.instance_id, row.process_kind) == ("w1", "summer")
            assert row.liveness_interval_s == 0.5
            await eventually(lambda: _names_task(storage, None), within=5)
        worker.send(signal.SIGTERM)
        assert await worker.ended() == 0


async def _names_task(storage: PostgresLivenessStorage, number: int | None) -> bool:
    return (await only_row(storage)).current_task_id == number


async def test_two_workers_share_a_queue_and_do_no_task_twice(database_url: str) -> None:
    await worker_command(database_url, "seed", "20", TASK_SECONDS="0.05-0.2")
    async with a_worker(database_url) as one, a_worker(database_url) as two:
        await eventually(lambda: _done(database_url, 20), within=40, every=1)
        for worker in (one, two):
            worker.send(signal.SIGTERM)
            assert await worker.ended() == 0
    found = await report(database_url)
    assert found == {
        "seeded": 20, "finished": 20, "waiting": 0, "in_work": 0, "cut": 0, "lost": 0, "done_twice": 0, "workers": 2,
    }  # fmt: skip


async def _done(url: str, count: int) -> bool:
    return (await report(url))["finished"] >= count


@pytest.mark.accept("L-5")
@pytest.mark.parametrize("moment", ["claim", "finish"])
async def test_a_worker_killed_with_a_task_leaves_no_graceful_row_and_the_task_returns(
    database_url: str, moment: str
) -> None:
    await worker_command(database_url, "seed", "1", TASK_SECONDS="0.1")
    async with a_worker(database_url, TENURE_INSTANCE_ID="w1", WORKER_KILL_ON=moment) as doomed:
        assert await doomed.ended() == -signal.SIGKILL
    async with table(database_url) as storage:
        row = await only_row(storage)
        assert not row.ended_gracefully
    assert (await report(database_url))["finished"] == 0
    async with a_worker(database_url) as next_one:
        await next_one.said("task 1: finished")
        next_one.send(signal.SIGTERM)
        assert await next_one.ended() == 0
    found = await report(database_url)
    assert (found["finished"], found["cut"], found["lost"], found["done_twice"]) == (1, 1, 0, 0)


@pytest.mark.accept("L-5")
async def test_a_killed_worker_reads_as_alive_until_three_of_its_intervals_have_passed(
    database_url: str,
) -> None:
    await worker_command(database_url, "seed", "1", TASK_SECONDS="0.1")
    options = {"TENURE_INSTANCE_ID": "w1", "TENURE_LIVENESS_INTERVAL": "2"}
    async with a_worker(database_url, WORKER_KILL_ON="claim", **options) as doomed:
        assert await doomed.ended() == -signal.SIGKILL
    database = Database("default", Masked(database_url))
    lookup = RowLookup(("w1",), "", "")
    try:
        found = await database.snapshot([lookup])
        (row,) = found.rows
        assert row.alive(found.now), "nothing but time tells a kill"
        while row.alive(found.now):
            await asyncio.sleep(0.1)
            found = await database.snapshot([lookup])
            assert found.rows == (row,), "nobody writes it any more"
            assert found.now - row.last_heartbeat_at < timedelta(seconds=6 + 5)
        assert found.now - row.last_heartbeat_at > timedelta(seconds=6), "three intervals"
    finally:
        await database.aclose()


async def test_a_worker_that_crashes_exits_badly_and_leaves_no_graceful_row(database_url: str) -> None:
    await worker_command(database_url, "seed", "1", TASK_SECONDS="0.1")
    async with a_worker(database_url, WORKER_CRASH_ON="finish") as worker:
        assert await worker.ended() == 3
    async with table(database_url) as storage:
        assert not (await only_row(storage)).ended_gracefully


async def test_a_stubborn_worker_ignores_every_stop_until_it_is_killed(database_url: str) -> None:
    await worker_command(database_url, "seed", "1", TASK_SECONDS="0.1")
    async with a_worker(database_url, WORKER_IGNORE_STOP="1", TENURE_INSTANCE_ID="w1") as worker:
        await worker.said("task 1: finished")
        worker.send(signal.SIGTERM)
        async with table(database_url) as storage:
            await storage.request_agent_stop("w1")
        with pytest.raises(AssertionError, match="still running"):
            await worker.ended(within=2)
        worker.send(signal.SIGKILL)
        assert await worker.ended() == -signal.SIGKILL


@pytest.mark.accept("L-6")
async def test_an_outage_in_the_middle_of_a_task_costs_neither_task_nor_agent(
    own_postgres: PostgresServer,
) -> None:
    url = await own_postgres.fresh_database()
    await worker_command(url, "seed", "2", TASK_SECONDS="2")
    async with a_worker(url, TENURE_INSTANCE_ID="w1", LEASE_SECONDS="30") as worker:
        await worker.said("task 1: started")
        own_postgres.stop()
        await worker.said("no heartbeat this time")
        await asyncio.sleep(1.5)  # the task is over meanwhile, and cannot be handed in
        own_postgres.start()
        await worker.said("task 1: finished", within=10)
        async with table(url) as storage:
            await storage.request_agent_stop("w1")
            assert await worker.ended(within=10) == 0
            assert (await only_row(storage)).ended_gracefully
    found = await report(url)
    assert found["cut"] == found["lost"] == found["done_twice"] == 0
    assert not worker.says(own_postgres.password)
