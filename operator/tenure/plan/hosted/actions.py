"""What a plan wants done, as data. The pass carries them out in order, and looks again."""

from dataclasses import dataclass

from tenure.model.records import SessionState
from tenure.model.status import Status
from tenure.plan.adoption.guards import LaunchVerdict
from tenure.plan.hosted.observation import Memory


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Replace the status. What follows must not happen before this is durable."""

    status: Status


@dataclass(frozen=True, slots=True)
class Launch:
    """Take the session for this instance, then ask the server for it: the row first. Either may have been done."""

    instance: str
    restart_token: str


@dataclass(frozen=True, slots=True)
class Drive:
    """See to it that the instance is driven by us: there is no backend. ``prompt`` None: there is nothing to be said,
    or it was said."""

    instance: str
    prompt: str | None


@dataclass(frozen=True, slots=True)
class MarkStopping:
    """No turn is opened from now on."""

    instance: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Stop the instance if it is there, then end its row. An open turn is abandoned.

    ``last_words``: an outcome that the server retains is applied first: there is nobody else to do it. ``cut``: a turn
    whose grace is over; it is abandoned before the instance is stopped, or its end would pass for the agent's own.
    """

    instance: str
    state: SessionState | None
    failed: bool
    last_words: bool
    cut: int | None = None


@dataclass(frozen=True, slots=True)
class Bury:
    """End the live rows of an installation whose server is gone for good: there is nobody left to be told to stop."""

    session: str
    """Whose row shows it, whosever that is."""


Action = WriteStatus | Launch | Drive | MarkStopping | Finish | Bury


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of one look. ``wake_in`` is in seconds. ``refused``: what a launch that is due is told."""

    status: Status
    actions: tuple[Action, ...]
    memory: Memory
    wake_in: float | None = None
    refused: LaunchVerdict | None = None
