"""Refusals of the records: each says whether trying again can help, and none quotes a row."""

from enum import StrEnum

from tenure.model.adoption import LaunchRefusal
from tenure.storage.errors import EntryRefused, StorageError

__all__ = ["EntryRefused", "LaunchRefused", "RecordMoved", "TurnConflict", "TurnRefusal", "TurnRefused"]


_NO_LAUNCH = {
    LaunchRefusal.UNSTOPPED_AGENT: "the session has an agent that could not be stopped",
    LaunchRefusal.RECOVERY_IN_PROGRESS: "recovery has not decided about the session yet",
    None: "the session is in use",
}


class LaunchRefused(StorageError):
    """The session has a live execution.

    ``refusal`` None is "session in use", which is no failure of recovery and is not counted. ``retryable``: another
    try may be granted without anybody's doing.
    """

    def __init__(self, refusal: LaunchRefusal | None) -> None:
        super().__init__(_NO_LAUNCH[refusal])
        self.refusal = refusal
        self.retryable = refusal is not LaunchRefusal.UNSTOPPED_AGENT

    def __reduce__(self) -> tuple[type["LaunchRefused"], tuple[LaunchRefusal | None]]:
        return type(self), (self.refusal,)


class TurnRefusal(StrEnum):
    """Why no turn was opened."""

    NOT_LIVE = "not_live"
    STOPPING = "stopping"
    TURN_OPEN = "turn_open"


_NO_TURN = {
    TurnRefusal.NOT_LIVE: "this execution of the session is not live",
    TurnRefusal.STOPPING: "the execution is being stopped",
    TurnRefusal.TURN_OPEN: "the session has an open turn",
}


class TurnRefused(StorageError):
    """No turn was opened. ``retryable``: it may be once the open turn has ended, or the session was launched again."""

    def __init__(self, refusal: TurnRefusal) -> None:
        super().__init__(_NO_TURN[refusal])
        self.refusal = refusal
        self.retryable = refusal is TurnRefusal.TURN_OPEN

    def __reduce__(self) -> tuple[type["TurnRefused"], tuple[TurnRefusal]]:
        return type(self), (self.refusal,)


class TurnConflict(StorageError):
    """Two names for one turn, or one name for two: what a server said does not fit what was recorded. Final."""


class RecordMoved(StorageError):
    """The control-server record is not as the writer knew it: another incarnation has written it. Final for this
    incarnation, which must not write again before it has read."""
