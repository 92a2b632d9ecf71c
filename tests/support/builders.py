"""Builders of what a plan is made of: resources, pods, rows, observations. Every default is an agent that is well.

Pods go through ``render_pod`` and ``read_pod``, so that a test sees what the API server would say of the operator's
own pods. Times are ``NOW`` unless said otherwise.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic.alias_generators import to_camel

from tenure.model.ids import template_hash
from tenure.model.liveness import EPOCH, STOP_REQUESTED, AgentLivenessRecord
from tenure.model.pods import PodView, read_pod
from tenure.model.reasons import ConditionType, StopOrigin
from tenure.model.resources import AgentProcess, parse_agent_process
from tenure.model.status import Condition, InstanceStatus, Status, StopStatus
from tenure.plan.actions import Action, WriteStatus
from tenure.plan.agent_process import Verdict, plan_agent_process
from tenure.plan.observation import Memory, NoTable, Observation, Rows, RowsReading, Unreadable
from tenure.plan.render import render_pod

NOW = datetime(2026, 11, 30, 10, 0, tzinfo=UTC)
CLOCK = 5000.0
"""The monotonic clock at ``NOW``."""
POD_MODE = NoTable()
DOWN = Unreadable(since=CLOCK, reason="connection refused")


def ago(seconds: float) -> datetime:
    """A moment before ``NOW``; negative: after it."""
    return NOW - timedelta(seconds=seconds)


def wire(moment: datetime) -> str:
    """A time as the API server writes it: whole seconds, ``Z``."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def template(image: str = "worker:1", **metadata: Any) -> dict[str, Any]:
    """A pod template with one container."""
    found: dict[str, Any] = {"spec": {"containers": [{"name": "agent", "image": image}]}}
    return {"metadata": metadata, **found} if metadata else found


def raw_process(
    name: str = "critic", *, uid: str = "", deleted: bool = False, status: Any = None, **spec: Any
) -> dict[str, Any]:
    """An AgentProcess as JSON; ``spec`` in snake_case, values as on the wire (``hung={"policy": "Restart"}``)."""
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "agents",
        "uid": uid or f"uid-of-{name}",
        "generation": spec.pop("generation", 1),
        "resourceVersion": "1",
        "creationTimestamp": wire(ago(3600)),
    }
    if deleted:
        metadata["deletionTimestamp"] = wire(NOW)
    body = {"template": template(), **{to_camel(key): value for key, value in spec.items()}}
    return {
        "apiVersion": "tenure.dev/v1alpha1",
        "kind": "AgentProcess",
        "metadata": metadata,
        "spec": body,
        **({"status": status} if status is not None else {}),
    }


def process(name: str = "critic", **overrides: Any) -> AgentProcess:
    """The same, parsed."""
    return parse_agent_process(raw_process(name, **overrides))


def with_status(resource: AgentProcess, **fields: Any) -> AgentProcess:
    """The resource with these fields of its status replaced."""
    return resource.model_copy(update={"status": resource.status.model_copy(update=fields)})


def changed(resource: AgentProcess, **spec: Any) -> AgentProcess:
    """The same object after its author edited the spec: a newer generation, the status kept."""
    raw = resource.to_wire()
    raw["spec"] |= {to_camel(key): value for key, value in spec.items()}
    raw["metadata"]["generation"] += 1
    return parse_agent_process(raw)


def deleting(resource: AgentProcess) -> AgentProcess:
    """The same object after somebody deleted it in the foreground."""
    generation = resource.metadata.generation + 1  # as the API server does
    metadata = resource.metadata.model_copy(update={"deletion_timestamp": NOW, "generation": generation})
    return resource.model_copy(update={"metadata": metadata})


