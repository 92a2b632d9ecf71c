"""What is told of a ControlServer: an Event and a log line, after the durable write that it is about.

Of what others wrote (ids of sessions and instances, words of the API server) only one printable line is repeated.
"""

from collections.abc import Iterable

from tenure.model.adoption import AdoptionOutcome, AdoptionReason, LaunchRefusal, ReconstructionInput
from tenure.model.reasons import (
    ConditionStatus,
    EventReason,
    ServerConditionReason,
    ServerConditionType,
)
from tenure.model.redaction import one_line
from tenure.model.server_status import ServerStatus
from tenure.plan.actions import Announcement
from tenure.plan.servers.conditions import REFUSALS

_SHORT = 128
_REFUSED = {
    LaunchRefusal.RECOVERY_IN_PROGRESS: "recovery is not over yet; it is tried again",
    LaunchRefusal.UNSTOPPED_AGENT: "an agent of it could not be stopped, and may still run",
}


def adoption_attempted(pod: str) -> Announcement:
    """A new backend has begun, and the server in this pod was left."""
    return Announcement(
        EventReason.ADOPTION_ATTEMPTED, f"the server in pod {pod} is asked whether it is ours"
    )


def adoption_ended(outcome: AdoptionOutcome, reason: AdoptionReason) -> Announcement | None:
    """What became of an attempt. None: there was no server, which is nothing to be told of."""
    sentence = REFUSALS[reason][1]
    if outcome is AdoptionOutcome.ADOPTED:
        return Announcement(EventReason.ADOPTED, sentence)
    if outcome is AdoptionOutcome.REFUSED:
        return Announcement(EventReason.ADOPTION_REFUSED, f"{reason.value}: {sentence}", warning=True)
    return None


def detached() -> Announcement:
    """The backend, or the operator, went, and its server lives on."""
    return Announcement(EventReason.DETACHED, "the backend is gone, and the agents of the server go on")


def unowned_shutdown(pod: str, period_seconds: float | None) -> Announcement:
    """A server stopped itself. ``period_seconds`` as it said itself; None: it did not."""
    time = "its unowned period" if period_seconds is None else f"{period_seconds:g} s"
    note = f"the server in pod {pod} had no owner for {time}, and stopped its agents and itself"
    return Announcement(EventReason.UNOWNED_SHUTDOWN, note, warning=True)


def instance_stopped(instance: str, session: str, missing: ReconstructionInput) -> Announcement:
    """An instance was refused and stopped: it cannot be driven without what is missing."""
    note = f"instance {_id(instance)} of session {_id(session)} was stopped: its {missing.value} is missing"
    return Announcement(EventReason.INSTANCE_STOPPED, note, warning=True)


def instance_stop_failed(instance: str, session: str) -> Announcement:
    """An instance lives on."""
    note = (
        f"instance {_id(instance)} of session {_id(session)} could not be stopped; "
        "the session is launched nowhere else while it may live"
    )
    return Announcement(EventReason.INSTANCE_STOP_FAILED, note, warning=True)


def instance_duplicate_stopped(instance: str, session: str) -> Announcement:
    """One of several instances of one session."""
    note = f"instance {_id(instance)} was stopped: session {_id(session)} had another one"
    return Announcement(EventReason.INSTANCE_DUPLICATE_STOPPED, note, warning=True)


def launch_refused(session: str, why: LaunchRefusal) -> Announcement:
    """A session was not started."""
    final = why is LaunchRefusal.UNSTOPPED_AGENT
    note = f"session {_id(session)} was not started ({why.value}): {_REFUSED[why]}"
    return Announcement(EventReason.LAUNCH_REFUSED, note, warning=final)


def recovery_deadline_elapsed(seconds: float, undecided: int) -> Announcement:
    """``undecided`` sessions had no outcome in time."""
    sessions = "session" if undecided == 1 else "sessions"
    note = (
        f"recovery took longer than {seconds:g} s; {undecided} {sessions} without an outcome wait for input"
    )
    return Announcement(EventReason.RECOVERY_DEADLINE_ELAPSED, note, warning=True)


def ownership_lost(pod: str) -> Announcement:
    """A server that was ours has refused us."""
    note = f"another owner has taken the server in pod {pod}; nothing more is sent to it"
    return Announcement(EventReason.OWNERSHIP_LOST, note, warning=True)


def announcements(before: ServerStatus, after: ServerStatus) -> Iterable[Announcement]:
    """What follows from a status that has been written: the API server takes nothing of ours, or other words of it."""
    old, new = _stalled(before), _stalled(after)
    if new is not None and new != old:
        yield Announcement(EventReason.TEMPLATE_REJECTED, new, warning=True)


def _stalled(status: ServerStatus) -> str | None:
    rejected = ServerConditionReason.TEMPLATE_REJECTED
    for condition in status.conditions:
        if condition.type == ServerConditionType.STALLED and condition.status is ConditionStatus.TRUE:
            return condition.message if condition.reason == rejected else None
    return None


def _id(text: str) -> str:
    return one_line(text, _SHORT)
