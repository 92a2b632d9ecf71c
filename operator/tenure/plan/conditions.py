"""Phase and conditions: what people and programs read of an AgentProcess.

Messages hold no age and no countdown: a status that changes by itself would be written for ever.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from tenure.model.pods import PodView
from tenure.model.reasons import (
    ConditionReason,
    ConditionStatus,
    ConditionType,
    LivenessMode,
    Phase,
    StopOrigin,
)
from tenure.model.resources import AgentProcess
from tenure.model.status import Condition, Status
from tenure.plan.observation import NoTable, Observation, Unreadable
from tenure.plan.rows import RowVerdict
from tenure.plan.starts import StartVerdict

TRUE, FALSE, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN

Verdict = tuple[ConditionStatus, ConditionReason, str]
"""A condition's status, reason and sentence."""

_STOP_REASONS = {
    StopOrigin.RESOURCE: ConditionReason.STOP_BY_RESOURCE,
    StopOrigin.TABLE: ConditionReason.STOP_BY_TABLE,
    StopOrigin.DELETION: ConditionReason.STOP_BY_DELETION,
    StopOrigin.REPLACEMENT: ConditionReason.STOP_BY_REPLACEMENT,
    StopOrigin.DISRUPTION: ConditionReason.STOP_BY_DISRUPTION,
}
_ASKED_THROUGH = {
    StopOrigin.RESOURCE: "spec.desiredState",
    StopOrigin.TABLE: "its row in the liveness table",
    StopOrigin.DELETION: "the deletion of the resource",
    StopOrigin.REPLACEMENT: "a replacement (changed template or restartToken, or hung)",
    StopOrigin.DISRUPTION: "an eviction, a node drain or the deletion of its pod",
}


_ON_ITS_WAY = ("ContainerCreating", "PodInitializing")
"""Reasons of a waiting container that tell nothing: each would cost a write of its own."""
_ONE_AND_THE_SAME = {"ErrImagePull": "ImagePullBackOff"}
"""Reasons between which the kubelet goes to and fro."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the phase and the conditions are made of, once stops, ends and starts have been judged."""

    status: Status
    pod: PodView | None
    """The pod of the living instance; None when there is none."""
    row: RowVerdict
    start: StartVerdict
    hung: bool = False
    awaiting: str = ""
    """The instance may have ended, but this is not known yet: phase Unknown."""
    new_row_awaited: bool = False
    """It runs, and its first row may still be under way."""
    stuck: bool = False


def draining(facts: Facts) -> bool:
    """A stop of the living instance is under way, whoever asked."""
    return facts.pod is not None and (facts.status.stop is not None or facts.pod.terminating)


def phase_of(facts: Facts) -> Phase:
    """The first that applies."""
    pod, stop = facts.pod, facts.status.stop
    if draining(facts):
        return Phase.DRAINING
    if facts.awaiting or (pod is not None and (not facts.row.readable or pod.phase == "Unknown")):
        return Phase.UNKNOWN
    if pod is not None:
        if facts.hung:
            return Phase.HUNG
        starting = not pod.agent.running or facts.new_row_awaited
        return Phase.STARTING if starting else Phase.RUNNING
    if facts.start.due:
        return Phase.PENDING
    failed = stop is not None and stop.origin is None and stop.exit_code != 0
    return Phase.FAILED if failed else Phase.STOPPED


def conditions_of(observation: Observation, facts: Facts, phase: Phase) -> tuple[Condition, ...]:
    """All five, in a fixed order; each keeps its transition time for as long as its status stays."""
    verdicts = {
        ConditionType.READY: _ready(observation, facts, phase),
        ConditionType.ALIVE: _alive(observation, facts),
        ConditionType.DRAINING: _draining(facts, phase),
        ConditionType.STOPPED: _stopped(facts, phase),
        ConditionType.STALLED: _stalled(observation),
    }
    return conditions_from(verdicts, observation.resource, observation.now)


def conditions_from(
    verdicts: Mapping[ConditionType, Verdict], resource: AgentProcess, now: datetime
) -> tuple[Condition, ...]:
    """Conditions of a resource, in the order of ``verdicts``; each keeps its transition time for as long as its
    status stays. Ready is Unknown in the first status, however late that is: the agent may run by then, or may have
    ended. The next look, right after its write, says what is so."""
    if resource.status == Status():
        verdicts = {**verdicts, ConditionType.READY: (UNKNOWN, *verdicts[ConditionType.READY][1:])}
    before = {c.type: c for c in resource.status.conditions}
    generation = resource.metadata.generation
    return tuple(
        _condition(kind, verdict, before.get(kind), generation, now) for kind, verdict in verdicts.items()
    )


