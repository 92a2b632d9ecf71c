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
from tenure.plan.servers.troubles import Ending, PodMention, ending_of, manner


def announcements(before: ServerStatus, after: ServerStatus) -> Iterable[Announcement]:
    """The API server takes nothing of ours, or refuses it in other words than before."""
    old, new = _refusal(before), _refusal(after)
    if new is not None and new != old:
        yield Announcement(EventReason.TEMPLATE_REJECTED, new, warning=True)


def ended_server(status: ServerStatus) -> str | None:
    """The identity of the server on record, if this status says that it has ended. By this, which outlives operators,
    each end is told once: Recovered keeps it also while the store is silent."""
    for condition in status.conditions:
        if condition.type == ServerConditionType.RECOVERED:
            ended = condition.reason == ServerConditionReason.SERVER_ENDED
            return status.server_identity if ended else None
    return None


def end_of_server(pod: PodMention | None, hosted: int | None) -> Announcement:
    """A server that was in use has ended. ``pod`` None: it has gone, and nobody knows how. ``hosted``: sessions that
    have an agent there by their rows; None: not known.

    A Warning, unless it did as it was told and nothing was lost that somebody did not ask for.
    """
    how = manner(pod) if pod is not None else "its pod has gone"
    ending = ending_of(pod.message) if pod is not None and pod.exit_code == 0 else None
    told = {
        None: "what it hosted is gone; how much that was is not known",
        0: "no session had an agent there",
        1: "the agent of 1 session is gone",
    }.get(hosted, f"the agents of {hosted} sessions are gone")
    note = f"the control server has ended{f' ({how})' if how else ''}: {told}"
    as_told = ending is Ending.ORDERED or (ending is Ending.TERMINATED and hosted == 0)
    return Announcement(EventReason.SERVER_ENDED, note, warning=not as_told)


def _refusal(status: ServerStatus) -> str | None:
    rejected = ServerConditionReason.TEMPLATE_REJECTED
    for condition in status.conditions:
        if condition.type == ServerConditionType.STALLED and condition.status is ConditionStatus.TRUE:
            return condition.message if condition.reason == rejected else None
    return None
