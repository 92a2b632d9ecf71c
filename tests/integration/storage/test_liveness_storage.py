"""One suite for every storage of the liveness table."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from tests.support.liveness import STARTED, a_record

from tenure.storage.errors import DatabaseUnavailable
from tenure.storage.liveness import EPOCH, HeartbeatClock

if TYPE_CHECKING:
    from tests.integration.storage.conftest import Bench

INSERT_OLD = """
INSERT INTO cks_agent_liveness VALUES
    ('old', 'critic', 'pod-1', 1, 30, '2026-01-01T00:00:00+00:00', '2026-01-01T00:01:00+00:00', 3, 'review')
"""


@pytest.mark.accept("L-1")
async def test_an_old_table_gets_the_column_once_without_default_and_its_rows_ask_for_no_stop(
    bench: "Bench",
) -> None:
    if bench.time_type != "TEXT" or bench.kind == "sqlite":
        await bench.make_old_table()
    await bench.execute(INSERT_OLD)

    first = await bench.storage.migrate()
    again = await bench.storage.migrate()

    assert "added the column desired_state" in first.changed
    assert again.changed == ()
    columns = await _column(bench, "desired_state")
    assert columns == [("desired_state", True, None)]
    assert await bench.fetch("SELECT desired_state FROM cks_agent_liveness") == [(None,)]
    old = await bench.storage.get_agent_liveness("old")
    assert old is not None
    assert not old.stop_requested
    assert (old.current_task_id, old.current_task_type) == (3, "review")
    assert old.last_heartbeat_at == datetime(2026, 1, 1, 0, 1, tzinfo=UTC)


async def _column(bench: "Bench", name: str) -> list[tuple[str, bool, object]]:
    """(name, nullable, default) of the columns with this name."""
    if bench.kind == "sqlite":
        rows = await bench.fetch("PRAGMA table_info(cks_agent_liveness)")
        return [(str(row[1]), row[3] == 0, row[4]) for row in rows if row[1] == name]
    rows = await bench.fetch(
        "SELECT column_name, is_nullable, column_default FROM information_schema.columns "
        f"WHERE table_name = 'cks_agent_liveness' AND column_name = '{name}'"
    )
    return [(str(row[0]), row[1] == "YES", row[2]) for row in rows]


@pytest.mark.accept("L-1")
@pytest.mark.parametrize("old", [True, False], ids=["old table", "no table"])
async def test_many_migrations_at_once_all_succeed_and_one_makes_the_change(
    bench: "Bench", old: bool
) -> None:
    if old and (bench.kind == "sqlite" or bench.time_type != "TEXT"):
        await bench.make_old_table()
    storages = [bench.another() for _ in range(8)]
    try:
        reports = await asyncio.gather(*(storage.migrate() for storage in storages))
    finally:
        await asyncio.gather(*(storage.aclose() for storage in storages))
    assert len(reports) == 8
    changes = [sentence for report in reports for sentence in report.changed]
    assert len(changes) == len(set(changes)), "the same change was made twice"
    assert len(changes) >= 1
    assert len(await _column(bench, "desired_state")) == 1


@pytest.mark.accept("L-2")
async def test_a_stop_of_a_known_row_is_true_and_touches_nothing_else(bench: "Bench") -> None:
    await bench.storage.migrate()
    await bench.storage.upsert_agent_liveness(a_record("one"))
    await bench.storage.upsert_agent_liveness(a_record("two"))
    before = await bench.storage.get_agent_liveness("one")
    assert before is not None

    assert await bench.storage.request_agent_stop("one") is True
    assert await bench.storage.request_agent_stop("one") is True

    assert await bench.storage.get_agent_liveness("one") == replace(before, desired_state="stop_requested")
    two = await bench.storage.get_agent_liveness("two")
    assert two is not None
    assert not two.stop_requested


@pytest.mark.accept("L-2")
async def test_a_stop_of_an_unknown_row_is_false_and_makes_none(bench: "Bench") -> None:
    await bench.storage.migrate()
    assert await bench.storage.request_agent_stop("nobody") is False
    assert await bench.storage.list_agent_liveness() == []


@pytest.mark.accept("L-3")
@pytest.mark.parametrize("clock", list(HeartbeatClock))
async def test_no_heartbeat_changes_the_desired_state(bench: "Bench", clock: HeartbeatClock) -> None:
    await bench.storage.migrate()
    await bench.storage.upsert_agent_liveness(a_record("one"))
    await bench.storage.request_agent_stop("one")

    await bench.storage.upsert_agent_liveness(
        a_record("one", current_task_id=4, current_task_type="x", desired_state="running"), clock=clock
    )

    row = await bench.storage.get_agent_liveness("one")
    assert row is not None
    assert row.desired_state == "stop_requested"
    assert (row.current_task_id, row.current_task_type) == (4, "x")


async def test_a_new_row_never_takes_a_desired_state_from_its_process(bench: "Bench") -> None:
    await bench.storage.migrate()
    await bench.storage.upsert_agent_liveness(a_record("one", desired_state="stop_requested"))
    row = await bench.storage.get_agent_liveness("one")
    assert row is not None
    assert row.desired_state is None


async def test_an_update_changes_heartbeat_and_task_and_nothing_else(bench: "Bench") -> None:
    await bench.storage.migrate()
    first = a_record("one", current_task_id=1, current_task_type="review")
    await bench.storage.upsert_agent_liveness(first)
    later = first.last_heartbeat_at + timedelta(seconds=30)
    await bench.storage.upsert_agent_liveness(
        a_record(
            "one",
            process_kind="other",
            hostname="elsewhere",
            pid=99,
            liveness_interval_s=1.0,
            started_at=later,
            last_heartbeat_at=later,
        )
    )
    row = await bench.storage.get_agent_liveness("one")
    assert row == replace(first, last_heartbeat_at=later, current_task_id=None, current_task_type=None)


async def test_the_databases_clock_dates_the_heartbeat_and_a_new_rows_start(bench: "Bench") -> None:
    await bench.storage.migrate()
    before = datetime.now(UTC) - timedelta(seconds=1)
    await bench.storage.upsert_agent_liveness(a_record("one"), clock=HeartbeatClock.DATABASE)
    first = await bench.storage.get_agent_liveness("one")
    await bench.storage.upsert_agent_liveness(a_record("one"), clock=HeartbeatClock.DATABASE)
    second = await bench.storage.get_agent_liveness("one")
    after = datetime.now(UTC) + timedelta(seconds=1)
    assert first is not None
    assert second is not None
    assert before <= first.started_at <= first.last_heartbeat_at <= second.last_heartbeat_at <= after
    assert second.started_at == first.started_at


@pytest.mark.accept("L-5")
async def test_a_last_row_at_the_epoch_is_dead_at_once(bench: "Bench") -> None:
    await bench.storage.migrate()
    await bench.storage.upsert_agent_liveness(a_record("one"), clock=HeartbeatClock.DATABASE)
    alive = await bench.storage.get_agent_liveness("one")
    await bench.storage.upsert_agent_liveness(a_record("one"), clock=HeartbeatClock.EPOCH)
    ended = await bench.storage.get_agent_liveness("one")
    assert alive is not None
    assert ended is not None
    assert alive.alive(datetime.now(UTC))
    assert ended.last_heartbeat_at == EPOCH
    assert ended.ended_gracefully
    assert not ended.alive(datetime.now(UTC))


async def test_rows_come_newest_start_first_whatever_their_offsets(bench: "Bench") -> None:
    await bench.storage.migrate()
    for number, hours in enumerate([0, 5, 2, 9]):
        await bench.storage.upsert_agent_liveness(
            a_record(f"i{number}", started_at=STARTED + timedelta(hours=hours))
        )
    if bench.time_type == "TEXT":
        # 23:30-05:00 is 04:30 UTC of the next day: the newest, though its text sorts first.
        await bench.execute(
            "UPDATE cks_agent_liveness SET started_at = '2026-03-01T23:30:00-05:00' WHERE instance_id = 'i0'"
        )
        expected = ["i0", "i3", "i1", "i2"]
    else:
        expected = ["i3", "i1", "i2", "i0"]
    assert [row.instance_id for row in await bench.storage.list_agent_liveness()] == expected


async def test_an_unknown_desired_state_asks_for_no_stop(bench: "Bench") -> None:
    await bench.storage.migrate()
    await bench.storage.upsert_agent_liveness(a_record("one"))
    for value in ("running", "STOP_REQUESTED", "pause", ""):
        await bench.execute(f"UPDATE cks_agent_liveness SET desired_state = '{value}'")
        row = await bench.storage.get_agent_liveness("one")
        assert row is not None
        assert not row.stop_requested, value


async def test_a_time_without_an_offset_is_utc(bench: "Bench") -> None:
    if bench.time_type == "TIMESTAMPTZ":  # what the server then reads is its own time zone's, here UTC
        assert await bench.fetch("SELECT current_setting('timezone')") == [("UTC",)]
    await bench.storage.migrate()
    await bench.storage.upsert_agent_liveness(a_record("one"))
    await bench.execute("UPDATE cks_agent_liveness SET last_heartbeat_at = '2026-05-05 05:05:05'")
    row = await bench.storage.get_agent_liveness("one")
    assert row is not None
    assert row.last_heartbeat_at == datetime(2026, 5, 5, 5, 5, 5, tzinfo=UTC)


async def test_a_row_that_nobody_can_read_does_not_hide_the_others(bench: "Bench") -> None:
    await bench.storage.migrate()
    await bench.storage.upsert_agent_liveness(a_record("good"))
    await bench.storage.upsert_agent_liveness(a_record("bad"))
    value = "yesterday" if bench.time_type == "TEXT" else "infinity"
    await bench.execute(f"UPDATE cks_agent_liveness SET started_at = '{value}' WHERE instance_id = 'bad'")
    assert [row.instance_id for row in await bench.storage.list_agent_liveness()] == ["good"]
    assert await bench.storage.get_agent_liveness("bad") is None


@pytest.mark.accept("L-7")
async def test_reading_the_own_row_is_one_indexed_lookup(bench: "Bench") -> None:
    from tenure.storage import sqlite, statements

    await bench.storage.migrate()
    if bench.kind == "sqlite":
        plan = await bench.fetch("EXPLAIN QUERY PLAN " + sqlite.GET.replace("?", "'one'"))
        text = " ".join(str(row[-1]) for row in plan)
        assert "USING INDEX sqlite_autoindex_cks_agent_liveness_1 (instance_id=?)" in text
        assert "SCAN" not in text
    else:
        await bench.execute(
            "INSERT INTO cks_agent_liveness SELECT 'i' || n, 'critic', 'h', 1, 30, now(), now() "
            "FROM generate_series(1, 20000) n"
        )
        await bench.execute("ANALYZE cks_agent_liveness")
        plan = await bench.fetch("EXPLAIN " + statements.GET.replace("$1", "'i77'"))
        text = "\n".join(str(row[0]) for row in plan)
        assert "Index Scan using cks_agent_liveness_pkey" in text
        assert "Seq Scan" not in text
        assert text.count("Scan") == 1


async def test_a_missing_table_is_named_and_the_remedy_too(bench: "Bench") -> None:
    if bench.kind != "sqlite" and bench.time_type == "TEXT":
        await bench.execute("DROP TABLE cks_agent_liveness")
    with pytest.raises(DatabaseUnavailable, match="table is missing"):
        await bench.storage.get_agent_liveness("one")
    with pytest.raises(DatabaseUnavailable, match="table is missing"):
        await bench.storage.upsert_agent_liveness(a_record("one"))


async def test_values_that_a_column_cannot_hold_do_not_cost_the_heartbeat(bench: "Bench") -> None:
    await bench.storage.migrate()
    odd = a_record("one", current_task_id=2**40, current_task_type="nul\0 and \ud800")
    await bench.storage.upsert_agent_liveness(odd, clock=HeartbeatClock.DATABASE)
    row = await bench.storage.get_agent_liveness("one")
    assert row is not None
    assert row.current_task_id == (2**40 if bench.kind == "sqlite" else None)
