"""Pod templates that are carried verbatim: which fields none may set, told to the API server and judged again here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import AfterValidator, BaseModel, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from tenure.model.wire import rule


@dataclass(frozen=True, slots=True)
class Refused:
    """A field that may not be set, but to ``harmless``, where that is given."""

    sentence: str
    harmless: bool | str | None = None

    def cel(self, name: str) -> str:
        """The rule of the CRD, where ``self`` has the field ``name``."""
        match self.harmless:
            case None:
                return f"!has(self.{name})"
            case bool(value):
                return f"!has(self.{name}) || self.{name} == {str(value).lower()}"
            case text:
                return f"!has(self.{name}) || self.{name} == '{text}'"


def refusals(table: Mapping[str, Refused]) -> list[dict[str, str]]:
    """The rules of a schema for the fields of ``table``."""
    return [
        rule(refused.cel(name), refused.sentence, reason="FieldValueForbidden", field=f".{name}")
        for name, refused in table.items()
    ]


def refused_in(spec: Mapping[str, Any], table: Mapping[str, Refused]) -> str | None:
    """The sentence of the first field of ``table`` that ``spec`` sets, or None."""
    for name, refused in table.items():
        if name in spec and (refused.harmless is None or spec[name] != refused.harmless):
            return refused.sentence
    return None


@dataclass(frozen=True, slots=True)
class ShownAs:
    """In an ``Annotated``: the schema of a plain dict is that of ``model``."""

    model: type[BaseModel]

    def __get_pydantic_json_schema__(self, _: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return handler(self.model.__pydantic_core_schema__)


def judged_by(refusal_of: Callable[[Mapping[str, Any]], str | None]) -> AfterValidator:
    """In an ``Annotated``: refuses a template with the sentence of ``refusal_of``, if it has one."""

    def check(template: dict[str, Any]) -> dict[str, Any]:
        if sentence := refusal_of(template):
            raise ValueError(sentence)
        return template

    return AfterValidator(check)
