"""What to do now about one hosted AgentProcess: a pure function of what was observed.

It reads top down: whether an execution of it lives, has ended, or is due; then status, then the actions. The row is the
truth about which execution there is; the status says which was meant, how the former one ended, and what people read.
"""

from dataclasses import replace

from tenure.model.ids import child_name
from tenure.model.reasons import ConditionReason, DesiredState, StopOrigin
from tenure.model.records import ExecutorStatus, SessionState, TurnState
from tenure.model.resources import AgentProcess
from tenure.model.status import InstanceStatus, Status, StopStatus
from tenure.plan.hosted.actions import (
    Action,
    Bury,
    Drive,
    Finish,
    Launch,
    MarkStopping,
    Verdict,
    WriteStatus,
)
from tenure.plan.hosted.conditions import Facts, Stage, dress
from tenure.plan.hosted.ends import DONE, NOT_STARTED, TOLD, HowEnded, how_ended, record_end, restarts
from tenure.plan.hosted.observation import TOKEN_KEY, InstanceView, Memory, Observation, Wanting, fact
from tenure.plan.hosted.obstacles import Obstacle, obstacle, prompt_needs_no_backend
from tenure.plan.instances import end_recorded

STEADY = 5.0
"""Seconds until an agent that runs is looked at again."""
DRAINING = 1.0
UNKNOWN = 3.0
OUTCOME_AWAITED = 15.0
"""Seconds for which a backend may still read how the last turn of an ended agent ended."""

UNSTOPPED = Wanting(
    ConditionReason.UNSTOPPED_AGENT, "an agent of the session could not be stopped", stalled=True
)


def plan_hosted(observation: Observation) -> Verdict:
    """What to do now about one hosted AgentProcess that exists."""
    verdict, row = _plan(observation), observation.row
    if row is None or not row.live or not observation.server_gone:
        return verdict
    # Whosever it is: nobody else ends this row, and while it is live the session is guarded by it.
    return replace(verdict, actions=(*verdict.actions, Bury(row.session_id)))


def _plan(observation: Observation) -> Verdict:
    resource, row = observation.resource, observation.row
    if not observation.row_read:
        facts = Facts(Stage.UNKNOWN, resource.status, sentence="the database does not answer")
        return _verdict(observation, replace(facts, reason=ConditionReason.DATABASE_UNAVAILABLE), [], UNKNOWN)
    if observation.mine and row is not None and row.live:
        return _living(observation, _taken(observation))
    status = resource.status
    instance = status.instance
    if instance is None or not instance.id or end_recorded(status):
        return _without_instance(observation, status)
    launched = observation.mine and row is not None and row.agent_execution_id == instance.id
    rejected = observation.memory.rejection is not None
    if instance.started_at is None and (rejected or not launched):
        return _meant(observation, status, instance)
    origin = status.stop.origin if status.stop is not None and status.stop.instance == instance.id else None
    return _ended(observation, status, how_ended(observation, origin))


# An execution lives


def _taken(observation: Observation) -> Status:
    """The status, with the execution in the row as the instance: recovery may have published another id."""
    status, row = observation.resource.status, observation.row
    assert row is not None
    execution = row.agent_execution_id or ""
    known = status.instance
    if known is not None and known.id == execution and not end_recorded(status):
        return status
    ordinal = known.ordinal if known is not None else 0
    token = fact(row, TOKEN_KEY)
    started = known.started_at if known is not None and not end_recorded(status) else None
    instance = InstanceStatus(id=execution, ordinal=ordinal, started_at=started, restart_token=token)
    stop = status.stop
    if stop is not None and known is not None and not end_recorded(status) and stop.instance == known.id:
        stop = stop.model_copy(update={"instance": execution})
    else:
        stop = None
    return status.model_copy(update={"instance": instance, "stop": stop})


