"""What the turn outcome of a surviving instance means for its session."""

import pytest
from tests.support.adoption import outcome

from tenure.model.adoption import NotRetracked, RecoveryRead, StopReason
from tenure.model.records import SessionState, TurnState
from tenure.plan.adoption.outcomes import (
    ApplyThenPublish,
    AsWithoutInstance,
    KnownTurn,
    OutcomeRead,
    PublishAsItIs,
    Retained,
    StopIt,
    judge_outcome,
    turn_state_of,
)
from tenure.protocol.outcome import TurnOutcome

RUNNING, WAITING = SessionState.RUNNING, SessionState.WAITING_FOR_INPUT
OPEN = KnownTurn(41, TurnState.OPEN, "server-1", 7)
UNBOUND = KnownTurn(42, TurnState.OPEN, "server-1")


def applied(
    found: TurnOutcome, *turns: KnownTurn, session: SessionState = RUNNING, server: str = "server-1"
) -> ApplyThenPublish:
    """What a retained outcome leads to."""
    decision = judge_outcome(Retained(found), server, session, turns)
    assert isinstance(decision, ApplyThenPublish)
    return decision


def test_a_retained_outcome_is_applied_and_the_session_published_with_the_state_that_it_produces() -> None:
    assert applied(outcome(7), OPEN) == ApplyThenPublish(41, TurnState.COMPLETED, WAITING, 7)


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (outcome(stop_reason="end_turn"), TurnState.COMPLETED),
        (outcome(stop_reason="cancelled"), TurnState.CANCELLED),
        (outcome(type="error", code="agent_failed"), TurnState.FAILED),
    ],
)
def test_a_turn_ends_as_its_terminal_event_says(found: TurnOutcome, state: TurnState) -> None:
    assert turn_state_of(found) is state
    assert applied(found, OPEN).turn_state is state


def test_without_an_outcome_the_session_is_published_as_it_is() -> None:
    assert judge_outcome(OutcomeRead.NONE, "server-1", RUNNING, (OPEN,)) == PublishAsItIs()


def test_an_instance_that_has_gone_is_a_record_without_an_instance() -> None:
    found = judge_outcome(OutcomeRead.NO_INSTANCE, "server-1", RUNNING, (OPEN,))
    assert found == AsWithoutInstance(NotRetracked.NO_INSTANCE)


def test_an_outcome_that_cannot_be_read_stops_the_instance_and_publishes_nothing() -> None:
    found = judge_outcome(OutcomeRead.UNREADABLE, "server-1", RUNNING, (OPEN,))
    assert found == StopIt(
        StopReason.OUTCOME_UNREADABLE, NotRetracked.OUTCOME_UNREADABLE, RecoveryRead.TURN_OUTCOME
    )


def test_an_outcome_seen_twice_names_the_same_turn_and_gives_the_same_state() -> None:
    over = KnownTurn(41, TurnState.COMPLETED, "server-1", 7)
    assert applied(outcome(7), over, session=WAITING) == applied(outcome(7), OPEN)


def test_an_outcome_of_a_prompt_whose_number_was_never_recorded_ends_the_open_turn() -> None:
    before = KnownTurn(41, TurnState.COMPLETED, "server-1", 6)
    decision = applied(outcome(7), before, UNBOUND)
    assert (decision.turn, decision.bind, decision.state) == (42, True, WAITING)


def test_an_outcome_that_was_applied_but_not_acknowledged_does_not_end_the_turn_after_it() -> None:
    before = KnownTurn(41, TurnState.COMPLETED, "server-1", 7)
    decision = applied(outcome(7), before, UNBOUND)
    assert (decision.turn, decision.bind, decision.state) == (41, False, RUNNING)


def test_an_outcome_older_than_a_recorded_turn_ends_nothing_that_is_open() -> None:
    decision = applied(outcome(5), OPEN)
    assert (decision.turn, decision.state, decision.control_turn_id) == (None, RUNNING, 5)


def test_an_outcome_of_a_turn_that_nobody_recorded_is_acknowledged_and_leaves_the_session_waiting() -> None:
    assert applied(outcome(7)) == ApplyThenPublish(None, TurnState.COMPLETED, WAITING, 7)


def test_a_turn_of_another_server_is_not_the_one_that_is_meant() -> None:
    elsewhere = KnownTurn(40, TurnState.OPEN, "server-0", 7)
    unsent = KnownTurn(40, TurnState.OPEN, "server-0")
    assert applied(outcome(7), elsewhere).turn is None
    assert applied(outcome(7), unsent).turn is None


@pytest.mark.parametrize("over", [SessionState.COMPLETED, SessionState.FAILED, SessionState.CANCELLED])
def test_a_session_that_is_over_stays_over(over: SessionState) -> None:
    assert applied(outcome(7), OPEN, session=over).state is over
