"""The status of a ControlServer: what people and programs read of it."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.support.adoption import NOW, POD, attempt, record, server_pod, state, survival
from tests.support.server_status import FALSE, LEFT, TRUE, UNKNOWN, again, condition, facts

from tenure.model.reasons import ConditionStatus, ServerConditionType, ServerPhase
from tenure.model.server_status import InstanceMention, ServerStatus
from tenure.plan.adoption.state import NoSecret, PodPhase, Record, State
from tenure.plan.adoption.steps import Idle, Nothing
from tenure.plan.servers.conditions import stalled_by_spec
from tenure.plan.servers.facts import PodMention, RecoveryReport
from tenure.plan.servers.status import differs, status_of


def test_every_condition_is_there_from_the_first_status_on_and_ready_is_unknown() -> None:
    first = status_of(facts(state(record=None, pods=()), fresh=True, pod=None, ordinal=0))
    assert [c.type for c in first.conditions] == list(ServerConditionType)
    assert all(c.observed_generation == 1 and c.reason and c.message for c in first.conditions)
    assert condition(first, "Ready") == (UNKNOWN, "ServerStarting")
    assert condition(again(first, state(record=None, pods=())), "Ready") == (FALSE, "ServerStarting")


def test_a_server_in_use_is_told_in_full() -> None:
    found = status_of(facts())
    assert found.phase is ServerPhase.RUNNING
    assert condition(found, "Ready") == (TRUE, "Serving")
    assert condition(found, "Adopted") == (TRUE, "Adopted")
    assert condition(found, "SurvivalAvailable") == (TRUE, "Available")
    assert condition(found, "Stalled") == (FALSE, "Progressing")
    assert condition(found, "BackendOverlap") == (FALSE, "OneBackend")
    assert condition(found, "OwnershipLost") == (FALSE, "Owned")
    assert found.installation_id == "5e12"
    assert (found.server_identity, found.endpoint) == ("server-1", "https://10.0.0.7:8443")
    assert (found.adopted_by, found.recovered_by) == ("new", "new")
    assert found.backend is not None
    assert (found.backend.pod_name, found.backend.incarnation) == ("shop-1", "new")
    assert found.pod is not None
    assert (found.pod.name, found.pod.uid, found.pod.ordinal) == ("main-1", POD, 1)


def test_nothing_is_written_when_nothing_has_changed() -> None:
    found = status_of(facts())
    later = again(found, now=NOW + timedelta(minutes=5))
    assert not differs(found, later)
    stored = ServerStatus.model_validate(found.to_wire())
    assert not differs(stored, later)
    assert differs(found, again(found, outdated=True))


def test_a_condition_keeps_its_time_while_its_status_stays() -> None:
    found = status_of(facts())
    later = again(found, outdated=True, now=NOW + timedelta(hours=1))
    ready = next(c for c in later.conditions if c.type == "Ready")
    assert (ready.reason, ready.last_transition_time) == ("ServerOutdated", NOW)
    gone = again(found, state(owner=None), now=NOW + timedelta(hours=2))
    ready = next(c for c in gone.conditions if c.type == "Ready")
    assert ready.last_transition_time == NOW + timedelta(hours=2)


PHASES: list[tuple[str, State, dict[str, Any], ServerPhase, tuple[ConditionStatus, str]]] = [
    (
        "no backend and no server",
        state(owner=None, record=None, pods=()),
        {},
        ServerPhase.PENDING,
        (FALSE, "NoBackend"),
    ),
    (
        "a server without a backend",
        state(owner=None),
        {},
        ServerPhase.DETACHED,
        (FALSE, "NoBackend"),
    ),
    (
        "no server yet",
        state(record=None, pods=()),
        {},
        ServerPhase.STARTING,
        (FALSE, "ServerStarting"),
    ),
    (
        "a vacant record",
        state(record=Record(adopted_by="new", pod_uid="pod-0")),
        {},
        ServerPhase.STARTING,
        (FALSE, "ServerStarting"),
    ),
    (
        "a server that has ended",
        state(pods=(server_pod(phase=PodPhase.ENDED),)),
        {"pod": PodMention("main-1", POD, "OOMKilled")},
        ServerPhase.STARTING,
        (FALSE, "ServerEnded"),
    ),
    (
        "a deleted pod whose containers have ended",
        state(pods=(server_pod(terminating=True, phase=PodPhase.ENDED),)),
        {},
        ServerPhase.STARTING,
        (FALSE, "ServerEnded"),
    ),
    ("a server that was left", state(record=LEFT), {}, ServerPhase.ADOPTING, (FALSE, "AdoptionInFlight")),
    (
        "a server of ours before recovery",
        state(record=record(recovered_by=None)),
        {},
        ServerPhase.RECOVERING,
        (FALSE, "RecoveryInProgress"),
    ),
    (
        "a server that is being stopped",
        state(),
        {"step": Nothing(Idle.SERVER_ENDING)},
        ServerPhase.STOPPING,
        (FALSE, "ServerEnding"),
    ),
    (
        "a pod that is being deleted",
        state(pods=(server_pod(terminating=True),)),
        {},
        ServerPhase.STOPPING,
        (FALSE, "ServerEnding"),
    ),
    (
        "a store that is silent",
        state(record_read=False, record=None),
        {},
        ServerPhase.UNKNOWN,
        (UNKNOWN, "DatabaseUnavailable"),
    ),
    (
        "a Secret that cannot be read",
        state(pods=(server_pod(secret=NoSecret.UNREAD),)),
        {},
        ServerPhase.UNKNOWN,
        (UNKNOWN, "NotObserved"),
    ),
    ("a server that is silent", state(), {"silent": True}, ServerPhase.UNKNOWN, (UNKNOWN, "ServerSilent")),
    (
        "a server that another owner has",
        state(attempt=attempt(lost=True)),
        {},
        ServerPhase.LOST,
        (FALSE, "Superseded"),
    ),
    (
        "a server whose Secret is gone",
        state(),
        {"step": Nothing(Idle.CREDENTIAL_LOST)},
        ServerPhase.RUNNING,
        (FALSE, "CredentialLost"),
    ),
    (
        "a template that is refused",
        state(),
        {"refused": "pods main-1 is forbidden"},
        ServerPhase.STALLED,
        (FALSE, "TemplateRejected"),
    ),
    ("an outdated server", state(), {"outdated": True}, ServerPhase.RUNNING, (TRUE, "ServerOutdated")),
]


@pytest.mark.parametrize(
    ("seen", "given", "phase", "ready"), [case[1:] for case in PHASES], ids=[case[0] for case in PHASES]
)
def test_phase_and_ready_say_the_same(
    seen: State, given: dict[str, Any], phase: ServerPhase, ready: tuple[ConditionStatus, str]
) -> None:
    found = status_of(facts(seen, **given))
    assert found.phase is phase
    assert condition(found, "Ready") == ready


def test_every_phase_is_shown_by_some_state() -> None:
    assert {case[3] for case in PHASES} == set(ServerPhase)


def test_an_end_is_reported_as_what_it_is() -> None:
    ended = state(pods=(server_pod(phase=PodPhase.ENDED),))
    found = status_of(facts(ended, pod=PodMention("main-1", POD, "OOMKilled")))
    assert "OOMKilled" in next(c for c in found.conditions if c.type == "Ready").message


def test_instances_are_named_once_and_not_without_limit() -> None:
    many = tuple(InstanceMention(id=f"i-{number % 150:03}") for number in range(300))
    found = status_of(facts(report=RecoveryReport(started_at=NOW, unstopped=many)))
    assert len(found.unstopped_instances) == 100
    assert len({mention.id for mention in found.unstopped_instances}) == 100


def test_while_the_store_is_silent_nothing_is_unsaid() -> None:
    told = status_of(facts())
    silent = again(told, state(record_read=False, record=None))
    assert (silent.server_identity, silent.adopted_by) == ("server-1", "new")
    assert condition(silent, "Adopted") == (TRUE, "Adopted")
    assert condition(silent, "Recovered")[0] is TRUE
    assert condition(silent, "Ready") == (UNKNOWN, "DatabaseUnavailable")


def test_an_ordinal_in_status_never_falls() -> None:
    told = status_of(facts(ordinal=7))
    later = again(told, pod=None, ordinal=0)
    assert later.pod is not None
    assert (later.pod.ordinal, later.pod.name) == (7, None)


def test_a_lost_ownership_stays_lost_for_this_backend_only() -> None:
    told = status_of(facts(state(attempt=attempt(lost=True))))
    assert condition(told, "OwnershipLost") == (TRUE, "Superseded")
    assert condition(again(told), "OwnershipLost") == (TRUE, "Superseded")
    next_one = replace(state(), owner=replace(state().owner, incarnation="next"))  # type: ignore[type-var]
    assert condition(again(told, next_one), "OwnershipLost") == (FALSE, "NotOwned")


def test_several_backends_of_one_revision_are_told() -> None:
    assert condition(status_of(facts(overlap=True)), "BackendOverlap") == (TRUE, "SeveralBackends")


def test_a_child_of_somebody_else_stalls_and_is_named() -> None:
    found = status_of(facts(foreign="main-handover"))
    stalled = next(c for c in found.conditions if c.type == "Stalled")
    assert (stalled.status, stalled.reason) == (TRUE, "ForeignChild")
    assert "main-handover" in stalled.message


def test_words_of_the_api_server_are_repeated_without_secrets() -> None:
    found = status_of(facts(refused="denied:\n password=hunter2"))
    stalled = next(c for c in found.conditions if c.type == "Stalled")
    assert "hunter2" not in stalled.message
    assert "\n" not in stalled.message


def test_a_spec_that_is_not_understood_stalls_and_unsays_nothing() -> None:
    told = status_of(facts())
    found = stalled_by_spec(told, 2, "spec.backend: what is that", NOW)
    assert condition(found, "Stalled") == (TRUE, "InvalidSpec")
    assert condition(found, "Ready") == (TRUE, "Serving")
    first = stalled_by_spec(ServerStatus(), 1, "spec.backend: what is that", NOW)
    assert [c.type for c in first.conditions] == list(ServerConditionType)
    assert condition(first, "Ready") == (UNKNOWN, "NotObserved")


def test_a_credential_is_in_no_status() -> None:
    assert "ab" * 32 not in str(status_of(facts()).to_wire())


def test_survival_is_told_while_nothing_else_is() -> None:
    found = status_of(facts(state(survival=survival(), record=None, pods=(), owner=None), fresh=True))
    assert condition(found, "SurvivalAvailable") == (TRUE, "Available")
    assert condition(found, "Adopted") == (UNKNOWN, "NotObserved")
