"""The next step, from durable state: Secret beats record beats status."""

from dataclasses import replace
from typing import Any

import pytest
from tests.support.adoption import attempt, record, secret, server_pod, state, survival

from tenure.model.adoption import AdoptionReason
from tenure.model.records import SurvivalEffective
from tenure.plan.adoption import steps
from tenure.plan.adoption.gates import Deadline, Survivor, verdict_of
from tenure.plan.adoption.next_step import next_step
from tenure.plan.adoption.state import (
    Attempt,
    Bootstrap,
    Gate,
    NoSecret,
    Owner,
    PodPhase,
    Record,
    Recovery,
    ServerPod,
    State,
)
from tenure.plan.adoption.steps import Idle, Nothing

NEW = Owner("new", "backend-2", Gate.SET)
ADOPTED_BEFORE = record(adopted_by="old", recovered_by=None)
"""Of the incarnation before, the guards of this one being taken."""
OLD_POD = server_pod(secret=secret(adopted_by="old"))
VACANT = Record(pod_uid="pod-1", adopted_by="new", survival=SurvivalEffective.ENABLED)
FRESH_POD = ServerPod("pod-2", 2, VACANT.vacancy, PodPhase.REACHABLE, bootstrap=True)
UNRECOVERED = record(recovered_by=None)


def step(found: State) -> steps.Step:
    """The next step."""
    return next_step(found).step


def contacted(**facts: Any) -> State:
    """A server of the incarnation before, on record."""
    waiting = replace(NEW, gate=Gate.UNSET)
    return state(
        **{"record": ADOPTED_BEFORE, "pods": (OLD_POD,), "hand_over": None, "owner": waiting, **facts}
    )


def vacant(**facts: Any) -> State:
    """A record that was vacated for this incarnation."""
    waiting = replace(NEW, gate=Gate.UNSET)
    return state(**{"record": VACANT, "pods": (), "hand_over": None, "owner": waiting, **facts})


def recovering(stage: Recovery = Recovery.NOT_STARTED, **facts: Any) -> State:
    """A server that is ours and whose recovery has come so far."""
    known = attempt(recovering="pod-1", recovery=stage)
    return state(**{"record": UNRECOVERED, "hand_over": None, "attempt": known, **facts})


def test_without_the_lease_nothing_is_done() -> None:
    assert step(contacted(lease=False)) == Nothing(Idle.NO_LEASE)


def test_where_no_server_is_possible_none_is_made() -> None:
    found = vacant(survival=survival(SurvivalEffective.UNAVAILABLE, server_possible=False))
    assert step(found) == Nothing(Idle.STALLED)


def test_with_the_store_down_nothing_but_renewing_is_done() -> None:
    found = contacted(record_read=False, record=None)
    assert step(found) == Nothing(Idle.STORE_UNREAD)


def test_when_all_is_recorded_nothing_is_done() -> None:
    assert next_step(state()) == next_step(state(attempt=Attempt()))
    assert step(state()) == Nothing(Idle.UP_TO_DATE)


def test_guards_come_before_any_contact() -> None:
    before = contacted(record=record(adopted_by="old", recovered_by="old"))
    assert step(before) == steps.TakeGuards("old")
    assert step(contacted(attempt=Attempt())) == steps.TakeGuards("old")
    assert step(contacted()) == steps.Contact("pod-1")


def test_without_a_record_the_inventory_is_read_all_the_same_and_then_a_fresh_server_begins() -> None:
    waiting = replace(NEW, gate=Gate.UNSET)
    nothing = state(record=None, pods=(), hand_over=None, attempt=Attempt(), owner=waiting)
    assert step(nothing) == steps.TakeGuards(None)
    vacate = step(replace(nothing, attempt=attempt()))
    assert isinstance(vacate, steps.Vacate)
    assert (vacate.expected, vacate.incarnation, vacate.reason) == (None, "new", AdoptionReason.NO_RECORD)


