"""ACP's words into the stream's, whatever an agent puts into them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.control.acp.contract import AgentFailed
from tenure.control.acp.translate import (
    OTHER_UPDATE,
    permission_outcome,
    permission_request,
    prompt_blocks,
    update_event,
)
from tenure.protocol.frames import TERMINAL, PermissionAnswer, event


def said(**update: Any) -> tuple[str, dict[str, Any]] | None:
    return update_event({"sessionId": "s", "update": update})


TEXT = {"type": "text", "text": "hi"}


@pytest.mark.parametrize(
    ("update", "type_", "fields"),
    [
        (
            {"sessionUpdate": "agent_message_chunk", "content": TEXT, "messageId": "m"},
            "message_chunk",
            {"role": "assistant", "text": "hi", "protocol_message_id": "m"},
        ),
        (
            {
                "sessionUpdate": "user_message_chunk",
                "content": {"type": "image", "data": "", "mimeType": "x"},
            },
            "message_chunk",
            {"role": "user", "content_blocks": [{"type": "image", "data": "", "mimeType": "x"}]},
        ),
        ({"sessionUpdate": "agent_thought_chunk", "content": TEXT}, "reasoning", {"reasoning_text": "hi"}),
        (
            {
                "sessionUpdate": "tool_call",
                "toolCallId": "t",
                "title": "T",
                "kind": "edit",
                "rawInput": {"a": 1},
            },
            "tool_call",
            {"tool_call_id": "t", "tool_title": "T", "tool_name": "edit", "rawInput": {"a": 1}},
        ),
        (
            {"sessionUpdate": "tool_call_update", "toolCallId": "t", "status": "completed", "content": []},
            "tool_update",
            {"tool_call_id": "t", "tool_status": "completed", "tool_call_contents": []},
        ),
        (
            {"sessionUpdate": "plan", "entries": [{"content": "a", "status": "pending"}, 3]},
            "plan",
            {"plan_entries": [{"description": "a", "status": "pending"}, {"description": 3}]},
        ),
        (
            {"sessionUpdate": "available_commands_update", "availableCommands": [{"name": "n"}, "odd"]},
            "available_commands",
            {"available_commands": [{"name": "n"}]},
        ),
        (
            {"sessionUpdate": "current_mode_update", "currentModeId": "ask"},
            "session_mode",
            {"current_mode_id": "ask"},
        ),
        ({"sessionUpdate": "session_info_update", "title": "t"}, "session_info", {"session_title": "t"}),
        ({"sessionUpdate": "usage_update", "used": 5}, "context_window", {"context_window_used": 5}),
        ({"sessionUpdate": "new_kind", "x": [1]}, OTHER_UPDATE, {"session_update": "new_kind", "x": [1]}),
    ],
)
def test_each_kind_of_update_becomes_an_event(update: Any, type_: str, fields: Any) -> None:
    assert said(**update) == (type_, {**fields, "session_id": "s"})


@pytest.mark.parametrize(
    "params",
    [
        None,
        [],
        {},
        {"sessionId": 1, "update": {}},
        {"sessionId": "s", "update": {"sessionUpdate": ""}},
        {"update": 3},
    ],
)
def test_what_is_no_update_is_none(params: Any) -> None:
    assert update_event(params) is None


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)
NAMES = st.sampled_from(
    [
        "content",
        "entries",
        "availableCommands",
        "title",
        "type",
        "control_turn_id",
        "session_id",
        "omitted",
        "_meta",
    ]
)
KINDS = st.sampled_from(
    [
        "agent_message_chunk",
        "plan",
        "available_commands_update",
        "tool_call",
        "complete",
        "error",
        "request",
        "\0",
    ]
)


@given(KINDS | st.text(max_size=10), st.dictionaries(NAMES | st.text(max_size=5), JSON, max_size=5))
def test_no_update_becomes_a_terminal_event_or_names_a_turn(kind: str, rest: dict[str, Any]) -> None:
    result = update_event({"sessionId": "s", "update": {**rest, "sessionUpdate": kind}})
    if result is None:
        assert not kind
        return
    type_, fields = result
    assert type_ not in TERMINAL
    assert not {"type", "control_turn_id"} & set(fields)
    made = event(type_, **fields)
    assert made.type == type_
    assert made.control_turn_id is None
    assert made.fields["session_id"] == "s"


def asked(**call: Any) -> dict[str, Any]:
    options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
    return {"sessionId": "s", "toolCall": {"toolCallId": "t", **call}, "options": options}


def test_a_permission_request_says_what_it_is_about() -> None:
    request = permission_request(asked(title="edit it", kind="edit", rawInput={"path": "/x"}), "p-1")
    assert request is not None
    assert request.model_dump(exclude_none=True) == {
        "pending_id": "p-1",
        "session_id": "s",
        "tool_call_id": "t",
        "title": "edit it",
        "options": ({"option_id": "yes", "name": "Yes", "kind": "allow_once"},),
        "action_type": "file_write",
        "action_details": {"kind": "edit", "rawInput": {"path": "/x"}},
    }


def test_details_that_no_frame_can_carry_are_left_out_of_a_permission_request() -> None:
    deep: Any = []
    for _ in range(100):
        deep = [deep]
    for details in ("x" * 5_000_000, deep):
        request = permission_request(asked(title="t", rawInput=details), "p")
        assert request is not None
        assert request.action_details is None
        assert request.title == "t"


@pytest.mark.parametrize("params", [None, {}, {"sessionId": "s", "toolCall": {}, "options": []}, [1]])
def test_what_is_no_permission_request_is_none(params: Any) -> None:
    assert permission_request(params, "p") is None


def test_only_an_option_that_was_offered_is_selected() -> None:
    request = permission_request(asked(), "p")
    assert request is not None
    for answer, outcome in (
        (PermissionAnswer(pending_id="p", option_id="yes"), {"outcome": "selected", "optionId": "yes"}),
        (PermissionAnswer(pending_id="p", option_id="no"), {"outcome": "cancelled"}),
        (PermissionAnswer(pending_id="p"), {"outcome": "cancelled"}),
        (PermissionAnswer(pending_id="p", option_id="yes", cancelled=True), {"outcome": "cancelled"}),
    ):
        assert permission_outcome(request, answer) == {"outcome": outcome}


def test_attachments_are_content_blocks_that_the_agent_takes() -> None:
    image = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    resource = {"type": "resource", "resource": {"uri": "file:///a", "text": "t"}}
    offered = {"image": True, "embeddedContext": True}
    assert prompt_blocks("x", [image, resource, "file:///d/e"], offered) == [
        {"type": "text", "text": "x"},
        image,
        resource,
        {"type": "resource_link", "uri": "file:///d/e", "name": "e"},
    ]
    assert prompt_blocks("", [image], offered) == [image]
    assert prompt_blocks("", [], offered) == [{"type": "text", "text": ""}]


@pytest.mark.parametrize(
    ("attachment", "code"),
    [
        (3, "invalid_attachment"),
        ({"type": "video"}, "invalid_attachment"),
        ({"type": "text"}, "invalid_attachment"),
        ({"type": ["text"]}, "invalid_attachment"),
        ({"type": "image", "data": "KANARIE", "mimeType": "x"}, "not_supported"),
        ({"type": "resource", "resource": {"uri": "KANARIE", "text": ""}}, "not_supported"),
    ],
)
def test_an_attachment_that_cannot_be_given_refuses_the_prompt_and_is_not_quoted(
    attachment: Any, code: str
) -> None:
    with pytest.raises(AgentFailed) as failed:
        prompt_blocks("x", ["file:///ok", attachment], {})
    assert failed.value.code == code
    assert "attachment 2" in failed.value.message
    assert "KANARIE" not in json.dumps([failed.value.message, str(failed.value), failed.value.details])
