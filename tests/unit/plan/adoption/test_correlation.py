"""Which instance is which session's, and what the stops that follow amount to."""

import pytest
from tests.support.adoption import SERVER, row, seen

from tenure.model.adoption import NotRetracked, StopReason
from tenure.model.records import ExecutorStatus
from tenure.plan.adoption.correlation import (
    Correlation,
    Decided,
    Decision,
    LeaveToRepair,
    Proceed,
    Retrack,
    Seen,
    Stop,
    StopNow,
    StopResult,
    Wait,
    correlate,
    given_up,
    settle,
    to_drain,
)
from tenure.plan.adoption.guards import InventoryRow

STOPPED, FAILED, IN_FLIGHT = StopResult.STOPPED, StopResult.FAILED, StopResult.IN_FLIGHT
WINNER = "instance-of-s1"
DUPLICATES = (seen(), seen("loser"))


def correlated(instances: tuple[Seen, ...], rows: tuple[InventoryRow, ...] = (row(),)) -> Correlation:
    """What becomes of them on the server on record."""
    return correlate(instances, rows, SERVER)


def decision(instances: tuple[Seen, ...], found: InventoryRow | None = None) -> Decision:
    """What becomes of the only row."""
    (decided,) = correlated(instances, (found or row(),)).decisions
    return decided


@pytest.mark.accept("S-002.1")
def test_an_instance_is_matched_by_the_session_that_the_server_reports_and_not_by_its_id() -> None:
    assert decision((seen("whatever", "s1"),)) == Retrack(row(), "whatever")
    assert decision((seen(WINNER, "s2"),)) == LeaveToRepair(row(), NotRetracked.NO_INSTANCE)


@pytest.mark.accept("S-002.2")
def test_a_single_instance_is_re_tracked_whatever_its_id() -> None:
    assert decision((seen("another-id"),)) == Retrack(row(), "another-id")


def test_of_several_the_one_on_record_wins_and_the_others_are_stopped() -> None:
    losers = (Stop("loser", StopReason.DUPLICATE), Stop("third", StopReason.DUPLICATE))
    assert decision((*DUPLICATES, seen("third"))) == Retrack(row(), WINNER, losers)


def test_several_of_which_none_is_on_record_are_all_stopped() -> None:
    stops = (Stop("a", StopReason.AMBIGUOUS), Stop("b", StopReason.AMBIGUOUS))
    assert decision((seen("a"), seen("b"))) == LeaveToRepair(row(), NotRetracked.AMBIGUOUS, stops)


def test_several_with_the_id_on_record_are_all_stopped() -> None:
    found = decision((seen(), seen(), seen("third")))
    assert isinstance(found, LeaveToRepair)
    assert (found.why, len(found.stops)) == (NotRetracked.AMBIGUOUS, 3)


def test_an_instance_without_a_record_is_stopped() -> None:
    found = correlated((seen(), seen("stray", "s9"), seen("nobody", "")))
    assert found.strays == (Stop("stray", StopReason.NO_RECORD), Stop("nobody", StopReason.NO_RECORD))


def test_an_instance_whose_row_is_not_live_has_no_record() -> None:
    found = correlated((seen(),), (row(status=ExecutorStatus.STOPPED),))
    assert (found.decisions, found.strays) == ((), (Stop(WINNER, StopReason.NO_RECORD),))


def test_a_record_without_an_instance_is_left_to_repair() -> None:
    assert decision(()) == LeaveToRepair(row(), NotRetracked.NO_INSTANCE)


def test_an_instance_whose_agent_has_ended_is_no_candidate_but_its_outcome_can_still_be_read() -> None:
    gone = seen(status="stopped")
    assert decision((gone,)) == LeaveToRepair(row(), NotRetracked.NO_INSTANCE, (), (WINNER,))
    assert decision((gone, seen("other"))) == Retrack(row(), "other")
    assert correlated((seen("x", "s9", "stopped"),), ()).ended_strays == ("x",)


@pytest.mark.parametrize("status", ["starting", "running", "stopping", "something new"])
def test_any_other_status_may_have_an_agent(status: str) -> None:
    assert isinstance(decision((seen(status=status),)), Retrack)


def test_a_row_whose_execution_drains_is_re_tracked_too() -> None:
    draining = row(status=ExecutorStatus.STOPPING)
    assert decision((seen(),), draining) == Retrack(draining, WINNER)


def test_a_passthrough_session_is_never_re_tracked() -> None:
    found = decision((seen(),), row(passthrough=True))
    stops = (Stop(WINNER, StopReason.PASSTHROUGH),)
    assert found == LeaveToRepair(row(passthrough=True), NotRetracked.PASSTHROUGH, stops)
    assert isinstance(decision((seen(),), row(passthrough=None)), Retrack)


