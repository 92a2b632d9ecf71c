"""The turn-outcome slot: filled by an end, emptied by its acknowledgement or a newer prompt, by nothing else."""

import pytest

from tenure.protocol import outcome
from tenure.protocol.errors import ProtocolViolation
from tenure.protocol.frames import Event, event
from tenure.protocol.messages import OutcomeAnswer
from tenure.protocol.outcome import Prompted, TurnOutcome, Turns
from tenure.protocol.wire import parse

DONE = event("complete", stop_reason="end_turn")
FAILED = event("error", error="it fell over")


def prompted(turns: Turns, key: str, next_id: int) -> Turns:
    turns, result = outcome.prompted(turns, key, next_id)
    assert result == Prompted(next_id, fresh=True)
    return turns


def ended(turn_id: int = 7, how: Event = DONE) -> Turns:
    """An instance whose turn ``turn_id`` is over."""
    return outcome.finished(prompted(Turns(), f"key-{turn_id}", turn_id), turn_id, how)[0]


@pytest.mark.parametrize("how", [DONE, FAILED])
def test_a_terminal_event_fills_the_slot_and_carries_the_turn_itself(how: Event) -> None:
    turns, delivered = outcome.finished(prompted(Turns(), "k", 7), 7, how)
    assert delivered.control_turn_id == 7
    assert delivered.fields == how.fields
    assert turns.retained == TurnOutcome(7, delivered)


def test_reading_never_discards() -> None:
    turns = ended()
    assert outcome.outcome_answer(turns) == outcome.outcome_answer(turns)
    assert outcome.outcome_answer(turns).retained


def test_only_the_acknowledgement_of_this_turn_discards_and_it_may_be_repeated() -> None:
    turns = ended(7)
    for other in (1, 6, 8):
        assert outcome.acknowledged(turns, other) is turns
    empty = outcome.acknowledged(turns, 7)
    assert empty.retained is None
    assert outcome.acknowledged(empty, 7) is empty
    assert outcome.outcome_answer(empty) == OutcomeAnswer(retained=False)


def test_a_newer_prompt_clears_the_slot_and_its_end_fills_it_again() -> None:
    turns = prompted(ended(7), "next", 9)
    assert turns.retained is None
    turns, _ = outcome.finished(turns, 9, FAILED)
    assert turns.retained is not None
    assert turns.retained.turn_id == 9


def test_the_same_key_is_the_same_turn_and_does_not_clear_what_waits() -> None:
    turns = ended(7)
    again, result = outcome.prompted(turns, "key-7", 8)
    assert result == Prompted(7, fresh=False)
    assert again is turns


def test_a_key_is_known_still_after_other_turns() -> None:
    turns = prompted(ended(7), "next", 9)
    assert outcome.prompted(turns, "key-7", 10)[1] == Prompted(7, fresh=False)


def test_prompts_without_a_key_are_turns_of_their_own() -> None:
    turns = prompted(prompted(Turns(), "", 1), "", 2)
    assert turns.keys == ()


def test_no_more_keys_are_remembered_than_a_thousand() -> None:
    turns = Turns()
    for number in range(1, outcome.REMEMBERED_KEYS + 3):
        turns = prompted(turns, str(number), number)
    assert len(turns.keys) == outcome.REMEMBERED_KEYS
    assert not outcome.prompted(turns, "3", 9999)[1].fresh
    assert outcome.prompted(turns, "1", 9999)[1].fresh


def test_turn_ids_only_increase() -> None:
    with pytest.raises(ValueError, match="only increase"):
        outcome.prompted(ended(7), "other", 7)


def test_a_crash_after_the_end_does_not_turn_a_success_into_a_failure() -> None:
    turns = ended(7, DONE)
    after, delivered = outcome.finished(turns, 7, FAILED)
    assert after is turns
    assert delivered.type == "error"


def test_the_late_end_of_an_older_turn_does_not_end_the_one_that_runs() -> None:
    turns = prompted(prompted(Turns(), "a", 1), "b", 2)
    after, delivered = outcome.finished(turns, 1, DONE)
    assert after is turns
    assert delivered.control_turn_id == 1
    assert turns.running


def test_an_outcome_survives_its_way_over_the_wire() -> None:
    turns = ended(7, FAILED)
    sent = outcome.outcome_answer(turns).to_wire()
    assert outcome.read_outcome(parse(OutcomeAnswer, sent)) == turns.retained


@pytest.mark.parametrize(
    "body",
    [
        b'{"retained":false}',
        b'{"retained":false,"turn_id":0,"event":{"type":""}}',
        b'{"retained":false,"turn_id":0,"event":null}',
    ],
)
def test_nothing_retained_is_none_also_as_agentctl_says_it(body: bytes) -> None:
    assert outcome.read_outcome(parse(OutcomeAnswer, body)) is None


@pytest.mark.parametrize(
    "body",
    [
        b'{"retained":true}',
        b'{"retained":true,"turn_id":0,"event":{"type":"complete"}}',
        b'{"retained":true,"turn_id":3}',
        b'{"retained":true,"turn_id":3,"event":{"type":"message"}}',
        b'{"retained":true,"turn_id":3,"event":{"type":"complete","control_turn_id":4}}',
    ],
)
def test_an_outcome_that_does_not_say_which_turn_ended_is_a_failed_read(body: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        outcome.read_outcome(parse(OutcomeAnswer, body))
