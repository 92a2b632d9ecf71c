"""For which server a claim is renewed, and what its answer means."""

from typing import Any

import pytest
from tests.support.adoption import attempt, record, secret, server_pod, state

from tenure.model.adoption import AdoptionReason
from tenure.model.records import SurvivalEffective
from tenure.plan.adoption.claims import AfterClaim, after_claim, goes_on_without_lease, renewal
from tenure.plan.adoption.gates import Failure, verdict_of
from tenure.plan.adoption.state import PodPhase, Record, State

OLD_POD = server_pod("pod-9", 9, secret=secret(adopted_by="old"))


def contacted(**facts: Any) -> State:
    """A server of the incarnation before, on record."""
    pods = (server_pod(secret=secret(adopted_by="old")),)
    return state(record=record(adopted_by="old", recovered_by=None), pods=pods, **facts)


def vacant(**facts: Any) -> State:
    """A record that was vacated."""
    return state(
        record=Record(pod_uid="pod-1", adopted_by="new", survival=SurvivalEffective.ENABLED), **facts
    )


def test_claims_are_renewed_for_the_server_of_this_incarnation_only() -> None:
    assert renewal(state()) == server_pod()
    assert renewal(contacted()) is None
    assert renewal(state(owner=None)) is None
    assert renewal(state(attempt=attempt(lost=True))) is None
    assert renewal(vacant(pods=(server_pod(),))) is None


def test_claims_are_renewed_without_lease_and_without_store() -> None:
    newest = server_pod("pod-3", 3)
    found = state(lease=False, record=None, record_read=False, pods=(server_pod(), newest, OLD_POD))
    assert renewal(found) == newest


def test_nothing_further_is_sent_to_a_server_whose_rotation_could_not_be_stored() -> None:
    verdict = verdict_of(AdoptionReason.CREDENTIAL_ROTATION_FAILED)
    known = attempt(judged="pod-1", verdict=verdict)
    assert renewal(state(attempt=known, record=None, record_read=False)) is None


def test_a_server_that_has_ended_is_not_renewed() -> None:
    assert renewal(state(pods=(server_pod(phase=PodPhase.ENDED),))) is None


def test_an_operator_restart_goes_on_renewing_with_the_stored_credential() -> None:
    assert renewal(state(attempt=type(attempt())())) == server_pod()


@pytest.mark.parametrize("answer", [None, Failure.NO_ANSWER, Failure.BAD_ANSWER])
def test_silence_is_no_loss_of_ownership(answer: Failure | None) -> None:
    assert after_claim(answer) is AfterClaim.GO_ON


def test_a_superseded_owner_stops_for_good_and_one_of_a_server_that_shuts_down_waits_for_its_end() -> None:
    assert after_claim(Failure.NOT_ACCEPTED) is AfterClaim.LOST
    assert after_claim(Failure.SHUTTING_DOWN) is AfterClaim.ENDING


@pytest.mark.parametrize(
    ("answer", "same", "api_answers", "goes_on"),
    [
        (None, True, False, True),
        (None, None, False, True),
        (Failure.NO_ANSWER, None, False, True),
        (None, False, False, False),
        (None, True, True, False),
        (Failure.NOT_ACCEPTED, True, False, False),
        (Failure.SHUTTING_DOWN, None, False, False),
    ],
)
def test_without_the_lease_claims_go_on_only_while_nobody_else_could_take_over(
    answer: Failure | None, same: bool | None, api_answers: bool, goes_on: bool
) -> None:
    assert goes_on_without_lease(answer, same_incarnation=same, api_answers=api_answers) is goes_on