def test_a_row_of_another_servers_pod_is_not_matched_here() -> None:
    assert decision((seen(),), row(container_identity="server-1")) == Retrack(
        row(container_identity="server-1"), WINNER
    )
    elsewhere = row(container_identity="pod-0")
    found = decision((seen(),), elsewhere)
    assert found == LeaveToRepair(elsewhere, NotRetracked.OTHER_SERVER, (Stop(WINNER, StopReason.NO_RECORD),))


def test_what_is_tracked_already_is_left_alone() -> None:
    rows = (row("s1"), row("s2"))
    found = correlate((*DUPLICATES, seen("b", "s2")), rows, SERVER, tracked=frozenset({"s1"}))
    assert found == Correlation((Retrack(row("s2"), "b"),))


def test_a_session_that_was_given_up_for_good_is_not_re_tracked_by_the_next_operator() -> None:
    flagged = row(unstopped=True)
    found = decision((seen(),), flagged)
    stops = (Stop(WINNER, StopReason.DUPLICATE_UNSTOPPED),)
    assert found == LeaveToRepair(flagged, NotRetracked.DUPLICATE_UNSTOPPED, stops)
    decided = settle(found, {WINNER: STOPPED})
    assert isinstance(decided, Decided)
    assert decided.guarded_for_good


def test_a_single_instance_is_reconstructed_without_a_stop() -> None:
    assert settle(decision((seen(),)), {}) == Proceed(row(), WINNER)


def test_losers_are_stopped_before_the_winner_is_reconstructed() -> None:
    found = decision(DUPLICATES)
    assert settle(found, {}) == StopNow((Stop("loser", StopReason.DUPLICATE),))
    assert settle(found, {"loser": IN_FLIGHT}) == Wait(row())
    assert settle(found, {"loser": STOPPED}) == Proceed(row(), WINNER)


def test_a_loser_that_cannot_be_stopped_takes_its_winner_down() -> None:
    found = decision(DUPLICATES)
    takes_down = Stop(WINNER, StopReason.DUPLICATE_UNSTOPPED)
    assert settle(found, {"loser": FAILED}) == StopNow((takes_down,))
    assert settle(found, {"loser": FAILED, WINNER: IN_FLIGHT}) == Wait(row())


def test_a_session_with_an_agent_that_nobody_could_stop_is_guarded_for_good() -> None:
    found = decision(DUPLICATES)
    for winner, unstopped in ((STOPPED, ("loser",)), (FAILED, ("loser", WINNER))):
        decided = settle(found, {"loser": FAILED, WINNER: winner})
        assert decided == Decided(row(), NotRetracked.DUPLICATE_UNSTOPPED, unstopped)
        assert isinstance(decided, Decided)
        assert decided.guarded_for_good


def test_an_ambiguous_session_is_decided_when_all_its_instances_are_stopped() -> None:
    found = decision((seen("a"), seen("b")))
    assert isinstance(settle(found, {"a": STOPPED}), StopNow)
    assert settle(found, {"a": STOPPED, "b": STOPPED}) == Decided(row(), NotRetracked.AMBIGUOUS)
    assert settle(found, {"a": STOPPED, "b": FAILED}) == Decided(row(), NotRetracked.AMBIGUOUS, ("b",))


def test_an_instance_that_is_given_up_later_is_stopped_by_the_same_rules() -> None:
    stop = Stop(WINNER, StopReason.MISSING_INPUT)
    why = NotRetracked.MISSING_INPUT
    assert given_up(row(), stop, why, {}) == StopNow((stop,))
    assert given_up(row(), stop, why, {WINNER: STOPPED}) == Decided(row(), why)
    assert given_up(row(), stop, why, {WINNER: FAILED}) == Decided(row(), why, (WINNER,))


def test_correlating_again_what_was_correlated_changes_nothing() -> None:
    instances = (*DUPLICATES, seen("stray", "s9"))
    first = correlated(instances)
    assert correlated(instances) == first
    after = tuple(i for i in instances if i.id == WINNER)
    assert correlated(after).decisions == (Retrack(row(), WINNER),)
    assert correlate(after, (row(),), SERVER, frozenset({"s1"})) == Correlation()


def test_an_instance_whose_resource_was_deleted_while_nobody_looked_is_re_tracked_to_be_drained() -> None:
    hosted, others = row("s1", agent_process_uid="ap-1"), (row("s2", agent_process_uid="ap-2"), row("s3"))
    found = correlated((seen(), seen("b", "s2"), seen("c", "s3")), (hosted, *others))
    assert to_drain(found.decisions, frozenset({"ap-1", "ap-9"})) == (Retrack(hosted, WINNER),)
