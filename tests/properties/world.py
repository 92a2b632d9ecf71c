"""A small model of everything around a plan: API server, kubelet, agent, database, people.

Time passes only in ``World.advance``, from one thing that happens to the next. Whatever the operator writes is judged
as it is written: the invariants are in ``tests.properties.judge``.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from tenure.model.ids import template_hash
from tenure.model.liveness import EPOCH, STOP_REQUESTED, AgentLivenessRecord
from tenure.model.pods import PodView, read_pod
from tenure.model.resources import AgentProcess, parse_agent_process
from tenure.model.status import Status
from tenure.plan.render import render_pod
from tests.properties.judge import Judge
from tests.support.builders import CLOCK, NOW, raw_process, wire

START_SECONDS = 2.0
FINISH_SECONDS = 3.0
TASK_SECONDS = 50.0


class OperatorCrashed(Exception):
    """The operator died here."""


class NoAnswer(Exception):
    """A call ended without an answer; whether it did anything is not known."""


class Conflict(Exception):
    """Somebody else wrote in between."""


@dataclass
class Pod:
    """One pod, with what a person who saw everything would know of it."""

    name: str
    uid: str
    raw: dict[str, Any]
    created: float
    hash: str = ""
    token: str = ""
    late: bool = False
    """It landed after its create had been given up."""
    started: float | None = None
    exit_code: int | None = None
    exit_reason: str = ""
    finished: float | None = None
    deleted: float | None = None
    grace: int = 600
    deleted_by_operator: bool = False
    disrupted: str = ""
    unreachable: bool = False
    annotations: dict[str, str] = field(default_factory=dict)
    gone: bool = False
    gone_at: float | None = None
    marked_by_people: bool = False
    exits_at: float | None = None

    @property
    def ended(self) -> bool:
        """No process of the agent runs any more."""
        return self.gone or self.exit_code is not None

    @property
    def running(self) -> bool:
        """The agent's process runs."""
        return self.started is not None and not self.ended


@dataclass
class Row:
    """A row of the liveness table."""

    pod: str
    heartbeat: float
    marked: bool = False
    epoch: bool = False


@dataclass(frozen=True)
class Fault:
    """What goes wrong at the operator's write number ``at``."""

    at: int
    kind: str