def test_the_hand_over_is_emptied_before_anything_else_when_its_incarnation_is_over() -> None:
    stale = replace(contacted(), hand_over=state().hand_over)
    assert step(stale) == steps.EmptyHandOver()
    assert step(state(owner=None)) == steps.EmptyHandOver()
    assert step(state(owner=Owner("new", "another-pod"))) == steps.EmptyHandOver()


def test_the_operator_as_its_own_backend_hands_nothing_over_and_empties_what_was_handed() -> None:
    itself = replace(NEW, gate=Gate.NOT_LISTED, itself=True)
    assert step(state(owner=itself, hand_over=None)) == steps.Nothing(steps.Idle.UP_TO_DATE)
    assert step(state(owner=itself)) == steps.EmptyHandOver()
    assert isinstance(step(state(owner=replace(itself, itself=False), hand_over=None)), steps.WriteHandOver)


def test_a_container_that_was_restarted_in_its_pod_is_not_ready_before_it_has_recovered() -> None:
    assert step(contacted(owner=NEW)) == steps.SetReadiness("backend-2", recovered=False)
    assert isinstance(step(recovering(owner=NEW)), steps.Enumerate)


def test_a_pod_that_has_ended_or_is_gone_answers_nothing() -> None:
    for pods in ((), (replace(OLD_POD, phase=PodPhase.ENDED),)):
        vacate = step(contacted(pods=pods))
        assert isinstance(vacate, steps.Vacate)
        assert vacate.reason is AdoptionReason.NO_ANSWER


@pytest.mark.parametrize("reason", [r for r in AdoptionReason if r is not AdoptionReason.NONE])
def test_after_a_refusal_the_record_is_vacated_and_the_server_never_asked_again(
    reason: AdoptionReason,
) -> None:
    known = attempt(judged="pod-1", verdict=verdict_of(reason), unstoppable="pod-1")
    vacate = step(contacted(attempt=known))
    assert vacate == steps.Vacate("old", "new", reason, None, SurvivalEffective.ENABLED)
    after = vacant(pods=(OLD_POD,), attempt=known)
    assert isinstance(step(after), steps.CreateBootstrap)
    assert isinstance(step(replace(after, attempt=Attempt())), steps.TakeGuards)
    assert isinstance(step(replace(after, attempt=attempt())), steps.CreateBootstrap)


def test_an_incompatible_server_is_stopped_and_its_records_repaired_when_its_containers_have_ended() -> None:
    verdict = verdict_of(AdoptionReason.CAPABILITY_INCOMPATIBLE)
    known = attempt(judged="pod-1", verdict=verdict, deadline=Deadline.RUNNING)
    assert step(contacted(attempt=known)) == steps.StopServer("pod-1")
    known = replace(known, stopped="pod-1")
    assert step(contacted(attempt=known)) == Nothing(Idle.SERVER_ENDING)
    ended = contacted(attempt=known, pods=(replace(OLD_POD, phase=PodPhase.ENDED),))
    assert step(ended) == steps.RepairRecordsOf("pod-1")
    assert isinstance(step(replace(ended, attempt=replace(known, repaired="pod-1"))), steps.Vacate)


def test_an_incompatible_server_that_cannot_be_stopped_has_no_record_repaired() -> None:
    verdict = verdict_of(AdoptionReason.CAPABILITY_INCOMPATIBLE)
    known = attempt(judged="pod-1", verdict=verdict, unstoppable="pod-1")
    assert isinstance(step(contacted(attempt=known)), steps.Vacate)
    slow = attempt(judged="pod-1", verdict=verdict, stopped="pod-1", deadline=Deadline.ELAPSED)
    assert isinstance(step(contacted(attempt=slow)), steps.Vacate)


