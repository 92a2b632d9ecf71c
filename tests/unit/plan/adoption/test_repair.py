"""What becomes of sessions and rows once recovery has decided about all of them."""

from dataclasses import fields
from typing import Any

import pytest
from tests.support.adoption import row

from tenure.model.records import SessionState, TaskState
from tenure.plan.adoption.guards import InventoryRow
from tenure.plan.adoption.liveness import RowVerdict
from tenure.plan.adoption.repair import RowRepair, SessionRepair, SessionView, reconcile

WAITING = SessionState.WAITING_FOR_INPUT
AT_WORK = SessionView("s1", SessionState.RUNNING, (41,), TaskState.IN_PROGRESS)


def reconciled(
    session: SessionView = AT_WORK, found: InventoryRow | None = None, **facts: Any
) -> SessionRepair:
    """What becomes of a session that was not re-tracked and whose agent is dead."""
    return reconcile(session, found or row(), **{"retracked": False, "verdict": RowVerdict.DEAD, **facts})


@pytest.mark.parametrize("verdict", RowVerdict)
def test_a_re_tracked_session_is_not_touched_in_any_way(verdict: RowVerdict) -> None:
    assert reconciled(retracked=True, verdict=verdict).nothing


def test_a_session_that_was_at_work_waits_and_its_turn_is_abandoned_and_its_task_goes_to_review() -> None:
    assert reconciled() == SessionRepair(
        "s1",
        state=WAITING,
        abandon=(41,),
        task=TaskState.REVIEW,
        interrupted=True,
        row=RowRepair.STOPPED,
    )


def test_a_launch_that_was_cut_short_waits_too() -> None:
    found = reconciled(SessionView("s1", SessionState.CREATED, task=TaskState.TODO))
    assert (found.state, found.task, found.interrupted) == (WAITING, None, True)


def test_a_session_that_waited_for_its_next_prompt_was_not_interrupted() -> None:
    found = reconciled(SessionView("s1", WAITING, task=TaskState.REVIEW))
    assert found == SessionRepair("s1", row=RowRepair.STOPPED)


@pytest.mark.parametrize("over", [SessionState.COMPLETED, SessionState.FAILED, SessionState.CANCELLED])
def test_a_session_that_is_over_stays_over_and_is_not_interrupted(over: SessionState) -> None:
    assert reconciled(SessionView("s1", over)) == SessionRepair("s1", row=RowRepair.STOPPED)
    left_open = reconciled(SessionView("s1", over, (41,), TaskState.DONE))
    assert left_open == SessionRepair("s1", abandon=(41,), row=RowRepair.STOPPED)


def test_a_task_that_another_session_works_on_stays_in_progress() -> None:
    busy = SessionView("s1", SessionState.RUNNING, (41,), TaskState.IN_PROGRESS, task_busy_elsewhere=True)
    assert reconciled(busy).task is None


def test_a_task_that_is_done_stays_done() -> None:
    assert reconciled(SessionView("s1", SessionState.RUNNING, (41,), TaskState.DONE)).task is None


@pytest.mark.parametrize("verdict", [RowVerdict.UNKNOWN, RowVerdict.LIVE])
def test_a_row_that_is_not_known_to_be_dead_is_kept_and_so_guards_its_session(verdict: RowVerdict) -> None:
    found = reconciled(verdict=verdict)
    assert (found.row, found.state) == (RowRepair.KEEP, WAITING)


def test_a_row_with_an_agent_that_could_not_be_stopped_is_flagged_whatever_else_is_known() -> None:
    for verdict in RowVerdict:
        assert reconciled(unstopped=True, verdict=verdict).row is RowRepair.FLAG
        assert reconciled(found=row(unstopped=True), verdict=verdict).row is RowRepair.KEEP


def test_reconciling_again_changes_nothing() -> None:
    first = reconciled()
    assert first.state is not None
    assert first.task is not None
    after = SessionView("s1", first.state, (), first.task)
    assert reconciled(after, verdict=RowVerdict.UNKNOWN).nothing


def test_nothing_that_is_written_touches_resume_token_worktree_or_workspace() -> None:
    names = {field.name for field in fields(SessionRepair)}
    assert names == {"session", "state", "abandon", "task", "interrupted", "row"}
