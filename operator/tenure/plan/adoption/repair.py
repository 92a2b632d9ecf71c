"""Reconciliation of sessions: what becomes of each session and its row once recovery has decided about all of them.

Every verdict is a set of values to be written, none of them "one more than before": writing it again changes nothing.
Resume tokens, worktree identities and workspaces are in none of them.
"""

from dataclasses import dataclass
from enum import StrEnum

from tenure.model.records import SESSION_OVER, SessionState, TaskState
from tenure.plan.adoption.guards import InventoryRow
from tenure.plan.adoption.liveness import RowVerdict


class RowRepair(StrEnum):
    """What becomes of the inventory row."""

    KEEP = "keep"
    """As it is: its session stays guarded by it."""
    STOPPED = "stopped"
    """Repaired in place: no agent; resume token and worktree identity stay."""
    FLAG = "flag"
    """Kept live and flagged for this incarnation: launches are refused for good."""


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session as the store has it, with what hangs on it."""

    id: str
    state: SessionState
    open_turns: tuple[int, ...] = ()
    task: TaskState = TaskState.TODO
    task_busy_elsewhere: bool = False
    """Another session of the task has an open turn."""


@dataclass(frozen=True, slots=True)
class SessionRepair:
    """What is written for one session. ``None`` and empty: that value is left as it is."""

    session: str
    state: SessionState | None = None
    abandon: tuple[int, ...] = ()
    task: TaskState | None = None
    interrupted: bool = False
    """Session and task are stamped."""
    row: RowRepair = RowRepair.KEEP

    @property
    def nothing(self) -> bool:
        """Whether nothing at all is written."""
        return self == SessionRepair(self.session)


def reconcile(
    session: SessionView, row: InventoryRow, *, retracked: bool, verdict: RowVerdict, unstopped: bool = False
) -> SessionRepair:
    """What becomes of a session that had a live row when recovery began.

    ``verdict`` is the row's liveness, judged after every record had its outcome. ``unstopped``: an agent of the session
    could not be stopped.
    """
    if retracked:
        return SessionRepair(session.id)
    if unstopped or row.unstopped:
        repair = RowRepair.FLAG if not row.unstopped else RowRepair.KEEP
    else:
        repair = RowRepair.STOPPED if row.live and verdict is RowVerdict.DEAD else RowRepair.KEEP
    if not _was_at_work(session):
        # Nothing was cut short: a session that waited for its next prompt still does.
        return SessionRepair(session.id, row=repair)
    over = session.state in SESSION_OVER
    waits = session.state is SessionState.WAITING_FOR_INPUT
    to_review = session.task is TaskState.IN_PROGRESS and not session.task_busy_elsewhere
    return SessionRepair(
        session.id,
        state=None if over or waits else SessionState.WAITING_FOR_INPUT,
        abandon=session.open_turns,
        task=TaskState.REVIEW if to_review else None,
        interrupted=not over,
        row=repair,
    )


def _was_at_work(session: SessionView) -> bool:
    return bool(session.open_turns) or session.state in (SessionState.CREATED, SessionState.RUNNING)
