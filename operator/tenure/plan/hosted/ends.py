"""How an execution of a hosted agent ended: who asked, whether its work was done, and what it costs in waiting."""

from dataclasses import dataclass
from datetime import timedelta

from tenure.model.reasons import StopOrigin
from tenure.model.records import SessionState, TurnState
from tenure.model.resources import AgentProcess
from tenure.model.status import STOPS_KEPT, BackoffStatus, InstanceStatus, Status, StopRecord, StopStatus
from tenure.plan.ends import FORCED, HEALTHY_RUN, will_restart
from tenure.plan.hosted.observation import Observation

DONE = "the agent has done what it was told"
FAILED_TURN = "what the agent was told to do ended with an error"
CUT_SHORT = "the agent ended before it had done what it was told"
BY_ITSELF = "the agent has ended, and no stop was asked for"
NEVER_STARTED = "the agent could not be started; the log of its control server says why"
NOT_STARTED = "the agent was never started"
DRAINED = "the agent ended after it was asked to"
TOLD = "the agent was told before; a new restartToken tells it again"
SERVER_GONE = "its control server was deleted, and the agent ended with it"
SERVER_ENDED = "its control server ended, and the agent with it"
UNSEEN = "the agent was gone before anybody saw how it ended"


@dataclass(frozen=True, slots=True)
class HowEnded:
    """``graceful`` None: nobody can tell. ``final``: no new one without a new restart token."""

    message: str
    graceful: bool | None
    final: bool = False


def how_ended(observation: Observation, origin: StopOrigin | None) -> HowEnded:
    """From what is durable: row, turn and session. It is asked when the row is not live any more."""
    turn = observation.turn
    if observation.server_gone and observation.mine:
        return _with_its_server(observation, origin)
    if origin is not None:
        cut = turn is not None and turn.state is TurnState.ABANDONED
        return HowEnded(FORCED if cut else DRAINED, graceful=not cut)
    if not observation.mine:
        # Somebody else has launched the session since, and what this one did is not to be told apart any more.
        return HowEnded(UNSEEN, None, final=not observation.server.backend)
    started = observation.resource.status.instance
    if observation.server.backend:
        over = observation.session is SessionState.COMPLETED
        return HowEnded(DONE, True) if over else _unasked(observation)
    if turn is not None:
        return _after_a_turn(turn.state)
    never = started is None or started.started_at is None
    return HowEnded(NEVER_STARTED, None) if never else _unasked(observation)


def _unasked(observation: Observation) -> HowEnded:
    """By itself, or with its server: what it did at the end nobody has seen where another server has followed that of
    the row, and it did not outlive that one."""
    row, names = observation.row, observation.server.names
    elsewhere = row is not None and bool(names) and row.container_identity not in names
    return HowEnded(SERVER_ENDED if elsewhere else BY_ITSELF, None)


def _with_its_server(observation: Observation, origin: StopOrigin | None) -> HowEnded:
    """Whether that server had a backend nobody can say any more: where the resource has a prompt, there was none."""
    turn, session = observation.turn, observation.resource.spec.session
    # A server that is told to end may tell it of the turn, before it is cut: that is the same.
    cut = turn is not None and turn.state in (TurnState.ABANDONED, TurnState.FAILED)
    if origin is not None:
        return HowEnded(SERVER_GONE if cut else DRAINED, graceful=not cut)
    told = turn is not None and session is not None and session.prompt is not None
    if turn is not None and told and not cut:
        return _after_a_turn(turn.state)
    if observation.session is SessionState.COMPLETED:
        return HowEnded(DONE, True)
    return HowEnded(SERVER_GONE, False if cut else None, final=told)


def _after_a_turn(state: TurnState) -> HowEnded:
    if state is TurnState.COMPLETED:
        return HowEnded(DONE, True, final=True)
    ended = state in (TurnState.FAILED, TurnState.CANCELLED)
    return HowEnded(FAILED_TURN if ended else CUT_SHORT, False, final=True)


def record_end(observation: Observation, status: Status, how: HowEnded) -> Status:
    """The status with the end, its count and its waiting in it: one durable fact."""
    instance, resource, now = status.instance, observation.resource, observation.now
    assert instance is not None, "only a recorded instance can end"
    begun = status.stop if status.stop is not None and status.stop.instance == instance.id else None
    origin = begun.origin if begun is not None else None
    done = StopStatus(
        instance=instance.id or "",
        origin=origin,
        requested_at=begun.requested_at if begun is not None else None,
        finished_at=now,
        graceful=how.graceful,
        message=how.message,
    )
    update: dict[str, object] = {"stop": done, "backoff": None}
    if origin is not None:
        update["stops"] = (*status.stops, StopRecord(**done.model_dump(by_alias=False)))[-STOPS_KEPT:]
    elif not how.final and _again(resource, how.graceful):
        update |= _waiting(observation, status, instance)
    return status.model_copy(update=update)


def restarts(resource: AgentProcess, status: Status) -> bool:
    """Whether an end that nobody asked for is followed by another instance, by itself. That is decided when the end
    is recorded; a policy that has changed since may only take it back."""
    stop = status.stop
    return stop is not None and status.backoff is not None and _again(resource, stop.graceful)


def _again(resource: AgentProcess, graceful: bool | None) -> bool:
    return will_restart(resource.spec.restart_policy, 0 if graceful is True else None)


def _waiting(observation: Observation, status: Status, instance: InstanceStatus) -> dict[str, object]:
    backoff, now = observation.resource.spec.backoff, observation.now
    healthy = instance.started_at is not None and now - instance.started_at >= HEALTHY_RUN
    before = 0 if healthy or status.backoff is None else status.backoff.failures
    wait = min(backoff.max_seconds, backoff.initial_seconds * 2 ** min(before, 20))
    until = now + timedelta(seconds=wait)
    return {
        "backoff": BackoffStatus(failures=before + 1, until=until),
        "restarts": status.restarts + 1,
    }
