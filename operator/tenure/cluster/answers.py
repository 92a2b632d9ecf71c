"""What an answer of the API server means: its ``Status`` object as one of our errors.

Source: Kubernetes API conventions, "Error codes" and "Response Status Kind".
"""

from collections.abc import Mapping
from typing import Any

from tenure.cluster.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    NamespaceTerminating,
    NotFound,
    Refused,
    Unavailable,
)
from tenure.model.redaction import one_line

MESSAGE_LIMIT = 1000


def error_of(http_status: int, status: object, *, fallback: str = "") -> ApiError:
    """The error for an answer outside 2xx.

    ``status`` is the decoded body (a ``Status`` object, or anything at all); ``fallback`` stands in for a
    missing reason. Never raises.
    """
    body: Mapping[str, Any] = status if isinstance(status, Mapping) else {}
    reason = str(body.get("reason") or fallback or "Unknown")[:64]
    message = one_line(str(body.get("message") or "the API server gave no sentence"), MESSAGE_LIMIT)
    return _kind(http_status, reason, body)(http_status, reason, message)


def _kind(http_status: int, reason: str, body: Mapping[str, Any]) -> type[ApiError]:
    match http_status:
        case 404:
            return NotFound
        case 409:
            return AlreadyExists if reason == "AlreadyExists" else Conflict
        case 403 if _has_cause(body, "NamespaceTerminating"):
            return NamespaceTerminating
        case 422 if _is_failed_precondition(body):
            return Conflict
        # 401: a credential being rotated or an authenticator that is down; nothing is wrong with the request.
        # 410: a list whose continuation expired, which its caller starts again.
        case 401 | 408 | 410 | 429:
            return Unavailable
        case _ if 400 <= http_status < 500:
            return Refused
        case _:
            return Unavailable


def _is_failed_precondition(body: Mapping[str, Any]) -> bool:
    """Whether a 422 says that the object is another one than we meant.

    A JSON patch whose ``test`` fails is answered by a generic Status without a kind in its details; a merge
    patch with another ``metadata.uid`` by a field error on just that field. A validation error names a kind
    and other fields.
    """
    details = body.get("details")
    details = details if isinstance(details, Mapping) else {}
    causes = _causes(body)
    if not causes:
        return not details.get("kind")
    return all(cause.get("field") == "metadata.uid" for cause in causes)


def _has_cause(body: Mapping[str, Any], reason: str) -> bool:
    return any(cause.get("reason") == reason for cause in _causes(body))


def _causes(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    details = body.get("details")
    causes = details.get("causes") if isinstance(details, Mapping) else None
    return [c for c in causes if isinstance(c, Mapping)] if isinstance(causes, list) else []
