import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from tests.support.wait import eventually

from tenure.operator.queue import LONGEST_DELAY, WorkQueue


@asynccontextmanager
async def running(queue: WorkQueue[str]) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(queue.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class Passes:
    """A reconcile that counts, and that holds passes until they are let go."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.order: list[str] = []
        self.now = self.most = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.answer: Callable[[str], float | None] = lambda key: None

    async def __call__(self, key: str) -> float | None:
        self.seen[key] += 1
        self.order.append(key)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.gate.wait()
            return self.answer(key)
        finally:
            self.now -= 1


@pytest.fixture
async def passes() -> Passes:
    return Passes()


class TestWaking:
    async def test_wakes_before_a_pass_coalesce_into_one(self, passes: Passes) -> None:
        queue = WorkQueue(passes)
        for _ in range(10):
            queue.wake("a")
        async with running(queue):
            await eventually(lambda: not len(queue), within=10)
        assert passes.seen == {"a": 1}

    async def test_wakes_during_a_pass_mean_one_more_pass_after_it_and_never_two_at_once(
        self, passes: Passes
    ) -> None:
        queue = WorkQueue(passes)
        passes.gate.clear()
        async with running(queue):
            queue.wake("a")
            await eventually(lambda: passes.now == 1, within=10)
            for _ in range(10):
                queue.wake("a")
            passes.gate.set()
            await eventually(lambda: not len(queue), within=10)
        assert passes.seen == {"a": 2}
        assert passes.most == 1

    async def test_a_wake_from_another_thread_arrives(self, passes: Passes) -> None:
        queue = WorkQueue(passes)
        async with running(queue):
            await asyncio.sleep(0)
            await asyncio.to_thread(queue.wake_threadsafe, "a")
            await eventually(lambda: passes.seen["a"] == 1, within=10)

    async def test_a_wake_from_another_thread_is_harmless_when_nothing_runs(self, passes: Passes) -> None:
        queue = WorkQueue(passes)
        queue.wake_threadsafe("a")
        assert len(queue) == 0


class TestConcurrency:
    async def test_passes_of_different_keys_run_side_by_side_up_to_the_limit(self, passes: Passes) -> None:
        queue = WorkQueue(passes, workers=7)
        passes.gate.clear()
        for number in range(20):
            queue.wake(f"k{number}")
        async with running(queue):
            await eventually(lambda: passes.now == 7, within=10)
            passes.gate.set()
            await eventually(lambda: not len(queue), within=10)
        assert passes.most == 7
        assert sum(passes.seen.values()) == 20

    async def test_a_key_that_wakes_itself_all_the_time_does_not_starve_the_others(
        self, passes: Passes
    ) -> None:
        queue = WorkQueue(passes, workers=1)
        passes.answer = lambda key: queue.wake("busy") if key == "busy" else None
        async with running(queue):
            queue.wake("busy")
            await eventually(lambda: passes.seen["busy"] > 3, within=10)
            for number in range(5):
                queue.wake(f"k{number}")
            await eventually(lambda: all(passes.seen[f"k{n}"] for n in range(5)), within=10)
            first = passes.order.index("k0")
            assert passes.order[first:].index("k4") <= 10, "first come, first served"
            passes.answer = lambda key: None

    async def test_a_thousand_keys_at_once_cost_next_to_nothing(self, passes: Passes) -> None:
        """P-1 asks for hundreds a second with API calls in them; the queue itself must not show in that."""
        queue = WorkQueue(passes)
        began = time.process_time()
        async with running(queue):
            for number in range(1000):
                queue.wake(f"k{number}")
            await eventually(lambda: sum(passes.seen.values()) == 1000, within=10, every=0.01)
        assert time.process_time() - began < 1.0


class TestDelays:
    async def test_a_pass_comes_back_after_the_seconds_it_asked_for(self, passes: Passes) -> None:
        queue = WorkQueue(passes)
        passes.answer = lambda key: 0.05 if passes.seen[key] < 3 else None
        began = time.monotonic()
        async with running(queue):
            queue.wake("a")
            await eventually(lambda: passes.seen["a"] == 3, within=10, every=0.01)
        assert time.monotonic() - began >= 0.1

    async def test_of_several_delays_the_earliest_wins(self) -> None:
        now = 0.0
        queue: WorkQueue[str] = WorkQueue(Passes(), clock=lambda: now)
        queue.wake_after("a", 30)
        queue.wake_after("a", 10)
        queue.wake_after("a", 20)
        queue.wake_after("b", 15)
        assert queue._next_deadline() == 10
        now = 12.0
        queue._ready_due()
        assert list(queue._ready) == ["a"]
        assert queue._next_deadline() == 15
        now = 100.0
        queue._ready_due()
        assert list(queue._ready) == ["a", "b"], "the later wishes for a were met by the earlier"

    async def test_a_pass_meets_the_deadlines_set_before_it(self, passes: Passes) -> None:
        queue = WorkQueue(passes)
        queue.wake_after("a", 0.05)
        async with running(queue):
            queue.wake("a")
            await eventually(lambda: passes.seen["a"] == 1, within=10, every=0.01)
            assert queue._next_deadline() is None

    async def test_deadlines_that_are_always_overtaken_do_not_pile_up(self, passes: Passes) -> None:
        queue = WorkQueue(passes)
        for number in range(20_000):
            queue.wake_after("a", 20_000.0 - number)
        assert len(queue._heap) < 2_000

    async def test_forgetting_a_key_cancels_its_deadline(self, passes: Passes) -> None:
        queue = WorkQueue(passes)
        queue.wake_after("a", 5)
        queue.forget("a")
        assert queue._next_deadline() is None


class TestFailures:
    async def test_a_failing_key_is_repeated_with_growing_delays_and_disturbs_no_other(
        self, passes: Passes
    ) -> None:
        delays: list[float] = []
        queue = WorkQueue(passes, on_error=lambda key, error, delay: delays.append(delay), dice=lambda: 0.0)

        def fail(key: str) -> None:
            if key == "bad":
                raise RuntimeError("no")

        passes.answer = fail
        async with running(queue):
            queue.wake("bad")
            queue.wake("good")
            await eventually(lambda: len(delays) == 2, within=10, every=0.01)
            assert passes.seen["good"] == 1
        assert delays == [0.5, 1.0]

    async def test_delays_stay_under_a_minute_are_spread_and_start_over_after_a_success(self) -> None:
        queue: WorkQueue[str] = WorkQueue(Passes(), dice=lambda: 1.0)
        delays = [queue._after_failure("a", RuntimeError()) for _ in range(40)]
        assert delays[0] == pytest.approx(0.4)
        assert delays[-1] == pytest.approx(LONGEST_DELAY * 0.8)
        queue.forget("a")
        assert queue._after_failure("a", RuntimeError()) == pytest.approx(0.4)

    async def test_a_report_that_fails_itself_stops_nothing(self, passes: Passes) -> None:
        def report(key: str, error: Exception, delay: float) -> None:
            raise ValueError("the report is broken too")

        def fail(key: str) -> None:
            raise RuntimeError("no")

        queue = WorkQueue(passes, on_error=report)
        passes.answer = fail
        async with running(queue):
            queue.wake("a")
            await eventually(lambda: passes.seen["a"] == 2, within=10)


class TestEnding:
    async def test_cancelling_cancels_passes_under_way_and_leaves_none_behind(self, passes: Passes) -> None:
        queue = WorkQueue(passes)
        passes.gate.clear()
        async with running(queue) as task:
            queue.wake("a")
            queue.wake("b")
            await eventually(lambda: passes.now == 2, within=10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert passes.now == 0

    async def test_run_again_begins_with_what_was_cut_off(self, passes: Passes) -> None:
        queue = WorkQueue(passes)
        passes.gate.clear()
        async with running(queue):
            queue.wake("a")
            await eventually(lambda: passes.now == 1, within=10)
        passes.gate.set()
        async with running(queue):
            await eventually(lambda: passes.seen["a"] == 2, within=10)

    async def test_a_pass_that_does_not_end_shows(self, passes: Passes) -> None:
        now = 0.0
        queue = WorkQueue(passes, clock=lambda: now)
        assert queue.stuck_for() == 0
        passes.gate.clear()
        async with running(queue):
            queue.wake("a")
            await eventually(lambda: passes.now == 1, within=10)
            now = 90.0
            assert queue.stuck_for() == 90
            passes.gate.set()
            await eventually(lambda: not len(queue), within=10)
            assert queue.stuck_for() == 0
