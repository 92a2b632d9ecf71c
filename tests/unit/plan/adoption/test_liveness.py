"""Whether the agent of an inventory row lives."""

from dataclasses import replace
from typing import Any

import pytest
from tests.support.adoption import NOW, POD, SERVER, ago, row, view

from tenure.plan.adoption.guards import InventoryRow
from tenure.plan.adoption.liveness import Enumeration, PodLife, RowVerdict, View, judge_row

LIVE, DEAD, UNKNOWN = RowVerdict.LIVE, RowVerdict.DEAD, RowVerdict.UNKNOWN
EMPTY = Enumeration(SERVER, frozenset(), frozenset(), NOW, settled=True)
FRESH = Enumeration(frozenset({"pod-2"}), frozenset(), frozenset(), NOW, settled=True)
"""Of a server that was started in the place of one that was refused."""


def judged(found: InventoryRow | None = None, **facts: Any) -> RowVerdict:
    """The verdict in step 8 of recovery, unless something else is said."""
    return judge_row(found or row(), view(**facts))


def test_an_inherited_row_lives_when_the_adopted_server_has_its_instance() -> None:
    assert judged() is LIVE
    assert judged(row(agent_execution_id="another-id")) is LIVE


def test_an_inherited_row_is_dead_when_the_adopted_server_does_not_have_its_instance() -> None:
    assert judged(enumeration=EMPTY) is DEAD


def test_the_servers_own_life_says_nothing_about_an_instance() -> None:
    assert judged(enumeration=EMPTY, pods={POD: PodLife.RUNNING}) is DEAD


def test_an_enumeration_taken_before_every_record_had_its_outcome_decides_nothing() -> None:
    assert judged(enumeration=replace(EMPTY, settled=False)) is UNKNOWN


def test_a_server_that_could_not_be_enumerated_leaves_its_rows_unknown() -> None:
    assert judged(enumeration=None) is UNKNOWN


def test_a_row_on_a_server_that_was_refused_is_unknown_and_never_judged_by_the_fresh_one() -> None:
    assert judged(enumeration=FRESH) is UNKNOWN


@pytest.mark.parametrize("life", [PodLife.ABSENT, PodLife.ENDED])
@pytest.mark.parametrize("survival", [True, False])
def test_a_row_whose_pod_is_gone_ended_or_runs_another_container_is_dead(
    life: PodLife, survival: bool
) -> None:
    assert judged(enumeration=FRESH, pods={POD: life}, survival=survival) is DEAD
    assert judged(enumeration=None, pods={POD: life}, survival=survival) is DEAD


def test_silence_alone_is_a_partition_and_not_death() -> None:
    assert judged(enumeration=None, pods={POD: PodLife.RUNNING}) is UNKNOWN
    assert judged(enumeration=None, pods={POD: PodLife.UNKNOWN}) is UNKNOWN
    assert judged(enumeration=None, pods={}) is UNKNOWN


def test_a_row_for_which_no_server_was_ever_chosen_is_dead() -> None:
    assert judged(row(container_identity="")) is DEAD
    assert judged(row(container_identity=None)) is DEAD


def test_a_row_whose_stop_is_in_flight_is_unknown() -> None:
    assert judged(stopping=frozenset({"row-of-s1"})) is UNKNOWN
    assert judged(stopping=frozenset({"row-of-s1"}), pods={POD: PodLife.ABSENT}) is UNKNOWN


def test_with_survival_off_the_pod_decides() -> None:
    assert judged(survival=False, enumeration=EMPTY) is LIVE
    assert judged(survival=False, pods={POD: PodLife.UNKNOWN}) is UNKNOWN


def test_a_row_of_this_incarnation_is_judged_by_the_server_in_use_adopted_or_fresh() -> None:
    created = row(created_by="new", container_identity="pod-2")
    seen = replace(FRESH, instances=frozenset({"instance-of-s1"}))
    pods = {"pod-2": PodLife.RUNNING}
    assert judged(created, enumeration=seen, pods=pods, recovered=True) is LIVE
    assert judged(created, enumeration=FRESH, pods=pods, recovered=True) is DEAD


def test_a_launch_that_is_on_its_way_is_not_called_dead() -> None:
    launching = row(created_by="new", updated_at=ago(5))
    assert judged(launching, enumeration=EMPTY) is UNKNOWN
    assert judged(replace(launching, container_identity=""), enumeration=None) is UNKNOWN
    assert judged(replace(launching, updated_at=ago(500)), enumeration=EMPTY) is DEAD


def test_a_launch_of_a_former_incarnation_cannot_be_on_its_way_any_more() -> None:
    assert judged(row(updated_at=ago(5)), enumeration=EMPTY) is DEAD


def test_before_recovery_has_finished_whoever_asks_from_outside_gets_unknown() -> None:
    outside: View = view(in_recovery=False, recovered=False)
    assert judge_row(row(), outside) is UNKNOWN
    assert judge_row(row(), replace(outside, pods={POD: PodLife.ABSENT})) is UNKNOWN
    assert judge_row(row(), replace(outside, recovered=True)) is LIVE


def test_a_row_of_the_backend_library_names_its_server_by_identity() -> None:
    library = row(container_identity="server-1")
    pods = {POD: PodLife.RUNNING, "server-1": PodLife.RUNNING}
    assert judged(library, pods=pods) is LIVE
    assert judged(library, pods=pods, enumeration=EMPTY) is DEAD
    assert judged(library, pods={"server-1": PodLife.ABSENT}, enumeration=None) is DEAD
