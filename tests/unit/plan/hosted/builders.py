"""What a plan of a hosted agent is made of. Every default is an agent that is well, without a backend, at ``NOW``."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.support.agent_manifests import hosted

from tenure.model.reasons import StopOrigin
from tenure.model.records import ExecutorStatus, SessionState, TurnState
from tenure.model.resources import AgentProcess, parse_agent_process
from tenure.model.status import Condition, InstanceStatus, Status, StopStatus
from tenure.plan.adoption.guards import InventoryRow
from tenure.plan.hosted.actions import Action, Verdict, WriteStatus
from tenure.plan.hosted.observation import (
    TOKEN_KEY,
    TURNS_KEY,
    InstanceView,
    Observation,
    ServerView,
    TurnView,
)
from tenure.plan.hosted.planning import plan_hosted

NOW = datetime(2026, 11, 30, 10, 0, tzinfo=UTC)
CLOCK = 5000.0
UID = "uid-1"
FIRST = "session-1-6b1e6c6d-1"
INCARNATION = "operator/1"
SERVER = ServerView(
    name="main",
    incarnation=INCARNATION,
    recovered_by=INCARNATION,
    names=frozenset({"pod-1", "server-1"}),
    profiles=("echo",),
)
WITH_BACKEND = replace(SERVER, backend=True)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def process(*, status: Status | None = None, prompt: str | None = None, **spec: Any) -> AgentProcess:
    """``spec`` by wire names."""
    raw = hosted("session-1", **({"prompt": prompt} if prompt is not None else {}))
    raw["metadata"] |= {"namespace": "team", "uid": UID, "generation": 1, "resourceVersion": "7"}
    deleting = spec.pop("deleting", False)
    if deleting:
        raw["metadata"]["deletionTimestamp"] = "2026-11-30T10:00:00Z"
    raw["spec"] |= spec
    if status is not None:
        raw["status"] = status.to_wire()
    return parse_agent_process(raw)


def launched(*, started: float | None = 60.0, token: str = "", ordinal: int = 1, **more: Any) -> Status:
    """A status of an agent that was launched so many seconds ago."""
    instance = InstanceStatus(
        id=FIRST,
        ordinal=ordinal,
        started_at=None if started is None else ago(started),
        restart_token=token,
    )
    return Status(instance=instance, **more)


def stopped(origin: StopOrigin | None, *, graceful: bool | None = True, **more: Any) -> Status:
    """A status of one that has ended."""
    stop = StopStatus(instance=FIRST, origin=origin, finished_at=ago(1), graceful=graceful, message="over")
    return launched(stop=stop, **more)


def row(
    status: ExecutorStatus = ExecutorStatus.RUNNING,
    *,
    uid: str | None = UID,
    token: str = "",
    before: int = 0,
    **more: Any,
) -> InventoryRow:
    """The session's row."""
    found = InventoryRow(
        id="r",
        session_id="s-1",
        task_id="t-1",
        status=status,
        agent_execution_id=FIRST,
        container_identity="pod-1",
        created_by=INCARNATION,
        updated_at=NOW,
        agent_process_uid=uid,
        passthrough=False,
        metadata=((TOKEN_KEY, token), (TURNS_KEY, str(before))),
    )
    return replace(found, **more)


def turn(state: TurnState, id_: int = 7) -> TurnView:
    return TurnView(id_, state)


def observe(resource: AgentProcess | None = None, **facts: Any) -> Observation:
    """An agent that runs."""
    whole: dict[str, Any] = {
        "resource": resource or process(status=launched()),
        "server": SERVER,
        "row": row(),
        "session": SessionState.CREATED,
        "instance": InstanceView.LIVE,
        "now": NOW,
        "clock": CLOCK,
    }
    return Observation(**{**whole, **facts})


def idle(resource: AgentProcess, **facts: Any) -> Observation:
    """One without an agent."""
    return observe(resource, **{"row": None, "instance": InstanceView.UNREAD, "session": None, **facts})


def plan(observation: Observation) -> Verdict:
    return plan_hosted(observation)


def deeds(verdict: Verdict) -> tuple[Action, ...]:
    """What is done beside writing the status."""
    return tuple(action for action in verdict.actions if not isinstance(action, WriteStatus))


def condition(verdict: Verdict, kind: str) -> Condition:
    return next(each for each in verdict.status.conditions if each.type == kind)


def says(verdict: Verdict, kind: str) -> tuple[str, str]:
    """Status and reason of a condition."""
    found = condition(verdict, kind)
    return found.status.value, str(found.reason)
