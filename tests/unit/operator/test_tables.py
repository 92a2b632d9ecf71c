"""The watch over a database that is a double: what is read when, and who is woken by what.

The real database is in ``tests/integration/watching``.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.support.wait import eventually

from tenure.model.liveness import EPOCH, STOP_REQUESTED, AgentLivenessRecord
from tenure.operator.cache import ObjectKey
from tenure.operator.tables import TableWatch
from tenure.plan.observation import Rows, Unreadable
from tenure.storage.errors import DatabaseUnavailable
from tenure.storage.snapshot import LivenessSnapshot, RowLookup

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
CRITIC = ObjectKey("agents", "critic")
PLANNER = ObjectKey("agents", "planner")


def a_row(instance_id: str = "uid-1", **changes: Any) -> AgentLivenessRecord:
    row = AgentLivenessRecord(
        instance_id=instance_id,
        process_kind="critic",
        hostname="critic-1",
        pid=1,
        liveness_interval_s=30.0,
        started_at=NOW - timedelta(hours=1),
        last_heartbeat_at=NOW - timedelta(seconds=5),
    )
    return replace(row, **changes)


def by_id(*instance_ids: str) -> RowLookup:
    return RowLookup(instance_ids=instance_ids, hostname="", process_kind="critic")


def by_name(uid: str, hostname: str = "critic-1") -> RowLookup:
    return RowLookup(instance_ids=(uid,), hostname=hostname, process_kind="critic")


class DatabaseDouble:
    """Rows, or a failure, handed out as the real database would."""

    name = "default"

    def __init__(self, *rows: AgentLivenessRecord) -> None:
        self.rows = list(rows)
        self.unreadable: tuple[str, ...] = ()
        self.now = NOW
        self.error: Exception | None = None
        self.reads: list[list[RowLookup]] = []
        self.announce: Callable[[str | None], None] = lambda instance_id: None

    async def snapshot(self, lookups: Sequence[RowLookup]) -> LivenessSnapshot:
        self.reads.append(list(lookups))
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return LivenessSnapshot(self.now, tuple(self.rows), self.unreadable)

    def listener(self, on_change: Callable[[str | None], None]) -> "DatabaseDouble":
        self.announce = on_change
        return self

    def run(self) -> Coroutine[Any, Any, None]:
        return self._listen()

    async def _listen(self) -> None:
        await asyncio.Event().wait()


class Measured:
    """What was measured."""

    def __init__(self) -> None:
        self.count = 0
        self.ages: list[float] = []

    def database_failed(self) -> None:
        self.count += 1

    def heartbeat_age(self, seconds: float) -> None:
        self.ages.append(seconds)


class Bench:
    def __init__(self, *rows: AgentLivenessRecord, poll_seconds: float = 60.0) -> None:
        self.database = DatabaseDouble(*rows)
        self.woken: list[ObjectKey] = []
        self.failures = Measured()
        self.watch = TableWatch(
            self.database, wake=self.woken.append, poll_seconds=poll_seconds, metrics=self.failures
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Bench"]:
        task = asyncio.create_task(self.watch.run())
        try:
            await asyncio.sleep(0)
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def rows(self, key: ObjectKey = CRITIC) -> tuple[AgentLivenessRecord, ...]:
        reading = self.watch.reading(key)
        assert isinstance(reading, Rows), reading
        return reading.rows

    async def read_again(self) -> None:
        """Have everything read once more."""
        before = len(self.database.reads)
        self.database.announce(None)
        await eventually(lambda: len(self.database.reads) > before, within=10, every=0.005)
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def tracked(bench: Bench, lookup: RowLookup, key: ObjectKey = CRITIC) -> None:
    bench.watch.track(key, lookup)
    await eventually(lambda: bench.watch.reading(key), within=10, every=0.005)
    bench.woken.clear()


class TestTracking:
    async def test_the_age_of_every_heartbeat_that_is_read_is_measured_but_not_that_of_a_goodbye(
        self,
    ) -> None:
        ended = a_row(instance_id="uid-2", last_heartbeat_at=EPOCH)
        async with Bench(a_row(), ended).running() as bench:
            await tracked(bench, by_id("uid-1"))
            await tracked(bench, by_id("uid-2"), ObjectKey("agents", "writer"))
            assert bench.failures.ages
            assert max(bench.failures.ages) < 3600

    async def test_an_agent_is_read_at_once_when_it_is_tracked_and_woken_by_the_first_reading(self) -> None:
        async with Bench(a_row()).running() as bench:
            assert bench.watch.reading(CRITIC) is None
            bench.watch.track(CRITIC, by_id("uid-1"))
            assert bench.watch.reading(CRITIC) is None
            await eventually(lambda: bench.watch.reading(CRITIC), within=10, every=0.005)
            assert bench.woken == [CRITIC]
            assert bench.rows() == (a_row(),)

    async def test_a_thousand_new_agents_are_one_or_two_reads(self) -> None:
        async with Bench().running() as bench:
            for number in range(1000):
                bench.watch.track(ObjectKey("agents", f"a{number}"), by_id(f"uid-{number}"))
            await eventually(lambda: len(bench.woken) == 1000, within=10, every=0.005)
            assert len(bench.database.reads) <= 2

    async def test_without_agents_nothing_is_read(self) -> None:
        async with Bench(poll_seconds=0.01).running() as bench:
            await asyncio.sleep(0.2)
            assert bench.database.reads == []

    async def test_the_same_lookup_again_changes_nothing(self) -> None:
        async with Bench(a_row()).running() as bench:
            await tracked(bench, by_id("uid-1"))
            bench.watch.track(CRITIC, by_id("uid-1"))
            assert bench.rows()
            assert not bench.watch._hurry

    async def test_another_pod_begins_without_a_reading(self) -> None:
        async with Bench(a_row()).running() as bench:
            await tracked(bench, by_id("uid-1"))
            bench.watch.track(CRITIC, by_id("uid-2"))
            assert bench.watch.reading(CRITIC) is None

    async def test_the_same_pod_in_other_words_keeps_its_reading(self) -> None:
        async with Bench(a_row("own-id")).running() as bench:
            await tracked(bench, by_name("uid-1"))
            bench.watch.track(CRITIC, by_id("uid-1", "own-id"))
            assert bench.rows() == (a_row("own-id"),)

    async def test_an_agent_that_is_no_longer_tracked_has_no_reading_and_is_not_read(self) -> None:
        async with Bench(a_row()).running() as bench:
            await tracked(bench, by_id("uid-1"))
            await tracked(bench, by_id("uid-2"), PLANNER)
            bench.watch.untrack(CRITIC)
            bench.watch.untrack(CRITIC)
            assert bench.watch.reading(CRITIC) is None
            await bench.read_again()
            assert bench.database.reads[-1] == [by_id("uid-2")]
            assert not bench.watch._by_id.get("uid-1")


class TestRowsOfAgents:
    async def test_rows_are_found_by_id_and_by_kind_and_host_name(self) -> None:
        other_kind = a_row("x", process_kind="planner")
        other_host = a_row("y", hostname="critic-2")
        async with Bench(a_row("own-id"), a_row("uid-1"), other_kind, other_host).running() as bench:
            await tracked(bench, by_name("uid-1"))
            assert {row.instance_id for row in bench.rows()} == {"uid-1", "own-id"}

    async def test_one_that_looks_by_id_only_is_not_given_rows_of_its_host(self) -> None:
        async with Bench(a_row("own-id")).running() as bench:
            await tracked(bench, by_id("uid-1"))
            assert bench.rows() == ()

    async def test_a_row_that_nobody_can_read_makes_its_agent_unreadable_and_no_other(self) -> None:
        bench = Bench(a_row("uid-2"))
        bench.database.unreadable = ("uid-1",)
        async with bench.running():
            await tracked(bench, by_id("uid-1"))
            await tracked(bench, by_id("uid-2"), PLANNER)
            reading = bench.watch.reading(CRITIC)
            assert isinstance(reading, Unreadable)
            assert bench.rows(PLANNER)
            await bench.read_again()
            assert bench.watch.reading(CRITIC) is reading, "since the first time"
            assert bench.woken == []


CHANGES = [
    pytest.param({"desired_state": STOP_REQUESTED}, id="a stop was requested"),
    pytest.param({"current_task_id": 7}, id="a task was taken"),
    pytest.param({"current_task_type": "review"}, id="its type"),
    pytest.param({"last_heartbeat_at": EPOCH}, id="the agent wrote its end"),
    pytest.param({"last_heartbeat_at": NOW - timedelta(seconds=91)}, id="the heartbeat expired"),
]


class TestWaking:
    @pytest.mark.parametrize("change", CHANGES)
    async def test_what_matters_wakes_the_agent(self, change: dict[str, Any]) -> None:
        async with Bench(a_row(), a_row("uid-2")).running() as bench:
            await tracked(bench, by_id("uid-1"))
            await tracked(bench, by_id("uid-2"), PLANNER)
            bench.database.rows[0] = a_row(**change)
            await bench.read_again()
            assert bench.woken == [CRITIC]
            bench.database.rows[0] = a_row()
            await bench.read_again()
            assert bench.woken == [CRITIC, CRITIC], "and so does its opposite"

    async def test_a_row_that_appears_wakes_the_agent(self) -> None:
        async with Bench().running() as bench:
            await tracked(bench, by_name("uid-1"))
            bench.database.rows.append(a_row("own-id"))
            await bench.read_again()
            assert bench.woken == [CRITIC]

    async def test_a_heartbeat_wakes_nobody_but_is_in_the_reading(self) -> None:
        async with Bench(a_row()).running() as bench:
            await tracked(bench, by_id("uid-1"))
            bench.database.now = NOW + timedelta(seconds=30)
            bench.database.rows[0] = a_row(last_heartbeat_at=NOW + timedelta(seconds=29))
            await bench.read_again()
            assert bench.woken == []
            reading = bench.watch.reading(CRITIC)
            assert isinstance(reading, Rows)
            assert reading.now == NOW + timedelta(seconds=30)
            assert reading.rows[0].last_heartbeat_at == NOW + timedelta(seconds=29)

    async def test_a_heartbeat_that_expires_by_the_clock_alone_wakes_the_agent(self) -> None:
        async with Bench(a_row()).running() as bench:
            await tracked(bench, by_id("uid-1"))
            bench.database.now = NOW + timedelta(seconds=120)
            await bench.read_again()
            assert bench.woken == [CRITIC]


class TestNotifications:
    async def test_an_announced_stop_is_read_at_once_and_only_for_the_agent_that_is_meant(self) -> None:
        async with Bench(a_row(), a_row("uid-2")).running() as bench:
            await tracked(bench, by_id("uid-1"))
            await tracked(bench, by_id("uid-2"), PLANNER)
            bench.database.rows[0] = a_row(desired_state=STOP_REQUESTED)
            bench.database.announce("uid-1")
            await eventually(lambda: bench.woken == [CRITIC], within=10, every=0.005)
            assert bench.database.reads[-1] == [by_id("uid-1")]

    async def test_an_agent_is_meant_by_the_id_it_made_itself_too(self) -> None:
        async with Bench(a_row("own-id")).running() as bench:
            await tracked(bench, by_name("uid-1"))
            await tracked(bench, by_id("uid-2"), PLANNER)
            bench.database.announce("own-id")
            await eventually(lambda: bench.database.reads[-1] == [by_name("uid-1")], within=10, every=0.005)

    async def test_an_unknown_id_can_mean_only_agents_whose_row_is_not_known(self) -> None:
        async with Bench().running() as bench:
            await tracked(bench, by_id("uid-1"))
            await tracked(bench, by_name("uid-2"), PLANNER)
            bench.database.announce("somebody-elses")
            await eventually(lambda: bench.database.reads[-1] == [by_name("uid-2")], within=10, every=0.005)

    async def test_a_burst_of_announcements_is_one_or_two_reads(self) -> None:
        async with Bench(a_row()).running() as bench:
            await tracked(bench, by_id("uid-1"))
            before = len(bench.database.reads)
            for _ in range(500):
                bench.database.announce("uid-1")
                await asyncio.sleep(0)
            await eventually(lambda: not bench.watch._hurry, within=10, every=0.005)
            assert len(bench.database.reads) - before <= 3


class TestOutage:
    async def test_an_outage_makes_every_reading_unreadable_at_the_first_failure_and_wakes_once(self) -> None:
        async with Bench(a_row(), poll_seconds=0.02).running() as bench:
            await tracked(bench, by_id("uid-1"))
            await tracked(bench, by_id("uid-2"), PLANNER)
            bench.database.error = DatabaseUnavailable("default", "not reachable (OSError)")
            await eventually(lambda: bench.failures.count >= 3, within=10)
            assert sorted(bench.woken) == [CRITIC, PLANNER]
            reading = bench.watch.reading(CRITIC)
            assert isinstance(reading, Unreadable)
            assert reading is bench.watch.reading(PLANNER)
            assert reading.reason == "not reachable (OSError)"

    async def test_who_is_tracked_in_an_outage_is_unreadable_at_once(self) -> None:
        bench = Bench()
        bench.database.error = DatabaseUnavailable("default", "gone")
        async with bench.running():
            await tracked(bench, by_id("uid-1"))
            bench.watch.track(PLANNER, by_id("uid-2"))
            assert isinstance(bench.watch.reading(PLANNER), Unreadable)

    async def test_its_end_wakes_everybody_with_fresh_rows(self) -> None:
        bench = Bench(a_row(), a_row("uid-2"))
        bench.database.error = DatabaseUnavailable("default", "gone")
        async with bench.running():
            await tracked(bench, by_id("uid-1"))
            bench.watch.track(PLANNER, by_id("uid-2"))
            await eventually(lambda: bench.failures.count == 2, within=10, every=0.005)
            bench.database.error = None
            bench.database.announce("uid-1")
            await eventually(lambda: sorted(bench.woken) == [CRITIC, PLANNER], within=10, every=0.005)
            assert bench.rows(CRITIC)
            assert bench.rows(PLANNER)

    async def test_a_failure_that_nobody_foresaw_is_an_outage_and_ends_nothing(self) -> None:
        bench = Bench(a_row(), poll_seconds=0.02)
        bench.database.error = ValueError("a secret in a text")
        async with bench.running():
            await tracked(bench, by_id("uid-1"))
            reading = bench.watch.reading(CRITIC)
            assert isinstance(reading, Unreadable)
            assert reading.reason == "failed (ValueError)"
            bench.database.error = None
            await eventually(lambda: isinstance(bench.watch.reading(CRITIC), Rows), within=10)
