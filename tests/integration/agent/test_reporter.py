"""The reporter on real databases."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import asyncpg
import pytest
from tests.support.postgres import PostgresServer
from tests.support.wait import eventually

from tenure.agent import LivenessReporter, ThreadedLivenessReporter, run, run_blocking
from tenure.agent.reporter import call_limit
from tenure.model.masked import Masked
from tenure.storage.liveness import AgentLivenessRecord, LivenessStorage, MigrationReport
from tenure.storage.postgres import PostgresLivenessStorage
from tenure.storage.sqlite import SqliteLivenessStorage


@pytest.fixture(params=["sqlite", "postgres"])
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LivenessStorage]:
    """Each storage in turn, empty."""
    made: LivenessStorage
    if request.param == "sqlite":
        made = SqliteLivenessStorage(tmp_path / "liveness.db")
    else:
        made = PostgresLivenessStorage(Masked(request.getfixturevalue("database_url")))
    yield made
    await made.aclose()


async def row_of(storage: LivenessStorage, reporter: LivenessReporter) -> AgentLivenessRecord:
    row = await storage.get_agent_liveness(reporter.instance_id)
    assert row is not None
    return row


async def test_it_makes_the_table_writes_the_first_row_and_goes_on_beating(storage: LivenessStorage) -> None:
    async with LivenessReporter(storage, "critic", 0.1) as reporter:
        first = await row_of(storage, reporter)
        assert first.alive(datetime.now(UTC))
        assert (first.process_kind, first.liveness_interval_s) == ("critic", 0.1)
        later = await eventually(lambda: _beat_after(storage, reporter, first), within=5)
        assert later
    assert (await row_of(storage, reporter)).started_at == first.started_at


async def _beat_after(
    storage: LivenessStorage, reporter: LivenessReporter, first: AgentLivenessRecord
) -> bool:
    return (await row_of(storage, reporter)).last_heartbeat_at > first.last_heartbeat_at


@pytest.mark.accept("L-4")
async def test_a_stop_in_the_table_sets_the_event_that_a_signal_sets(storage: LivenessStorage) -> None:
    stop = asyncio.Event()
    async with LivenessReporter(storage, "critic", 0.1, stop_event=stop) as reporter:
        await asyncio.sleep(0.3)
        assert not stop.is_set()
        assert await storage.request_agent_stop(reporter.instance_id)
        await asyncio.wait_for(stop.wait(), 5)


async def test_without_a_stop_event_it_only_beats(storage: LivenessStorage) -> None:
    async with LivenessReporter(storage, "critic", 0.1) as reporter:
        await storage.request_agent_stop(reporter.instance_id)
        marked = await row_of(storage, reporter)
        await eventually(lambda: _beat_after(storage, reporter, marked), within=5)
        assert reporter.stop_event is None


@pytest.mark.accept("L-8")
async def test_an_agent_that_drains_longer_than_three_intervals_stays_alive_and_marked(
    storage: LivenessStorage,
) -> None:
    stop = asyncio.Event()
    interval = 0.4
    async with LivenessReporter(storage, "critic", interval, stop_event=stop) as reporter:
        with reporter.task(17, "review"):
            await storage.request_agent_stop(reporter.instance_id)
            await asyncio.wait_for(stop.wait(), 5)
            seen = time.monotonic()
            await asyncio.sleep(
                max(0.0, seen + 5 * interval - time.monotonic())
            )  # the task goes on for so long
            await eventually(lambda: _alive(storage, reporter), within=10)
            row = await row_of(storage, reporter)
            assert row.stop_requested
            assert (row.current_task_id, row.current_task_type) == (17, "review")
            marked = await row_of(storage, reporter)
            await eventually(
                lambda: _beat_after(storage, reporter, marked), within=10, what="a beat while draining"
            )


async def _alive(storage: LivenessStorage, reporter: LivenessReporter) -> bool:
    return (await row_of(storage, reporter)).alive(datetime.now(UTC))


@pytest.mark.accept("L-5")
async def test_stopping_writes_a_last_row_without_task_at_the_epoch_and_beats_no_more(
    storage: LivenessStorage,
) -> None:
    reporter = LivenessReporter(storage, "critic", 0.05)
    await reporter.start()
    reporter.set_current_task(3, "review")
    await eventually(lambda: _has_task(storage, reporter, 3), within=5)
    await reporter.stop()
    await reporter.stop()
    ended = await row_of(storage, reporter)
    assert ended.ended_gracefully
    assert not ended.alive(datetime.now(UTC))
    assert (ended.current_task_id, ended.current_task_type) == (None, None)
    await asyncio.sleep(0.2)
    assert (await row_of(storage, reporter)) == ended


async def _has_task(storage: LivenessStorage, reporter: LivenessReporter, number: int) -> bool:
    return (await row_of(storage, reporter)).current_task_id == number


@pytest.mark.accept("L-5")
async def test_a_block_that_raises_is_a_crash_and_its_row_expires_by_itself(storage: LivenessStorage) -> None:
    reporter = LivenessReporter(storage, "critic", 30)
    with pytest.raises(ZeroDivisionError):
        async with reporter:
            raise ZeroDivisionError
    row = await row_of(storage, reporter)
    assert not row.ended_gracefully
    assert row.alive(datetime.now(UTC))


@pytest.mark.accept("L-4")
@pytest.mark.parametrize("graceful", [True, False], ids=["stopped", "crashed"])
async def test_no_session_is_left_open_while_the_process_lives_on(
    database_url: str, postgres_server: PostgresServer, graceful: bool
) -> None:
    reporter = LivenessReporter.from_env(environ={"TENURE_DATABASE_URL": database_url})
    await reporter.start()
    assert await postgres_server.sessions("tenure-agent", database_url) == 1
    await (reporter.stop() if graceful else reporter.abandon())
    await eventually(lambda: _no_session(postgres_server, database_url), within=10)


async def _no_session(server: PostgresServer, url: str) -> bool:
    return await server.sessions("tenure-agent", url) == 0


@pytest.mark.accept("L-7")
async def test_a_ticking_reporter_never_scans_the_table(
    database_url: str, postgres_server: PostgresServer
) -> None:
    """The server's own count of how the table was read, whatever the statements were."""
    name = database_url.rsplit("/", 1)[1]
    storage = PostgresLivenessStorage(Masked(database_url))
    await storage.migrate()
    await postgres_server.execute(
        "INSERT INTO cks_agent_liveness SELECT 'i' || n, 'critic', 'h', 1, 30, now(), now() "
        "FROM generate_series(1, 5000) n; ANALYZE cks_agent_liveness",
        database=name,
    )
    reporter = LivenessReporter(storage, "critic", 30, stop_event=asyncio.Event())
    await reporter.start()
    connection = await postgres_server.connect(name)
    try:
        before = await _reads(connection)
        for _ in range(10):
            await reporter._tick()
        await reporter.stop()
        await storage.aclose()  # a session hands its counts in when it ends
        await eventually(
            lambda: _read_more(connection, before, 10), within=10, what="the counts of ten ticks"
        )
        # Of 5,000 rows a scan reads 5,000; each write and each read of the own row finds one.
        scanned, by_index = (a - b for a, b in zip(await _reads(connection), before, strict=True))
        assert scanned == 0
        assert by_index <= 30, "one row a statement"
    finally:
        await connection.close()