def _living(observation: Observation, status: Status) -> Verdict:
    instance, row = status.instance, observation.row
    assert instance is not None
    assert row is not None
    if instance.started_at is None and observation.instance is InstanceView.LIVE:
        instance = instance.model_copy(update={"started_at": observation.now})
        status = status.model_copy(update={"instance": instance})
    stop = status.stop if status.stop is not None and status.stop.instance == instance.id else None
    asked = _asked(observation.resource, instance)
    if stop is None and asked is not None:
        stop = _begun(observation, asked, instance)
    status = status.model_copy(update={"stop": stop})
    reachable = bool(row.container_identity) and row.container_identity in observation.server.names
    if stop is not None:
        return _draining(observation, status, stop, reachable=reachable)
    if not reachable or observation.instance is InstanceView.UNREAD:
        return _out_of_sight(observation, status, instance, reachable=reachable)
    if observation.instance is InstanceView.LIVE:
        return _running(observation, status, instance)
    if observation.instance is InstanceView.ABSENT and instance.started_at is None:
        # The row was written, and whether the server was asked is not known: asking again does no harm.
        return _meant(observation, status, instance)
    return _fallen(observation, status, instance)


def _asked(resource: AgentProcess, instance: InstanceStatus) -> StopOrigin | None:
    if resource.deleting:
        return StopOrigin.DELETION
    if resource.spec.desired_state is DesiredState.STOP_REQUESTED:
        return StopOrigin.RESOURCE
    if instance.restart_token != resource.spec.restart_token:
        return StopOrigin.REPLACEMENT
    return None


def _begun(observation: Observation, asked: StopOrigin, instance: InstanceStatus) -> StopStatus:
    """A stop that was not written down before. Of a deletion it is known when it was asked for."""
    at, deleted = observation.now, observation.resource.metadata.deletion_timestamp
    if asked is StopOrigin.DELETION and deleted is not None:
        at = min(at, deleted)
    return StopStatus(instance=instance.id or "", origin=asked, requested_at=at)


def _draining(observation: Observation, status: Status, stop: StopStatus, *, reachable: bool) -> Verdict:
    row = observation.row
    assert row is not None
    facts = Facts(Stage.DRAINING, status, instance=observation.instance)
    if row.status is not ExecutorStatus.STOPPING:
        return _verdict(observation, facts, [MarkStopping(stop.instance)], DRAINING)
    if row.unstopped:
        facts = replace(facts, sentence="its agent did not stop, after all retries", stalled=UNSTOPPED)
        return _verdict(observation, facts, [], UNKNOWN)
    if not reachable:
        facts = replace(facts, sentence=f"ControlServer {observation.server.name} cannot be asked at present")
        return _verdict(observation, facts, [], UNKNOWN)
    over = _drained_for(observation, stop) >= observation.resource.spec.drain.grace_period_seconds
    gone = observation.instance in (InstanceView.ABSENT, InstanceView.ENDED)
    if observation.turn_open and not over and not gone:
        drive: list[Action] = [] if observation.server.backend else [Drive(stop.instance, None)]
        return _verdict(observation, facts, drive, DRAINING)
    newest = observation.newest_turn
    cut = newest.id if newest is not None and observation.turn_open and not gone else None
    words = not observation.server.backend
    finish = Finish(stop.instance, None, failed=False, last_words=words, cut=cut)
    return _verdict(observation, facts, [finish], DRAINING)


def _drained_for(observation: Observation, stop: StopStatus) -> float:
    """Seconds since the drain began. Our own clock may be set meanwhile, or be another operator's, and the status may
    be edited: what is cut by mistake is lost. So the row and the database's clock say it, wherever they do."""
    if observation.drained_for is not None:
        return observation.drained_for
    return 0.0 if stop.requested_at is None else (observation.now - stop.requested_at).total_seconds()


def _out_of_sight(
    observation: Observation, status: Status, instance: InstanceStatus, *, reachable: bool
) -> Verdict:
    name = observation.server.name
    text = f"ControlServer {name} cannot be asked at present: nothing is known of the agent"
    if reachable:
        text = f"ControlServer {name} does not say what became of the agent"
    stage = Stage.UNKNOWN if instance.started_at is not None else Stage.STARTING
    facts = Facts(stage, status, sentence=text, reason=ConditionReason.CONTROL_SERVER_NOT_READY)
    return _verdict(observation, facts, [], UNKNOWN)


