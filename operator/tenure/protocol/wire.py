"""Reading and writing JSON bodies of which nothing is trusted, and the types that they are made of."""

import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, ValidationError
from pydantic_core import PydanticCustomError

from tenure.model.masked import Masked
from tenure.protocol.errors import ProtocolViolation

SMALL = 64 * 1024
"""Bytes of a body that carries a few names and numbers."""
LARGE = 4 * 1024 * 1024
"""Bytes of a body or frame that carries an event, a prompt or an environment."""
HUGE = 32 * 1024 * 1024
"""Bytes of an enumeration: the environments of a whole server are in it."""
MAX_DEPTH = 64
"""How deep arrays and objects may be nested."""
MAX_ID = 2**63 - 1

_SKELETON = b'"[]{}NI'
_NOT_SKELETON = bytes(sorted(set(range(256)) - set(_SKELETON)))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")


class Body(BaseModel):
    """A message: frozen, strictly typed. Fields that this version does not know are ignored, as a peer may be
    newer, or agentctl, which has more of them."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        strict=True,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )
    max_bytes: ClassVar[int] = SMALL

    def to_wire(self) -> bytes:
        """The message as UTF-8 JSON, secrets revealed; fields that are None are left out.

        This is the only way by which a secret leaves a message: pydantic's own JSON refuses ``Masked``.
        """
        plain = self.model_dump(exclude_none=True)
        try:
            text = _WIRE.encode(plain)
        except ValueError:
            # A number without end, or 1e999, is no reason for a stream to break: it becomes null.
            text = _WIRE.encode(_finite(plain))
        # "replace": agents write lone surrogates, and one of them must not end a stream either.
        return text.encode("utf-8", "replace")


B = TypeVar("B", bound=Body)


def parse(kind: type[B], data: bytes) -> B:
    """The message of ``kind`` that ``data`` is.

    Raises ``ProtocolViolation``, and nothing else, for whatever it is not: longer than ``kind.max_bytes``,
    nested deeper than ``MAX_DEPTH``, no JSON (``NaN`` is none), or of other fields and types.
    """
    what = kind.__name__.lstrip("_")
    if len(data) > kind.max_bytes:
        raise ProtocolViolation(what, f"it is longer than {kind.max_bytes} bytes")
    problem = "it is not valid JSON"
    try:
        # Its parser bounds its own recursion, and is done with what is no JSON at the first wrong byte.
        message = kind.model_validate_json(data)
    except ValidationError as error:
        problem = _describe(kind, error)
    except (ValueError, RecursionError):
        pass
    else:
        _refuse_extravagance(what, data)
        return message
    # Outside of the handler: the exception that pydantic raised holds what was received.
    raise ProtocolViolation(what, problem)


def _refuse_extravagance(what: str, data: bytes) -> None:
    """Refuse what the parser lets pass: deep nesting, and numbers that are no JSON."""
    if b"NaN" not in data and b"Infinity" not in data and _opened(data) <= MAX_DEPTH:
        return
    outside = _outside_texts(data)
    if b"N" in outside or b"I" in outside:
        raise ProtocolViolation(what, "NaN and Infinity are not JSON")
    if not _nested_at_most(MAX_DEPTH, outside):
        raise ProtocolViolation(what, f"it is nested deeper than {MAX_DEPTH} levels")


def fits_inside_another(message: Body, data: bytes | None = None) -> bool:
    """Whether a peer will read this message, alone and as a part of another one. ``data`` is the message on
    the wire, where somebody has it already."""
    return fits(message.to_wire() if data is None else data, message.max_bytes)


def fits(data: bytes, max_bytes: int) -> bool:
    """The same of JSON bytes. 128: a few numbers may still be put into it, the turn's id and the event's
    place."""
    if len(data) + 128 > max_bytes:
        return False
    return _opened(data) < MAX_DEPTH or _nested_at_most(MAX_DEPTH - 1, _outside_texts(data))


def encode(plain: Mapping[str, Any]) -> bytes | None:
    """An object as UTF-8 JSON; None when it holds what is no JSON."""
    try:
        return _STRICT.encode(plain).encode("utf-8", "replace")
    except (TypeError, ValueError, RecursionError):
        return None


def _opened(data: bytes) -> int:
    """No nesting is deeper than brackets are opened, in texts and outside: enough to know of nearly every message."""
    return data.count(b"{") + data.count(b"[")


def _nested_at_most(levels: int, outside: bytes) -> bool:
    brackets = outside.translate(_ONE_KIND, delete=b"NI")
    for _ in range(levels):
        # Each round takes the innermost level away.
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            return True
    return False


def _outside_texts(data: bytes) -> bytes:
    """The brackets of ``data`` that are in no text, and what begins ``NaN`` and ``Infinity``.

    A few passes over the bytes and no loop in Python: the event loop stands still meanwhile, and the bytes
    may have been chosen by somebody who would like that. ``data`` is JSON: on anything else the result
    would mean nothing.
    """
    unescaped = data.replace(rb"\\", b"").replace(rb"\"", b"")
    return b"".join(unescaped.translate(None, delete=_NOT_SKELETON).split(b'"')[::2])


def _describe(kind: type[Body], error: ValidationError) -> str:
    """The first problem in words of our own: only names of declared fields appear, never a received key."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = next(iter(first["loc"]), "")
    code = str(first["type"])
    said = {"missing": "is missing", "json_invalid": "is not valid JSON"}.get(code, f"is not valid ({code})")
    return f"{field} {said}" if field in kind.model_fields else f"it {said}"


