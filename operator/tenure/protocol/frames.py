"""What travels on an instance's stream: events, and requests with their answers. One JSON object a frame.

A frame is an *envelope* when its ``type`` is ``request``, ``response`` or ``notification``, or when it is
``error`` and has an ``id`` and an ``action``. Everything else is an *event*: the event ``error`` (the end of a
turn) has no ``action``.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AwareDatetime, BeforeValidator, ConfigDict, Field, JsonValue, ValidationError

from tenure.protocol.errors import ProtocolViolation
from tenure.protocol.wire import (
    LARGE,
    MAX_ID,
    B,
    Body,
    TurnId,
    Word,
    encode,
    fits,
    fits_inside_another,
    parse,
)

TERMINAL: frozenset[str] = frozenset({"complete", "error"})
"""Types of the events that end a turn."""

_ENVELOPES = ("request", "response", "notification", "error")


class Action(StrEnum):
    """What a request on a stream asks for."""

    INITIALIZE = "agent.initialize"
    SESSION_NEW = "agent.session.new"
    SESSION_LOAD = "agent.session.load"
    SESSION_RESET = "agent.session.reset"
    PROMPT = "agent.prompt"
    CANCEL = "agent.cancel"
    STDERR = "agent.stderr"
    PERMISSIONS_LIST = "agent.permissions.list"
    PERMISSIONS_RESOLVE = "agent.permissions.resolve"
    PERMISSIONS_RESPOND = "agent.permissions.respond"
    PERMISSIONS_CANCEL = "agent.permissions.cancel"
    EVENTS_ACK = "agent.events.ack"
    """Tenure's own, a notification: see ``EventsAcknowledged``."""


def _zero_is_none(value: object) -> object:
    return None if value == 0 and type(value) is int else value


class Event(Body):
    """Something that happened in an instance. Fields beside ``type`` are kept as they came.

    ``control_turn_id`` (0 or absent: none) names the turn of a terminal event; by it the same outcome is
    recognised on the stream and in the turn-outcome slot.
    """

    model_config = ConfigDict(extra="allow")
    max_bytes: ClassVar[int] = LARGE
    __pydantic_extra__: dict[str, JsonValue]

    # May be empty: that is how agentctl fills the place of an event where there is none.
    type: Word
    control_turn_id: Annotated[TurnId | None, BeforeValidator(_zero_is_none)] = None

    @property
    def terminal(self) -> bool:
        """Whether it ends a turn."""
        return self.type in TERMINAL

    @property
    def fields(self) -> dict[str, JsonValue]:
        """What it says beside type and turn."""
        return self.__pydantic_extra__ or {}

    def __repr__(self) -> str:
        # What agents say stays out of logs and tracebacks.
        return f"Event(type={self.type!r}, control_turn_id={self.control_turn_id!r})"

    __str__ = __repr__


class _Envelope(Body):
    max_bytes: ClassVar[int] = LARGE

    action: Annotated[str, Field(max_length=128)] = ""
    """A text and no ``Action``: an unknown one is answered with an error, not with a closed stream."""
    payload: Annotated[JsonValue, Field(repr=False)] = None
    timestamp: AwareDatetime | None = None


_FrameId = Annotated[str, Field(min_length=1, max_length=128)]


class Request(_Envelope):
    """Asks for an action; ``id`` is the asker's own and comes back in the answer."""

    type: Literal["request"] = "request"
    id: _FrameId


class Response(_Envelope):
    """The answer of a request that was granted."""

    type: Literal["response"] = "response"
    id: _FrameId


class Notification(_Envelope):
    """Told without being asked, and not answered."""

    type: Literal["notification"] = "notification"
    id: Annotated[str, Field(max_length=128)] = ""


class ErrorDetails(Body):
    """Why a request was refused."""

    code: Word
    message: Annotated[str, Field(max_length=4096)] = ""
    details: Annotated[JsonValue, Field(repr=False)] = None


class ErrorAnswer(_Envelope):
    """The answer of a request that was refused."""

    type: Literal["error"] = "error"
    id: _FrameId
    payload: ErrorDetails  # type: ignore[assignment]  # narrower than any JSON value


class Prompt(Body):
    """Payload of ``agent.prompt``. ``turn_key`` is the backend's own name of the turn, stored before it is sent:
    the same key gives the same turn again."""

    max_bytes: ClassVar[int] = LARGE

    text: Annotated[str, Field(repr=False)]
    attachments: Annotated[tuple[JsonValue, ...], Field(max_length=256, repr=False)] = ()
    turn_key: Annotated[str, Field(max_length=128)] = ""


class PromptAccepted(Body):
    """Payload of the immediate answer to ``agent.prompt``."""

    turn_id: TurnId


class LoadSession(Body):
    """Payload of ``agent.session.load``: the provider's own session id, as an enumeration lists it."""

    session_id: Annotated[str, Field(min_length=1, max_length=253)]


class SessionOpened(Body):
    """Payload of the answers to ``agent.session.new``, ``load`` and ``reset``."""

    session_id: Word