async def _reads(connection: asyncpg.Connection) -> tuple[int, int]:
    """Rows read by scanning the table, and by its indexes, so far."""
    row = await connection.fetchrow(
        "SELECT seq_tup_read, idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'cks_agent_liveness'"
    )
    return int(row[0]), int(row[1])


async def _read_more(connection: asyncpg.Connection, before: tuple[int, int], rows: int) -> bool:
    return sum(await _reads(connection)) - sum(before) >= rows


@pytest.mark.accept("L-6")
async def test_it_starts_without_a_database_and_beats_within_two_intervals_of_its_return(
    own_postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="tenure")
    url = await own_postgres.fresh_database()
    own_postgres.stop()
    interval = 2.0
    storage = PostgresLivenessStorage(Masked(url), limit=call_limit(interval))
    async with LivenessReporter(storage, "critic", interval) as reporter:
        await asyncio.sleep(2.5 * interval)
        failures = [record for record in caplog.records if "no heartbeat this time" in record.getMessage()]
        assert len(failures) >= 2, "each tick tries and says so"
        own_postgres.start()
        await eventually(lambda: _row_exists(storage, reporter), within=2 * interval)
    assert own_postgres.password not in caplog.text
    assert not [record for record in caplog.records if record.exc_info], "a traceback was logged"
    await storage.aclose()