def _running(observation: Observation, status: Status, instance: InstanceStatus) -> Verdict:
    facts = Facts(
        Stage.RUNNING,
        status,
        instance=observation.instance,
        stalled=prompt_needs_no_backend(observation),
        began_anew=observation.began_anew,
    )
    memory = replace(observation.memory, rejection=None, ended_since=None)
    observation = replace(observation, memory=memory)
    if observation.server.backend:
        return _verdict(observation, facts, [], STEADY)
    turn, session = observation.turn, observation.resource.spec.session
    assert session is not None
    assert instance.id
    if turn is not None and turn.state is not TurnState.OPEN:
        done = turn.state is TurnState.COMPLETED
        state = SessionState.COMPLETED if done else SessionState.WAITING_FOR_INPUT
        finish = Finish(instance.id, state, failed=not done, last_words=True)
        return _verdict(observation, facts, [finish], STEADY)
    return _verdict(observation, facts, [Drive(instance.id, session.prompt)], STEADY)


def _fallen(observation: Observation, status: Status, instance: InstanceStatus) -> Verdict:
    """Its agent has ended, and nobody asked for that."""
    facts = Facts(
        Stage.UNKNOWN,
        status,
        instance=observation.instance,
        sentence="the agent has ended; what became of its work is being looked up",
    )
    memory, backend = observation.memory, observation.server.backend
    if backend and observation.instance is InstanceView.ENDED and observation.turn_open:
        since = observation.clock if memory.ended_since is None else memory.ended_since
        observation = replace(observation, memory=replace(memory, ended_since=since))
        if observation.clock - since < OUTCOME_AWAITED:
            return _verdict(observation, facts, [], DRAINING)
    turn = observation.turn
    done = turn is not None and turn.state is TurnState.COMPLETED and not backend
    state = SessionState.COMPLETED if done else SessionState.WAITING_FOR_INPUT
    assert instance.id
    finish = Finish(instance.id, state, failed=not done, last_words=not backend)
    return _verdict(observation, facts, [finish], DRAINING)


# None lives


def _ended(observation: Observation, status: Status, how: HowEnded) -> Verdict:
    """The end is made durable first; the next look decides what follows it."""
    status = record_end(observation, status, how)
    memory = Memory()
    return _idle(replace(observation, memory=memory), status)


def _without_instance(observation: Observation, status: Status) -> Verdict:
    resource, stop = observation.resource, status.stop
    if (
        stop is not None
        and resource.spec.desired_state is DesiredState.STOP_REQUESTED
        and stop.origin is not StopOrigin.RESOURCE
    ):
        # Whoever asks for a stop of what has stopped already means: stay so, until I say Running.
        status = status.model_copy(update={"stop": stop.model_copy(update={"origin": StopOrigin.RESOURCE})})
    if _wanted(resource, status) and _told(observation, status):
        status = _nothing_left_to_tell(observation, status)
    if not _wanted(resource, status):
        return _idle(observation, status)
    left = _backoff_left(observation, status)
    if left > 0:
        facts = Facts(Stage.PENDING, status, sentence="backing off", reason=ConditionReason.BACKING_OFF)
        return _verdict(observation, facts, [], left)
    known = status.instance.ordinal if status.instance is not None else 0
    ordinal = known + 1
    instance = InstanceStatus(
        id=child_name(resource.name, resource.uid, ordinal),
        ordinal=ordinal,
        restart_token=resource.spec.restart_token,
    )
    return _launch(observation, status, instance)


def _meant(observation: Observation, status: Status, instance: InstanceStatus) -> Verdict:
    """An instance was chosen, and is not known to have been started."""
    live = observation.mine and observation.row is not None and observation.row.live
    asked = _asked(observation.resource, instance)
    if asked is StopOrigin.REPLACEMENT and not live:
        # Nothing has been started with it.
        token = observation.resource.spec.restart_token
        instance = instance.model_copy(update={"restart_token": token})
    elif asked is not None and not live:
        status = status.model_copy(update={"stop": _begun(observation, asked, instance)})
        return _ended(observation, status, HowEnded(NOT_STARTED, True))
    return _launch(observation, status, instance)