def test_the_secret_beats_the_record() -> None:
    """A crash between the two: the record is written from the Secret, and nothing is rotated again."""
    found = contacted(pods=(server_pod(secret=secret(3)),), attempt=attempt())
    assert step(found) == steps.StoreRecord(
        "pod-1", "old", "server-1", 3, False, "new", SurvivalEffective.ENABLED
    )
    stored = record(rotation_id=3, rotation_confirmed=False, recovered_by=None)
    plan = next_step(replace(found, record=stored))
    assert (plan.step, plan.owed) == (steps.Enumerate("pod-1"), (steps.Confirm("pod-1", 3),))


def test_of_one_rotation_the_secret_says_for_which_incarnation_it_was() -> None:
    found = step(contacted(pods=(server_pod(secret=secret(2)),)))
    assert isinstance(found, steps.StoreRecord)
    assert (found.adopted_by, found.rotation_id) == ("new", 2)


def test_a_secret_that_is_older_than_the_record_is_what_the_server_is_asked_with() -> None:
    found = contacted(record=replace(ADOPTED_BEFORE, rotation_id=9))
    assert step(found) == steps.Contact("pod-1")


def test_a_confirmation_that_fails_holds_nothing_up() -> None:
    found = state(record=record(rotation_confirmed=False))
    assert next_step(found) == type(next_step(found))(Nothing(Idle.UP_TO_DATE), (steps.Confirm("pod-1", 2),))


def test_a_secret_of_another_identity_holds_no_credential_for_this_server() -> None:
    found = contacted(pods=(replace(OLD_POD, secret=secret(9, identity="server-9")),))
    assert step(found) == steps.Contact("pod-1")


def test_an_api_server_that_does_not_answer_is_no_unavailable_credential() -> None:
    found = contacted(pods=(replace(OLD_POD, secret=NoSecret.UNREAD),))
    assert step(found) == Nothing(Idle.SECRET_UNREAD)


def test_a_secret_that_is_gone_after_recovery_stops_nothing() -> None:
    found = state(pods=(server_pod(secret=NoSecret.UNAVAILABLE),))
    assert step(found) == Nothing(Idle.CREDENTIAL_LOST)
    vacate = step(replace(found, record=UNRECOVERED, hand_over=None))
    assert isinstance(vacate, steps.Vacate)
    assert vacate.reason is AdoptionReason.CREDENTIAL_UNAVAILABLE


@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        (Recovery.NOT_STARTED, steps.Enumerate("pod-1")),
        (Recovery.ENUMERATED, steps.DecideRecords("pod-1")),
        (Recovery.ENUMERATION_FAILED, steps.PublishSet("pod-1")),
        (Recovery.DECIDED, steps.PublishSet("pod-1")),
        (Recovery.PUBLISHED, steps.ReconcileSessions("pod-1")),
        (Recovery.RECONCILED, steps.RecordRecovered("new", "new")),
    ],
)
def test_recovery_goes_on_from_where_this_process_has_come(stage: Recovery, expected: steps.Step) -> None:
    assert step(recovering(stage)) == expected


def test_what_is_known_of_another_server_or_incarnation_is_not_carried_over() -> None:
    other = attempt(recovering="pod-0", recovery=Recovery.RECONCILED)
    assert step(recovering(attempt=other)) == steps.Enumerate("pod-1")
    former = replace(attempt(), incarnation="old")
    assert step(recovering(attempt=former)) == steps.TakeGuards("new")


def test_the_hand_over_comes_after_the_recovery_is_recorded_and_readiness_after_the_hand_over() -> None:
    found = state(hand_over=None, owner=replace(NEW, gate=Gate.UNSET))
    assert step(found) == steps.WriteHandOver("pod-1", "server-1", 2, "backend-2")
    found = replace(found, hand_over=state().hand_over)
    assert step(found) == steps.SetReadiness("backend-2", recovered=True)
    assert step(replace(found, owner=replace(NEW, gate=Gate.NOT_LISTED))) == Nothing(Idle.UP_TO_DATE)


