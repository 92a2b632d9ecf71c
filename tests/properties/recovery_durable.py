"""What survives a crash of the operator in a small world, and the writes to it."""

from dataclasses import dataclass, field, replace
from typing import Any

from tenure.plan.adoption import steps
from tenure.plan.adoption.state import (
    Bootstrap,
    Gate,
    HandOver,
    PodPhase,
    Record,
    ServerPod,
    ServerSecret,
)
from tests.properties.recovery_servers import Server, Unanswered


def _compare(record: Record, expected: str | None) -> None:
    """The first half of a compare-and-set: what another task has written meanwhile is looked at first."""
    if record.adopted_by != expected:
        raise Unanswered


@dataclass
class Durable:
    """The store, the objects of the cluster, and the servers."""

    record: Record | None = None
    pods: dict[str, ServerPod] = field(default_factory=dict)
    servers: dict[str, Server] = field(default_factory=dict)
    highest: int = 0
    """The highest ordinal of any pod that was ever seen."""
    bootstraps: set[Bootstrap] = field(default_factory=set)
    hand_over: HandOver | None = None
    gate: Gate = Gate.UNSET
    rows: dict[str, str] = field(default_factory=dict)
    """Live rows: session to pod."""
    sessions: dict[str, str] = field(default_factory=dict)
    abandoned: set[str] = field(default_factory=set)
    """Pods that were on record when the record was vacated."""
    stillborn: frozenset[int] = frozenset()
    """Ordinals whose servers end at their start."""

    def _store_record(self, step: steps.StoreRecord) -> None:
        assert self.record is not None
        _compare(self.record, step.expected)
        self.record = replace(
            self.record,
            identity=step.identity,
            pod_uid=step.pod,
            rotation_id=step.rotation_id,
            rotation_confirmed=step.confirmed,
            adopted_by=step.adopted_by,
            survival=step.survival,
        )

    def _confirmed(self) -> None:
        assert self.record is not None
        self.record = replace(self.record, rotation_confirmed=True)

    def _update(self, pod: str, **facts: Any) -> None:
        if pod in self.pods:
            self.pods[pod] = replace(self.pods[pod], **facts)

    def _repair_if_dead(self, session: str) -> None:
        host = self.rows.get(session, "")
        gone = host not in self.pods or self.pods[host].phase is PodPhase.ENDED
        absent = (
            self.record is not None
            and self.record.pod_uid == host
            and not self.record.vacant
            and session not in self.servers[host].instances
        )
        if host and (gone or absent):
            del self.rows[session]

    def _repair(self, pod: str) -> None:
        for session, host in list(self.rows.items()):
            if host == pod:
                del self.rows[session]

    def _recovered(self, expected: str | None, incarnation: str) -> None:
        assert self.record is not None
        _compare(self.record, expected)
        self.record = replace(self.record, recovered_by=incarnation)

    def _take_guards(self, step: steps.TakeGuards) -> None:
        if self.record is not None:
            _compare(self.record, step.expected)
            self.record = replace(self.record, recovered_by=None)

    def _create_pod(self, ordinal: int, vacancy: str) -> None:
        uid = f"pod-{ordinal}"
        if uid not in self.pods:
            self.pods[uid] = ServerPod(uid, ordinal, vacancy, PodPhase.STARTING, bootstrap=True)
            self.servers[uid] = Server(f"server-{ordinal}")
        self.highest = max(self.highest, ordinal)
        self.bootstraps.discard(Bootstrap(ordinal, vacancy))

    def _drop_bootstrap(self, ordinal: int) -> None:
        self._update(f"pod-{ordinal}", bootstrap=False)
        self.bootstraps = {b for b in self.bootstraps if b.ordinal != ordinal}

    def _write_secret(self, pod: str, secret: ServerSecret) -> None:
        self.pods[pod] = replace(self.pods[pod], secret=secret)

    def _vacate(self, step: steps.Vacate) -> None:
        record = self.record or Record()
        _compare(record, step.expected)
        if record.pod_uid is not None:
            self.abandoned.add(record.pod_uid)
        self.record = Record(
            pod_uid=record.pod_uid,
            adopted_by=step.incarnation,
            recovered_by=step.recovered_by,
            survival=step.survival,
        )

    def check(self) -> None:
        """What holds between any two steps."""
        record = self.record
        assert record is None or record.vacant or record.pod_uid not in self.abandoned
        handshaken = [
            uid
            for uid, pod in self.pods.items()
            if isinstance(pod.secret, ServerSecret)
            and uid not in self.abandoned
            and pod.phase is not PodPhase.ENDED
        ]
        assert len(handshaken) <= 1, "two servers are current"
        if self.hand_over is not None and record is not None and record.recovered_by == "new":
            assert record.adopted_by == "new"
            assert self.hand_over.identity == record.identity or self.hand_over.backend_pod_uid != "backend-2"

    def pods_go_on(self) -> None:
        """What happens by itself: pods start, and servers that shut down end."""
        for uid, pod in list(self.pods.items()):
            if pod.terminating:
                del self.pods[uid]
                if pod.bootstrap:
                    self.bootstraps.add(Bootstrap(pod.ordinal, pod.vacancy))
            elif pod.phase is not PodPhase.ENDED and self._ends(pod):
                self.pods[uid] = replace(pod, phase=PodPhase.ENDED, over=True)
            elif pod.phase is PodPhase.STARTING:
                self.pods[uid] = replace(pod, phase=PodPhase.REACHABLE)

    def _ends(self, pod: ServerPod) -> bool:
        return pod.ordinal in self.stillborn or self.servers[pod.uid].ownership.shutting_down

    def outcome(self) -> tuple[object, ...]:
        """What a run has come to, without the accidents of ordinals and random credentials."""
        record = self.record
        assert record is not None
        pod = None if record.vacant else self.pods.get(record.pod_uid or "")
        confirmed = not record.vacant and (record.rotation_confirmed or record.rotation_id == 0)
        return (
            "adopted" if pod is not None and pod.vacancy == "old" else "fresh",
            record.vacant,
            record.adopted_by,
            record.recovered_by,
            confirmed,
            pod is not None and self.hand_over is not None and self.hand_over.identity == record.identity,
            self.gate,
            tuple(sorted(self.sessions.items())),
            tuple(sorted(self.rows.items())),
            [(p.uid, p.phase) for p in self.pods.values() if p.vacancy == "old"],
            sorted(p.ordinal for p in (*self.bootstraps, *(p for p in self.pods.values() if p.bootstrap))),
        )
