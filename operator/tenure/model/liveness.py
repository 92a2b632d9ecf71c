"""A row of the liveness table as everybody reads it; the table itself is ``tenure.storage``'s.

Only the standard library: agents import this.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""The heartbeat of a process that ended gracefully: older than any limit, so it reads as stopped at once."""

STOP_REQUESTED = "stop_requested"
"""The one value of ``desired_state`` that means something. NULL, ``running`` and anything unknown: no stop."""

INTERVALS_ALIVE = 3
"""A row is alive until this many of its own intervals have passed since its last heartbeat."""


@dataclass(frozen=True, slots=True)
class AgentLivenessRecord:
    """One row: one lifetime of an agent process. Times are aware and in UTC; the interval is in seconds."""

    instance_id: str
    process_kind: str
    hostname: str
    pid: int
    liveness_interval_s: float
    started_at: datetime
    last_heartbeat_at: datetime
    current_task_id: int | None = None
    current_task_type: str | None = None
    desired_state: str | None = None

    @property
    def stop_requested(self) -> bool:
        return self.desired_state == STOP_REQUESTED

    @property
    def ended_gracefully(self) -> bool:
        """The process wrote its last row itself: the heartbeat is the Unix epoch."""
        return self.last_heartbeat_at <= EPOCH

    def expires_at(self) -> datetime:
        """From this moment on the row reads as dead. ``datetime.max`` when the interval reaches beyond the calendar."""
        try:
            return self.last_heartbeat_at + timedelta(seconds=INTERVALS_ALIVE * self.liveness_interval_s)
        except OverflowError:
            return datetime.max.replace(tzinfo=UTC)

    def alive(self, now: datetime) -> bool:
        """``now - last_heartbeat_at <= 3 * liveness_interval_s``; nothing else decides it.

        ``now`` is the database's clock.
        """
        return now <= self.expires_at()
