"""Frames of an instance's stream."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from tenure.protocol import frames, wire
from tenure.protocol.errors import ProtocolViolation
from tenure.protocol.frames import (
    Action,
    ErrorAnswer,
    Event,
    Notification,
    PermissionAnswer,
    PermissionsList,
    Prompt,
    PromptAccepted,
    Request,
    Response,
    parse_frame,
)
from tenure.protocol.messages import OutcomeAnswer
from tenure.protocol.wire import parse

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
ASKED = Request(id="1", action=Action.PROMPT, payload={"text": "hi"}, timestamp=NOON)


def test_an_event_keeps_whatever_it_says() -> None:
    body = {"type": "message_chunk", "text": "hello", "more": [1, {"a": None}], "n": 1.5}
    read = parse_frame(json.dumps(body))
    assert isinstance(read, Event)
    assert json.loads(read.to_wire()) == body
    assert read.fields == {key: value for key, value in body.items() if key != "type"}


def test_what_an_agent_says_is_not_shown() -> None:
    read = parse_frame('{"type":"message_chunk","text":"the password is 1234"}')
    assert "1234" not in repr(read) + str(read)
    assert "hi" not in repr(ASKED)
    assert "hi" not in repr(Prompt(text="hi"))


def test_the_event_error_and_the_answer_error_are_told_apart() -> None:
    event = parse_frame('{"type":"error","error":"it fell over","control_turn_id":3}')
    assert isinstance(event, Event)
    assert (event.terminal, event.control_turn_id) == (True, 3)
    refusal = parse_frame(frames.refusal(ASKED, "unknown_action", "no such action", NOON).to_wire())
    assert isinstance(refusal, ErrorAnswer)
    assert (refusal.id, refusal.action, refusal.payload.code) == ("1", "agent.prompt", "unknown_action")


@pytest.mark.parametrize("given", ["", ',"control_turn_id":0', ',"control_turn_id":null'])
def test_an_event_of_no_turn_names_none(given: str) -> None:
    read = parse_frame(f'{{"type":"complete"{given}}}')
    assert isinstance(read, Event)
    assert read.control_turn_id is None
    assert b"control_turn_id" not in read.to_wire()


def test_a_request_and_its_answers_go_over_the_wire_and_back() -> None:
    answer = frames.answer(ASKED, PromptAccepted(turn_id=9), NOON)
    assert answer.payload == {"turn_id": 9}
    notification = Notification(action="agent.note", payload=[1])
    for frame in (ASKED, answer, notification, frames.refusal(ASKED, "busy", "one turn at a time")):
        read = parse_frame(frame.to_wire().decode())
        assert read == frame
        assert type(read) is type(frame)
    assert json.loads(ASKED.to_wire()) == {
        "id": "1",
        "type": "request",
        "action": "agent.prompt",
        "payload": {"text": "hi"},
        "timestamp": "2026-05-01T12:00:00Z",
    }


def test_an_unknown_action_is_read_so_that_it_can_be_answered() -> None:
    read = parse_frame('{"type":"request","id":"1","action":"agent.fly"}')
    assert isinstance(read, Request)
    assert read.action not in set(Action)


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "[]",
        "null",
        '"text"',
        "{}",
        '{"type":""}',
        '{"type":7}',
        '{"type":"request"}',
        '{"type":"request","id":""}',
        '{"type":"request","id":7,"action":"agent.prompt"}',
        '{"type":"response"}',
        '{"type":"error","id":"1","action":"a","payload":"text"}',
        '{"type":"error","id":"1","action":"a"}',
        '{"type":"complete","control_turn_id":"3"}',
        '{"type":"complete","control_turn_id":-3}',
        '{"type":"complete","control_turn_id":true}',
        '{"type":"complete","x":NaN}',
        '{"type":"complete","x":' + "[" * 100 + "]" * 100 + "}",
        '{"type":"complete","x":"\\ud800"}',
    ],
)
def test_a_frame_that_is_not_of_the_protocol_is_refused(frame: str) -> None:
    with pytest.raises(ProtocolViolation):
        parse_frame(frame)
    with pytest.raises(ProtocolViolation):
        parse_frame(frame.encode())


def test_a_lone_surrogate_that_an_agent_wrote_does_not_end_the_stream() -> None:
    sent = frames.event("message_chunk", text="broken \ud83d pair").to_wire()
    read = parse_frame(sent)
    assert isinstance(read, Event)
    assert read.fields == {"text": "broken ? pair"}


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
def test_a_number_that_is_not_json_becomes_null(number: float) -> None:
    sent = frames.event("usage", cost={"eur": [number, 1.5]}).to_wire()
    assert json.loads(sent) == {"type": "usage", "cost": {"eur": [None, 1.5]}}
    assert b"Infinity" not in parse_frame(b'{"type":"usage","cost":1e999}').to_wire()


@pytest.mark.parametrize("type_", ["", "request", "response", "notification"])
def test_no_event_of_ours_passes_for_an_envelope(type_: str) -> None:
    with pytest.raises(ProtocolViolation):
        frames.event(type_)


def test_payloads_are_read_with_the_same_care() -> None:
    prompt = frames.payload_of(Prompt, {"text": "go", "attachments": [{"a": 1}], "turn_key": "17"})
    assert (prompt.text, prompt.attachments, prompt.turn_key) == ("go", ({"a": 1},), "17")
    listed = frames.payload_of(PermissionsList, {"permissions": [{"pending_id": "p", "options": []}]})
    assert listed.permissions[0].pending_id == "p"
    assert frames.payload_of(PermissionAnswer, {"pending_id": "p", "cancelled": True}).cancelled
    for kind, payload in (
        (Prompt, None),
        (Prompt, {}),
        (Prompt, {"text": 1}),
        (PromptAccepted, {"turn_id": 0}),
    ):
        with pytest.raises(ProtocolViolation):
            frames.payload_of(kind, payload)
    assert isinstance(frames.answer(ASKED, None), Response)


def nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    "fields",
    [
        {"text": "a" * wire.LARGE},
        {"x": nested(wire.MAX_DEPTH - 1)},
        {"x": nested(500)},
        {"x": object()},
        {"x": nested(50_000)},
    ],
    ids=["long", "deep", "deeper", "no JSON", "deepest"],
)
def test_what_no_peer_would_read_is_left_out_and_the_event_keeps_its_place(fields: dict[str, Any]) -> None:
    made = frames.event("complete", 7, **fields)
    assert (made.type, made.control_turn_id, list(made.fields)) == ("complete", 7, ["omitted"])


def test_the_largest_event_can_be_read_alone_and_as_an_outcome() -> None:
    for fields in ({"text": "a" * (wire.LARGE - 200)}, {"x": nested(wire.MAX_DEPTH - 2)}):
        made = frames.event("complete", 7, **fields)
        assert made.fields == fields
        assert parse_frame(made.to_wire()) == made
        sent = OutcomeAnswer(retained=True, turn_id=7, event=made).to_wire()
        assert parse(OutcomeAnswer, sent).event == made
