"""Events are told once, bounded, and never in the way of work."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import structlog
from structlog.testing import LogCapture

from tenure.cluster.errors import Refused
from tenure.cluster.ports import AgentCluster
from tenure.model.reasons import EventReason
from tenure.operator import events
from tenure.operator.events import EventRecorder

AGENT = {
    "apiVersion": "tenure.dev/v1alpha1",
    "kind": "AgentProcess",
    "namespace": "agents",
    "name": "critic",
    "uid": "1",
}
OTHER = AGENT | {"name": "writer", "uid": "2"}


class Recorded:
    """Stands for the API server's Events, and can refuse them."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.refuse = False

    async def create_event(self, regarding: Mapping[str, str], *, note: str, **_: Any) -> None:
        if self.refuse:
            raise Refused(403, "Forbidden", "no")
        self.notes.append(note)


class HandClock:
    """A monotonic clock that a test turns."""

    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def cluster() -> Recorded:
    return Recorded()


@asynccontextmanager
async def sending(recorder: EventRecorder) -> AsyncIterator[None]:
    """The sender at work; everything is sent at the end."""
    sender = asyncio.create_task(recorder.run())
    try:
        yield
        async with asyncio.timeout(5):
            await recorder.flushed()
    finally:
        sender.cancel()
        await asyncio.wait([sender])


def recorder_of(cluster: Recorded, clock: HandClock) -> EventRecorder:
    return EventRecorder(cast("AgentCluster", cluster), monotonic=clock)


async def test_the_same_words_about_the_same_object_are_told_once_and_counted(
    cluster: Recorded, clock: HandClock
) -> None:
    recorder = recorder_of(cluster, clock)
    async with sending(recorder):
        for _ in range(4):
            recorder.emit(AGENT, EventReason.DRAINING, "draining")
        recorder.emit(OTHER, EventReason.DRAINING, "draining")
        recorder.emit(AGENT, EventReason.STOPPED, "draining")
        clock.at += events.WINDOW
        recorder.emit(AGENT, EventReason.DRAINING, "draining")
    assert cluster.notes == ["draining", "draining", "draining", "draining (and 3 times more before)"]
    assert recorder.dropped == 3


async def test_one_object_cannot_flood_and_others_are_heard(cluster: Recorded, clock: HandClock) -> None:
    recorder = recorder_of(cluster, clock)
    async with sending(recorder):
        for number in range(100):
            recorder.emit(AGENT, EventReason.RESTARTED, f"restart {number}")
        recorder.emit(OTHER, EventReason.RESTARTED, "restart")
        assert recorder.dropped == 100 - events.BURST
        clock.at += events.REFILL
        recorder.emit(AGENT, EventReason.RESTARTED, "restart 100")
        recorder.emit(AGENT, EventReason.RESTARTED, "restart 101")
    assert len(cluster.notes) == events.BURST + 2
    assert cluster.notes[-1] == "restart 100"


async def test_a_queue_that_nobody_empties_is_bounded(cluster: Recorded, clock: HandClock) -> None:
    recorder = recorder_of(cluster, clock)
    for number in range(events.QUEUE_LIMIT + 10):
        recorder.emit(AGENT | {"uid": str(number)}, EventReason.RESTARTED, "restarted")
    assert recorder.dropped == 10


async def test_an_event_that_is_refused_is_given_up_and_the_next_one_sent(
    cluster: Recorded, clock: HandClock
) -> None:
    recorder = recorder_of(cluster, clock)
    cluster.refuse = True
    async with sending(recorder):
        recorder.emit(AGENT, EventReason.RESTARTED, "restarted")
        await recorder.flushed()
        cluster.refuse = False
        recorder.emit(AGENT, EventReason.STOPPED, "stopped")
    assert cluster.notes == ["stopped"]
    assert recorder.dropped == 1


@pytest.mark.accept("M-2")
async def test_each_event_has_a_log_line_with_the_same_reason_and_no_secret(
    cluster: Recorded, clock: HandClock
) -> None:
    capture = LogCapture()
    structlog.configure(processors=[capture])
    try:
        recorder = recorder_of(cluster, clock)
        recorder.emit(AGENT, EventReason.STOP_FORCED, "killed; postgresql://a:hunter2@db/x", warning=True)
    finally:
        structlog.reset_defaults()
    (line,) = capture.entries
    assert (line["reason"], line["log_level"]) == ("StopForced", "warning")
    assert (line["namespace"], line["name"], line["uid"]) == ("agents", "critic", "1")
    assert "hunter2" not in str(line)