def _finite(value: object) -> object:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: _finite(one) for key, one in value.items()}
        case list() | tuple():
            return [_finite(one) for one in value]
        case _:
            return value


def _json_value(value: object) -> Any:
    if isinstance(value, Masked):
        return value.reveal()
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    raise TypeError(f"{type(value).__name__} is not a type of the wire")


_STRICT = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))
_WIRE = json.JSONEncoder(default=_json_value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
# Made once: ``json.dumps`` would make one for each message.


def _no_nul(text: object) -> object:
    if isinstance(text, str) and "\0" in text:
        raise PydanticCustomError("holds_nul", "a NUL character is not allowed")
    return text


def _masked(value: object) -> Masked:
    if isinstance(value, Masked):
        return value
    if not isinstance(value, str) or "\0" in value:
        raise PydanticCustomError("no_text", "must be a text")
    return Masked(value)


def _some_secret(value: object) -> Masked:
    secret = _masked(value)
    if not 0 < len(secret.reveal()) <= 1024:
        raise PydanticCustomError("no_secret", "must be a text of 1 to 1024 characters")
    return secret


def _env_name(name: object) -> object:
    if isinstance(name, str) and "=" in name:
        raise PydanticCustomError("env_name", "the name of a variable holds no equals sign")
    return _no_nul(name)


Secret = Annotated[Masked, PlainValidator(_some_secret)]
"""A text of 1 to 1024 characters that is shown nowhere."""
EnvName = Annotated[str, BeforeValidator(_env_name), Field(min_length=1, max_length=1024)]
EnvValue = Annotated[Masked, PlainValidator(_masked)]
Environment = Annotated[dict[EnvName, EnvValue], Field(max_length=4096)]
"""Variables of a process; their values are shown nowhere."""

RotationId = Annotated[int, Field(ge=1, le=MAX_ID)]
TurnId = Annotated[int, Field(ge=1, le=MAX_ID)]
Word = Annotated[str, Field(max_length=253)]
"""A name, possibly empty."""
InstanceId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._\-]{0,127}$")]
"""Safe as one segment of a path: a server's answer becomes part of the addresses that we call."""
FilePath = Annotated[str, BeforeValidator(_no_nul), Field(max_length=4096)]
CommandLine = Annotated[str, BeforeValidator(_no_nul), Field(max_length=32 * 1024)]
