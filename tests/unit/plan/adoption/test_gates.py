"""The gates of adoption: the order of the questions, and the one reason that the answers amount to."""

from dataclasses import replace

import pytest
from tests.support.adoption import OURS, adopted, contact, proven, rotated

from tenure.model.adoption import ADOPTION_PAIRS, AdoptionReason
from tenure.plan.adoption.gates import (
    Advertised,
    Ask,
    Contact,
    Deadline,
    Failure,
    FollowUp,
    HomeDirectory,
    LookAgain,
    Stored,
    Survivor,
    Verdict,
    next_ask,
    next_ask_of_survivor,
    verdict_of,
)

INCOMPATIBLE = Advertised("server-1", frozenset({"agent-delivery.v1"}))


def judged(answers: Contact, deadline: Deadline = Deadline.RUNNING) -> tuple[AdoptionReason, FollowUp]:
    """The verdict about these answers."""
    verdict = next_ask(answers, deadline)
    assert isinstance(verdict, Verdict)
    assert (verdict.outcome, verdict.reason) in ADOPTION_PAIRS
    return verdict.reason, verdict.follow_up


def asked(answers: Contact, deadline: Deadline = Deadline.RUNNING) -> Ask:
    """The question that comes next."""
    ask = next_ask(answers, deadline)
    assert isinstance(ask, Ask)
    return ask


def test_identity_and_proof_are_asked_for_before_the_credential_is_sent_and_capabilities_come_after() -> None:
    assert asked(contact()) is Ask.IDENTITY
    assert asked(contact(identity=OURS)) is Ask.PROOF
    assert asked(proven()) is Ask.ROTATION
    assert asked(rotated(details=None)) is Ask.DETAILS
    assert asked(rotated()) is Ask.STORE_SECRET
    assert asked(rotated(secret=Stored.DONE)) is Ask.STORE_RECORD
    assert judged(adopted()) == (AdoptionReason.NONE, FollowUp.OURS)


def test_an_endpoint_that_nobody_answers_is_no_server() -> None:
    assert judged(contact(identity=Failure.NO_ANSWER)) == (AdoptionReason.NO_ANSWER, FollowUp.FRESH)
    silent_later = contact(identity=OURS, proven=Failure.NO_ANSWER)
    assert judged(silent_later) == (AdoptionReason.NO_ANSWER, FollowUp.FRESH)


@pytest.mark.parametrize(
    "answers",
    [
        contact(identity=Failure.SHUTTING_DOWN),
        contact(identity=OURS, proven=Failure.SHUTTING_DOWN),
        proven(rotation=Failure.SHUTTING_DOWN),
        rotated(details=Failure.SHUTTING_DOWN),
    ],
)
def test_a_409_anywhere_is_a_server_that_shuts_down_as_if_nothing_answered(answers: Contact) -> None:
    assert judged(answers) == (AdoptionReason.SHUTTING_DOWN, FollowUp.FRESH)


@pytest.mark.parametrize(
    "answer",
    [
        Advertised("another", OURS.capabilities),
        Advertised("", OURS.capabilities),
        Advertised("server-1", frozenset()),
        Failure.BAD_ANSWER,
        Failure.NOT_ACCEPTED,
    ],
)
def test_another_identity_none_or_no_capabilities_is_a_foreign_server(answer: Advertised | Failure) -> None:
    assert judged(contact(identity=answer)) == (AdoptionReason.IDENTITY_MISMATCH, FollowUp.LEAVE_ALONE)


def test_an_empty_identity_is_foreign_even_where_none_is_on_record() -> None:
    answers = contact(recorded_identity="", identity=Advertised("", OURS.capabilities))
    assert judged(answers)[0] is AdoptionReason.IDENTITY_MISMATCH


@pytest.mark.parametrize("answer", [False, Failure.BAD_ANSWER, Failure.NOT_ACCEPTED])
def test_a_missing_or_wrong_proof_is_a_foreign_server(answer: bool | Failure) -> None:
    answers = contact(identity=OURS, proven=answer)
    assert judged(answers) == (AdoptionReason.IDENTITY_MISMATCH, FollowUp.LEAVE_ALONE)


def test_an_unreadable_credential_refuses_before_any_contact_that_needs_it_and_after_the_identity() -> None:
    assert asked(contact(credential_usable=False)) is Ask.IDENTITY
    answers = contact(credential_usable=False, identity=OURS)
    assert judged(answers) == (AdoptionReason.CREDENTIAL_UNAVAILABLE, FollowUp.LEAVE_ALONE)
    foreign = contact(credential_usable=False, identity=Failure.BAD_ANSWER)
    assert judged(foreign)[0] is AdoptionReason.IDENTITY_MISMATCH


