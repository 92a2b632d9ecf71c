"""A pod as Tenure sees it: the few facts that plans are made of, read from the API's JSON without trusting its shape.

Source: Kubernetes API reference, ``v1.Pod`` (PodStatus, ContainerStatus, ContainerState).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from tenure.model.errors import UnreadableObject

ROLE_LABEL = "tenure.dev/role"
AGENT_ROLE = "agent"
OWNER_KIND = "AgentProcess"


@dataclass(frozen=True, slots=True)
class AgentContainer:
    """The first container of the pod, which is the agent."""

    started: bool = False
    """It runs now, or ran and ended."""
    running: bool = False
    container_id: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    exit_code: int | None = None
    reason: str = ""
    message: str = ""

    @property
    def ended(self) -> bool:
        """True once the agent's process is known to have ended."""
        return self.exit_code is not None


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod of an AgentProcess."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    owner_uid: str
    """UID of the controlling owner, or empty."""
    owner_name: str
    phase: str
    """``status.phase`` as the server says it; may hold a value this program does not know."""
    created_at: datetime | None = None
    agent: AgentContainer = field(default_factory=AgentContainer)
    terminating: bool = False
    terminating_since: datetime | None = None
    """When deletion was asked for: the *first* deletion timestamp less its grace."""
    grace_seconds: int | None = None
    """The grace of the deletion under way; ``spec.terminationGracePeriodSeconds`` before one."""
    disrupted: bool = False
    """The condition ``DisruptionTarget`` is True: an eviction, a drain, a preemption."""
    disruption: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    all_ended: bool = False
    """Every container has ended, sidecars too. A kubelet says so up to seconds before it changes ``phase``."""
    departed: bool = False
    """The API no longer has it; this is the last that was seen."""
    missed_at: float | None = None
    """When it was found gone (monotonic, in seconds), by somebody who asked: what the watch has still to tell of it may
    be how its agent ended. None once the watch has told of its deletion."""

    @property
    def ended(self) -> bool:
        """No process of the agent can run any more."""
        return self.departed or self.seen_over

    @property
    def over(self) -> bool:
        """Ended, and no other container is left running either."""
        return self.departed or self.phase in ("Succeeded", "Failed")

    @property
    def seen_over(self) -> bool:
        """It, or its agent, was seen to have ended, however the pod itself went."""
        return self.phase in ("Succeeded", "Failed") or self.agent.ended


def read_time(value: object) -> datetime | None:
    """An RFC 3339 time of the API as an aware UTC datetime; None for anything else."""
    if not isinstance(value, str):
        return None
    try:
        parsed = datetime.fromisoformat(value)
        return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def read_pod(raw: Mapping[str, Any], *, departed: bool = False) -> PodView:
    """Read a pod's JSON.

    Raises ``UnreadableObject`` when it has no name, namespace or UID; everything else is optional.
    """
    meta, spec, status = mapping(raw, "metadata"), mapping(raw, "spec"), mapping(raw, "status")
    if not all(isinstance(meta.get(key), str) for key in ("name", "namespace", "uid")):
        raise UnreadableObject("a pod without name, namespace or UID")
    owner = _controller(meta)
    statuses = {str(s.get("name")): s for s in mappings(status, "containerStatuses")}
    containers = [str(c.get("name")) for c in mappings(spec, "containers")]
    agent_name = containers[0] if containers else ""
    deleted_at = read_time(meta.get("deletionTimestamp"))
    grace = _integer(meta.get("deletionGracePeriodSeconds"))
    target = next(
        (c for c in mappings(status, "conditions") if c.get("type") == "DisruptionTarget"),
        {},
    )
    return PodView(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        resource_version=str(meta.get("resourceVersion", "")),
        owner_uid=str(owner.get("uid", "")),
        owner_name=str(owner.get("name", "")) if owner.get("kind") == OWNER_KIND else "",
        phase=str(status.get("phase", "")),
        created_at=read_time(meta.get("creationTimestamp")),
        agent=_agent(statuses.get(agent_name, {})),
        terminating=deleted_at is not None,
        terminating_since=_before(deleted_at, grace or 0),
        grace_seconds=grace if deleted_at else _integer(spec.get("terminationGracePeriodSeconds")),
        disrupted=target.get("status") == "True",
        disruption=str(target.get("reason", "")) if target.get("status") == "True" else "",
        annotations={str(k): str(v) for k, v in mapping(meta, "annotations").items()},
        all_ended=_all_ended(containers, spec, status),
        departed=departed,
    )


def _all_ended(containers: Sequence[str], spec: Mapping[str, Any], status: Mapping[str, Any]) -> bool:
    sidecars = [
        str(c.get("name")) for c in mappings(spec, "initContainers") if c.get("restartPolicy") == "Always"
    ]
    told = (*mappings(status, "containerStatuses"), *mappings(status, "initContainerStatuses"))
    ended = {str(s.get("name")) for s in told if "terminated" in mapping(s, "state")}
    return bool(containers) and ended.issuperset((*containers, *sidecars))


def _before(moment: datetime | None, seconds: int) -> datetime | None:
    """``moment`` less ``seconds``. Any 64-bit grace may be asked of the API server: one that no calendar holds counts
    as none, for whoever fails on one pod fails everybody.
    """
    try:
        return moment - timedelta(seconds=seconds) if moment is not None else None
    except OverflowError:
        return moment


def _agent(status: Mapping[str, Any]) -> AgentContainer:
    state = mapping(status, "state")
    running, terminated = mapping(state, "running"), mapping(state, "terminated")
    if "terminated" in state:
        return AgentContainer(
            started=terminated.get("startedAt") is not None,
            container_id=str(status.get("containerID", "")),
            started_at=read_time(terminated.get("startedAt")),
            finished_at=read_time(terminated.get("finishedAt")),
            exit_code=_integer(terminated.get("exitCode")),
            reason=str(terminated.get("reason", ""))[:64],
            message=str(terminated.get("message", ""))[:256],
        )
    if "running" in state:
        return AgentContainer(
            started=True,
            running=True,
            container_id=str(status.get("containerID", "")),
            started_at=read_time(running.get("startedAt")),
        )
    waiting = mapping(state, "waiting")
    return AgentContainer(
        reason=str(waiting.get("reason", ""))[:64], message=str(waiting.get("message", ""))[:256]
    )


def _controller(meta: Mapping[str, Any]) -> Mapping[str, Any]:
    return next((o for o in mappings(meta, "ownerReferences") if o.get("controller") is True), {})


def mapping(raw: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The object at ``key``; empty when there is none."""
    value = raw.get(key)
    return value if isinstance(value, Mapping) else {}


def mappings(raw: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """The objects in the list at ``key``; what is none is left out."""
    value = raw.get(key)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
