"""How long a drain has gone on is not for clocks that may be set, nor for a status that may be edited."""

from dataclasses import replace

from tests.unit.plan.hosted.builders import FIRST, ago, deeds, observe, plan, turn
from tests.unit.plan.hosted.test_living import STOPPING, drains

from tenure.model.records import TurnState
from tenure.plan.hosted.actions import Drive, Finish


def test_a_clock_that_is_set_forward_cuts_no_turn() -> None:
    observation = observe(drains(), row=STOPPING, newest_turn=turn(TurnState.OPEN), now=ago(-86_400))
    assert deeds(plan(replace(observation, drained_for=5.0))) == (Drive(FIRST, None),)


def test_a_clock_that_is_set_back_makes_no_grace_longer() -> None:
    observation = observe(drains(), row=STOPPING, newest_turn=turn(TurnState.OPEN), now=ago(86_400))
    (finish,) = deeds(plan(replace(observation, drained_for=601.0)))
    assert isinstance(finish, Finish)
    assert finish.cut is not None


def test_a_stop_without_a_time_begins_now() -> None:
    process = drains()
    assert process.status.stop is not None
    stop = process.status.stop.model_copy(update={"requested_at": None})
    edited = process.model_copy(update={"status": process.status.model_copy(update={"stop": stop})})
    observation = observe(edited, row=STOPPING, newest_turn=turn(TurnState.OPEN))
    assert deeds(plan(observation)) == (Drive(FIRST, None),)
