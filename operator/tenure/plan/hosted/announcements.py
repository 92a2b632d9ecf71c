"""What a write of a hosted agent's status is to be told of, once it has happened."""

from tenure.model.reasons import ConditionStatus, ConditionType, EventReason
from tenure.model.status import Status
from tenure.plan.actions import Announcement
from tenure.plan.announcements import announcements as of_any_agent
from tenure.plan.hosted.conditions import BEGAN_ANEW

_NOT_OURS = (EventReason.RESTARTED, EventReason.TEMPLATE_REJECTED)


def announcements(before: Status, after: Status) -> tuple[Announcement, ...]:
    """In the order in which they happened. Refusals that pass by themselves are told by whoever counts them."""
    told = [each for each in of_any_agent(before, after) if each.reason not in _NOT_OURS]
    old, new = before.instance, after.instance
    if new is not None and new.started_at is not None and old is not None:
        began = old.id != new.id or old.started_at is None
        if began and new.ordinal > 1:
            told.append(Announcement(EventReason.RESTARTED, f"instance {new.id} follows an earlier one"))
    if _began_anew(after) and not _began_anew(before) and new is not None:
        note = f"instance {new.id} did not load what was said in its session before, and began anew"
        told.append(Announcement(EventReason.RESTARTED, note, warning=True))
    was, is_ = _stalled(before), _stalled(after)
    if is_ and is_ != was:
        told.append(Announcement(EventReason.LAUNCH_REFUSED, is_, warning=True))
    return tuple(told)


def _began_anew(status: Status) -> bool:
    found = next((c for c in status.conditions if c.type == ConditionType.READY), None)
    return found is not None and found.message == BEGAN_ANEW


def _stalled(status: Status) -> str:
    found = next((c for c in status.conditions if c.type == ConditionType.STALLED), None)
    return found.message if found is not None and found.status is ConditionStatus.TRUE else ""
