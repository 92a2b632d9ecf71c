"""What a call to the API server can answer, as types.

The adapter never lets another exception out (cancellation excepted).
"""

from tenure.model.errors import TenureError


class ApiError(TenureError):
    """A call that the API server did not carry out, or whose outcome is unknown.

    ``status`` is the HTTP code (0 when there was no answer), ``reason`` the server's machine-readable
    reason, and ``message`` the server's own sentence, cut to 1,000 characters.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class NotFound(ApiError):
    """404."""


class AlreadyExists(ApiError):
    """409 with reason AlreadyExists."""


class Conflict(ApiError):
    """409 otherwise: a precondition (UID, resource version, JSON patch test) did not hold."""


class Refused(ApiError):
    """400, 403, 422: the server will not take this request as it is: policy, quota, bad field, missing
    permission."""


class NamespaceTerminating(Refused):
    """403 with cause NamespaceTerminating: nothing can be created there any more."""


class Unavailable(ApiError):
    """No answer, time-out, 429 or 5xx: whether it was carried out is unknown."""
