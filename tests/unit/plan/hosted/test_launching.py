"""When a hosted agent is launched, and what is said while it is not."""

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.unit.plan.hosted.builders import (
    CLOCK,
    FIRST,
    INCARNATION,
    NOW,
    SERVER,
    WITH_BACKEND,
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

from tenure.model.reasons import ConditionReason, Phase, StopOrigin
from tenure.model.records import ExecutorStatus, TurnState
from tenure.model.status import BackoffStatus
from tenure.plan.adoption.guards import LaunchVerdict
from tenure.plan.hosted.actions import Launch, WriteStatus
from tenure.plan.hosted.observation import InstanceView, Memory, Observation, Rejection, Wanting

NOT_FOUND = Wanting(ConditionReason.CONTROL_SERVER_NOT_FOUND, "there is none", stalled=True)
NOT_READY = Wanting(ConditionReason.CONTROL_SERVER_NOT_READY, "it has no server in use")


def test_the_instance_is_named_in_status_before_its_row_is_written() -> None:
    verdict = plan(idle(process()))
    write, launch = verdict.actions
    assert isinstance(write, WriteStatus)
    assert isinstance(launch, Launch)
    assert write.status.instance is not None
    assert write.status.instance.id == launch.instance
    assert write.status.instance.started_at is None


def test_an_instance_that_was_named_and_not_launched_is_launched_under_its_name() -> None:
    verdict = plan(idle(process(status=launched(started=None))))
    assert deeds(verdict) == (Launch(FIRST, ""),)


def test_a_row_without_an_instance_asks_the_server_again() -> None:
    verdict = plan(observe(process(status=launched(started=None)), instance=InstanceView.ABSENT))
    assert deeds(verdict) == (Launch(FIRST, ""),)


def test_an_agent_that_its_row_shows_is_taken_although_status_has_lost_it() -> None:
    verdict = plan(observe(process(restartToken="a"), row=row(token="a")))
    assert verdict.status.phase is Phase.RUNNING
    assert verdict.status.instance is not None
    assert (verdict.status.instance.id, verdict.status.instance.restart_token) == (FIRST, "a")


@pytest.mark.parametrize(
    ("wanting", "stalled"), [(NOT_FOUND, "True"), (NOT_READY, "False")], ids=["not found", "not ready"]
)
def test_a_server_that_is_wanting_is_waited_for_and_told_of(wanting: Wanting, stalled: str) -> None:
    verdict = plan(idle(process(), server=replace(SERVER, wanting=wanting)))
    assert deeds(verdict) == ()
    assert verdict.status.phase is Phase.PENDING
    assert says(verdict, "Stalled")[0] == stalled
    assert wanting.sentence in condition(verdict, "Ready").message
    assert verdict.wake_in is not None


def test_a_prompt_for_a_server_with_a_backend_is_refused() -> None:
    verdict = plan(idle(process(prompt="go"), server=WITH_BACKEND))
    assert deeds(verdict) == ()
    assert says(verdict, "Stalled") == ("True", "PromptNeedsNoBackend")


def test_an_agent_that_runs_goes_on_when_its_server_gets_a_backend_and_the_prompt_is_complained_of() -> None:
    verdict = plan(observe(process(prompt="go", status=launched()), server=WITH_BACKEND))
    assert verdict.status.phase is Phase.RUNNING
    assert deeds(verdict) == ()
    assert says(verdict, "Stalled") == ("True", "PromptNeedsNoBackend")


def test_a_profile_that_is_not_there_is_named_with_those_that_are() -> None:
    verdict = plan(idle(process(), server=replace(SERVER, profiles=("a", "b"))))
    assert condition(verdict, "Stalled").message == (
        "ControlServer main has no agent profile 'echo'; it has: a, b"
    )


@pytest.mark.parametrize(
    ("recovered_by", "unstopped", "refused", "reason", "stalled"),
    [
        (None, False, LaunchVerdict.RECOVERY_IN_PROGRESS, "RecoveryInProgress", "False"),
        (INCARNATION, False, LaunchVerdict.IN_USE, "SessionInUse", "False"),
        (INCARNATION, True, LaunchVerdict.UNSTOPPED_AGENT, "UnstoppedAgent", "True"),
    ],
)
def test_a_session_with_another_agent_is_refused_for_as_long_as_the_rules_say(
    recovered_by: str | None, unstopped: bool, refused: LaunchVerdict, reason: str, stalled: str
) -> None:
    server = replace(SERVER, recovered_by=recovered_by, wanting=None if recovered_by else NOT_READY)
    verdict = plan(idle(process(), server=server, row=row(uid="another", unstopped=unstopped)))
    assert deeds(verdict) == ()
    assert verdict.refused is refused
    assert says(verdict, "Ready")[1] == reason
    assert says(verdict, "Stalled")[0] == stalled
    assert verdict.wake_in is not None


def test_a_session_that_was_left_is_launched() -> None:
    verdict = plan(idle(process(), row=row(ExecutorStatus.STOPPED, uid="another")))
    assert [type(each) for each in deeds(verdict)] == [Launch]


def test_a_launch_that_was_rejected_waits() -> None:
    wanting = Wanting(ConditionReason.LAUNCH_REJECTED, "no such directory", stalled=True)
    memory = Memory(rejection=Rejection(1, wanting, 1, retry_at=CLOCK + 4))
    rejected = idle(process(status=launched(started=None)), row=row(ExecutorStatus.FAILED), memory=memory)
    verdict = plan(rejected)
    assert deeds(verdict) == ()
    assert verdict.wake_in == 4
    assert says(verdict, "Stalled") == ("True", "LaunchRejected")
    assert deeds(plan(replace(rejected, clock=CLOCK + 5))) == (Launch(FIRST, ""),)


def test_nothing_is_launched_and_nothing_known_while_the_database_is_silent() -> None:
    verdict = plan(observe(row_read=False, row=None))
    assert deeds(verdict) == ()
    assert verdict.status.phase is Phase.UNKNOWN
    assert says(verdict, "Ready") == ("Unknown", "DatabaseUnavailable")


def test_a_stop_before_anything_was_started_ends_it() -> None:
    verdict = plan(idle(process(status=launched(started=None), desiredState="StopRequested")))
    assert deeds(verdict) == ()
    assert verdict.status.phase is Phase.STOPPED
    assert says(verdict, "Ready") == ("True", "StoppedAsAsked")


@pytest.mark.accept("L-22")
@pytest.mark.parametrize(
    ("first", "next_word"),
    [
        (idle(process(desiredState="StopRequested")), ("True", "StoppedAsAsked")),
        (idle(process(), server=replace(SERVER, wanting=NOT_FOUND)), ("False", "ControlServerNotFound")),
        (observe(process()), ("True", "Running")),
    ],
    ids=["never wanted", "stalled", "it runs by then"],
)
def test_the_first_status_says_ready_unknown_and_the_next_says_what_is_so(
    first: Observation, next_word: tuple[str, str]
) -> None:
    verdict = plan(first)
    assert says(verdict, "Ready") == ("Unknown", next_word[1])
    after = first.resource.model_copy(update={"status": verdict.status})
    assert says(plan(replace(first, resource=after)), "Ready") == next_word


def test_backing_off_ends_with_its_time_or_with_a_new_token() -> None:
    status = stopped(None, graceful=None, backoff=BackoffStatus(failures=1, until=NOW + timedelta(seconds=8)))
    verdict = plan(idle(process(status=status), row=row(ExecutorStatus.FAILED)))
    assert deeds(verdict) == ()
    assert says(verdict, "Ready") == ("False", "BackingOff")
    assert verdict.wake_in == 8
    renewed = process(status=status, restartToken="again")
    assert [type(each) for each in deeds(plan(idle(renewed, row=row(ExecutorStatus.FAILED))))] == [Launch]


@pytest.mark.parametrize(
    ("state", "phase"), [(TurnState.COMPLETED, Phase.STOPPED), (TurnState.ABANDONED, Phase.FAILED)]
)
def test_running_again_with_the_same_token_tells_nothing_twice(state: TurnState, phase: Phase) -> None:
    resource = process(prompt="go", status=stopped(StopOrigin.RESOURCE))
    verdict = plan(idle(resource, row=row(ExecutorStatus.STOPPED), newest_turn=turn(state)))
    assert deeds(verdict) == ()
    assert verdict.status.phase is phase


def test_running_again_without_anything_told_launches() -> None:
    resource = process(prompt="go", status=stopped(StopOrigin.RESOURCE))
    verdict = plan(idle(resource, row=row(ExecutorStatus.STOPPED)))
    assert [type(each) for each in deeds(verdict)] == [Launch]


def test_whether_it_was_told_is_unknown_when_somebody_else_had_the_session_since() -> None:
    resource = process(prompt="go", status=stopped(StopOrigin.RESOURCE))
    verdict = plan(idle(resource, row=row(ExecutorStatus.STOPPED, uid=None)))
    assert deeds(verdict) == ()


def test_a_new_token_launches_and_tells_again() -> None:
    resource = process(prompt="go", restartToken="again", status=stopped(None, graceful=False))
    verdict = plan(idle(resource, row=row(ExecutorStatus.FAILED), newest_turn=turn(TurnState.FAILED)))
    assert [(type(each), each.restart_token) for each in deeds(verdict) if isinstance(each, Launch)] == [
        (Launch, "again")
    ]
