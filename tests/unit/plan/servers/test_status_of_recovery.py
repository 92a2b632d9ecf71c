"""What the status of a ControlServer says of adoption, survival and recovery."""

from dataclasses import replace

import pytest
from tests.support.adoption import NOW, record, state
from tests.support.server_status import FALSE, LEFT, TRUE, UNKNOWN, again, condition, facts

from tenure.model.adoption import AdoptionReason, AgentSurvival, SurvivalCode
from tenure.model.reasons import ServerPhase
from tenure.model.records import SurvivalEffective
from tenure.model.server_status import AdjustmentStatus, InstanceMention
from tenure.plan.adoption.gates import verdict_of
from tenure.plan.adoption.state import Record
from tenure.plan.adoption.survival import Survival
from tenure.plan.servers.facts import RecoveryReport, ServerSaid
from tenure.plan.servers.status import differs, status_of


@pytest.mark.parametrize("reason", [r for r in AdoptionReason if r is not AdoptionReason.NONE])
def test_the_reason_of_an_adoption_that_came_to_nothing_is_shown(reason: AdoptionReason) -> None:
    vacant = state(record=Record(adopted_by="new", pod_uid="pod-0", survival=SurvivalEffective.ENABLED))
    found = status_of(facts(vacant, verdict=verdict_of(reason)))
    status, shown = condition(found, "Adopted")
    assert status is FALSE
    assert shown.lower() == reason.value.replace("_", "")


def test_adopted_is_unknown_while_a_server_is_asked_and_true_once_it_is_ours() -> None:
    assert condition(status_of(facts(state(record=LEFT))), "Adopted") == (UNKNOWN, "AdoptionInFlight")
    assert condition(status_of(facts()), "Adopted") == (TRUE, "Adopted")
    fresh = state(record=record(rotation_id=0))
    assert condition(status_of(facts(fresh)), "Adopted") == (FALSE, "FreshServer")


def test_a_restarted_operator_does_not_unsay_why_a_server_is_fresh() -> None:
    fresh = state(record=record(rotation_id=0))
    told = status_of(facts(fresh, verdict=verdict_of(AdoptionReason.IDENTITY_MISMATCH)))
    assert condition(again(told, fresh), "Adopted") == (FALSE, "IdentityMismatch")
    other = told.model_copy(update={"backend": told.backend.model_copy(update={"incarnation": "old"})})  # type: ignore[union-attr]
    assert condition(again(other, fresh), "Adopted") == (FALSE, "FreshServer")


def test_survival_off_is_the_reason_that_nothing_was_adopted() -> None:
    off = SurvivalEffective.DISABLED
    seen = state(
        survival=Survival(AgentSurvival.DISABLED, off), record=Record(adopted_by="new", survival=off)
    )
    found = status_of(facts(seen, verdict=verdict_of(AdoptionReason.NO_ANSWER)))
    assert condition(found, "Adopted") == (FALSE, "SurvivalOff")


def test_what_holds_is_what_held_when_the_incarnation_began() -> None:
    seen = state(survival=Survival(AgentSurvival.DISABLED, SurvivalEffective.DISABLED))
    found = status_of(facts(seen)).survival
    assert found is not None
    assert found.requested is AgentSurvival.DISABLED
    assert found.effective is SurvivalEffective.ENABLED


@pytest.mark.accept("S-005.4")
@pytest.mark.parametrize(
    ("code", "reason", "stalled"),
    [
        (SurvivalCode.PLATFORM_WINDOWS, "PlatformWindows", False),
        (SurvivalCode.NO_DURABLE_STORE, "NoDurableStore", True),
        (SurvivalCode.NO_SECRET_ACCESS, "NoSecretAccess", True),
    ],
)
def test_unavailable_survival_is_told_with_its_code(code: SurvivalCode, reason: str, stalled: bool) -> None:
    unavailable = Survival(
        AgentSurvival.DISABLED, SurvivalEffective.UNAVAILABLE, code, server_possible=not stalled
    )
    found = status_of(facts(state(survival=unavailable, record=None, pods=()), pod=None))
    assert condition(found, "SurvivalAvailable") == (FALSE, reason)
    assert (condition(found, "Stalled") == (TRUE, reason)) is stalled
    assert found.survival is not None
    assert found.survival.reason_code is code
    assert (found.phase is ServerPhase.STALLED) is stalled


REPORTS: list[tuple[RecoveryReport, str]] = [
    (RecoveryReport(started_at=NOW, retracked=2, not_retracked=1), "Recovered"),
    (RecoveryReport(started_at=NOW), "NothingToRecover"),
    (RecoveryReport(started_at=NOW, not_retracked=1, deadline_elapsed=True), "DeadlineElapsed"),
    (RecoveryReport(started_at=NOW, enumeration_failed=True), "EnumerationFailed"),
]


@pytest.mark.parametrize(("report", "reason"), REPORTS)
def test_recovery_is_over_for_one_reason(report: RecoveryReport, reason: str) -> None:
    found = status_of(facts(report=report))
    assert condition(found, "Recovered") == (TRUE, reason)
    assert found.recovery is not None
    assert (found.recovery.retracked, found.recovery.started_at) == (report.retracked, NOW)


def test_recovery_is_over_only_for_the_backend_that_runs() -> None:
    report = RecoveryReport(started_at=NOW)
    assert condition(status_of(facts(state(record=LEFT), report=report)), "Recovered")[0] is FALSE
    assert condition(status_of(facts(state(owner=None), report=report)), "Recovered") == (FALSE, "NoBackend")


def test_a_restarted_operator_keeps_what_was_said_of_recovery_and_server() -> None:
    mention = InstanceMention(id="i-1", session_id="s-1", reason="it did not stop")
    adjustment = AdjustmentStatus(setting="unowned_period", effective_milliseconds=1)
    told = status_of(
        facts(
            report=RecoveryReport(
                started_at=NOW, retracked=2, unstopped=(mention,), untracked=(mention,), deadline_elapsed=True
            ),
            said=ServerSaid(("agent-survival.v1",), "/home/log", (adjustment,)),
        )
    )
    later = again(told)
    assert not differs(told, later)
    assert later.unstopped_instances == (mention,)
    assert later.adjustments == (adjustment,)
    assert condition(later, "Recovered") == (TRUE, "DeadlineElapsed")


def test_what_was_said_of_another_server_or_incarnation_is_dropped() -> None:
    mention = InstanceMention(id="i-1")
    told = status_of(
        facts(
            report=RecoveryReport(started_at=NOW, unstopped=(mention,)),
            said=ServerSaid(("agent-survival.v1",), "/home/log"),
        )
    )
    other = again(told, state(record=record(identity="server-2")))
    assert (other.capabilities, other.diagnostic_output) == ((), None)
    next_one = replace(state(), owner=replace(state().owner, incarnation="next"))  # type: ignore[type-var]
    assert again(told, next_one).unstopped_instances == ()
