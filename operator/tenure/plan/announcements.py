"""What there is to tell after a status has been written: events and counters follow from what changed in it.

Derived from durable facts only, so that nothing is told twice by two operators or told and then lost.
"""

from collections.abc import Iterable

from tenure.model.reasons import ConditionReason, ConditionStatus, ConditionType, EventReason
from tenure.model.status import Condition, Status, StopStatus
from tenure.plan.actions import Announcement
from tenure.plan.ends import FORCED


def announcements(before: Status, after: Status) -> tuple[Announcement, ...]:
    """In the order in which they happened."""
    return (
        *_instance(before, after),
        *_heartbeat(before, after),
        *_stop(before, after),
        *_refusal(before, after),
    )


def _instance(before: Status, after: Status) -> Iterable[Announcement]:
    old, new = before.instance, after.instance
    # A first one is what was asked for: nobody has to be told.
    if new is not None and new.id and old is not None and old.id and old.id != new.id:
        yield Announcement(EventReason.RESTARTED, f"pod {new.pod_name} follows {old.pod_name}")


def _stop(before: Status, after: Status) -> Iterable[Announcement]:
    old, new = before.stop, after.stop
    if new is None:
        return
    known = old if old is not None and old.instance == new.instance else None
    if new.origin is not None and (known is None or known.origin is None):
        note = f"a stop was asked for: {new.origin.value}"
        yield Announcement(EventReason.STOP_REQUESTED, note, origin=new.origin)
        if new.finished_at is None:
            yield Announcement(
                EventReason.DRAINING, "the agent may finish the task that it holds, and take no other"
            )
    elif known is not None and new.origin is not None and known.origin is not new.origin:
        yield Announcement(
            EventReason.STOP_REQUESTED, f"the stop is now by: {new.origin.value}", origin=new.origin
        )
    if new.finished_at is not None and (known is None or known.finished_at is None):
        yield _ended(new)


def _ended(stop: StopStatus) -> Announcement:
    seconds = None
    if stop.requested_at is not None and stop.finished_at is not None:
        seconds = max(0.0, (stop.finished_at - stop.requested_at).total_seconds())
    forced = stop.origin is not None and stop.message == FORCED
    return Announcement(
        EventReason.STOP_FORCED if forced else EventReason.STOPPED,
        stop.message or "the agent ended",
        warning=stop.graceful is not True,
        origin=stop.origin,
        graceful=stop.graceful,
        drain_seconds=seconds if stop.origin is not None else None,
    )


def _heartbeat(before: Status, after: Status) -> Iterable[Announcement]:
    old, new = _condition(before, ConditionType.ALIVE), _condition(after, ConditionType.ALIVE)
    if new is None or new.status is not ConditionStatus.FALSE:
        return
    expired = ConditionReason.HEARTBEAT_EXPIRED
    if new.reason == expired and (old is None or old.reason != expired) and "its own end" not in new.message:
        yield Announcement(EventReason.HEARTBEAT_EXPIRED, new.message, warning=True)


def _refusal(before: Status, after: Status) -> Iterable[Announcement]:
    old, new = _condition(before, ConditionType.STALLED), _condition(after, ConditionType.STALLED)
    if new is None or new.status is not ConditionStatus.TRUE:
        return
    if old is None or (old.status, old.message) != (new.status, new.message):
        yield Announcement(EventReason.TEMPLATE_REJECTED, new.message, warning=True)


def _condition(status: Status, kind: ConditionType) -> Condition | None:
    return next((c for c in status.conditions if c.type == kind), None)
