"""What there is to tell after the status of a ControlServer has been written."""

from collections.abc import Iterable

from tenure.model.reasons import (
    ConditionStatus,
    EventReason,
    ServerConditionReason,
    ServerConditionType,
)
from tenure.model.server_status import ServerStatus
from tenure.plan.actions import Announcement


def announcements(before: ServerStatus, after: ServerStatus) -> Iterable[Announcement]:
    """The API server takes nothing of ours, or refuses it in other words than before."""
    old, new = _refusal(before), _refusal(after)
    if new is not None and new != old:
        yield Announcement(EventReason.TEMPLATE_REJECTED, new, warning=True)


def _refusal(status: ServerStatus) -> str | None:
    rejected = ServerConditionReason.TEMPLATE_REJECTED
    for condition in status.conditions:
        if condition.type == ServerConditionType.STALLED and condition.status is ConditionStatus.TRUE:
            return condition.message if condition.reason == rejected else None
    return None