def test_a_fresh_server_is_bootstrapped_made_shaken_hands_with_and_recorded() -> None:
    assert step(vacant()) == steps.CreateBootstrap(2, VACANT.vacancy)
    prepared = vacant(bootstraps=(Bootstrap(2, VACANT.vacancy),))
    assert step(prepared) == steps.CreatePod(2, VACANT.vacancy)
    starting = replace(FRESH_POD, phase=PodPhase.STARTING)
    assert step(vacant(pods=(starting,))) == Nothing(Idle.POD_STARTING)
    assert step(vacant(pods=(FRESH_POD,))) == steps.Handshake("pod-2", "new")
    shaken = replace(FRESH_POD, secret=secret(0, identity="server-2"))
    assert step(vacant(pods=(shaken,))) == steps.StoreRecord(
        "pod-2", "new", "server-2", 0, True, "new", SurvivalEffective.ENABLED
    )


def test_the_bootstrap_secret_is_deleted_once_the_record_names_the_server() -> None:
    plan = next_step(state(pods=(server_pod(bootstrap=True),)))
    assert plan.owed == (steps.DeleteBootstrap(1),)


def test_bootstrap_secrets_that_others_left_are_deleted_once_the_record_names_the_server() -> None:
    ended = server_pod("pod-3", 3, vacancy="other ", phase=PodPhase.ENDED, bootstrap=True)
    left = (Bootstrap(2, "older "), Bootstrap(4, "other "))
    plan = next_step(state(pods=(server_pod(), ended), bootstraps=left))
    assert plan.owed == tuple(steps.DeleteBootstrap(ordinal) for ordinal in (3, 2, 4))
    assert next_step(vacant(pods=(FRESH_POD,), bootstraps=left)).owed == (), "it may still be needed"


def test_of_pods_that_ended_before_they_were_in_use_the_latest_stays_to_be_looked_at() -> None:
    over = [
        server_pod(f"pod-{n}", n, vacancy=VACANT.vacancy, phase=PodPhase.ENDED, over=True, bootstrap=True)
        for n in (2, 3, 4)
    ]
    making = next_step(vacant(pods=(*over, replace(FRESH_POD, uid="pod-5", ordinal=5))))
    gone = (steps.DeletePod("pod-2"), steps.DeletePod("pod-3"))
    assert (making.step, making.owed) == (steps.Handshake("pod-5", "new"), gone)
    restarted = tuple(replace(each, over=False) for each in over)
    assert next_step(vacant(pods=restarted)).owed == (), "something runs in them again"


def test_a_pod_that_was_in_use_stays_for_rows_may_name_it() -> None:
    over = tuple(
        server_pod(f"pod-{n}", n, vacancy="other ", phase=PodPhase.ENDED, over=True) for n in (1, 2, 3)
    )
    assert next_step(vacant(pods=over)).owed == ()
    assert next_step(state(pods=(server_pod(), *over[1:]))).owed == ()


def test_a_pod_of_an_older_spec_that_is_not_in_use_yet_makes_way() -> None:
    starting = replace(FRESH_POD, phase=PodPhase.STARTING, outdated=True)
    assert step(vacant(pods=(starting,))) == steps.DeletePod("pod-2")
    shaken = replace(FRESH_POD, outdated=True, secret=secret(0, identity="server-2"))
    assert isinstance(step(vacant(pods=(shaken,))), steps.StoreRecord)


def test_a_nonce_that_was_used_or_is_gone_makes_the_pod_worthless() -> None:
    used = attempt(nonce_used=frozenset({"pod-2"}))
    assert step(vacant(pods=(FRESH_POD,), attempt=used)) == steps.DeletePod("pod-2")
    gone = replace(FRESH_POD, bootstrap=False)
    assert step(vacant(pods=(gone,))) == steps.DeletePod("pod-2")


def test_a_bootstrap_secret_whose_pod_has_come_and_gone_is_not_used_again() -> None:
    found = vacant(bootstraps=(Bootstrap(2, VACANT.vacancy),), next_ordinal=3)
    assert step(found) == steps.CreateBootstrap(3, VACANT.vacancy)
    other = vacant(bootstraps=(Bootstrap(2, "another vacancy"), Bootstrap(3, "another vacancy")))
    assert step(other) == steps.CreateBootstrap(4, VACANT.vacancy)


