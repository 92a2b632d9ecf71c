"""What the models of the custom resources have in common: names on the wire, limits, texts from outside."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
)
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema


class WireModel(BaseModel):
    """A frozen value: snake_case in Python, camelCase in the API, described by its docstrings.

    Unknown fields are ignored when an object is read: the API server prunes what the CRD does not know, and
    an operator that is older than the CRD has to go on working.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        frozen=True,
        extra="ignore",
        use_attribute_docstrings=True,
    )

    def to_wire(self) -> dict[str, Any]:
        """The value as the API server stores it: plain JSON types, camelCase, nothing that is unset."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def rule(cel: str, sentence: str, *, reason: str = "", field: str = "") -> dict[str, str]:
    """One entry of ``x-kubernetes-validations``.

    ``sentence`` is what ``kubectl apply`` prints, so it says what is allowed. ``reason``
    (``FieldValueForbidden``, ``FieldValueRequired``) and ``field`` (a path below the place of the rule,
    with a leading dot) make the API server point at the field that is meant.
    """
    entry = {"rule": cel, "message": sentence}
    if reason:
        entry["reason"] = reason
    if field:
        entry["fieldPath"] = field
    return entry


def rules(*entries: dict[str, str]) -> dict[str, Any]:
    """``json_schema_extra`` that carries ``entries``."""
    return {"x-kubernetes-validations": list(entries)}


def ranged(low: int, high: int, unit: str) -> FieldInfo:
    """A whole number from ``low`` to ``high``; whoever leaves the range reads the whole of it, with its
    unit."""
    sentence = f"must be from {low} to {high} {unit}"
    extra = rules(rule(f"self >= {low} && self <= {high}", sentence))
    field: FieldInfo = Field(ge=low, le=high, json_schema_extra=extra)
    return field


@dataclass(frozen=True, slots=True)
class Matching:
    """A text of a certain form; whoever misses it reads ``sentence``, not the expression.

    ``pattern`` is understood alike by Python and by RE2, the API server's dialect, and contains no quote.
    """

    pattern: str
    sentence: str

    def check(self, text: str) -> str:
        """``text``, or ``ValueError`` with the sentence."""
        if re.fullmatch(self.pattern, text) is None:
            raise ValueError(self.sentence)
        return text

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {**handler(schema), **rules(rule(f"self.matches(r'{self.pattern}')", self.sentence))}


def cut_to(limit: int) -> BeforeValidator:
    """Cut a text that others wrote (a row, a kubelet) to ``limit`` characters.

    Without the cut one long value in one row would make the API server refuse every status of its object.
    """

    def cut(value: object) -> object:
        return value[: limit - 1] + "…" if isinstance(value, str) and len(value) > limit else value

    return BeforeValidator(cut)


def _in_utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC)


Moment = Annotated[AwareDatetime, AfterValidator(_in_utc)]
"""A time with an offset, kept in UTC; RFC 3339 on the wire."""

WORD_LIMIT = 253

Word = Annotated[str, cut_to(WORD_LIMIT), Field(max_length=WORD_LIMIT)]
"""A short text that others wrote, cut to 253 characters."""

Sentence = Annotated[str, cut_to(1024), Field(max_length=1024)]
"""A text for people, cut to 1024 characters."""