def stalled_by_spec(status: Status, generation: int, why: str, now: datetime) -> Status:
    """``status`` with Stalled=True because the spec is not understood. What it says beside that stays; a first one
    has every condition, Unknown."""
    before = {c.type: c for c in status.conditions}
    unseen = (UNKNOWN, ConditionReason.NOT_OBSERVED, "the resource is not understood")

    def condition(kind: ConditionType) -> Condition:
        if kind is not ConditionType.STALLED and kind in before:
            return before[kind]
        verdict = (TRUE, ConditionReason.INVALID_SPEC, why) if kind is ConditionType.STALLED else unseen
        return _condition(kind, verdict, before.get(kind), generation, now)

    kinds = tuple(condition(kind) for kind in ConditionType)
    return status.model_copy(update={"conditions": kinds, "observed_generation": generation})


def _condition(
    kind: ConditionType, verdict: Verdict, before: Condition | None, generation: int, now: datetime
) -> Condition:
    status, reason, message = verdict
    same = before is not None and before.status is status
    return Condition(
        type=kind,
        status=status,
        observed_generation=generation,
        last_transition_time=before.last_transition_time if same and before is not None else now,
        reason=reason,
        message=message,
    )


def _ready(observation: Observation, facts: Facts, phase: Phase) -> Verdict:
    match phase:
        case Phase.RUNNING:
            return TRUE, ConditionReason.RUNNING, "the agent runs"
        case Phase.STOPPED:
            return _ready_when_stopped(facts)
        case Phase.UNKNOWN:
            return _unknown(observation, facts)
        case Phase.STARTING:
            return UNKNOWN, ConditionReason.STARTING, _starting(facts)
        case Phase.PENDING:
            reason = ConditionReason.BACKING_OFF if facts.start.backing_off else ConditionReason.PENDING
            # Of an agent that has never been there nothing is known yet, unless its pod was refused.
            seen = facts.status.instance is not None and facts.status.instance.id
            known = seen or observation.memory.rejection is not None
            wait = facts.start.waiting or "it is being created"
            return FALSE if known else UNKNOWN, reason, f"a new instance is due; {wait}"
        case Phase.DRAINING:
            return (
                FALSE,
                ConditionReason.DRAINING,
                "the agent finishes the task that it holds, and takes no other",
            )
        case Phase.HUNG:
            return FALSE, ConditionReason.HUNG, "the agent's process runs, but it has ceased to report"
        case Phase.FAILED:
            return FALSE, ConditionReason.FAILED, _ending(facts.status)


def _ready_when_stopped(facts: Facts) -> Verdict:
    stop = facts.status.stop
    if stop is None:
        return TRUE, ConditionReason.STOPPED_AS_ASKED, "no instance is wanted, and none was ever started"
    if stop.origin is None:
        return (
            FALSE,
            ConditionReason.COMPLETED,
            "the agent ended by itself with exit code 0 and is not restarted",
        )
    return TRUE, ConditionReason.STOPPED_AS_ASKED, f"stopped as asked through {_ASKED_THROUGH[stop.origin]}"


def _starting(facts: Facts) -> str:
    if facts.pod is not None and facts.pod.agent.running:
        return "the agent's process runs; its first heartbeat is awaited"
    reason = facts.pod.agent.reason if facts.pod is not None else ""
    reason = "" if reason in _ON_ITS_WAY else _ONE_AND_THE_SAME.get(reason, reason)
    return f"the pod exists; its agent does not run yet{f' ({reason})' if reason else ''}"


def _unknown(observation: Observation, facts: Facts) -> Verdict:
    if facts.awaiting:
        return UNKNOWN, ConditionReason.NOT_OBSERVED, facts.awaiting
    if isinstance(observation.rows, Unreadable):
        return UNKNOWN, ConditionReason.DATABASE_UNAVAILABLE, _no_answer(observation)
    return UNKNOWN, ConditionReason.POD_UNKNOWN, "the state of the pod is unknown: its node does not report"


def _no_answer(observation: Observation) -> str:
    database, rows = observation.resource.spec.liveness.database, observation.rows
    if isinstance(rows, Unreadable) and rows.row_only:
        return f"database {database} answers, but {rows.reason}"
    return f"database {database} does not answer"