def test_of_two_pods_made_for_one_vacancy_the_one_that_came_farther_stays() -> None:
    shaken = ServerPod("pod-3", 3, VACANT.vacancy, PodPhase.REACHABLE, secret=secret(0, identity="server-3"))
    plan = next_step(vacant(pods=(FRESH_POD, shaken)))
    assert isinstance(plan.step, steps.StoreRecord)
    assert (plan.step.pod, plan.owed) == ("pod-3", (steps.DeletePod("pod-2"),))


def test_a_pod_that_landed_late_is_deleted_and_a_refused_one_never() -> None:
    late = server_pod("pod-9", 9, secret=NoSecret.UNAVAILABLE)
    refused = server_pod("pod-0", 0, vacancy="other ", secret=secret(adopted_by="old"))
    assert next_step(state(pods=(server_pod(), late, refused))).owed == (steps.DeletePod("pod-9"),)
    assert next_step(vacant(pods=(FRESH_POD, refused))).owed == ()


def test_a_fresh_server_of_an_incarnation_that_is_over_is_recorded_for_it_and_then_adopted() -> None:
    half = replace(VACANT, adopted_by="old")
    pod = ServerPod(
        "pod-2", 2, half.vacancy, PodPhase.REACHABLE, secret=secret(0, "old", identity="server-2")
    )
    stored = step(vacant(record=half, pods=(pod,)))
    assert isinstance(stored, steps.StoreRecord)
    assert stored.adopted_by == "old"
    then = record(identity="server-2", pod_uid="pod-2", rotation_id=0, adopted_by="old", recovered_by=None)
    assert step(vacant(record=then, pods=(pod,))) == steps.Contact("pod-2")


def test_a_refused_server_is_not_taken_for_the_fresh_one() -> None:
    refused = replace(FRESH_POD, uid="pod-1", ordinal=1)
    assert isinstance(step(vacant(pods=(refused,))), steps.CreateBootstrap)


def test_no_two_vacancies_share_a_mark() -> None:
    marks = [
        replace(VACANT, adopted_by=a, pod_uid=p).vacancy for a in (None, "x", "y") for p in (None, "p", "q")
    ]
    assert len(set(marks)) == len(marks)
    sibling = replace(FRESH_POD, vacancy=replace(VACANT, pod_uid="pod-0").vacancy)
    assert isinstance(step(vacant(pods=(sibling,))), steps.CreateBootstrap)


def test_while_an_adoption_is_in_flight_no_second_server_is_made() -> None:
    flying = attempt(contacting="pod-1", deadline=Deadline.RUNNING)
    assert step(contacted(attempt=flying)) == Nothing(Idle.ADOPTION_IN_FLIGHT)


def test_at_the_deadline_sessions_are_reconciled_while_the_adoption_goes_on() -> None:
    flying = attempt(contacting="pod-1", deadline=Deadline.ELAPSED)
    assert step(contacted(attempt=flying)) == steps.ReconcileSessions("pod-1")
    done = replace(flying, recovering="pod-1", recovery=Recovery.RECONCILED)
    assert step(contacted(attempt=done)) == steps.RecordRecovered("old", "new")
    concluded = record(adopted_by="old", recovered_by="new")
    assert step(contacted(attempt=done, record=concluded)) == Nothing(Idle.ADOPTION_IN_FLIGHT)


def test_an_adoption_that_ends_late_re_tracks_nothing_and_is_handed_over() -> None:
    late = recovering(attempt=attempt(deadline=Deadline.ELAPSED))
    assert step(late) == steps.ReconcileSessions("pod-1")
    assert isinstance(step(replace(late, record=record())), steps.WriteHandOver)


