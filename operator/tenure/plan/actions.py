"""What a plan wants done, as data. The pass carries the actions out in order and stops at the first that fails; but
the row is marked even if the pod may not be deleted."""

from dataclasses import dataclass

from tenure.model.reasons import EventReason, StopOrigin
from tenure.model.status import Status, StopRecord


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Replace the status. What follows in the list must not happen before this is durable."""

    status: Status


@dataclass(frozen=True, slots=True)
class CreatePod:
    """Create the pod with this ordinal from the template as it is now."""

    ordinal: int
    status: Status | None = None
    """What status has to say should it be written before the pod exists, as when a number is given up."""


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete exactly this pod. ``grace_seconds`` None is the pod's own grace."""

    name: str
    uid: str
    grace_seconds: int | None


@dataclass(frozen=True, slots=True)
class MarkRow:
    """Ask the agent for a stop through its row (``request_agent_stop``)."""

    instance_id: str


@dataclass(frozen=True, slots=True)
class Protect:
    """Set or take away the annotations by which autoscalers spare the pod."""

    name: str
    uid: str
    on: bool


@dataclass(frozen=True, slots=True)
class RecordStop:
    """Write one stop into the ledger; of a finished one ``stop.recorded`` is set in status afterwards.

    A stop that has only begun is written once, with the task in hand, and not again when that fails.
    """

    stop: StopRecord
    grace_seconds: int
    task_id: int | None = None


Action = WriteStatus | CreatePod | DeletePod | MarkRow | Protect | RecordStop


@dataclass(frozen=True, slots=True)
class Announcement:
    """Something to tell once a durable write has happened: an Event, a log line, a counter."""

    reason: EventReason
    note: str
    warning: bool = False
    origin: StopOrigin | None = None
    graceful: bool | None = None
    drain_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The verdict of one look. ``wake_in`` is in seconds: when the next look is due with nothing else happening."""

    actions: tuple[Action, ...] = ()
    wake_in: float | None = None
