"""Builders of what the status of a ControlServer is made of."""

from datetime import timedelta
from typing import Any

from tenure.model.control_server import ControlServer, parse_control_server
from tenure.model.reasons import ConditionStatus
from tenure.model.server_status import ServerStatus
from tenure.plan.adoption.next_step import next_step
from tenure.plan.adoption.state import State
from tenure.plan.servers.facts import Facts, PodMention
from tenure.plan.servers.status import status_of
from tests.support.adoption import NOW, POD, record, state
from tests.support.server_manifests import stored_server

TRUE, FALSE, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN
LEFT = record(adopted_by="old", recovered_by="old")
"""The record of a server that an earlier backend left."""


def server(status: ServerStatus | None = None, **spec: Any) -> ControlServer:
    """A ControlServer with this status."""
    found = parse_control_server(stored_server(**spec))
    return found if status is None else found.model_copy(update={"status": status})


def facts(
    seen: State | None = None, *, before: ServerStatus | None = None, fresh: bool = False, **given: Any
) -> Facts:
    """What a pass knows. Not the first one, unless ``fresh``."""
    seen = seen or state()
    if before is None and not fresh:
        before = said(reason="Unsaid")
    whole: dict[str, Any] = {
        "resource": server(before),
        "state": seen,
        "step": next_step(seen).step,
        "now": NOW,
        "pod": PodMention("main-1", POD),
        "ordinal": 1,
        "endpoint": "https://10.0.0.7:8443",
        "backend_pod": "shop-1",
    }
    return Facts(**{**whole, **given})


def said(kind: str = "Ready", status: str = "False", reason: str = "", **fields: Any) -> ServerStatus:
    """A status from before, with one condition."""
    condition = {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": "as before",
        "lastTransitionTime": NOW - timedelta(hours=1),
    }
    return ServerStatus.model_validate({"conditions": [condition], **fields})


def again(status: ServerStatus, seen: State | None = None, **given: Any) -> ServerStatus:
    """The next status."""
    return status_of(facts(seen, before=status, **given))


def condition(status: ServerStatus, kind: str) -> tuple[ConditionStatus, str]:
    """Status and reason of a condition."""
    found = next(c for c in status.conditions if c.type == kind)
    return found.status, found.reason