def test_an_adoption_that_fails_late_begins_a_fresh_server_and_recovers_nothing_again() -> None:
    verdict = verdict_of(AdoptionReason.CREDENTIAL_ROTATION_FAILED)
    known = attempt(judged="pod-1", verdict=verdict, deadline=Deadline.ELAPSED)
    vacate = step(contacted(attempt=known, record=record(adopted_by="old", recovered_by="new")))
    assert isinstance(vacate, steps.Vacate)
    assert vacate.recovered_by == "new"


def test_sessions_do_not_wait_for_a_fresh_server_that_takes_longer_than_the_deadline() -> None:
    late = attempt(deadline=Deadline.ELAPSED)
    assert step(vacant(attempt=late)) == steps.ReconcileSessions(VACANT.vacancy)
    known = replace(late, recovering=VACANT.vacancy, recovery=Recovery.RECONCILED)
    assert step(vacant(attempt=known)) == steps.RecordRecovered("new", "new")
    concluded = replace(VACANT, recovered_by="new")
    assert isinstance(step(vacant(attempt=known, record=concluded)), steps.CreateBootstrap)


def test_a_server_that_ends_under_its_own_incarnation_is_no_attempt_to_adopt_and_recovers_anew() -> None:
    vacate = step(state(pods=(), hand_over=None))
    assert vacate == steps.Vacate("new", "new", None, None, SurvivalEffective.ENABLED)


def test_after_ownership_was_lost_nothing_follows_in_this_incarnation() -> None:
    lost = attempt(lost=True)
    assert step(contacted(attempt=lost)) == Nothing(Idle.OWNERSHIP_LOST)
    assert isinstance(step(contacted(attempt=replace(lost, incarnation="old"))), steps.TakeGuards)


OFF = survival(SurvivalEffective.DISABLED)


def test_with_survival_off_the_server_of_a_former_incarnation_is_dismissed_and_not_adopted() -> None:
    assert step(contacted(survival=OFF)) == steps.DismissSurvivor("pod-1")
    was_off = replace(ADOPTED_BEFORE, survival=SurvivalEffective.DISABLED)
    assert step(contacted(record=was_off)) == steps.DismissSurvivor("pod-1")


@pytest.mark.parametrize("survivor", Survivor)
def test_a_dismissed_survivor_is_waited_for_if_it_ends_and_left_alone_if_not(survivor: Survivor) -> None:
    known = attempt(judged="pod-1", survivor=survivor, deadline=Deadline.RUNNING)
    found = step(contacted(survival=OFF, attempt=known))
    if survivor in (Survivor.STOP, Survivor.ENDING):
        assert found == Nothing(Idle.SERVER_ENDING)
        found = step(contacted(survival=OFF, attempt=replace(known, unstoppable="pod-1")))
    assert isinstance(found, steps.Vacate)
    assert found.reason is None


def test_without_a_backend_a_server_is_dismissed_only_where_survival_is_off() -> None:
    alone: dict[str, Any] = {"owner": None, "hand_over": None}
    assert step(state(**alone)) == Nothing(Idle.NO_BACKEND)
    off = record(survival=SurvivalEffective.DISABLED)
    assert step(state(**alone, record=off)) == steps.DismissSurvivor("pod-1")
    sent = attempt(judged="pod-1", survivor=Survivor.STOP)
    assert step(state(**alone, record=off, attempt=sent)) == Nothing(Idle.SERVER_ENDING)
    again = replace(sent, unstoppable="pod-1")
    assert step(state(**alone, record=off, attempt=again)) == steps.DismissSurvivor("pod-1")
    foreign = replace(sent, survivor=Survivor.LEAVE_ALONE)
    assert step(state(**alone, record=off, attempt=foreign)) == Nothing(Idle.NO_BACKEND)


def test_a_change_of_the_flag_does_nothing_to_an_incarnation_that_goes_on() -> None:
    assert step(state(survival=OFF)) == Nothing(Idle.UP_TO_DATE)
    restored = step(state(survival=OFF, pods=(), hand_over=None))
    assert isinstance(restored, steps.Vacate)
    assert restored.survival is SurvivalEffective.ENABLED
