"""Answers of the API server become our own errors."""

import pytest

from tenure.cluster.answers import error_of
from tenure.cluster.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    NamespaceTerminating,
    NotFound,
    Refused,
    Unavailable,
)


@pytest.mark.parametrize(
    ("code", "body", "kind"),
    [
        (404, {"reason": "NotFound"}, NotFound),
        (409, {"reason": "AlreadyExists"}, AlreadyExists),
        (409, {"reason": "Conflict"}, Conflict),
        (400, {"reason": "BadRequest"}, Refused),
        (403, {"reason": "Forbidden"}, Refused),
        (
            403,
            {
                "reason": "Forbidden",
                "details": {"causes": [{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]},
            },
            NamespaceTerminating,
        ),
        (
            422,
            {
                "reason": "Invalid",
                "details": {"kind": "Pod", "causes": [{"field": "spec.containers[0].image"}]},
            },
            Refused,
        ),
        (
            422,
            {"reason": "Invalid", "details": {"kind": "Pod", "causes": [{"field": "metadata.uid"}]}},
            Conflict,
        ),
        (422, {"reason": "Invalid", "details": {}}, Conflict),
        (413, {}, Refused),
        (401, {"reason": "Unauthorized"}, Unavailable),
        (408, {}, Unavailable),
        (410, {"reason": "Expired"}, Unavailable),
        (429, {}, Unavailable),
        (500, {}, Unavailable),
        (503, None, Unavailable),
        (302, "moved", Unavailable),
    ],
)
def test_an_answer_has_one_meaning(code: int, body: object, kind: type[ApiError]) -> None:
    error = error_of(code, body)
    assert type(error) is kind
    assert error.status == code


@pytest.mark.parametrize(
    "body", [None, [], "text", {"reason": 5, "message": ["x"], "details": "?"}, {"details": {"causes": 1}}]
)
def test_a_body_of_any_shape_is_survived(body: object) -> None:
    assert isinstance(error_of(422, body), ApiError)


def test_a_message_is_one_line_and_cut() -> None:
    error = error_of(400, {"message": "first\nsecond\x07 " + "x" * 5000})
    assert error.message.startswith("first second ")
    assert len(error.message) == 1000


@pytest.mark.accept("M-2")
def test_a_secret_that_the_server_quotes_is_masked() -> None:
    message = "Invalid value: postgresql://agent:hunter2@db/x?password=hunter2, Bearer eyJhbGciOi.hunter2"
    error = error_of(422, {"message": message, "details": {"kind": "Pod"}})
    assert "hunter2" not in str(error)
    assert "Invalid value" in str(error)
