"""The liveness table ``cks_agent_liveness``: its rows, its words, and what every storage of it can do.

Nothing here imports a driver: agents import this module, and it has to stay light.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Protocol

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
    "UnreadableRow",
    "parse_time",
    "record_from_row",
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


class UnreadableRow(ValueError):
    """A row holds a value that no reader can use. The text names the column, never the value."""


def parse_time(value: object) -> datetime:
    """A time as any writer of the table left it: aware datetime, ISO 8601 text, without an offset UTC.

    Raises ``ValueError`` for anything else, among them PostgreSQL's ``infinity`` and years before 1.
    """
    if isinstance(value, str):
        value = datetime.fromisoformat(value.strip())
    if not isinstance(value, datetime):
        raise ValueError("not a time")
    try:
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except OverflowError:
        raise ValueError("a time beyond the calendar") from None


def record_from_row(row: Mapping[str, Any]) -> AgentLivenessRecord:
    """Parse one row, trusting nothing: anybody with INSERT may have written it.

    Raises ``UnreadableRow`` for a time, interval or identity that cannot be read. A current task or a
    desired state of an unexpected type reads as None: they say less than the heartbeat and never spoil it.
    """
    return AgentLivenessRecord(
        instance_id=_text(row, "instance_id"),
        process_kind=_text(row, "process_kind"),
        hostname=_text(row, "hostname"),
        pid=_whole(row.get("pid")) or 0,
        liveness_interval_s=_interval(row),
        started_at=_time(row, "started_at"),
        last_heartbeat_at=_time(row, "last_heartbeat_at"),
        current_task_id=_whole(row.get("current_task_id")),
        current_task_type=_optional_text(row.get("current_task_type")),
        desired_state=_optional_text(row.get("desired_state")),
    )


def _text(row: Mapping[str, Any], column: str) -> str:
    value = row.get(column)
    if not isinstance(value, str):
        raise UnreadableRow(f"{column} is not a text")
    return value


def _optional_text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _interval(row: Mapping[str, Any]) -> float:
    value = row.get("liveness_interval_s")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnreadableRow("liveness_interval_s is not a number")
    try:
        seconds = float(value)
    except OverflowError:
        raise UnreadableRow("liveness_interval_s is not a number of seconds") from None
    if not math.isfinite(seconds) or seconds <= 0:
        raise UnreadableRow("liveness_interval_s is not a number of seconds above 0")
    return seconds


def _time(row: Mapping[str, Any], column: str) -> datetime:
    try:
        return parse_time(row.get(column))
    except ValueError:
        raise UnreadableRow(f"{column} is not a time") from None
