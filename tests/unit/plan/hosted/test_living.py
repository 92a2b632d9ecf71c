"""What is done about a hosted agent that runs, drains, or has ended."""

from dataclasses import replace

import pytest
from tests.unit.plan.hosted.builders import (
    CLOCK,
    FIRST,
    NOW,
    SERVER,
    WITH_BACKEND,
    ago,
    condition,
    deeds,
    idle,
    launched,
    observe,
    plan,
    process,
    row,
    says,
    stopped,
    turn,
)

from tenure.model.reasons import Phase, StopOrigin
from tenure.model.records import ExecutorStatus, SessionState, TurnState
from tenure.model.status import StopStatus
from tenure.plan.ends import FORCED
from tenure.plan.hosted.actions import Drive, Finish, MarkStopping
from tenure.plan.hosted.ends import BY_ITSELF, CUT_SHORT, DONE, FAILED_TURN, NEVER_STARTED, SERVER_ENDED
from tenure.plan.hosted.observation import InstanceView, ServerView

STOPPING = row(ExecutorStatus.STOPPING)


def drains(seconds: float = 5.0, **spec: object) -> object:
    stop = StopStatus(instance=FIRST, origin=StopOrigin.RESOURCE, requested_at=ago(seconds))
    return process(status=launched(stop=stop), desiredState="StopRequested", **spec)


# Running


def test_an_agent_without_a_backend_is_driven() -> None:
    verdict = plan(observe(process(status=launched(), prompt="go")))
    assert deeds(verdict) == (Drive(FIRST, "go"),)
    assert says(verdict, "Ready") == ("True", "Running")
    assert says(verdict, "Alive") == ("True", "Running")
    assert len(verdict.status.conditions) == 5


def test_an_agent_with_a_backend_is_left_to_it() -> None:
    verdict = plan(observe(server=WITH_BACKEND, newest_turn=turn(TurnState.COMPLETED)))
    assert deeds(verdict) == ()
    assert verdict.status.phase is Phase.RUNNING


def test_nothing_is_written_when_nothing_changes() -> None:
    first = plan(observe(process(status=launched(), prompt="go")))
    again = plan(observe(process(status=first.status, prompt="go"), now=ago(-30), clock=CLOCK + 30))
    assert again.status == first.status
    assert again.actions == (Drive(FIRST, "go"),)


@pytest.mark.parametrize(
    ("state", "session", "failed"),
    [
        (TurnState.COMPLETED, SessionState.COMPLETED, False),
        (TurnState.FAILED, SessionState.WAITING_FOR_INPUT, True),
        (TurnState.ABANDONED, SessionState.WAITING_FOR_INPUT, True),
    ],
)
def test_the_end_of_its_turn_is_the_end_of_a_driven_agent(
    state: TurnState, session: SessionState, failed: bool
) -> None:
    verdict = plan(observe(newest_turn=turn(state)))
    assert deeds(verdict) == (Finish(FIRST, session, failed=failed, last_words=True),)


def test_a_turn_of_an_earlier_execution_is_none_of_this_one() -> None:
    verdict = plan(observe(row=row(before=7), newest_turn=turn(TurnState.COMPLETED)))
    assert deeds(verdict) == (Drive(FIRST, None),)


def test_a_server_that_is_not_in_use_leaves_the_agent_unknown_and_untouched() -> None:
    verdict = plan(observe(server=replace(SERVER, names=frozenset()), instance=InstanceView.UNREAD))
    assert deeds(verdict) == ()
    assert verdict.status.phase is Phase.UNKNOWN
    assert says(verdict, "Ready") == ("Unknown", "ControlServerNotReady")
    assert says(verdict, "Alive")[0] == "Unknown"


# Draining


@pytest.mark.parametrize(
    ("spec", "origin"),
    [
        ({"desiredState": "StopRequested"}, StopOrigin.RESOURCE),
        ({"restartToken": "again"}, StopOrigin.REPLACEMENT),
        ({"deleting": True}, StopOrigin.DELETION),
    ],
)
def test_a_stop_is_written_down_before_the_row_is_marked(spec: dict[str, object], origin: StopOrigin) -> None:
    verdict = plan(observe(process(status=launched(), **spec)))
    assert verdict.actions[1:] == (MarkStopping(FIRST),)
    assert verdict.status.stop is not None
    assert verdict.status.stop.origin is origin
    assert verdict.status.phase is Phase.DRAINING


