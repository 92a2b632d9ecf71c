"""What the layers below raise, as the two kinds of error that a backend's author has to know."""

import contextlib
from collections.abc import Iterator

from tenure.backend.errors import BackendError, Final, FinalError, Retry, RetryableError
from tenure.model.adoption import LaunchRefusal
from tenure.ownership.errors import (
    ControlError,
    Declined,
    ForeignServer,
    NotAccepted,
    Refused,
    ShuttingDown,
)
from tenure.storage.errors import DatabaseUnavailable, StorageError
from tenure.storage.records.errors import LaunchRefused, RecordMoved, TurnRefusal, TurnRefused


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Errors of client and storage leave the block as ``RetryableError`` or ``FinalError``; their texts are ours
    and hold nothing of a peer's or a row's."""
    try:
        yield
    except ControlError as error:
        raise of_control(error) from None
    except StorageError as error:
        raise of_storage(error) from None


def of_control(error: ControlError) -> BackendError:
    """What a failed call to the control server means for the caller."""
    match error:
        case NotAccepted() | ForeignServer():
            return RetryableError(Retry.NO_HAND_OVER, f"{error}: waiting for another hand-over")
        case ShuttingDown():
            return RetryableError(Retry.SHUTTING_DOWN, str(error))
        case Declined() if error.stopped:
            return FinalError(Final.SESSION_ENDED, "the instance is being stopped")
        case Declined():
            return FinalError(Final.AGENT_FAILED, str(error))
        case Refused(status=404):
            return FinalError(Final.SESSION_ENDED, "the control server has no such instance")
        case Refused(status=409):
            return RetryableError(Retry.SESSION_IN_USE, str(error))
        case Refused() if error.status < 500:
            return FinalError(Final.BAD_REQUEST, str(error))
        case _:
            return RetryableError(Retry.NO_ANSWER, str(error))


def of_storage(error: StorageError) -> BackendError:
    """What a failed transaction means for the caller."""
    match error:
        case DatabaseUnavailable():
            return RetryableError(Retry.DATABASE_UNAVAILABLE, str(error))
        case LaunchRefused(refusal=LaunchRefusal.UNSTOPPED_AGENT):
            return FinalError(Final.UNSTOPPED_AGENT, str(error))
        case LaunchRefused(refusal=LaunchRefusal.RECOVERY_IN_PROGRESS):
            return RetryableError(Retry.RECOVERY_IN_PROGRESS, str(error))
        case LaunchRefused():
            return RetryableError(Retry.SESSION_IN_USE, str(error))
        case RecordMoved():
            return FinalError(Final.OWNERSHIP_LOST, str(error))
        case TurnRefused(refusal=TurnRefusal.TURN_OPEN):
            return RetryableError(Retry.TURN_OPEN, str(error))
        case TurnRefused():
            return FinalError(Final.SESSION_ENDED, str(error))
        case _:
            return FinalError(Final.BAD_REQUEST, str(error))