@dataclass
class World:
    """Everything but the operator."""

    faults: dict[int, str] = field(default_factory=dict)
    late_creates: bool = True
    time: float = 0.0
    version: int = 1
    writes: int = 0
    pods: dict[str, Pod] = field(default_factory=dict)
    rows: dict[str, Row] = field(default_factory=dict)
    pending_creates: list[int] = field(default_factory=list)
    database_up: bool = True
    database_up_since: float = 0.0
    deaf: bool = False
    hanging: bool = False
    task: int | None = None
    refusing: bool = False
    resource: AgentProcess = field(default_factory=lambda: parse_agent_process(raw_process()))
    ledger: set[str] = field(default_factory=set)
    judge: Judge = field(default_factory=Judge)

    # --- time

    @property
    def now(self) -> datetime:
        """The wall clock."""
        return self.at(self.time)

    @staticmethod
    def at(time: float) -> datetime:
        """The wall clock at this moment of the simulation."""
        return NOW + timedelta(seconds=time)

    @property
    def clock(self) -> float:
        """The monotonic clock."""
        return CLOCK + self.time

    def advance(self, seconds: float, wake: Callable[[], float | None], look: Callable[[], None]) -> None:
        """Let time pass; ``wake`` is the operator's next wish to be woken, ``look`` wakes it."""
        end = self.time + seconds
        for _ in range(2000):
            self._react()
            wish = wake()
            due = [at for at in (*self._due(), wish) if at is not None]
            following = min(due, default=None)
            if following is None or following > end:
                self.time = end
                self._beat()
                return
            self.time = max(self.time, following)
            self._beat()
            if self._happen() or (wish is not None and wish <= self.time):
                look()
        raise AssertionError("the world does not come to rest")

    def _due(self) -> Iterator[float]:
        for pod in self.pods.values():
            if pod.gone:
                continue
            if pod.gone_at is not None:
                yield pod.gone_at
            if pod.ended or pod.unreachable:
                continue
            if pod.started is None and pod.deleted is None:
                yield pod.created + START_SECONDS
            if pod.exits_at is not None:
                yield pod.exits_at
            if pod.deleted is not None:
                yield pod.deleted + pod.grace

    def _happen(self) -> bool:
        happened = False
        for pod in self.pods.values():
            if pod.gone:
                continue
            if pod.gone_at is not None and pod.gone_at <= self.time:
                pod.gone = happened = True
                continue
            if pod.ended or pod.unreachable:
                continue
            if pod.started is None and pod.deleted is None and pod.created + START_SECONDS <= self.time:
                pod.started, happened = self.time, True
            elif pod.exits_at is not None and pod.exits_at <= self.time:
                self.end(pod, 0)
                happened = True
            elif pod.deleted is not None and pod.deleted + pod.grace <= self.time:
                self.end(pod, 137)
                happened = True
        self._beat()
        return happened

    def _react(self) -> None:
        """Agents that are asked to stop finish what they do, unless they are deaf."""
        for pod in self.pods.values():
            if not pod.running or pod.exits_at is not None or self.deaf or pod.unreachable:
                continue
            row = self.rows.get(pod.uid)
            if pod.deleted is not None or (row is not None and row.marked and self.database_up):
                pod.exits_at = self.time + (TASK_SECONDS if self.task is not None else FINISH_SECONDS)

    def _beat(self) -> None:
        if not self.database_up or self.hanging:
            return
        for pod in self.pods.values():
            if pod.running and not pod.unreachable:
                row = self.rows.setdefault(pod.uid, Row(pod.uid, self.time))
                row.heartbeat = self.time

    def end(self, pod: Pod, exit_code: int, reason: str = "") -> None:
        """The agent's process ends."""
        pod.exit_code, pod.finished, pod.exit_reason = exit_code, self.time, reason
        if pod.started is None:
            pod.exit_code, pod.gone = None, True
        row = self.rows.get(pod.uid)
        if exit_code == 0 and row is not None and self.database_up:
            row.epoch = True
        if pod.deleted is not None:
            pod.gone_at = self.time + 1

    # --- what can be read

    def view(self, pod: Pod) -> PodView:
        """The pod as the API server shows it."""
        raw = {**pod.raw, "metadata": dict(pod.raw["metadata"])}
        raw["metadata"] |= {"annotations": {**raw["metadata"]["annotations"], **pod.annotations}}
        if pod.deleted is not None:
            raw["metadata"] |= {
                "deletionTimestamp": wire(self.at(pod.deleted + pod.grace)),
                "deletionGracePeriodSeconds": pod.grace,
            }
        state, phase = self._state(pod)
        conditions = []
        if pod.disrupted:
            conditions.append({"type": "DisruptionTarget", "status": "True", "reason": pod.disrupted})
        statuses = [{"name": "agent", "state": state}]
        raw["status"] = {"phase": phase, "conditions": conditions, "containerStatuses": statuses}
        return read_pod(raw, departed=pod.gone)

    def _state(self, pod: Pod) -> tuple[dict[str, Any], str]:
        if pod.exit_code is not None and pod.started is not None and pod.finished is not None:
            end = {
                "exitCode": pod.exit_code,
                "reason": pod.exit_reason or ("Completed" if pod.exit_code == 0 else "Error"),
                "startedAt": wire(self.at(pod.started)),
                "finishedAt": wire(self.at(pod.finished)),
            }
            return {"terminated": end}, "Succeeded" if pod.exit_code == 0 else "Failed"
        if pod.started is not None:
            state = {"running": {"startedAt": wire(self.at(pod.started))}}
            return state, "Unknown" if pod.unreachable else "Running"
        return {"waiting": {"reason": "ContainerCreating"}}, "Pending"

    def records(self) -> tuple[AgentLivenessRecord, ...]:
        """Every row."""
        return tuple(self._record(row) for row in self.rows.values())

    def _record(self, row: Row) -> AgentLivenessRecord:
        pod = self.pods[row.pod]
        return AgentLivenessRecord(
            instance_id=row.pod,
            process_kind="critic",
            hostname=pod.name,
            pid=7,
            liveness_interval_s=30.0,
            started_at=self.at(pod.started or 0),
            last_heartbeat_at=EPOCH if row.epoch else self.at(row.heartbeat),
            current_task_id=self.task if pod.running else None,
            desired_state=STOP_REQUESTED if row.marked else None,
        )

    def living(self) -> Pod | None:
        """The youngest pod whose agent has not ended."""
        return next((p for p in reversed(list(self.pods.values())) if not p.ended), None)

    # --- the operator's writes; each may go wrong

    def _write(self, deed: Callable[[], None], *, conflicts: bool = False, creates: int = 0) -> None:
        fault = self.faults.get(self.writes, "")
        self.writes += 1
        if fault == "crash before":
            raise OperatorCrashed
        if fault == "conflict" and conflicts:
            self.version += 1
            raise Conflict
        if fault == "lost" and creates and self.late_creates:
            self.pending_creates.append(creates)
            raise NoAnswer
        deed()
        if fault == "crash after":
            raise OperatorCrashed
        if fault == "no answer":
            raise NoAnswer

    def write_status(self, status: Status, seen: int) -> None:
        """Replace the status, if the object is still at version ``seen``."""

        def deed() -> None:
            if seen != self.version:
                raise Conflict
            self.judge.status(self, self.resource.status, status)
            self.version += 1
            self.resource = self.resource.model_copy(update={"status": status})

        self._write(deed, conflicts=True)

    def create(self, ordinal: int) -> None:
        """Create a pod."""
        self._write(lambda: self._land(ordinal, late=False), creates=ordinal)

    def _land(self, ordinal: int, *, late: bool) -> None:
        hash_ = template_hash(self.resource.spec.template)
        raw = render_pod(self.resource, ordinal, hash_)
        name = raw["metadata"]["name"]
        uid = f"pod-{ordinal}-{len(self.pods)}"
        if late and any(p.name == name for p in self.pods.values() if not p.gone):
            return
        self.judge.create(self, name, late=late)
        raw["metadata"] |= {"uid": uid, "creationTimestamp": wire(self.now), "resourceVersion": "1"}
        grace = raw["spec"]["terminationGracePeriodSeconds"]
        self.pods[uid] = Pod(
            name, uid, raw, self.time, hash_, self.resource.spec.restart_token, late=late, grace=grace
        )

    def delete(self, uid: str, grace: int | None) -> None:
        """The operator deletes a pod."""

        def deed() -> None:
            pod = self.pods[uid]
            if pod.gone:
                return
            self.judge.delete(self, pod)
            self.delete_pod(pod, grace, by_operator=True)

        self._write(deed)

    def delete_pod(self, pod: Pod, grace: int | None, *, by_operator: bool = False) -> None:
        """Anybody deletes a pod."""
        if pod.gone:
            return
        own: int = pod.raw["spec"]["terminationGracePeriodSeconds"]
        wanted = own if grace is None else grace
        if pod.deleted is None:
            pod.deleted, pod.grace, pod.deleted_by_operator = self.time, wanted, by_operator
        else:
            pod.grace = min(pod.grace, wanted)
        if pod.ended or wanted == 0 or pod.started is None:
            pod.gone_at = self.time
            pod.gone = True

    def mark(self, instance_id: str) -> None:
        """The operator asks through the row."""

        def deed() -> None:
            if not self.database_up:
                raise NoAnswer
            self.judge.mark(self, instance_id)
            self.rows[instance_id].marked = True

        self._write(deed)

    def annotate(self, uid: str, annotations: dict[str, str], on: bool) -> None:
        """Set or take away annotations."""

        def deed() -> None:
            kept = {k: v for k, v in self.pods[uid].annotations.items() if k not in annotations}
            self.pods[uid].annotations = {**kept, **annotations} if on else kept

        self._write(deed)

    def record_stop(self, instance: str) -> None:
        """Write into the ledger."""

        def deed() -> None:
            if not self.database_up:
                raise NoAnswer
            self.ledger.add(instance)

        self._write(deed)
