"""Pods as passes over control servers see them: the pods of servers, and those of backends."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tenure.model.control_server import KIND
from tenure.model.errors import UnreadableObject
from tenure.model.pods import ROLE_LABEL, mapping, mappings, read_time
from tenure.plan.adoption.backend import BackendPod, MainContainer
from tenure.plan.adoption.state import Gate, PodPhase
from tenure.plan.servers.names import VACANCY_ANNOTATION

RECOVERED_CONDITION = "tenure.dev/recovered"

_REVISIONS = ("pod-template-hash", "controller-revision-hash")
_ENDED = ("Succeeded", "Failed")
_BEFORE_ITS_TURN = ("", "PodInitializing", "ContainerCreating")
_DETAIL = 1024
_LONG_AGO = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class ServerPodFacts:
    """The pod of a control server; its first container is the server."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    owner_uid: str
    owner_name: str
    """Of the ControlServer that controls it."""
    vacancy: str
    phase: PodPhase
    over: bool
    """It has ended, and none of its containers is started again."""
    terminating: bool
    address: str
    reason: str = ""
    """Why it has ended, or does not start, in the node's word: ``OOMKilled``, ``Evicted``, ``ErrImagePull``."""
    detail: str = ""
    """The sentence of the node, or of the scheduler, that goes with it. What the program said is ``message``."""
    exit_code: int | None = None
    """Of the server, once it has ended."""
    message: str = ""
    """Its last words."""
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Main:
    state: MainContainer = MainContainer.WAITING
    container_id: str = ""


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """A pod that says that it is a backend; whose, is for selectors to say."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    labels: Mapping[str, str]
    created_at: datetime
    terminating: bool
    containers_ready: bool
    gate: Gate
    containers: Mapping[str, _Main]
    first: str

    def seen(self, container: str | None) -> BackendPod:
        """The pod as the choice of a backend takes it; ``container`` None: the first is the main one."""
        main = self.containers.get(container or self.first, _Main())
        return BackendPod(
            uid=self.uid,
            created_at=self.created_at,
            revision=next((self.labels[name] for name in _REVISIONS if name in self.labels), ""),
            main=main.state,
            container_id=main.container_id,
            terminating=self.terminating,
            containers_ready=self.containers_ready,
        )


def role_of(raw: Mapping[str, Any]) -> str:
    """The pod's role, by its label; empty when it has none."""
    return str(mapping(mapping(raw, "metadata"), "labels").get(ROLE_LABEL, ""))


def read_server_pod(raw: Mapping[str, Any]) -> ServerPodFacts:
    """Read the pod of a server. Raises ``UnreadableObject`` without name, namespace or UID."""
    meta, spec, status = mapping(raw, "metadata"), mapping(raw, "spec"), mapping(raw, "status")
    namespace, name, uid = _identity(meta)
    owner = next((o for o in mappings(meta, "ownerReferences") if o.get("controller") is True), {})
    ours = owner.get("kind") == KIND
    annotations = {str(k): str(v) for k, v in mapping(meta, "annotations").items()}
    address = str(status.get("podIP") or "")
    containers = [str(c.get("name")) for c in mappings(spec, "containers")]
    told = _statuses(status).get(containers[0] if containers else "", {})
    reason, detail = _reason(told, status)
    return ServerPodFacts(
        namespace=namespace,
        name=name,
        uid=uid,
        resource_version=str(meta.get("resourceVersion", "")),
        owner_uid=str(owner.get("uid", "")) if ours else "",
        owner_name=str(owner.get("name", "")) if ours else "",
        vacancy=annotations.get(VACANCY_ANNOTATION, ""),
        phase=_phase(status, told, address),
        over=status.get("phase") in _ENDED,
        terminating=meta.get("deletionTimestamp") is not None,
        address=address,
        reason=reason[:64],
        detail=detail[:_DETAIL],
        exit_code=_exit_code(told),
        message=str(mapping(mapping(told, "state"), "terminated").get("message") or "")[:4096],
        annotations=annotations,
    )


