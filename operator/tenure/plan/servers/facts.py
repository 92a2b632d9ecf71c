"""What the status of a ControlServer is made of, once a pass has looked and decided."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from tenure.model.adoption import SurvivalCode
from tenure.model.control_server import ControlServer
from tenure.model.reasons import ConditionStatus, ServerConditionType, ServerPhase
from tenure.model.records import SurvivalEffective
from tenure.model.server_status import AdjustmentStatus, InstanceMention
from tenure.plan.adoption.gates import Verdict
from tenure.plan.adoption.next_step import recorded_pod
from tenure.plan.adoption.state import NoSecret, PodPhase, State
from tenure.plan.adoption.steps import (
    DismissSurvivor,
    Idle,
    Nothing,
    RepairRecordsOf,
    Step,
    StopServer,
)
from tenure.plan.servers.troubles import PodMention as PodMention


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What is told of the latest recovery: the status, events and counters are made of it."""

    started_at: datetime | None = None
    finished_at: datetime | None = None
    retracked: int = 0
    not_retracked: int = 0
    refused: int = 0
    stopped: int = 0
    hosted: int | None = None
    """Instances that the server has; None: not known."""
    deadline_elapsed: bool = False
    enumeration_failed: bool = False
    unstopped: tuple[InstanceMention, ...] = ()
    untracked: tuple[InstanceMention, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerSaid:
    """What the server in use has told of itself since this process began; empty before."""

    capabilities: tuple[str, ...] = ()
    diagnostic_output: str = ""
    adjustments: Sequence[AdjustmentStatus] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What one pass has seen and decided. Of the rest the status before tells: an operator that has just started does
    not unsay what it has not looked at yet."""

    resource: ControlServer
    """With the status as it was."""
    state: State
    step: Step
    """The last one that was planned."""
    now: datetime
    pod: PodMention | None = None
    """The pod of the server in use, or of the one that is being made."""
    failed: PodMention | None = None
    """The latest pod that was made for the present vacancy and ended before it was in use, where ``pod`` is another."""
    ordinal: int = 0
    """The highest one that was ever given out."""
    endpoint: str = ""
    """Of the server on record."""
    backend_pod: str = ""
    overlap: bool = False
    verdict: Verdict | None = None
    """The latest one of this incarnation, about a server that was left."""
    report: RecoveryReport = field(default_factory=RecoveryReport)
    said: ServerSaid = field(default_factory=ServerSaid)
    outdated: bool = False
    """Spec or image have changed since the server in use was made."""
    silent: bool = False
    """It has not answered for some time."""
    refused: str = ""
    """Why the API server takes no pod of ours, in its own words."""
    namespace_terminating: bool = False
    foreign: str = ""
    """The name of a child that is somebody else's."""
    rival: str = ""
    """An older ControlServer of the same installation, which has its record."""

    @property
    def incarnation(self) -> str | None:
        """Whose turn it is; None: nobody's."""
        return self.state.owner.incarnation if self.state.owner is not None else None

    @property
    def same_incarnation(self) -> bool:
        """Whether the status before was written in this one."""
        before = self.resource.status.backend
        return before is not None and before.incarnation == self.incarnation is not None

    @property
    def owned(self) -> bool:
        """Whether the server on record is owned by the current incarnation."""
        record = self.state.record
        return record is not None and not record.vacant and record.adopted_by == self.incarnation is not None

    @property
    def recovered(self) -> bool:
        """Whether recovery is over for the current incarnation."""
        record = self.state.record
        return record is not None and record.recovered_by == self.incarnation is not None

    @property
    def server_gone(self) -> bool:
        """There is a server on record, and its pod has ended or does not exist."""
        record, pod = self.state.record, recorded_pod(self.state)
        if record is None or record.vacant:
            return False
        return pod is None or pod.phase is PodPhase.ENDED

    @property
    def server_pod(self) -> PodMention | None:
        """The pod of the server on record, if it exists."""
        found = recorded_pod(self.state)
        return self.pod if self.pod is not None and found is not None and found.uid == self.pod.uid else None

    @property
    def secret_unread(self) -> bool:
        """The Secret of the server on record could not be read."""
        pod = recorded_pod(self.state)
        return pod is not None and pod.secret is NoSecret.UNREAD

    @property
    def dismissing(self) -> bool:
        """The server on record is being stopped by us."""
        if isinstance(self.step, Nothing):
            return self.step.why is Idle.SERVER_ENDING
        return isinstance(self.step, DismissSurvivor | StopServer | RepairRecordsOf)

    @property
    def ending(self) -> bool:
        """The server on record stops, whoever asked for it."""
        pod = recorded_pod(self.state)
        terminating = pod is not None and pod.terminating and pod.phase is not PodPhase.ENDED
        return self.dismissing or terminating

    @property
    def lost(self) -> bool:
        """A server that was ours in this incarnation has refused us as superseded. Once so, always: an operator that
        has just started has not heard it yet."""
        attempt = self.state.attempt
        heard = attempt.lost and attempt.incarnation == self.incarnation is not None
        said = any(
            c.type == ServerConditionType.OWNERSHIP_LOST and c.status is ConditionStatus.TRUE
            for c in self.resource.status.conditions
        )
        return heard or (said and self.same_incarnation)

    @property
    def survival(self) -> SurvivalEffective:
        """What holds for the current incarnation: a change of the flag waits for the next one."""
        record = self.state.record
        if record is not None and record.adopted_by == self.incarnation is not None:
            return record.survival
        return self.state.survival.effective

    @property
    def stalled(self) -> bool:
        """A person is needed before anything else can happen."""
        return bool(
            self.foreign
            or self.rival
            or self.refused
            or self.namespace_terminating
            or not self.state.survival.server_possible
        )


def phase_of(facts: Facts) -> ServerPhase:
    """The first that applies."""
    record = facts.state.record
    if facts.stalled:
        return ServerPhase.STALLED
    if facts.lost:
        return ServerPhase.LOST
    if not facts.state.record_read or (facts.secret_unread and not facts.server_gone):
        return ServerPhase.UNKNOWN
    if facts.ending:
        return ServerPhase.STOPPING
    if facts.state.owner is None:
        here = record is not None and not record.vacant and not facts.server_gone
        return ServerPhase.DETACHED if here else ServerPhase.PENDING
    if record is None or record.vacant or facts.server_gone:
        return ServerPhase.STARTING
    if not facts.owned:
        return ServerPhase.ADOPTING
    if not facts.recovered:
        return ServerPhase.RECOVERING
    return ServerPhase.UNKNOWN if facts.silent else ServerPhase.RUNNING


def impossible(facts: Facts) -> SurvivalCode | None:
    """Why not even a server can be made here; None where it can."""
    survival = facts.state.survival
    return survival.code if not survival.server_possible else None
