"""Wherever the operator dies, and whichever write is lost: the next step leads to where it would have led anyway."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.model.adoption import AgentSurvival
from tenure.plan.adoption.state import Gate, Owner
from tests.properties.recovery import World
from tests.properties.recovery_servers import Fault, Temper

TEMPERS = st.sampled_from(Temper)
SURVIVAL = st.sampled_from(AgentSurvival)
CRASHES = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER)
PLACES = st.integers(1, 30)


def undisturbed(temper: Temper | None, survival: AgentSurvival) -> World:
    """A run without any fault; ``None``: an installation that never had a server."""
    world = World(survival=survival)
    if temper is not None:
        world = World(temper=temper, survival=survival).with_survivor()
    world.run()
    return world


@pytest.mark.parametrize("survival", AgentSurvival)
@pytest.mark.parametrize("temper", [None, *Temper])
def test_one_fault_at_any_effect_changes_nothing_about_the_end(
    temper: Temper | None, survival: AgentSurvival
) -> None:
    plain = undisturbed(temper, survival)
    for place in range(1, plain.count + 1):
        for fault in Fault:
            world = World(temper=temper or Temper.OURS, survival=survival, faults={place: fault})
            if temper is not None:
                world.with_survivor()
            world.run()
            assert world.outcome() == plain.outcome(), (place, fault)


@given(
    TEMPERS,
    SURVIVAL,
    st.dictionaries(PLACES, st.sampled_from(CRASHES), max_size=6),
    st.dictionaries(PLACES, st.sampled_from((Fault.LOST, Fault.ANSWER_LOST)), max_size=2),
)
def test_any_number_of_crashes_and_some_lost_writes_change_nothing_about_the_end(
    temper: Temper, survival: AgentSurvival, crashes: dict[int, Fault], lost: dict[int, Fault]
) -> None:
    world = World(temper=temper, survival=survival, faults={**lost, **crashes}).with_survivor()
    world.run()
    assert world.outcome() == undisturbed(temper, survival).outcome()


@given(
    st.frozensets(st.integers(2, 5), max_size=3),
    st.dictionaries(PLACES, st.sampled_from(Fault), max_size=6),
)
def test_of_servers_that_end_at_their_start_one_pod_is_left_and_no_bootstrap_secret(
    stillborn: frozenset[int], faults: dict[int, Fault]
) -> None:
    world = World(faults=faults, stillborn=stillborn, temper=Temper.SHUTTING_DOWN).with_survivor()
    world.run()
    assert world.record is not None
    assert not world.record.vacant
    assert not world.bootstraps
    assert not [pod for pod in world.pods.values() if pod.bootstrap]
    over = [uid for uid, pod in world.pods.items() if pod.over and uid != "pod-1"]
    assert len(over) <= 1, "the latest that has ended is left, to be looked at"


@given(TEMPERS, SURVIVAL, st.dictionaries(PLACES, st.sampled_from(Fault), max_size=8), st.integers(0, 30))
def test_whenever_the_deadline_elapses_an_end_is_reached_with_one_server_and_every_session_decided(
    temper: Temper, survival: AgentSurvival, faults: dict[int, Fault], elapses_at: int
) -> None:
    world = World(temper=temper, survival=survival, faults=faults, elapses_at=elapses_at).with_survivor()
    world.run()
    record = world.record
    assert record is not None
    assert not record.vacant
    assert record.adopted_by == record.recovered_by == "new"
    assert world.hand_over is not None
    assert world.hand_over.identity == record.identity
    assert record.rotation_confirmed or record.rotation_id == 0


@given(TEMPERS, st.dictionaries(PLACES, st.sampled_from(Fault), max_size=6), st.integers(1, 25))
def test_a_backend_that_restarts_in_the_middle_of_it_all_gets_a_server_and_a_hand_over_of_its_own(
    temper: Temper, faults: dict[int, Fault], passes: int
) -> None:
    world = World(temper=temper, faults=faults).with_survivor()
    try:
        world.run(limit=passes)
    except AssertionError as error:
        assert "no end of steps" in str(error)
    world.next_incarnation("newer")
    world.run()
    record = world.record
    assert record is not None
    assert record.adopted_by == record.recovered_by == "newer"
    assert world.hand_over is not None
    assert world.hand_over.backend_pod_uid == "backend-newer"
    assert world.gate is Gate.SET
    assert world.hand_over.identity == record.identity


@pytest.mark.parametrize("temper", Temper)
def test_a_second_run_after_the_end_does_nothing(temper: Temper) -> None:
    world = undisturbed(temper, AgentSurvival.ENABLED)
    before, sent = world.outcome(), len(world.log)
    assert world.run() == []
    assert (world.outcome(), len(world.log)) == (before, sent)


def test_an_operator_restart_alone_sends_nothing_to_the_server_and_rotates_nothing() -> None:
    world = undisturbed(Temper.OURS, AgentSurvival.ENABLED)
    record, sent = world.record, len(world.log)
    world.attempt = type(world.attempt)()
    assert world.run() == []
    assert (world.record, len(world.log)) == (record, sent)


@pytest.mark.parametrize("survival", AgentSurvival)
def test_a_server_pod_that_dies_under_its_backend_is_replaced_and_its_sessions_told_the_truth(
    survival: AgentSurvival,
) -> None:
    world = undisturbed(Temper.OURS, survival)
    assert world.record is not None
    former = world.record.pod_uid or ""
    del world.pods[former]
    world.run()
    assert world.record.pod_uid != former
    assert world.record.recovered_by == "new"
    assert set(world.sessions.values()) == {"waiting"}
    assert world.rows == {}


def test_without_a_backend_a_surviving_server_is_left_running_and_a_disabled_one_is_stopped() -> None:
    for survival, sent in ((AgentSurvival.ENABLED, False), (AgentSurvival.DISABLED, True)):
        world = undisturbed(Temper.OURS, survival)
        world.log.clear()
        world.owner = None
        world.run()
        assert (("shutdown" in {what for what, _ in world.log}), world.hand_over) == (sent, None)


def test_the_flag_takes_effect_with_the_next_incarnation_in_both_directions() -> None:
    for first, then in (
        (AgentSurvival.ENABLED, AgentSurvival.DISABLED),
        (AgentSurvival.DISABLED, AgentSurvival.ENABLED),
    ):
        world = undisturbed(Temper.OURS, first)
        assert world.record is not None
        pod = world.record.pod_uid
        world.survival = then
        assert world.run() == []
        world.owner = Owner("newer", "backend-3")
        world.run()
        assert world.record.pod_uid != pod