def test_a_deletion_that_is_seen_late_was_asked_for_when_it_was() -> None:
    verdict = plan(observe(process(status=launched(), deleting=True), now=ago(-30)))
    assert verdict.status.stop is not None
    assert verdict.status.stop.requested_at == NOW
    early = plan(observe(process(status=launched(), deleting=True), now=ago(30)))
    assert early.status.stop is not None
    assert early.status.stop.requested_at == ago(30), "by a clock that is behind, it is now"


@pytest.mark.parametrize(
    ("server", "expected"), [(SERVER, (Drive(FIRST, None),)), (WITH_BACKEND, ())], ids=["alone", "backend"]
)
def test_the_open_turn_is_waited_for(server: object, expected: object) -> None:
    observation = observe(drains(), row=STOPPING, server=server, newest_turn=turn(TurnState.OPEN))
    assert deeds(plan(observation)) == expected


def test_without_an_open_turn_it_is_stopped_at_once() -> None:
    observation = observe(drains(), row=STOPPING, newest_turn=turn(TurnState.COMPLETED))
    assert deeds(plan(observation)) == (Finish(FIRST, None, failed=False, last_words=True),)


def test_at_the_end_of_the_grace_the_turn_is_cut() -> None:
    resource = drains(11, drain={"gracePeriodSeconds": 10})
    observation = observe(resource, row=STOPPING, newest_turn=turn(TurnState.OPEN), server=WITH_BACKEND)
    assert deeds(plan(observation)) == (Finish(FIRST, None, failed=False, last_words=False, cut=7),)


def test_an_agent_that_ends_while_it_drains_is_waited_for_no_longer() -> None:
    observation = observe(
        drains(), row=STOPPING, newest_turn=turn(TurnState.OPEN), instance=InstanceView.ENDED
    )
    assert deeds(plan(observation)) == (Finish(FIRST, None, failed=False, last_words=True),)


def test_running_set_during_a_drain_does_not_undo_it() -> None:
    stop = StopStatus(instance=FIRST, origin=StopOrigin.RESOURCE, requested_at=ago(5))
    observation = observe(process(status=launched(stop=stop)), row=STOPPING, newest_turn=turn(TurnState.OPEN))
    assert plan(observation).status.phase is Phase.DRAINING


def test_an_agent_that_could_not_be_stopped_is_said_to_be_there() -> None:
    verdict = plan(observe(drains(), row=replace(STOPPING, unstopped=True)))
    assert deeds(verdict) == ()
    assert says(verdict, "Stalled") == ("True", "UnstoppedAgent")


# Ended


def test_an_agent_that_ended_has_its_last_words_heard_first() -> None:
    observation = observe(instance=InstanceView.ENDED, newest_turn=turn(TurnState.OPEN))
    finish = Finish(FIRST, SessionState.WAITING_FOR_INPUT, failed=True, last_words=True)
    assert deeds(plan(observation)) == (finish,)


def test_a_backend_has_a_while_to_hear_them_itself() -> None:
    observation = observe(instance=InstanceView.ENDED, newest_turn=turn(TurnState.OPEN), server=WITH_BACKEND)
    first = plan(observation)
    assert deeds(first) == ()
    later = plan(replace(observation, memory=first.memory, clock=CLOCK + 20))
    assert [type(each) for each in deeds(later)] == [Finish]


@pytest.mark.parametrize(
    ("state", "message", "phase"),
    [
        (TurnState.COMPLETED, DONE, Phase.STOPPED),
        (TurnState.FAILED, FAILED_TURN, Phase.FAILED),
        (TurnState.ABANDONED, CUT_SHORT, Phase.FAILED),
    ],
)
def test_after_a_turn_nothing_follows_by_itself(state: TurnState, message: str, phase: Phase) -> None:
    resource = process(status=launched(), prompt="go", restartPolicy="Always")
    verdict = plan(idle(resource, row=row(ExecutorStatus.STOPPED), newest_turn=turn(state)))
    assert verdict.status.stop is not None
    assert (verdict.status.stop.message, verdict.status.phase) == (message, phase)
    assert verdict.status.backoff is None
    after = plan(
        idle(
            process(status=verdict.status, prompt="go", restartPolicy="Always"),
            row=row(ExecutorStatus.STOPPED),
            newest_turn=turn(state),
        )
    )
    assert deeds(after) == ()


