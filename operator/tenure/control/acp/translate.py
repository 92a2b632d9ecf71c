"""ACP's words into the stream's, and back. Pure: what an agent sent is an argument, and nothing of it is trusted.

The stream speaks agentctl's words: event types and field names are those of its public ``AgentEvent``.
Fields that have no name there are kept as ACP spells them.
"""

from collections.abc import Callable, Mapping, Sequence

import acp.schema
from pydantic import BaseModel, JsonValue, ValidationError

from tenure.control.acp.contract import AgentFailed
from tenure.protocol.errors import ProtocolViolation
from tenure.protocol.frames import PermissionAnswer, PermissionOption, PermissionRequest
from tenure.protocol.wire import fits_inside_another

Fields = dict[str, JsonValue]

OTHER_UPDATE = "session_update"
"""Type of the event for a kind of update that has no word of its own. The kind is in its field
``session_update``: used as a type, an agent could end its own turn with a kind named "complete"."""

_RESERVED = frozenset({"type", "control_turn_id", "session_id", "omitted", "session_update", "sessionUpdate"})
_ACTIONS = {
    "execute": "command",
    "edit": "file_write",
    "delete": "file_write",
    "move": "file_write",
    "read": "file_read",
    "search": "file_read",
    "fetch": "network",
}


def update_event(params: JsonValue) -> tuple[str, Fields] | None:
    """The event that a ``session/update`` is; None when it is none."""
    if not isinstance(params, dict):
        return None
    session, update = params.get("sessionId"), params.get("update")
    if not isinstance(session, str) or not isinstance(update, dict):
        return None
    kind = update.get("sessionUpdate")
    if not isinstance(kind, str) or not kind:
        return None
    rest = {name: value for name, value in update.items() if name not in _RESERVED}
    type_, named = _named(kind, rest)
    return type_, {**rest, **named, "session_id": session}


def _named(kind: str, rest: Fields) -> tuple[str, Fields]:
    """The event's type and the fields with a name of their own, which are taken out of ``rest``."""
    translate = _UPDATES.get(kind)
    if translate is None:
        return OTHER_UPDATE, {"session_update": kind[:253]}
    return translate(rest)


def _message(role: str) -> Callable[[Fields], tuple[str, Fields]]:
    def translate(rest: Fields) -> tuple[str, Fields]:
        return "message_chunk", {"role": role, **_content(rest, "text")}

    return translate


def _reasoning(rest: Fields) -> tuple[str, Fields]:
    return "reasoning", _content(rest, "reasoning_text")


def _content(rest: Fields, name: str) -> Fields:
    block = rest.pop("content", None)
    named: Fields = _renamed(rest, {"messageId": "protocol_message_id"})
    if isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str):
        named[name] = block["text"]
        if len(block) > 2:
            named["content_blocks"] = [block]
    elif block is not None:
        named["content_blocks"] = [block]
    return named


_TOOL = {
    "toolCallId": "tool_call_id",
    "title": "tool_title",
    "status": "tool_status",
    "content": "tool_call_contents",
    "kind": "tool_name",
}


def _tool(type_: str) -> Callable[[Fields], tuple[str, Fields]]:
    return lambda rest: (type_, _renamed(rest, _TOOL))


def _plan(rest: Fields) -> tuple[str, Fields]:
    entries = rest.pop("entries", None)
    if not isinstance(entries, list):
        return "plan", {"plan_entries": []}
    named: list[JsonValue] = []
    for entry in entries:
        one = dict(entry) if isinstance(entry, dict) else {"content": entry}
        named.append({"description": one.pop("content", ""), **one})
    return "plan", {"plan_entries": named}


def _commands(rest: Fields) -> tuple[str, Fields]:
    commands = rest.pop("availableCommands", None)
    named: list[JsonValue] = []
    for command in commands if isinstance(commands, list) else ():
        if isinstance(command, dict):
            hint = command.get("input")
            extra: Fields = {"input_hint": hint["hint"]} if isinstance(hint, dict) and "hint" in hint else {}
            named.append({**command, **extra})
    return "available_commands", {"available_commands": named}


def _renaming(type_: str, names: Mapping[str, str]) -> Callable[[Fields], tuple[str, Fields]]:
    return lambda rest: (type_, _renamed(rest, names))


def _renamed(rest: Fields, names: Mapping[str, str]) -> Fields:
    return {new: rest.pop(old) for old, new in names.items() if old in rest}


