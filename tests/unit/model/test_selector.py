"""A selector selects what Kubernetes would select with it."""

from typing import Any

import pytest

from tenure.model.selector import Selector

POD = {"app": "backend", "track": "stable", "empty": ""}


def _expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ({"matchLabels": {"app": "backend"}}, True),
        ({"matchLabels": {"app": "backend", "track": "stable"}}, True),
        ({"matchLabels": {"app": "backend", "track": "canary"}}, False),
        ({"matchLabels": {"empty": ""}}, True),
        ({"matchLabels": {"absent": ""}}, False),
        (_expression("track", "In", "canary", "stable"), True),
        (_expression("track", "In", "canary"), False),
        (_expression("absent", "In", ""), False),
        (_expression("track", "NotIn", "stable"), False),
        (_expression("track", "NotIn", "canary"), True),
        (_expression("absent", "NotIn", "canary"), True),
        (_expression("absent", "Exists"), False),
        (_expression("empty", "Exists"), True),
        (_expression("absent", "DoesNotExist"), True),
        (_expression("empty", "DoesNotExist"), False),
        ({"matchLabels": {"app": "backend"}, **_expression("track", "In", "canary")}, False),
        ({"matchLabels": {"app": "other"}, **_expression("track", "In", "stable")}, False),
    ],
)
def test_all_labels_and_all_expressions_have_to_agree(selector: dict[str, Any], selected: bool) -> None:
    assert Selector.model_validate(selector).matches(POD) is selected


def test_what_selects_everything_is_no_selector() -> None:
    for nothing in ({}, {"matchLabels": {}}, {"matchExpressions": []}):
        with pytest.raises(ValueError, match="at least one label or expression"):
            Selector.model_validate(nothing)
