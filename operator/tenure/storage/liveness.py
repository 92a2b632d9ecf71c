"""The liveness table ``cks_agent_liveness``: its rows, its words, and what every storage of it can do.

Nothing here imports a driver: agents import this module, and it has to stay light.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from tenure.model.liveness import EPOCH, INTERVALS_ALIVE, STOP_REQUESTED, AgentLivenessRecord

__all__ = [
    "EPOCH",
    "INTERVALS_ALIVE",
    "KIND_INDEX",
    "STOP_REQUESTED",
    "TABLE",
    "AgentLivenessRecord",
    "HeartbeatClock",
    "LivenessStorage",
    "MigrationReport",
]

TABLE = "cks_agent_liveness"
KIND_INDEX = "idx_agent_liveness_kind"


class HeartbeatClock(Enum):
    """Who says when a written heartbeat happened."""

    DATABASE = "database"
    """The database, at the moment of the write: no skew between pods. ``started_at`` too, when the row is
    new."""
    RECORD = "record"
    """The record's own ``started_at`` and ``last_heartbeat_at``."""
    EPOCH = "epoch"
    """The Unix epoch, in the last row of a graceful exit; ``started_at`` by the database when the row is
    new."""


@dataclass(frozen=True, slots=True)
class MigrationReport:
    """What a migration of the liveness table found and did.

    ``changed``: one sentence per change made. ``notify``: whether the trigger that announces stops is there.
    ``missing``: what could not be made for want of a permission, each with the consequence.
    """

    changed: tuple[str, ...] = ()
    notify: bool = False
    missing: tuple[str, ...] = ()


class LivenessStorage(Protocol):
    """The operations on the table, the same for PostgreSQL and SQLite.

    Every call is bounded in time and raises ``tenure.storage.errors.DatabaseUnavailable`` when it fails.
    """

    async def migrate(self) -> MigrationReport:
        """Make the table, or add the column ``desired_state`` to an existing one. Safe to repeat, and at
        the same time."""
        ...

    async def upsert_agent_liveness(
        self, record: AgentLivenessRecord, *, clock: HeartbeatClock = HeartbeatClock.RECORD
    ) -> None:
        """Insert the row, or update heartbeat and current task. ``desired_state`` is never touched.

        Only the process that the row describes calls this.
        """
        ...

    async def list_agent_liveness(self) -> list[AgentLivenessRecord]:
        """All readable rows, newest ``started_at`` first."""
        ...

    async def get_agent_liveness(self, instance_id: str) -> AgentLivenessRecord | None:
        """One row by one indexed read; None when there is none."""
        ...

    async def request_agent_stop(self, instance_id: str) -> bool:
        """Mark the row; False when there is no such row. Never creates one, never touches the heartbeat."""
        ...

    async def aclose(self) -> None:
        """Give back every connection. The storage may be used again: it connects by itself."""
        ...