def read_backend(raw: Mapping[str, Any]) -> BackendFacts:
    """Read the pod of a backend. Raises ``UnreadableObject`` without name, namespace or UID."""
    meta, spec, status = mapping(raw, "metadata"), mapping(raw, "spec"), mapping(raw, "status")
    namespace, name, uid = _identity(meta)
    conditions = {str(c.get("type")): c.get("status") == "True" for c in mappings(status, "conditions")}
    gates = {str(g.get("conditionType")) for g in mappings(spec, "readinessGates")}
    gate = Gate.NOT_LISTED
    if RECOVERED_CONDITION in gates:
        gate = Gate.SET if conditions.get(RECOVERED_CONDITION) else Gate.UNSET
    names = [str(c.get("name")) for c in mappings(spec, "containers")]
    over = status.get("phase") in _ENDED
    told = _statuses(status)
    return BackendFacts(
        namespace=namespace,
        name=name,
        uid=uid,
        resource_version=str(meta.get("resourceVersion", "")),
        labels={str(k): str(v) for k, v in mapping(meta, "labels").items()},
        created_at=read_time(meta.get("creationTimestamp")) or _LONG_AGO,
        terminating=meta.get("deletionTimestamp") is not None,
        containers_ready=conditions.get("ContainersReady", False),
        gate=gate,
        containers={each: _main(told.get(each, {}), over) for each in names},
        first=names[0] if names else "",
    )


def _main(told: Mapping[str, Any], over: bool) -> _Main:
    state, container_id = mapping(told, "state"), str(told.get("containerID") or "")
    if over or "terminated" in state:
        return _Main(MainContainer.ENDED, container_id)
    if "running" in state:
        return _Main(MainContainer.RUNNING, container_id)
    return _Main()


def _phase(status: Mapping[str, Any], told: Mapping[str, Any], address: str) -> PodPhase:
    state = mapping(told, "state")
    restarted = told.get("restartCount")
    again = isinstance(restarted, int) and restarted > 0
    if status.get("phase") in _ENDED or "terminated" in state or again:
        return PodPhase.ENDED
    return PodPhase.REACHABLE if "running" in state and address else PodPhase.STARTING


def _reason(told: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[str, str]:
    """Why it has ended, or does not start, and what the node or the scheduler says of that."""
    state, of_pod = mapping(told, "state"), _texts(status)
    if "terminated" in state:
        # The node's reason for ending the whole pod says more than that a container failed.
        why = str(mapping(state, "terminated").get("reason") or "")
        return of_pod if of_pod[0] and why in ("", "Error", "Completed") else (why, "")
    if "waiting" in state:
        found = _texts(mapping(state, "waiting"))
        return (_of_init_containers(status) or found) if found[0] in _BEFORE_ITS_TURN else found
    if of_pod[0]:
        return of_pod
    scheduled = (c for c in mappings(status, "conditions") if c.get("type") == "PodScheduled")
    return next((_texts(c) for c in scheduled if c.get("status") == "False"), ("", ""))


def _of_init_containers(status: Mapping[str, Any]) -> tuple[str, str] | None:
    """What keeps the first init container that is not through, if something does."""
    for each in mappings(status, "initContainerStatuses"):
        state = mapping(each, "state")
        reason, detail = _texts(mapping(state, "waiting"))
        if reason and reason not in _BEFORE_ITS_TURN:
            return reason, f"init container {each.get('name')}: {detail}"
        if mapping(state, "terminated").get("exitCode") not in (None, 0):
            return "Init:Error", f"init container {each.get('name')} failed"
    return None


def _texts(said: Mapping[str, Any]) -> tuple[str, str]:
    return str(said.get("reason") or ""), str(said.get("message") or "")


def _exit_code(told: Mapping[str, Any]) -> int | None:
    code = mapping(mapping(told, "state"), "terminated").get("exitCode")
    return code if isinstance(code, int) else None


def _statuses(status: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {str(s.get("name")): s for s in mappings(status, "containerStatuses")}


def _identity(meta: Mapping[str, Any]) -> tuple[str, str, str]:
    found = tuple(meta.get(key) for key in ("namespace", "name", "uid"))
    if not all(isinstance(each, str) for each in found):
        raise UnreadableObject("a pod without name, namespace or UID")
    return str(found[0]), str(found[1]), str(found[2])
