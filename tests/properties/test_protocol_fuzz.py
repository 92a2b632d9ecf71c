"""Whatever bytes arrive, a parser of the protocol gives a message or its one error, and shows none of them."""

import json
import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.protocol import frames, messages, outcome, wire
from tenure.protocol.errors import ProtocolViolation
from tenure.protocol.frames import parse_frame
from tenure.protocol.proof import bearer
from tenure.protocol.wire import Body, parse
from tests.unit.protocol import bodies

CANARY = "canary-3f9d"
EXAMPLES = 20 if os.environ.get("TENURE_HYPOTHESIS", "ci") == "ci" else 1000
KINDS = sorted(
    {
        kind
        for module in (messages, frames)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Body) and kind is not Body
    },
    key=lambda kind: kind.__name__,
)
FIELDS = sorted({field for kind in KINDS for field in kind.model_fields})
SEEDS: list[dict[str, Any]] = [
    {"server_identity": "s", "capabilities": ["agent-survival.v1"], "unowned_period_ms": 600_000},
    {"rotation_id": 3, "credential": bodies.CREDENTIAL},
    {"token": bodies.CREDENTIAL, "nonce": "n", "challenge": "0f" * 32, "proofs": ["a" * 64]},
    {"status": "ok", "timestamp": "2026-05-01T10:00:00Z", "error": "no"},
    {"home_dir": "/h", "diagnostic_log_path": "/l", "adjustments": [], "turn_id": 9},
    {"instances": [bodies.instance(), bodies.instance(env={"A": CANARY})]},
    bodies.instance(),
    {"retained": True, "turn_id": 4, "event": {"type": "complete", "control_turn_id": 4, "text": CANARY}},
    {"id": "1", "type": "request", "action": "agent.prompt", "payload": {"text": CANARY}},
    {"id": "1", "type": "error", "action": "agent.prompt", "payload": {"code": "c", "message": "m"}},
    {"text": CANARY, "attachments": [{}], "turn_key": "7", "permissions": [{"pending_id": "p"}]},
]

_LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(2**62, 2**66),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from([CANARY, "", "\0", "a" * 64, "2026-05-01T10:00:00Z", "request", "error", "complete"]),
)
_VALUES = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.one_of(st.sampled_from([*FIELDS, CANARY]), st.text(max_size=6)), inner, max_size=4
        ),
    ),
    max_leaves=12,
)


@st.composite
def _changed(draw: st.DrawFn) -> bytes:
    """A valid body with fields replaced, added or taken away."""
    body = dict(draw(st.sampled_from(SEEDS)))
    for field in draw(st.lists(st.sampled_from(FIELDS), max_size=3)):
        if draw(st.booleans()):
            body[field] = draw(_VALUES)
        else:
            body.pop(field, None)
    return json.dumps(body).encode("utf-8", "replace")


@st.composite
def _damaged(draw: st.DrawFn) -> bytes:
    """A body with bytes cut off, overwritten, or put in."""
    data = bytearray(draw(_changed()))
    place = draw(st.integers(0, len(data)))
    match draw(st.sampled_from(("cut", "overwrite", "insert"))):
        case "cut":
            return bytes(data[:place])
        case "overwrite":
            data[place : place + 3] = draw(st.binary(max_size=3))
        case _:
            data[place:place] = draw(
                st.sampled_from([b'"', b"\\", b"[", b"}", b"\x00", b"NaN,", b"1e999", b"\xff"])
            )
    return bytes(data)


BYTES = st.one_of(
    st.binary(max_size=60), _changed(), _damaged(), _VALUES.map(lambda v: json.dumps(v).encode())
)


def gives_a_message_or_the_one_error(kind: type[Body], data: bytes) -> None:
    """Anything else that is raised fails the test."""
    try:
        message = parse(kind, data)
    except ProtocolViolation as error:
        assert CANARY not in str(error) + repr(error)
        assert error.__cause__ is None
        assert error.__context__ is None
        return
    again = parse(kind, message.to_wire())
    assert again.to_wire() == message.to_wire()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=EXAMPLES)
@given(data=BYTES)
def test_every_body_is_read_or_refused(kind: type[Body], data: bytes) -> None:
    gives_a_message_or_the_one_error(kind, data)


@given(BYTES)
def test_every_frame_is_read_or_refused(data: bytes) -> None:
    for given_ in (data, data.decode("utf-8", "surrogateescape")):
        try:
            frame = parse_frame(given_)
        except ProtocolViolation as error:
            assert CANARY not in str(error)
        else:
            assert CANARY not in repr(frame) or CANARY in (
                getattr(frame, "id", ""),
                getattr(frame, "action", ""),
            )
            assert type(parse_frame(frame.to_wire())) is type(frame)


@given(BYTES)
def test_every_outcome_is_read_or_refused(data: bytes) -> None:
    try:
        read = outcome.read_outcome(parse(messages.OutcomeAnswer, data))
    except ProtocolViolation:
        return
    assert read is None or read.turn_id >= 1


@given(_VALUES)
def test_every_payload_is_read_or_refused(payload: Any) -> None:
    for kind in (frames.Prompt, frames.PermissionAnswer, frames.PermissionsList):
        try:
            frames.payload_of(kind, payload)
        except ProtocolViolation as error:
            assert CANARY not in str(error)


@given(st.one_of(st.none(), st.text(max_size=40), st.text(max_size=20).map(lambda token: f"Bearer {token}")))
def test_every_authorization_header_presents_a_token_or_nothing(header: str | None) -> None:
    presented = bearer(header)
    assert presented is None or presented.reveal()


@given(st.integers(0, 200), st.sampled_from([(b"[", b"]"), (b'{"\\\\":', b"}"), (b'["\\"[{",', b"]")]))
def test_depth_is_counted_right_whatever_the_texts_say(depth: int, pair: tuple[bytes, bytes]) -> None:
    opening, closing = pair
    data = b'{"error":"x","y":' + opening * depth + b"1" + closing * depth + b"}"
    if depth < wire.MAX_DEPTH:
        assert parse(messages.ErrorBody, data).error == "x"
    else:
        with pytest.raises(ProtocolViolation):
            parse(messages.ErrorBody, data)