_UPDATES: dict[str, Callable[[Fields], tuple[str, Fields]]] = {
    "agent_message_chunk": _message("assistant"),
    "user_message_chunk": _message("user"),
    "agent_thought_chunk": _reasoning,
    "tool_call": _tool("tool_call"),
    "tool_call_update": _tool("tool_update"),
    "plan": _plan,
    "available_commands_update": _commands,
    "current_mode_update": _renaming("session_mode", {"currentModeId": "current_mode_id"}),
    "session_info_update": _renaming(
        "session_info",
        {"title": "session_title", "updatedAt": "session_updated_at", "_meta": "session_meta"},
    ),
    "usage_update": _renaming(
        "context_window", {"size": "context_window_size", "used": "context_window_used"}
    ),
}


def permission_request(params: JsonValue, pending_id: str) -> PermissionRequest | None:
    """The request that ``session/request_permission`` is; None when it is none."""
    try:
        asked = acp.schema.RequestPermissionRequest.model_validate(params)
        options = tuple(
            PermissionOption(option_id=o.option_id, name=o.name, kind=o.kind) for o in asked.options[:64]
        )
        request = PermissionRequest(
            pending_id=pending_id,
            session_id=asked.session_id,
            tool_call_id=asked.tool_call.tool_call_id,
            title=(asked.tool_call.title or "")[: 64 * 1024],
            options=options,
            action_type=_ACTIONS.get(asked.tool_call.kind or "", "other"),
            action_details=_details(params),
        )
        if not _fits(request):
            request = request.model_copy(update={"action_details": None})
        return request if _fits(request) else None
    except (ValidationError, RecursionError):
        return None


def _fits(request: PermissionRequest) -> bool:
    try:
        return fits_inside_another(request)
    except (ValueError, ProtocolViolation, RecursionError):
        return False


def _details(params: JsonValue) -> JsonValue:
    call = params.get("toolCall") if isinstance(params, dict) else None
    if not isinstance(call, dict):
        return None
    return {name: value for name, value in call.items() if name not in ("toolCallId", "title")} or None


def permission_outcome(request: PermissionRequest, answer: PermissionAnswer) -> Fields:
    """The answer as ACP has it. An option that was not offered, or none, is a cancellation: an agent may
    take what it does not know for a yes."""
    offered = {option.option_id for option in request.options}
    if answer.cancelled or answer.option_id not in offered:
        return {"outcome": {"outcome": "cancelled"}}
    return {"outcome": {"outcome": "selected", "optionId": answer.option_id}}


_BLOCKS: dict[str, type[BaseModel]] = {
    "text": acp.schema.TextContentBlock,
    "image": acp.schema.ImageContentBlock,
    "audio": acp.schema.AudioContentBlock,
    "resource_link": acp.schema.ResourceContentBlock,
    "resource": acp.schema.EmbeddedResourceContentBlock,
}
# What an agent must have said that it takes; text and links everybody does.
_CAPABILITY = {"image": "image", "audio": "audio", "resource": "embeddedContext"}


def prompt_blocks(text: str, attachments: Sequence[JsonValue], capabilities: JsonValue) -> list[JsonValue]:
    """The content of a prompt. An attachment is an ACP content block (``mime_type`` for ``mimeType`` is
    fine), or a text: the URI of something to look at.

    ``capabilities`` are the ``promptCapabilities`` that the agent declared. Raises ``AgentFailed``
    ("invalid_attachment", "not_supported"), naming the attachment by its number.
    """
    offered = capabilities if isinstance(capabilities, dict) else {}
    blocks: list[JsonValue] = [{"type": "text", "text": text}] if text or not attachments else []
    for number, attachment in enumerate(attachments, 1):
        blocks.append(_block(number, attachment, offered))
    return blocks


def _block(number: int, attachment: JsonValue, offered: Mapping[str, JsonValue]) -> JsonValue:
    if isinstance(attachment, str):
        attachment = {"type": "resource_link", "uri": attachment, "name": attachment.rsplit("/", 1)[-1]}
    kind = attachment.get("type") if isinstance(attachment, dict) else None
    if not isinstance(attachment, dict) or not isinstance(kind, str) or kind not in _BLOCKS:
        raise AgentFailed("invalid_attachment", f"attachment {number} is no content block of ACP")
    if kind in _CAPABILITY and offered.get(_CAPABILITY[kind]) is not True:
        raise AgentFailed("not_supported", f"attachment {number}: the agent takes no {kind}")
    if "name" not in attachment and kind == "resource_link":
        attachment = {**attachment, "name": str(attachment.get("uri", "")).rsplit("/", 1)[-1]}
    try:
        # Both spellings of a name are understood.
        return _plain(_BLOCKS[kind].model_validate(attachment))
    except (ValidationError, RecursionError):
        pass
    raise AgentFailed("invalid_attachment", f"attachment {number} is not a valid {kind}")


def _plain(block: BaseModel) -> dict[str, JsonValue]:
    return block.model_dump(mode="json", by_alias=True, exclude_none=True)
