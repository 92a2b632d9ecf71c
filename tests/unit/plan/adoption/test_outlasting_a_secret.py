"""A server that is ours and in use is renewed for with what this process has, whatever becomes of its Secret."""

from dataclasses import replace
from typing import Any

import pytest

from tenure.model.adoption import AgentSurvival
from tenure.model.masked import Masked
from tenure.model.records import SurvivalEffective
from tenure.plan.adoption.claims import Held, outlasts_its_secret, renewal
from tenure.plan.adoption.next_step import next_step
from tenure.plan.adoption.state import (
    Attempt,
    HandOver,
    NoSecret,
    Owner,
    PodPhase,
    Record,
    ServerPod,
    ServerSecret,
    State,
)
from tenure.plan.adoption.steps import Contact, Idle, Nothing
from tenure.plan.adoption.survival import Survival

ME = "backend/1"
HELD = Held("pod-1", "cs-1", ME, 3)
RECORD = Record(
    identity="cs-1",
    pod_uid="pod-1",
    rotation_id=3,
    rotation_confirmed=True,
    adopted_by=ME,
    recovered_by=ME,
    survival=SurvivalEffective.ENABLED,
)


def secret(rotation: int, identity: str = "cs-1") -> ServerSecret:
    return ServerSecret(identity, Masked("ab" * 32), rotation, ME)


def state(found: ServerSecret | NoSecret, phase: PodPhase = PodPhase.REACHABLE, **facts: Any) -> State:
    whole: dict[str, Any] = {
        "lease": True,
        "survival": Survival(AgentSurvival.ENABLED, SurvivalEffective.ENABLED),
        "owner": Owner(ME, "backend"),
        "record": RECORD,
        "pods": (ServerPod("pod-1", 1, "", phase, secret=found),),
        "attempt": Attempt(incarnation=ME),
    }
    return State(**{**whole, **facts})


@pytest.mark.accept("O-003.2")
@pytest.mark.parametrize(
    "found", [NoSecret.UNAVAILABLE, NoSecret.UNREAD, secret(3), secret(2), secret(9, "cs-2")]
)
def test_what_tells_of_no_newer_rotation_takes_no_claim_away(found: ServerSecret | NoSecret) -> None:
    assert outlasts_its_secret(state(found), HELD)
    assert outlasts_its_secret(state(found, record=None, record_read=False), HELD)


def test_a_newer_rotation_is_followed() -> None:
    assert not outlasts_its_secret(state(secret(4)), HELD)


@pytest.mark.parametrize(
    "facts",
    [
        {"owner": None},
        {"owner": Owner("backend/2", "backend")},
        {"attempt": Attempt(incarnation=ME, lost=True)},
        {"phase": PodPhase.ENDED},
        {"pods": ()},
        {"record": None},
        {"record": replace(RECORD, adopted_by="backend/2")},
        {"record": replace(RECORD, pod_uid="pod-2")},
        {"record": replace(RECORD, identity=None)},
    ],
    ids=str,
)
def test_a_server_that_is_not_ours_any_more_is_let_go(facts: dict[str, Any]) -> None:
    assert not outlasts_its_secret(state(NoSecret.UNAVAILABLE, **facts), HELD)


def test_a_secret_that_was_put_back_is_not_handed_over_in_place_of_better() -> None:
    """As a restored backup does: by the record its rotation is an earlier one of the same incarnation."""
    good = HandOver("cs-1", 3, "backend")
    assert next_step(state(secret(3), hand_over=good)).step == Nothing(Idle.UP_TO_DATE)
    assert next_step(state(secret(2), hand_over=good)).step == Nothing(Idle.CREDENTIAL_LOST)
    assert renewal(state(secret(2))) is None


def test_a_secret_that_was_put_back_is_tried_by_the_next_incarnation() -> None:
    """The server may not have been told that the rotation is stored: then it takes the earlier one to rotate with."""
    guarded = replace(RECORD, recovered_by=None)
    next_one = Owner("backend/2", "backend")
    found = state(secret(2), owner=next_one, record=guarded, attempt=Attempt("backend/2", guarded=True))
    assert next_step(found).step == Contact("pod-1")
