"""What is done about the row of a session whose server is gone for good."""

from dataclasses import replace

import pytest
from tests.unit.plan.hosted.builders import (
    FIRST,
    SERVER,
    WITH_BACKEND,
    ago,
    deeds,
    idle,
    launched,
    observe,
    plan,
    process,
    row,
    says,
    turn,
)

from tenure.model.reasons import ConditionReason, Phase, StopOrigin
from tenure.model.records import ExecutorStatus, SessionState, TurnState
from tenure.model.status import StopStatus
from tenure.plan.hosted.actions import Bury
from tenure.plan.hosted.ends import DONE, DRAINED, FAILED_TURN, SERVER_GONE
from tenure.plan.hosted.observation import InstanceView, Wanting

NOWHERE = replace(
    SERVER,
    names=frozenset(),
    profiles=(),
    wanting=Wanting(ConditionReason.CONTROL_SERVER_NOT_FOUND, "there is none", stalled=True),
)


def lonely(resource: object = None, **facts: object) -> object:
    """The row is live, and its server is gone for good."""
    return observe(
        resource, **{"server": NOWHERE, "instance": InstanceView.UNREAD, "server_gone": True, **facts}
    )


def buried(resource: object, **facts: object) -> object:
    """... and its row was ended."""
    return idle(
        resource, **{"server": NOWHERE, "row": row(ExecutorStatus.STOPPED), "server_gone": True, **facts}
    )


def test_its_row_is_ended_before_anything_is_said() -> None:
    verdict = plan(lonely())
    assert deeds(verdict) == (Bury("s-1"),)
    assert verdict.status.phase is Phase.UNKNOWN
    assert verdict.status.stop is None


def test_a_row_of_somebody_else_is_ended_too() -> None:
    resource = process()
    verdict = plan(lonely(resource, row=row(uid="another"), server=SERVER))
    assert deeds(verdict) == (Bury("s-1"),)
    assert says(verdict, "Ready") == ("Unknown", "SessionInUse")


def test_as_long_as_it_may_be_there_nothing_is_done() -> None:
    verdict = plan(lonely(server_gone=False))
    assert deeds(verdict) == ()
    assert verdict.status.phase is Phase.UNKNOWN


def test_a_row_that_is_not_live_is_left_alone() -> None:
    assert deeds(plan(buried(process(status=launched())))) == ()


@pytest.mark.parametrize(
    ("state", "message", "graceful"),
    [
        (TurnState.COMPLETED, DONE, True),
        (TurnState.CANCELLED, FAILED_TURN, False),
        (TurnState.FAILED, SERVER_GONE, False),
        (TurnState.ABANDONED, SERVER_GONE, False),
    ],
)
def test_a_prompt_that_was_given_is_given_by_nobody_again(
    state: TurnState, message: str, graceful: bool
) -> None:
    resource = process(status=launched(), prompt="go", restartPolicy="Always")
    verdict = plan(buried(resource, newest_turn=turn(state)))
    stop = verdict.status.stop
    assert stop is not None
    assert (stop.message, stop.graceful) == (message, graceful)
    assert verdict.status.backoff is None


@pytest.mark.parametrize(
    ("policy", "phase"), [("Always", Phase.PENDING), ("OnFailure", Phase.PENDING), ("Never", Phase.FAILED)]
)
@pytest.mark.parametrize("server", [NOWHERE, WITH_BACKEND], ids=["none", "another of its name"])
def test_without_a_prompt_the_policy_decides(policy: str, phase: Phase, server: object) -> None:
    resource = process(status=launched(), restartPolicy=policy)
    verdict = plan(buried(resource, newest_turn=turn(TurnState.ABANDONED), server=server))
    stop = verdict.status.stop
    assert stop is not None
    assert (stop.message, stop.graceful, verdict.status.phase) == (SERVER_GONE, False, phase)


def test_a_completed_session_was_done_before() -> None:
    verdict = plan(buried(process(status=launched()), session=SessionState.COMPLETED))
    assert verdict.status.phase is Phase.STOPPED


@pytest.mark.parametrize(
    ("state", "message", "graceful"),
    [(None, DRAINED, True), (TurnState.COMPLETED, DRAINED, True), (TurnState.ABANDONED, SERVER_GONE, False)],
)
def test_a_stop_that_was_begun_is_over(state: TurnState | None, message: str, graceful: bool) -> None:
    stop = StopStatus(instance=FIRST, origin=StopOrigin.RESOURCE, requested_at=ago(5))
    resource = process(status=launched(stop=stop), desiredState="StopRequested")
    newest = None if state is None else turn(state)
    verdict = plan(buried(resource, newest_turn=newest))
    assert verdict.status.stop is not None
    assert (verdict.status.stop.message, verdict.status.stop.graceful) == (message, graceful)
    assert verdict.status.phase is Phase.STOPPED
