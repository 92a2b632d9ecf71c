"""What people and programs read of a hosted AgentProcess: phase and conditions.

Messages hold no age and no countdown: a status that changes by itself would be written for ever.
"""

from dataclasses import dataclass
from enum import StrEnum

from tenure.model.reasons import ConditionReason, ConditionType, Phase, StopOrigin
from tenure.model.status import Status
from tenure.plan.conditions import FALSE, TRUE, UNKNOWN, Verdict, conditions_from
from tenure.plan.hosted.observation import InstanceView, Observation, Wanting

_ASKED = {
    StopOrigin.RESOURCE: (ConditionReason.STOP_BY_RESOURCE, "spec.desiredState"),
    StopOrigin.TABLE: (ConditionReason.STOP_BY_TABLE, "its row"),
    StopOrigin.DELETION: (ConditionReason.STOP_BY_DELETION, "the deletion of the resource"),
    StopOrigin.REPLACEMENT: (ConditionReason.STOP_BY_REPLACEMENT, "a changed restartToken"),
    StopOrigin.DISRUPTION: (ConditionReason.STOP_BY_DISRUPTION, "a disruption"),
}


BEGAN_ANEW = "the agent runs in its control server; it did not load what was said in its session before, and began anew"


class Stage(StrEnum):
    """Where the agent is in its life."""

    PENDING = "pending"
    """One is due, and something is waited for."""
    STARTING = "starting"
    RUNNING = "running"
    UNKNOWN = "unknown"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


_PHASES = {
    Stage.PENDING: Phase.PENDING,
    Stage.STARTING: Phase.STARTING,
    Stage.RUNNING: Phase.RUNNING,
    Stage.UNKNOWN: Phase.UNKNOWN,
    Stage.DRAINING: Phase.DRAINING,
    Stage.STOPPED: Phase.STOPPED,
    Stage.FAILED: Phase.FAILED,
}


@dataclass(frozen=True, slots=True)
class Facts:
    """What phase and conditions are made of."""

    stage: Stage
    status: Status
    sentence: str = ""
    """What is waited for, or not known."""
    reason: ConditionReason = ConditionReason.NOT_OBSERVED
    """The word for that sentence."""
    stalled: Wanting | None = None
    instance: InstanceView = InstanceView.UNREAD
    began_anew: bool = False


def dress(observation: Observation, facts: Facts) -> Status:
    """The status with phase and all five conditions, each with its transition time for as long as its status stays."""
    verdicts = {
        ConditionType.READY: _ready(facts),
        ConditionType.ALIVE: _alive(facts),
        ConditionType.DRAINING: _draining(facts),
        ConditionType.STOPPED: _stopped(facts),
        ConditionType.STALLED: _stalled(facts),
    }
    update = {
        "phase": _PHASES[facts.stage],
        "observed_generation": observation.resource.metadata.generation,
        "conditions": conditions_from(verdicts, observation.resource, observation.now),
    }
    return facts.status.model_copy(update=update)


def _ready(facts: Facts) -> Verdict:
    match facts.stage:
        case Stage.RUNNING:
            well = "the agent runs in its control server"
            return TRUE, ConditionReason.RUNNING, BEGAN_ANEW if facts.began_anew else well
        case Stage.STOPPED:
            return _ready_when_stopped(facts)
        case Stage.UNKNOWN:
            return UNKNOWN, facts.reason, facts.sentence
        case Stage.STARTING:
            return UNKNOWN, ConditionReason.STARTING, facts.sentence or "the agent is being started"
        case Stage.PENDING:
            # Of an agent that has never been there nothing is known yet, unless somebody has to do something.
            seen = facts.status.instance is not None and facts.status.instance.id is not None
            known = seen or facts.stalled is not None
            return FALSE if known else UNKNOWN, facts.reason, f"an agent is due; {facts.sentence}"
        case Stage.DRAINING:
            text = facts.sentence or "the agent may finish its turn, and is given no other"
            return FALSE, ConditionReason.DRAINING, text
        case Stage.FAILED:
            return FALSE, ConditionReason.FAILED, _ending(facts.status)


def _ready_when_stopped(facts: Facts) -> Verdict:
    stop = facts.status.stop
    if stop is None:
        return TRUE, ConditionReason.STOPPED_AS_ASKED, "no agent is wanted, and none was ever started"
    if stop.origin is None:
        return FALSE, ConditionReason.COMPLETED, _ending(facts.status)
    return TRUE, ConditionReason.STOPPED_AS_ASKED, f"stopped as asked through {_ASKED[stop.origin][1]}"


def _alive(facts: Facts) -> Verdict:
    if facts.stage in (Stage.STOPPED, Stage.FAILED, Stage.PENDING):
        return FALSE, ConditionReason.NO_INSTANCE, "no agent runs"
    if facts.instance is InstanceView.LIVE:
        return TRUE, ConditionReason.RUNNING, "the control server says that the agent runs"
    if facts.instance in (InstanceView.ENDED, InstanceView.ABSENT):
        return FALSE, ConditionReason.NO_INSTANCE, "the control server says that the agent has ended"
    return UNKNOWN, ConditionReason.NOT_OBSERVED, "the control server has not been heard about the agent"


def _draining(facts: Facts) -> Verdict:
    stop = facts.status.stop
    if facts.stage is not Stage.DRAINING or stop is None or stop.origin is None:
        return FALSE, ConditionReason.NOT_DRAINING, "no stop is under way"
    reason, through = _ASKED[stop.origin]
    return TRUE, reason, f"a stop was asked for through {through}"


def _stopped(facts: Facts) -> Verdict:
    stop = facts.status.stop
    if facts.stage is Stage.FAILED:
        return TRUE, ConditionReason.FAILED, _ending(facts.status)
    if facts.stage is Stage.STOPPED:
        if stop is None:
            return TRUE, ConditionReason.NO_INSTANCE, "no agent was ever started"
        reason = ConditionReason.COMPLETED if stop.origin is None else ConditionReason.STOPPED_AS_ASKED
        return TRUE, reason, _ending(facts.status)
    if facts.stage is Stage.UNKNOWN:
        return UNKNOWN, facts.reason, facts.sentence
    if facts.stage is Stage.PENDING:
        return FALSE, ConditionReason.PENDING, "an agent is due"
    return FALSE, ConditionReason.RUNNING, "an agent exists"


def _stalled(facts: Facts) -> Verdict:
    if facts.stalled is None:
        return FALSE, ConditionReason.PROGRESSING, "nothing is in the way"
    return TRUE, facts.stalled.reason, facts.stalled.sentence


def _ending(status: Status) -> str:
    stop = status.stop
    if stop is None:
        return ""
    grace = {True: "gracefully", False: "ungracefully", None: "how is unknown"}[stop.graceful]
    return f"{stop.message or 'the agent ended'} ({grace})"
