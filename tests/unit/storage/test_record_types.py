"""What the records take and tell, without a database."""

import pickle

import pytest

from tenure.model.adoption import LaunchRefusal
from tenure.model.records import TurnState
from tenure.protocol.frames import event
from tenure.storage.records import LaunchRefused, Outcome, TurnRefusal, TurnRefused, outcome_of


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        (Outcome("complete", "end_turn"), TurnState.COMPLETED),
        (Outcome("complete"), TurnState.COMPLETED),
        (Outcome("complete", "refusal"), TurnState.COMPLETED),
        (Outcome("complete", "cancelled"), TurnState.CANCELLED),
        (Outcome("error", "cancelled"), TurnState.FAILED),
        (Outcome("something new"), TurnState.FAILED),
    ],
)
def test_an_outcome_gives_its_turn_a_state(outcome: Outcome, state: TurnState) -> None:
    assert outcome.state is state


def test_an_outcome_keeps_the_words_of_an_event_and_none_of_its_text() -> None:
    told = outcome_of(event("error", 7, code="agent_exited", message="canary", details={"canary": 1}))
    assert told == Outcome("error", code="agent_exited")
    assert told.to_json() == '{"type": "error", "code": "agent_exited"}'


@pytest.mark.parametrize(
    "reason",
    ["canary says hello", "canary\n", "7canary", "c" * 65, "", None, 7, {"canary": 1}, ["canary"], "é"],
)
def test_a_reason_that_is_no_word_is_left_out(reason: object) -> None:
    told = outcome_of(event("complete", 7, stop_reason=reason))  # type: ignore[arg-type]
    assert told == Outcome("complete")


def test_only_a_terminal_event_is_an_outcome() -> None:
    with pytest.raises(ValueError, match="terminal"):
        outcome_of(event("message_chunk", 7))


@pytest.mark.parametrize("refusal", [*LaunchRefusal, None])
def test_only_an_unstopped_agent_makes_a_refused_launch_final(refusal: LaunchRefusal | None) -> None:
    error = LaunchRefused(refusal)
    assert error.retryable is (refusal is not LaunchRefusal.UNSTOPPED_AGENT)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.refusal, copy.retryable) == (str(error), error.refusal, error.retryable)


@pytest.mark.parametrize("refusal", TurnRefusal)
def test_a_refused_turn_says_whether_waiting_helps(refusal: TurnRefusal) -> None:
    error = TurnRefused(refusal)
    assert error.retryable is (refusal is TurnRefusal.TURN_OPEN)
    assert pickle.loads(pickle.dumps(error)).refusal is refusal