@pytest.mark.parametrize("server", [SERVER, WITH_BACKEND], ids=["operator", "backend"])
@pytest.mark.parametrize(
    ("where", "message"),
    [("pod-0", SERVER_ENDED), ("pod-1", BY_ITSELF), ("server-1", BY_ITSELF)],
    ids=["an earlier server", "this pod", "this server"],
)
def test_an_agent_does_not_outlive_its_server_and_has_not_ended_by_itself(
    server: ServerView, where: str, message: str
) -> None:
    ended = row(ExecutorStatus.STOPPED, container_identity=where)
    verdict = plan(idle(process(status=launched()), row=ended, server=server))
    assert verdict.status.stop is not None
    assert verdict.status.stop.message == message
    unknown = plan(idle(process(status=launched()), row=ended, server=replace(server, names=frozenset())))
    assert unknown.status.stop is not None
    assert unknown.status.stop.message == BY_ITSELF


@pytest.mark.parametrize(
    ("started", "message"), [(60.0, BY_ITSELF), (None, NEVER_STARTED)], ids=["ran", "never ran"]
)
@pytest.mark.parametrize(
    ("policy", "phase"),
    [("Always", Phase.PENDING), ("OnFailure", Phase.PENDING), ("Never", Phase.FAILED)],
)
def test_before_any_turn_the_policy_decides(
    started: float | None, message: str, policy: str, phase: Phase
) -> None:
    resource = process(status=launched(started=started), prompt="go", restartPolicy=policy)
    verdict = plan(idle(resource, row=row(ExecutorStatus.FAILED)))
    assert verdict.status.stop is not None
    assert (verdict.status.stop.message, verdict.status.phase) == (message, phase)


def test_an_end_seen_by_nobody_is_never_followed_by_a_second_telling() -> None:
    resource = process(status=launched(), prompt="go", restartPolicy="Always")
    verdict = plan(idle(resource, row=row(uid="another", agent_execution_id="i-9")))
    assert verdict.status.phase is Phase.FAILED
    assert verdict.status.backoff is None


def test_a_cut_turn_is_an_ungraceful_stop() -> None:
    stop = StopStatus(instance=FIRST, origin=StopOrigin.RESOURCE, requested_at=ago(5))
    resource = process(status=launched(stop=stop), desiredState="StopRequested")
    verdict = plan(idle(resource, row=row(ExecutorStatus.STOPPED), newest_turn=turn(TurnState.ABANDONED)))
    assert verdict.status.stop is not None
    assert (verdict.status.stop.graceful, verdict.status.stop.message) == (False, FORCED)
    assert len(verdict.status.stops) == 1
    assert verdict.status.phase is Phase.STOPPED


def test_with_a_backend_a_completed_session_is_done_and_any_other_end_is_a_crash() -> None:
    def ended(session: SessionState) -> object:
        return plan(
            idle(
                process(status=launched()),
                row=row(ExecutorStatus.STOPPED),
                server=WITH_BACKEND,
                session=session,
            )
        )

    assert ended(SessionState.COMPLETED).status.phase is Phase.STOPPED  # type: ignore[attr-defined]
    assert ended(SessionState.WAITING_FOR_INPUT).status.phase is Phase.PENDING  # type: ignore[attr-defined]


def test_asking_for_a_stop_of_what_has_stopped_means_stay_so() -> None:
    resource = process(status=stopped(None, graceful=False), desiredState="StopRequested")
    verdict = plan(idle(resource, row=row(ExecutorStatus.FAILED)))
    assert verdict.status.stop is not None
    assert verdict.status.stop.origin is StopOrigin.RESOURCE
    assert condition(verdict, "Ready").reason == "StoppedAsAsked"
