"""What the library refuses, in two kinds: what may be tried again as it is, and what never will work."""

from enum import StrEnum

from tenure.model.errors import TenureError


class Retry(StrEnum):
    """Why something cannot be done *now*."""

    NO_HAND_OVER = "no_hand_over"
    """Recovery has not finished, or another pod is the backend."""
    RECOVERY_IN_PROGRESS = "recovery_in_progress"
    SESSION_IN_USE = "session_in_use"
    TURN_OPEN = "turn_open"
    """The session's former prompt has no outcome yet."""
    NO_ANSWER = "no_answer"
    """The control server did not answer: whether it acted is settled by the library, or by a repetition."""
    SHUTTING_DOWN = "shutting_down"
    """The control server is ending; the next one comes with another hand-over."""
    DATABASE_UNAVAILABLE = "database_unavailable"


class Final(StrEnum):
    """Why something will not be done."""

    UNSTOPPED_AGENT = "unstopped_agent"
    """An agent of this session could not be stopped: a person has to look."""
    BAD_REQUEST = "bad_request"
    """The control server, the agent or the database does not take these values."""
    SESSION_ENDED = "session_ended"
    """Its instance is gone, or is being stopped."""
    AGENT_FAILED = "agent_failed"
    """The agent did not start, or does not do what was asked."""
    OWNERSHIP_LOST = "ownership_lost"
    """Another owner has taken the control server over."""
    CLOSED = "closed"
    """This ``Backend`` was closed."""


class BackendError(TenureError):
    """Everything that this library raises on purpose is a ``RetryableError`` or a ``FinalError``."""


class RetryableError(BackendError):
    """Nothing was done, or it is being undone: the same call may succeed later. ``reason`` says what is in the
    way."""

    def __init__(self, reason: Retry, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class FinalError(BackendError):
    """The same call will fail again. ``reason`` says why."""

    def __init__(self, reason: Final, text: str) -> None:
        super().__init__(text)
        self.reason = reason
