"""Guards: which sessions may not be launched while recovery decides about them, and what a launch is told.

A guard is nothing but the live row of the session; these are the rules by which rows are read.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from tenure.model.adoption import LaunchRefusal
from tenure.model.records import LIVE, ExecutorStatus


@dataclass(frozen=True, slots=True)
class InventoryRow:
    """One row of the recovery inventory, with what the session's own row adds to it.

    ``None`` in a value that an execution is rebuilt from means that the row has none.
    """

    id: str
    session_id: str
    task_id: str | None
    status: ExecutorStatus
    agent_execution_id: str | None
    """The instance's id."""
    container_identity: str | None
    """The server: UID of its pod, or its identity. None or empty: no server was ever chosen."""
    created_by: str
    """The incarnation that launched it."""
    updated_at: datetime
    workspace_path: str | None = None
    runtime: str | None = None
    instance_port: int | None = None
    """From the row's metadata or, where one port serves all instances, from the endpoint on record."""
    metadata: tuple[tuple[str, str], ...] | None = None
    """Its texts: nothing else in it is part of an execution."""
    agent_profile: str | None = None
    agent_process_uid: str | None = None
    """The AgentProcess that hosts the session; None for a launch by the backend library."""
    passthrough: bool | None = None
    """From the session's row, which outlives every process; None when it could not be read."""
    unstopped: bool = False
    """Flagged: an agent of this session could not be stopped in this incarnation."""

    @property
    def live(self) -> bool:
        """Whether it may have an agent."""
        return self.status in LIVE


@dataclass(frozen=True, slots=True)
class Guards:
    """Which sessions are guarded. ``everything``: the inventory could not be read, so every launch is refused as
    retryable, and no server is contacted."""

    sessions: frozenset[str] = frozenset()
    everything: bool = False


def take(inventory: tuple[InventoryRow, ...] | None) -> Guards:
    """The guards to hold before any server is contacted; ``None``: the inventory could not be read."""
    if inventory is None:
        return Guards(everything=True)
    return Guards(frozenset(row.session_id for row in inventory if guarded(row)))


def guarded(row: InventoryRow) -> bool:
    """Whether a row guards its session: a live one, unless its session is *known* to be passthrough. Two agents are
    worse than one launch refused for a while, so a mode that cannot be read is guarded."""
    return row.live and row.passthrough is not True


class LaunchVerdict(StrEnum):
    """What a launch is told. ``IN_USE`` is no failure of recovery and is not counted."""

    ADMITTED = "admitted"
    IN_USE = "in_use"
    RECOVERY_IN_PROGRESS = LaunchRefusal.RECOVERY_IN_PROGRESS.value
    UNSTOPPED_AGENT = LaunchRefusal.UNSTOPPED_AGENT.value

    @property
    def refusal(self) -> LaunchRefusal | None:
        """What is counted."""
        counted = (LaunchVerdict.RECOVERY_IN_PROGRESS, LaunchVerdict.UNSTOPPED_AGENT)
        return LaunchRefusal(self.value) if self in counted else None

    @property
    def retryable(self) -> bool:
        """Another try may be granted without anybody's doing."""
        return self is not LaunchVerdict.UNSTOPPED_AGENT


def judge_launch(
    row: InventoryRow | None, guards: Guards, recovered_by: str | None, incarnation: str
) -> LaunchVerdict:
    """What a launch of the row's session is told; ``row`` None: it was never launched.

    The transaction of the storage decides the same under a lock; this is for whoever has yet to reach it.
    ``recovered_by`` is the record's: another incarnation's recovery decided nothing about this one.
    """
    if guards.everything:
        return LaunchVerdict.RECOVERY_IN_PROGRESS
    if row is None or not guarded(row):
        return LaunchVerdict.ADMITTED
    if row.unstopped:
        return LaunchVerdict.UNSTOPPED_AGENT
    if recovered_by != incarnation:
        return LaunchVerdict.RECOVERY_IN_PROGRESS
    return LaunchVerdict.IN_USE