def test_a_rotation_that_is_not_accepted_is_a_failed_authentication_and_not_tried_again() -> None:
    answers = proven(rotation=Failure.NOT_ACCEPTED)
    assert judged(answers) == (AdoptionReason.AUTHENTICATION_FAILED, FollowUp.LEAVE_ALONE)
    assert judged(rotated(details=Failure.NOT_ACCEPTED))[0] is AdoptionReason.AUTHENTICATION_FAILED


def test_a_home_directory_that_is_not_ours_is_a_foreign_server_however_good_the_proof() -> None:
    answers = rotated(details=HomeDirectory("/elsewhere"))
    assert judged(answers) == (AdoptionReason.IDENTITY_MISMATCH, FollowUp.LEAVE_ALONE)


def test_a_foreign_server_is_never_stopped_for_running_another_build() -> None:
    for answers in (
        contact(identity=replace(INCOMPATIBLE, server_identity="another")),
        contact(identity=INCOMPATIBLE, proven=False),
        contact(identity=INCOMPATIBLE, credential_usable=False),
        proven(identity=INCOMPATIBLE, rotation=Failure.NOT_ACCEPTED),
        rotated(identity=INCOMPATIBLE, details=HomeDirectory("/elsewhere")),
    ):
        reason, follow_up = judged(answers)
        assert reason is not AdoptionReason.CAPABILITY_INCOMPATIBLE
        assert follow_up is FollowUp.LEAVE_ALONE


@pytest.mark.accept("O-004.1")
def test_an_own_and_authenticated_server_without_a_required_capability_is_stopped_and_nothing_is_stored() -> (
    None
):
    answers = rotated(identity=INCOMPATIBLE)
    assert judged(answers) == (AdoptionReason.CAPABILITY_INCOMPATIBLE, FollowUp.STOP_FIRST)
    more = replace(OURS, capabilities=OURS.capabilities | {"something-new.v9"})
    assert asked(rotated(identity=more)) is Ask.STORE_SECRET


@pytest.mark.parametrize(
    ("answers", "again"),
    [
        (proven(rotation=Failure.NO_ANSWER), Ask.ROTATION),
        (proven(rotation=Failure.BAD_ANSWER), Ask.ROTATION),
        (rotated(details=Failure.NO_ANSWER), Ask.DETAILS),
        (rotated(secret=Stored.FAILED), Ask.STORE_SECRET),
        (rotated(secret=Stored.DONE, record=Stored.FAILED), Ask.STORE_RECORD),
    ],
)
def test_a_rotation_or_a_store_that_fails_is_repeated_until_the_deadline_and_then_refused(
    answers: Contact, again: Ask
) -> None:
    assert asked(answers) is again
    refused = (AdoptionReason.CREDENTIAL_ROTATION_FAILED, FollowUp.LEAVE_ALONE)
    assert judged(answers, Deadline.ELAPSED) == refused


def test_an_adoption_in_flight_at_the_deadline_goes_on_to_its_end() -> None:
    assert asked(proven(), Deadline.ELAPSED) is Ask.ROTATION
    assert asked(rotated(), Deadline.ELAPSED) is Ask.STORE_SECRET
    assert judged(adopted(), Deadline.ELAPSED) == (AdoptionReason.NONE, FollowUp.OURS)


def test_a_record_that_somebody_else_has_written_is_looked_at_again_instead_of_judged() -> None:
    answers = rotated(secret=Stored.DONE, record=Stored.MOVED)
    assert next_ask(answers, Deadline.RUNNING) == LookAgain()


@pytest.mark.parametrize("reason", AdoptionReason)
def test_each_reason_has_one_legal_outcome(reason: AdoptionReason) -> None:
    verdict = verdict_of(reason)
    assert (verdict.outcome, verdict.reason) in ADOPTION_PAIRS


@pytest.mark.parametrize(
    ("answers", "fate"),
    [
        (proven(), Survivor.STOP),
        (proven(identity=INCOMPATIBLE), Survivor.STOP),
        (contact(identity=Failure.BAD_ANSWER), Survivor.LEAVE_ALONE),
        (contact(identity=OURS, proven=False), Survivor.LEAVE_ALONE),
        (contact(identity=OURS, credential_usable=False), Survivor.LEAVE_ALONE),
        (contact(identity=Failure.NO_ANSWER), Survivor.GONE),
        (contact(identity=OURS, proven=Failure.SHUTTING_DOWN), Survivor.ENDING),
    ],
)
def test_with_survival_off_a_survivor_is_stopped_if_it_proves_to_be_ours_and_left_alone_if_not(
    answers: Contact, fate: Survivor
) -> None:
    assert next_ask_of_survivor(answers) is fate


def test_with_survival_off_a_survivor_is_asked_for_identity_and_proof_and_nothing_else() -> None:
    assert next_ask_of_survivor(contact()) is Ask.IDENTITY
    assert next_ask_of_survivor(contact(identity=OURS)) is Ask.PROOF
