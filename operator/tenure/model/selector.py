"""A label selector as Kubernetes has it, applied here to what a cache holds."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from tenure.model.wire import Matching, WireModel, rule, rules

_KEY = Matching(
    r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?$",
    "must be the key of a label, such as app.kubernetes.io/name",
)
_VALUE = Matching(
    r"^([A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?)?$",
    "must be the value of a label: letters, digits, dashes, dots and underscores, "
    "with a letter or digit at both ends, or empty",
)
_VALUES = "values must be given with In and NotIn, and left out with Exists and DoesNotExist"
_EMPTY = (
    "must name at least one label or expression: a selector of nothing selects every pod of the namespace"
)

LabelValue = Annotated[str, Field(max_length=63), _VALUE]


class SelectorOperator(StrEnum):
    """How an expression compares."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class Expression(WireModel):
    """A requirement that pods have to meet."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
                _VALUES,
                field=".values",
            )
        )
    )

    key: Annotated[str, Field(max_length=317), _KEY]
    """The key of the label."""

    operator: SelectorOperator
    """In, NotIn, Exists or DoesNotExist. NotIn is also met by pods without the label."""

    values: Annotated[tuple[LabelValue, ...], Field(max_length=64)] = ()
    """What the value of the label is compared with."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.operator in (SelectorOperator.IN, SelectorOperator.NOT_IN)) != bool(self.values):
            raise ValueError(_VALUES)
        return self

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether ``labels`` meet it."""
        match self.operator:
            case SelectorOperator.IN:
                return self.key in labels and labels[self.key] in self.values
            case SelectorOperator.NOT_IN:
                return labels.get(self.key) not in self.values
            case SelectorOperator.EXISTS:
                return self.key in labels
            case SelectorOperator.DOES_NOT_EXIST:
                return self.key not in labels


class Selector(WireModel):
    """Labels by which pods are selected; all of them have to agree."""

    model_config = ConfigDict(
        json_schema_extra={
            "x-kubernetes-map-type": "atomic",
            **rules(
                rule(
                    "(has(self.matchLabels) && size(self.matchLabels) > 0)"
                    " || (has(self.matchExpressions) && size(self.matchExpressions) > 0)",
                    _EMPTY,
                ),
                rule(
                    f"!has(self.matchLabels) || self.matchLabels.all(key, key.matches(r'{_KEY.pattern}'))",
                    f"every key {_KEY.sentence}",
                    field=".matchLabels",
                ),
            ),
        }
    )

    match_labels: Annotated[dict[Annotated[str, _KEY], LabelValue], Field(max_length=64)] | None = None
    """Labels that the pods have."""

    match_expressions: Annotated[tuple[Expression, ...], Field(max_length=64)] = ()
    """Requirements that the pods meet."""

    @model_validator(mode="after")
    def _not_everything(self) -> Self:
        if not self.match_labels and not self.match_expressions:
            raise ValueError(_EMPTY)
        return self

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a pod with ``labels`` is selected."""
        wanted = self.match_labels or {}
        return all(labels.get(key) == value for key, value in wanted.items()) and all(
            expression.matches(labels) for expression in self.match_expressions
        )