def _launch(observation: Observation, status: Status, instance: InstanceStatus) -> Verdict:
    found = obstacle(observation)
    if found is not None:
        return _hindered(observation, status, found)
    assert instance.id
    status = status.model_copy(update={"instance": instance, "stop": None})
    facts = Facts(Stage.STARTING, status, sentence="the agent is being started")
    return _verdict(observation, facts, [Launch(instance.id, instance.restart_token)], DRAINING)


def _hindered(observation: Observation, status: Status, found: Obstacle) -> Verdict:
    wanting = found.wanting
    facts = Facts(
        Stage.PENDING,
        status,
        sentence=wanting.sentence,
        reason=wanting.reason,
        stalled=wanting if wanting.stalled else None,
    )
    verdict = _verdict(observation, facts, [], found.again_in)
    return replace(verdict, refused=found.refused)


def _idle(observation: Observation, status: Status) -> Verdict:
    stop = status.stop
    if _wanted(observation.resource, status):
        left = _backoff_left(observation, status)
        waiting = ConditionReason.BACKING_OFF if left > 0 else ConditionReason.PENDING
        text = "backing off" if left > 0 else "it is being started"
        return _verdict(
            observation, Facts(Stage.PENDING, status, sentence=text, reason=waiting), [], max(left, 0.05)
        )
    failed = stop is not None and stop.origin is None and stop.graceful is not True
    return _verdict(observation, Facts(Stage.FAILED if failed else Stage.STOPPED, status), [], None)


def _wanted(resource: AgentProcess, status: Status) -> bool:
    """Only for one whose last execution, if there was one, has ended and is recorded so."""
    if resource.deleting or resource.spec.desired_state is not DesiredState.RUNNING:
        return False
    instance, stop = status.instance, status.stop
    if instance is None or not instance.id or stop is None:
        return True
    if instance.restart_token != resource.spec.restart_token:
        return True
    if stop.origin is None:
        return restarts(resource, status)
    return stop.origin is not StopOrigin.DELETION


def _told(observation: Observation, status: Status) -> bool:
    """Whether the prompt was given for this restart token already: it is given once."""
    resource, instance = observation.resource, status.instance
    session, token = resource.spec.session, resource.spec.restart_token
    if session is None or session.prompt is None or observation.server.backend:
        return False
    if instance is None or instance.started_at is None or instance.restart_token != token:
        return False
    if observation.mine and fact(observation.row, TOKEN_KEY) == token:
        return observation.turn is not None
    # Somebody else has launched the session since: then only an end that was recorded as one to be followed tells.
    return not restarts(resource, status)


def _nothing_left_to_tell(observation: Observation, status: Status) -> Status:
    """Stopped, and wanted again, by somebody who has not asked for the prompt to be told again."""
    stop, turn = status.stop, observation.turn
    assert stop is not None
    done = turn is not None and turn.state is TurnState.COMPLETED
    update = {"origin": None, "graceful": done, "message": DONE if done else TOLD}
    return status.model_copy(update={"stop": stop.model_copy(update=update), "backoff": None})


def _backoff_left(observation: Observation, status: Status) -> float:
    if status.backoff is None or status.backoff.until is None:
        return 0.0
    instance = status.instance
    if instance is not None and instance.restart_token != observation.resource.spec.restart_token:
        # Somebody wants it now.
        return 0.0
    left = (status.backoff.until - observation.now).total_seconds()
    return left if left <= observation.resource.spec.backoff.max_seconds else 0.0


def _verdict(observation: Observation, facts: Facts, actions: list[Action], wake_in: float | None) -> Verdict:
    status = dress(observation, facts)
    write: list[Action] = [] if status == observation.resource.status else [WriteStatus(status)]
    return Verdict(status, (*write, *actions), observation.memory, wake_in)