def raw_pod(
    resource: AgentProcess,
    ordinal: int = 1,
    *,
    uid: str = "",
    created: float = 60,
    phase: str = "Running",
    agent: Mapping[str, Any] | None = None,
    sidecar: bool = False,
    deleted: float | None = None,
    grace: int | None = None,
    disrupted: str = "",
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A pod as JSON. ``agent`` is its container's state; ``created`` and ``deleted`` are seconds before ``NOW``;
    ``grace`` is that of the deletion (the pod's own when left out).
    """
    pod = render_pod(resource, ordinal, template_hash(resource.spec.template))
    own = resource.spec.drain.grace_period_seconds if grace is None else grace
    pod["metadata"] |= {
        "uid": uid or f"pod-{ordinal}",
        "resourceVersion": "1",
        "creationTimestamp": wire(ago(created)),
    }
    pod["metadata"]["annotations"] |= annotations or {}
    if deleted is not None:
        pod["metadata"] |= {
            "deletionTimestamp": wire(ago(deleted) + timedelta(seconds=own)),
            "deletionGracePeriodSeconds": own,
        }
    pod["spec"]["nodeName"] = "node-1"
    statuses = [{"name": "agent", "state": dict(agent)}] if agent is not None else []
    if sidecar:
        pod["spec"]["containers"].append({"name": "proxy", "image": "proxy:1"})
        statuses.append({"name": "proxy", "state": {"running": {"startedAt": wire(ago(created))}}})
    conditions = [{"type": "PodScheduled", "status": "True"}]
    if disrupted:
        conditions.append({"type": "DisruptionTarget", "status": "True", "reason": disrupted})
    pod["status"] = {"phase": phase, "conditions": conditions, "containerStatuses": statuses}
    return pod


def waiting_pod(resource: AgentProcess, ordinal: int = 1, **overrides: Any) -> PodView:
    """A pod whose agent has not started yet."""
    state = {"waiting": {"reason": "ContainerCreating"}}
    return read_pod(raw_pod(resource, ordinal, **{"phase": "Pending", "agent": state, **overrides}))


def running_pod(
    resource: AgentProcess, ordinal: int = 1, *, started: float = 50, departed: bool = False, **overrides: Any
) -> PodView:
    """A pod whose agent runs since ``started`` seconds."""
    state = {"running": {"startedAt": wire(ago(started))}}
    return read_pod(raw_pod(resource, ordinal, **{"agent": state, **overrides}), departed=departed)


def ended_pod(
    resource: AgentProcess,
    ordinal: int = 1,
    *,
    exit_code: int = 0,
    reason: str = "",
    started: float | None = 50,
    finished: float = 5,
    departed: bool = False,
    **overrides: Any,
) -> PodView:
    """A pod whose agent has ended ``finished`` seconds ago."""
    end = {
        "exitCode": exit_code,
        "reason": reason or ("Completed" if exit_code == 0 else "Error"),
        "startedAt": wire(ago(started)) if started is not None else None,
        "finishedAt": wire(ago(finished)),
    }
    phase = overrides.pop("phase", "Succeeded" if exit_code == 0 else "Failed")
    raw = raw_pod(resource, ordinal, phase=phase, agent={"terminated": end}, **overrides)
    return read_pod(raw, departed=departed)


def row(
    instance_id: str = "pod-1",
    *,
    age: float = 1,
    marked: bool = False,
    epoch: bool = False,
    task: int | None = None,
    kind: str = "critic",
    started: float = 50,
    hostname: str = "somewhere",
    interval: float = 30.0,
    task_type: str | None = None,
) -> AgentLivenessRecord:
    """A row of the liveness table whose heartbeat is ``age`` seconds old at ``NOW``."""
    return AgentLivenessRecord(
        instance_id=instance_id,
        process_kind=kind,
        hostname=hostname,
        pid=7,
        liveness_interval_s=interval,
        started_at=ago(started),
        last_heartbeat_at=EPOCH if epoch else ago(age),
        current_task_id=task,
        current_task_type=task_type,
        desired_state=STOP_REQUESTED if marked else None,
    )


def reading(*rows: AgentLivenessRecord, now: datetime = NOW, taken_at: float = CLOCK) -> Rows:
    """What the database said."""
    return Rows(now=now, taken_at=taken_at, rows=rows)


def instance_of(pod: PodView, ordinal: int = 1, **overrides: Any) -> InstanceStatus:
    """``status.instance`` for a pod."""
    fields: dict[str, Any] = {
        "id": pod.uid,
        "pod_name": pod.name,
        "ordinal": ordinal,
        "started_at": pod.created_at,
        "template_hash": pod.annotations["tenure.dev/template-hash"],
        "restart_token": pod.annotations["tenure.dev/restart-token"],
    }
    return InstanceStatus(**{**fields, **overrides})


def stop_of(
    pod: PodView, origin: StopOrigin | None, *, finished: bool = False, **overrides: Any
) -> StopStatus:
    """``status.stop`` for a pod."""
    fields: dict[str, Any] = {"instance": pod.uid, "origin": origin, "requested_at": ago(20)}
    if finished:
        fields |= {"finished_at": ago(5), "graceful": True, "exit_code": 0}
    return StopStatus(**{**fields, **overrides})


def recorded(resource: AgentProcess, pod: PodView, *, ordinal: int = 1, **status: Any) -> AgentProcess:
    """The resource with this pod as the instance in its status."""
    return with_status(resource, instance=instance_of(pod, ordinal), **status)


def stopped(
    resource: AgentProcess, pod: PodView, origin: StopOrigin | None, *, ordinal: int = 1, **stop: Any
) -> AgentProcess:
    """The resource after this pod's end was recorded."""
    end = stop_of(pod, origin, finished=True, **stop)
    return recorded(resource, pod, ordinal=ordinal, stop=end)


def observe(
    resource: AgentProcess,
    *pods: PodView,
    rows: RowsReading | None = None,
    final: RowsReading | None = None,
    after: float = 0,
    **overrides: Any,
) -> Observation:
    """An observation ``after`` seconds past ``NOW``, on both clocks."""
    fields: dict[str, Any] = {
        "resource": resource,
        "template_hash": template_hash(resource.spec.template),
        "pods": pods,
        "rows": rows if rows is not None else reading(),
        "now": ago(-after),
        "clock": CLOCK + after,
        "memory": Memory(),
        "final_rows": final,
    }
    return Observation(**{**fields, **overrides})


def plan(resource: AgentProcess, *pods: PodView, **overrides: Any) -> Verdict:
    """The verdict on ``observe(...)`` of the same arguments."""
    return plan_agent_process(observe(resource, *pods, **overrides))


def then(observation: Observation, verdict: Verdict, *pods: PodView, **overrides: Any) -> Observation:
    """The next observation: the status written, the memory kept, everything else as it was unless named."""
    resource = observation.resource.model_copy(update={"status": status_after(observation, verdict)})
    if pods:
        overrides["pods"] = pods
    return replace(observation, **{"resource": resource, "memory": verdict.memory, **overrides})


def status_after(observation: Observation, verdict: Verdict) -> Status:
    """The status as this verdict leaves it."""
    written = [a.status for a in verdict.plan.actions if isinstance(a, WriteStatus)]
    return written[-1] if written else observation.resource.status


def written(verdict: Verdict) -> Status:
    """The status that the plan writes; fails when it writes none."""
    found = [a.status for a in verdict.plan.actions if isinstance(a, WriteStatus)]
    assert len(found) == 1, f"one status write was expected among {verdict.plan.actions}"
    return found[0]


def deeds(verdict: Verdict) -> tuple[Action, ...]:
    """The actions other than writing status."""
    return tuple(a for a in verdict.plan.actions if not isinstance(a, WriteStatus))


def condition(status: Status, kind: ConditionType) -> Condition:
    """The condition of this type."""
    return next(c for c in status.conditions if c.type == kind)