async def _row_exists(storage: LivenessStorage, reporter: LivenessReporter) -> bool:
    try:
        return await storage.get_agent_liveness(reporter.instance_id) is not None
    except Exception:
        return False


@pytest.mark.accept("L-6")
async def test_a_frozen_database_holds_up_neither_agent_nor_ticks_nor_the_end(
    own_postgres: PostgresServer,
) -> None:
    url = await own_postgres.fresh_database()
    interval = 2.0
    storage = PostgresLivenessStorage(Masked(url), limit=call_limit(interval))
    reader = PostgresLivenessStorage(Masked(url), limit=1)
    reporter = LivenessReporter(storage, "critic", interval)
    await reporter.start()
    before = await row_of(reader, reporter)
    own_postgres.freeze()
    await asyncio.sleep(2.3 * interval)
    own_postgres.thaw()
    await eventually(lambda: _beats_again(reader, reporter, before), within=2 * interval)
    own_postgres.freeze()
    began = time.monotonic()
    await reporter.stop()
    assert time.monotonic() - began < 8, "the end waited for a server that does not answer"
    own_postgres.thaw()
    await storage.aclose()
    await reader.aclose()


async def _beats_again(
    storage: LivenessStorage, reporter: LivenessReporter, before: AgentLivenessRecord
) -> bool:
    try:
        return await _beat_after(storage, reporter, before)
    except Exception:
        return False


class Refusing:
    """A storage whose every answer is an error with a password in it."""

    async def migrate(self) -> MigrationReport:
        raise RuntimeError("canary-s3cret")

    def __getattr__(self, name: str) -> object:
        async def refuse(*_: object, **__: object) -> None:
            raise RuntimeError("postgresql://user:canary-s3cret@host/")

        return refuse


@pytest.mark.accept("M-2", "L-6")
async def test_whatever_a_storage_raises_the_agent_goes_on_and_the_log_shows_no_words_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with LivenessReporter(Refusing(), "critic", 0.05):  # type: ignore[arg-type]
        await eventually(lambda: len(caplog.records) >= 3, within=5)
    assert "RuntimeError" in caplog.text
    assert "canary" not in caplog.text


@pytest.mark.accept("L-4")
async def test_run_claims_one_task_at_a_time_and_none_after_a_stop(storage: LivenessStorage) -> None:
    claimed: list[int] = []
    finished: list[int] = []
    reporter = LivenessReporter(storage, "critic", 0.1)

    async def claim() -> dict[str, object]:
        claimed.append(len(claimed) + 1)
        return {"id": claimed[-1], "type": "sum"}

    async def work(task: dict[str, object]) -> None:
        assert len(claimed) == len(finished) + 1, "two tasks at once"
        if task["id"] == 3:
            await eventually(lambda: _has_task(storage, reporter, 3), within=5)
            await storage.request_agent_stop(reporter.instance_id)
            await eventually(
                lambda: reporter.stop_event is not None and reporter.stop_event.is_set(), within=5
            )
            await asyncio.sleep(0.2)  # the rest of the task
        finished.append(int(str(task["id"])))

    await run(claim, work, reporter=reporter, poll_interval=0.1)

    assert claimed == finished == [1, 2, 3]
    assert (await row_of(storage, reporter)).ended_gracefully