def _alive(observation: Observation, facts: Facts) -> Verdict:
    if facts.pod is None:
        if facts.awaiting:
            return UNKNOWN, ConditionReason.NOT_OBSERVED, facts.awaiting
        return FALSE, ConditionReason.NO_INSTANCE, "there is no running instance"
    if isinstance(observation.rows, NoTable):
        return _alive_without_table(observation.resource, observation.rows)
    if not facts.row.readable:
        return UNKNOWN, ConditionReason.DATABASE_UNAVAILABLE, _no_answer(observation)
    if facts.row.row is None:
        return UNKNOWN, ConditionReason.NOT_REPORTED, "no row of this instance is in the liveness table"
    if facts.row.alive:
        if facts.stuck:
            return (
                TRUE,
                ConditionReason.TASK_STUCK,
                "the agent heartbeats, but holds one task for longer than allowed",
            )
        return TRUE, ConditionReason.HEARTBEAT_FRESH, "the last heartbeat is at most three intervals old"
    if facts.row.epoch:
        return FALSE, ConditionReason.HEARTBEAT_EXPIRED, "the agent has reported its own end"
    if observation.memory.fresh_at is None and not facts.hung:
        return UNKNOWN, ConditionReason.SETTLING, "no heartbeat yet since the row could be read again"
    return FALSE, ConditionReason.HEARTBEAT_EXPIRED, "the last heartbeat is more than three intervals old"


def _alive_without_table(resource: AgentProcess, rows: NoTable) -> Verdict:
    if rows.allowed is None or resource.spec.liveness.mode is LivenessMode.POD:
        return UNKNOWN, ConditionReason.NOT_CONFIGURED, "no table in mode Pod: only the pod is watched"
    wanted, known = resource.spec.liveness.database, ", ".join(rows.allowed)
    if not known:
        text = f"no database is configured for this namespace, so {wanted!r} cannot be read; only the pod is watched"
        return UNKNOWN, ConditionReason.NOT_CONFIGURED, text
    text = f"this namespace may not use database {wanted!r}; it may use: {known}. Only the pod is watched"
    return UNKNOWN, ConditionReason.DATABASE_NOT_ALLOWED, text


def _draining(facts: Facts, phase: Phase) -> Verdict:
    stop = facts.status.stop
    if phase is not Phase.DRAINING:
        return FALSE, ConditionReason.NOT_DRAINING, "no stop is under way"
    if stop is None or stop.origin is None:
        return TRUE, ConditionReason.STOP_BY_DISRUPTION, "the pod is being deleted"
    return TRUE, _STOP_REASONS[stop.origin], f"a stop was asked for through {_ASKED_THROUGH[stop.origin]}"


def _stopped(facts: Facts, phase: Phase) -> Verdict:
    if phase in (Phase.STOPPED, Phase.FAILED):
        stop = facts.status.stop
        if stop is None:
            return TRUE, ConditionReason.NO_INSTANCE, "no instance was ever started"
        if phase is Phase.FAILED:
            return TRUE, ConditionReason.FAILED, _ending(facts.status)
        reason = ConditionReason.COMPLETED if stop.origin is None else ConditionReason.STOPPED_AS_ASKED
        return TRUE, reason, _ending(facts.status)
    if facts.awaiting:
        return UNKNOWN, ConditionReason.NOT_OBSERVED, facts.awaiting
    reason = ConditionReason.PENDING if phase is Phase.PENDING else ConditionReason.RUNNING
    return FALSE, reason, "an instance is due" if phase is Phase.PENDING else "an instance exists"


def _ending(status: Status) -> str:
    stop = status.stop
    if stop is None:
        return ""
    grace = {True: "gracefully", False: "ungracefully", None: "how is unknown"}[stop.graceful]
    return f"{stop.message or 'the agent ended'} ({grace})"


def _stalled(observation: Observation) -> Verdict:
    rejection = observation.memory.rejection
    if rejection is None or rejection.generation != observation.resource.metadata.generation:
        return FALSE, ConditionReason.PROGRESSING, "nothing is in the way"
    if rejection.namespace_terminating:
        return TRUE, ConditionReason.NAMESPACE_TERMINATING, "the namespace is being deleted"
    return TRUE, ConditionReason.TEMPLATE_REJECTED, rejection.message or "the API server refused the pod"