class StderrTail(Body):
    """Payload of the answer to ``agent.stderr``: the last lines that the agent wrote to its standard error."""

    max_bytes: ClassVar[int] = LARGE

    lines: Annotated[tuple[str, ...], Field(repr=False)]


class EventsAcknowledged(Body):
    """Payload of ``agent.events.ack``: the reader has everything up to the event of this ``seq``.

    Only a stream that was opened with ``?ack=1`` is kept waiting for it; on others it means nothing.
    """

    seq: Annotated[int, Field(ge=0, le=MAX_ID)]


class PermissionOption(Body):
    """One answer that an agent offers."""

    option_id: Word
    name: Annotated[str, Field(max_length=4096)] = ""
    kind: Word = ""


class PermissionRequest(Body):
    """An agent waits for this answer, without limit. It is listed again on every attach."""

    max_bytes: ClassVar[int] = LARGE

    pending_id: Annotated[str, Field(min_length=1, max_length=253)]
    session_id: Word = ""
    tool_call_id: Word = ""
    title: Annotated[str, Field(max_length=64 * 1024, repr=False)] = ""
    options: Annotated[tuple[PermissionOption, ...], Field(max_length=64)] = ()
    action_type: Word = ""
    action_details: Annotated[JsonValue, Field(repr=False)] = None
    created_at: AwareDatetime | None = None


class PermissionsList(Body):
    """Payload of the answer to ``agent.permissions.list``."""

    max_bytes: ClassVar[int] = LARGE

    permissions: Annotated[tuple[PermissionRequest, ...], Field(max_length=10_000)]


class PermissionAnswer(Body):
    """Payload of ``agent.permissions.respond``, ``resolve`` and ``cancel``."""

    pending_id: Annotated[str, Field(min_length=1, max_length=253)]
    option_id: Word = ""
    cancelled: bool = False


Frame = Event | Request | Response | Notification | ErrorAnswer


class _Frame(Body):
    max_bytes: ClassVar[int] = LARGE

    type: Annotated[str, Field(min_length=1, max_length=253)]
    id: Any = None
    action: Any = None


def parse_frame(data: bytes | str) -> Frame:
    """The frame that a text message holds. Raises ``ProtocolViolation``, and nothing else."""
    if isinstance(data, str):
        data = data.encode("utf-8", "replace")
    kind = parse(_Frame, data)
    match kind.type:
        case "request":
            return parse(Request, data)
        case "response":
            return parse(Response, data)
        case "notification":
            return parse(Notification, data)
        case "error" if kind.id is not None and kind.action is not None:
            return parse(ErrorAnswer, data)
        case _:
            return parse(Event, data)


def payload_of(kind: type[B], payload: JsonValue) -> B:
    """The payload of an envelope as ``kind``. Raises ``ProtocolViolation``."""
    return parse(kind, json.dumps(payload).encode())


def event(type_: str, /, control_turn_id: int | None = None, **fields: JsonValue) -> Event:
    """An event of our own making, which every peer can read whatever an agent put into it: see ``made``."""
    return made(type_, fields, control_turn_id)[0]


def made(
    type_: str, fields: Mapping[str, JsonValue], control_turn_id: int | None = None
) -> tuple[Event, bytes]:
    """An event of our own making, and the bytes that it is on the wire.

    What is longer than a frame, nested too deeply or no JSON is left out, and the event says so in
    ``omitted``: it keeps its place and its type, so that the end of a turn stays one. Raises
    ``ProtocolViolation`` when the type is empty or one of an envelope's.
    """
    if not type_ or type_ in _ENVELOPES[:3]:
        raise ProtocolViolation("Event", "its type is empty, or names an envelope")
    head: dict[str, JsonValue] = {"type": type_, "control_turn_id": control_turn_id}
    try:
        whole = Event.model_validate({**fields, **head})
        data = whole.to_wire()
        if fits_inside_another(whole, data):
            return whole, data
    except (ValidationError, RecursionError):
        pass
    short = Event.model_validate({**head, "omitted": "too long, nested too deeply, or not JSON"})
    return short, short.to_wire()


def encoded(type_: str, fields: Mapping[str, JsonValue]) -> bytes:
    """The bytes of ``made(type_, fields)``, for an event of which nothing else is needed: most of a server's.

    Nearly all of them are in order, and are not made into an object to find that out.
    """
    if "control_turn_id" not in fields and type_ not in TERMINAL and 0 < len(type_) <= 253:
        data = encode({**fields, "type": type_})
        if data is not None and fits(data, LARGE) and type_ not in _ENVELOPES:
            return data
    return made(type_, fields)[1]


def answer(request: Request, payload: Body | None, at: datetime | None = None) -> Response:
    """The answer to a request that was granted; ``at`` has an offset."""
    value = None if payload is None else json.loads(payload.to_wire())
    return Response(id=request.id, action=request.action, payload=value, timestamp=at)


def refusal(request: Request, code: str, message: str, at: datetime | None = None) -> ErrorAnswer:
    """The answer to a request that was refused."""
    details = ErrorDetails(code=code, message=message)
    return ErrorAnswer(id=request.id, action=request.action, payload=details, timestamp=at)
