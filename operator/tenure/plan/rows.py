"""Which row of the liveness table is whose, and what it says."""

from collections.abc import Iterable
from dataclasses import dataclass

from tenure.model.liveness import AgentLivenessRecord
from tenure.model.pods import PodView
from tenure.plan.observation import NoTable, Rows, RowsReading


def match_row(
    rows: Iterable[AgentLivenessRecord],
    *,
    uid: str,
    pod_name: str,
    process_kind: str,
    row_id: str | None = None,
) -> AgentLivenessRecord | None:
    """The row of one pod: ``instance_id`` is its UID, else host name and kind fit (newest ``started_at`` first).

    Pod names never recur, so the row of an earlier pod cannot fit. The row that was found before, ``row_id``, keeps
    fitting when the author changes the kind under a running agent. Its host name still has to: anybody who may edit
    a status can name a row there.
    """
    fitting = []
    for row in rows:
        if row.instance_id == uid:
            return row
        if row.hostname == pod_name and (row.process_kind == process_kind or row.instance_id == row_id):
            fitting.append(row)
    return max(fitting, key=lambda row: (row.started_at, row.instance_id), default=None)


@dataclass(frozen=True, slots=True)
class RowVerdict:
    """What is known of one pod's row. ``readable`` False: nothing is, and ``row`` is None."""

    applies: bool
    """There is a table for this agent."""
    readable: bool
    row: AgentLivenessRecord | None = None
    alive: bool = False
    expires_in: float | None = None
    """Seconds until the row expires, from the moment of reading; negative once it has."""

    @property
    def marked(self) -> bool:
        """A stop is asked for in the row."""
        return self.row is not None and self.row.stop_requested

    @property
    def epoch(self) -> bool:
        """The agent wrote its own end."""
        return self.row is not None and self.row.ended_gracefully

    @property
    def busy(self) -> bool:
        """The agent says it holds a task, and the word is fresh."""
        return self.row is not None and self.alive and self.row.current_task_id is not None


def judge_row(
    reading: RowsReading | None, pod: PodView, process_kind: str, row_id: str | None = None
) -> RowVerdict:
    """Read the verdict for ``pod`` out of a reading."""
    return judge(reading, uid=pod.uid, pod_name=pod.name, process_kind=process_kind, row_id=row_id)


def judge(
    reading: RowsReading | None, *, uid: str, pod_name: str, process_kind: str, row_id: str | None = None
) -> RowVerdict:
    """As ``judge_row``, for a pod that is known by name and UID only."""
    if not isinstance(reading, Rows):
        return RowVerdict(applies=not _no_table(reading), readable=_no_table(reading))
    row = match_row(reading.rows, uid=uid, pod_name=pod_name, process_kind=process_kind, row_id=row_id)
    if row is None:
        return RowVerdict(applies=True, readable=True)
    left = (row.expires_at() - reading.now).total_seconds()
    return RowVerdict(applies=True, readable=True, row=row, alive=row.alive(reading.now), expires_in=left)


def _no_table(reading: RowsReading | None) -> bool:
    return isinstance(reading, NoTable)