async def test_run_waits_for_work_on_the_stop_event_not_by_sleeping() -> None:
    stop = asyncio.Event()
    reporter = LivenessReporter(None, "critic", stop_event=stop)
    asyncio.get_running_loop().call_later(0.2, stop.set)

    async def nothing() -> None:
        return None

    async def never(_: object) -> None:
        raise AssertionError

    await asyncio.wait_for(run(nothing, never, reporter=reporter, poll_interval=600), 5)


async def test_what_the_work_raises_ends_the_agent_and_its_row_is_no_graceful_one(
    storage: LivenessStorage,
) -> None:
    reporter = LivenessReporter(storage, "critic", 30)

    async def claim() -> int:
        return 1

    async def work(_: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await run(claim, work, reporter=reporter)
    assert not (await row_of(storage, reporter)).ended_gracefully


@pytest.mark.accept("L-8")
async def test_the_threaded_reporter_beats_while_a_task_blocks_the_loop(tmp_path: Path) -> None:
    path = tmp_path / "liveness.db"
    stop = asyncio.Event()
    reporter = ThreadedLivenessReporter(SqliteLivenessStorage(path), "critic", 0.2, stop_event=stop)
    reader = SqliteLivenessStorage(path)
    async with reporter:
        first = await reader.get_agent_liveness(reporter.instance_id)
        with reporter.task(5, "think"):
            time.sleep(1.5)  # the event loop stands still
            row = await reader.get_agent_liveness(reporter.instance_id)
        assert first is not None
        assert row is not None
        assert row.last_heartbeat_at > first.last_heartbeat_at
        assert row.current_task_id == 5
        await reader.request_agent_stop(reporter.instance_id)
        await asyncio.wait_for(stop.wait(), 5)
    ended = await reader.get_agent_liveness(reporter.instance_id)
    assert ended is not None
    assert ended.ended_gracefully


@pytest.mark.accept("L-4")
def test_a_blocking_agent_hears_the_table_and_ends_after_its_task(tmp_path: Path) -> None:
    path = tmp_path / "liveness.db"
    stop = threading.Event()
    reporter = ThreadedLivenessReporter(SqliteLivenessStorage(path), "critic", 0.1, stop_event=stop)
    finished: list[int] = []

    def claim() -> int:
        return len(finished) + 1

    def work(number: int) -> None:
        if number == 2:
            asyncio.run(SqliteLivenessStorage(path).request_agent_stop(reporter.instance_id))
            assert stop.wait(5)
        finished.append(number)

    run_blocking(claim, work, reporter=reporter, poll_interval=0.1)
    assert finished == [1, 2]
    row = asyncio.run(SqliteLivenessStorage(path).get_agent_liveness(reporter.instance_id))
    assert row is not None
    assert row.ended_gracefully
    assert not [thread for thread in threading.enumerate() if thread.name == "tenure-liveness"]


async def test_a_tick_costs_less_than_a_millisecond_of_cpu(database_url: str) -> None:
    storage = PostgresLivenessStorage(Masked(database_url))
    reporter = LivenessReporter(storage, "critic", 30, stop_event=asyncio.Event())
    await reporter.start()
    try:
        best = min([await _cpu_of_a_tick(reporter) for _ in range(10)])
    finally:
        await reporter.stop()
        await storage.aclose()
    assert best < 0.001


async def _cpu_of_a_tick(reporter: LivenessReporter, ticks: int = 20) -> float:
    before = time.process_time()
    for _ in range(ticks):
        await reporter._tick()
    return (time.process_time() - before) / ticks
