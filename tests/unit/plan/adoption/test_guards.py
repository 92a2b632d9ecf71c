"""Which sessions are guarded, and what a launch is told."""

import pytest
from tests.support.adoption import row

from tenure.model.adoption import LaunchRefusal
from tenure.model.records import ExecutorStatus
from tenure.plan.adoption.guards import Guards, InventoryRow, LaunchVerdict, judge_launch, take

NONE = Guards()


def test_every_session_of_a_live_row_is_guarded() -> None:
    rows = (row("s1"), row("s2", status=ExecutorStatus.STOPPING), row("s3", status=ExecutorStatus.STOPPED))
    assert take(rows) == Guards(frozenset({"s1", "s2"}))


def test_a_passthrough_session_is_never_guarded() -> None:
    assert take((row(passthrough=True),)) == NONE


def test_a_session_whose_mode_cannot_be_read_is_guarded() -> None:
    assert take((row(passthrough=None),)).sessions == {"s1"}


def test_an_unreadable_inventory_refuses_every_launch_as_retryable() -> None:
    guards = take(None)
    assert guards.everything
    verdict = judge_launch(None, guards, "new", "new")
    assert (verdict.refusal, verdict.retryable) == (LaunchRefusal.RECOVERY_IN_PROGRESS, True)


@pytest.mark.parametrize(
    ("found", "recovered_by", "refusal", "retryable"),
    [
        pytest.param(row(), None, LaunchRefusal.RECOVERY_IN_PROGRESS, True, id="recovery goes on"),
        pytest.param(row(), "old", LaunchRefusal.RECOVERY_IN_PROGRESS, True, id="recovery of another"),
        pytest.param(row(unstopped=True), "new", LaunchRefusal.UNSTOPPED_AGENT, False, id="unstopped"),
        pytest.param(row(unstopped=True), None, LaunchRefusal.UNSTOPPED_AGENT, False, id="unstopped early"),
        pytest.param(row(), "new", None, True, id="in use, which is not counted"),
    ],
)
def test_a_launch_of_a_live_session_is_refused(
    found: InventoryRow, recovered_by: str | None, refusal: LaunchRefusal | None, retryable: bool
) -> None:
    verdict = judge_launch(found, NONE, recovered_by, "new")
    assert verdict is not LaunchVerdict.ADMITTED
    assert (verdict.refusal, verdict.retryable) == (refusal, retryable)


def test_a_session_that_was_repaired_or_never_launched_is_admitted_even_during_recovery() -> None:
    for found in (None, row(status=ExecutorStatus.STOPPED), row(status=ExecutorStatus.FAILED)):
        assert judge_launch(found, NONE, None, "new") is LaunchVerdict.ADMITTED


def test_a_passthrough_row_never_blocks() -> None:
    assert judge_launch(row(passthrough=True), NONE, None, "new") is LaunchVerdict.ADMITTED
