"""Whose turn it is, among the pods that the selector matches."""

from tests.support.adoption import NOW, backend_pod

from tenure.model.adoption import HandoverPolicy
from tenure.plan.adoption.backend import Backends, MainContainer, choose, operator_as_backend

READY, END = HandoverPolicy.ON_READY, HandoverPolicy.ON_END
HELD = "b1/c1"


def current(backends: Backends) -> str | None:
    """The incarnation whose turn it is."""
    return backends.current.incarnation if backends.current else None


def test_nobody_has_a_turn_while_no_main_container_runs() -> None:
    waiting = backend_pod(main=MainContainer.WAITING)
    ended = backend_pod("b2", main=MainContainer.ENDED)
    assert choose((waiting, ended), None, READY) == Backends()
    assert choose((), HELD, READY) == Backends()


def test_a_container_that_was_restarted_is_another_incarnation() -> None:
    assert current(choose((backend_pod(container_id="c2"),), HELD, READY)) == "b1/c2"


def test_an_incarnation_is_pod_and_container() -> None:
    assert current(choose((backend_pod(),), None, READY)) == HELD


def test_a_crash_loop_leaves_nobody_with_a_turn_between_two_starts() -> None:
    assert current(choose((backend_pod(main=MainContainer.ENDED),), HELD, READY)) is None


def test_a_successor_takes_over_from_one_that_is_being_deleted() -> None:
    pods = (backend_pod(terminating=True), backend_pod("b2", age=10, containers_ready=False))
    assert current(choose(pods, HELD, END)) == "b2/c1"


def test_one_that_is_being_deleted_keeps_its_turn_while_there_is_no_successor() -> None:
    assert current(choose((backend_pod(terminating=True),), HELD, READY)) == HELD


def test_one_that_is_being_deleted_begins_no_turn() -> None:
    assert current(choose((backend_pod(terminating=True),), "b0/c0", READY)) is None


def test_a_newer_pod_of_another_revision_takes_over_once_it_is_ready() -> None:
    newer = backend_pod("b2", age=10, revision="r2", containers_ready=False)
    assert current(choose((backend_pod(), newer), HELD, READY)) == HELD
    ready = backend_pod("b2", age=10, revision="r2")
    assert current(choose((backend_pod(), ready), HELD, READY)) == "b2/c1"


def test_with_on_end_a_newer_revision_waits_for_the_end() -> None:
    pods = (backend_pod(), backend_pod("b2", age=10, revision="r2"))
    assert current(choose(pods, HELD, END)) == HELD
    assert current(choose(pods[1:], HELD, END)) == "b2/c1"


def test_a_pod_of_another_revision_that_is_not_newer_never_takes_a_turn_away() -> None:
    for age in (100, 1000):
        pods = (backend_pod(age=100), backend_pod("b0", age=age, revision="r0"))
        assert current(choose(pods, HELD, READY)) == HELD


def test_two_of_one_revision_are_owner_and_standby_and_never_flap() -> None:
    pods = (backend_pod(), backend_pod("b2", age=10))
    first = choose(pods, None, READY)
    holder = current(first)
    assert holder is not None
    for order in (pods, pods[::-1]):
        again = choose(order, holder, READY)
        assert (current(again), again.overlap, len(again.standby)) == (holder, True, 1)


def test_a_rollout_in_progress_is_no_overlap() -> None:
    found = choose(
        (backend_pod(), backend_pod("b2", age=10, revision="r2", containers_ready=False)), HELD, READY
    )
    assert (found.standby, found.overlap) == (("b2",), False)


def test_a_ready_older_one_is_chosen_before_a_newer_one_that_is_not() -> None:
    pods = (backend_pod(), backend_pod("b2", age=10, revision="r2", containers_ready=False))
    assert current(choose(pods, "gone/c0", READY)) == HELD


def test_without_a_named_backend_the_operator_is_its_own() -> None:
    assert current(operator_as_backend("op", "c9", NOW)) == "op/c9"
