"""What one pass has seen of one AgentProcess: a frozen snapshot, in which absence and Unknown are values.

Two clocks: ``now`` is the wall clock, for times that people read; ``clock`` is monotonic (seconds), for everything
that is decided by elapsed time.
"""

from dataclasses import dataclass, field
from datetime import datetime

from tenure.model.liveness import AgentLivenessRecord
from tenure.model.pods import PodView
from tenure.model.resources import AgentProcess


@dataclass(frozen=True, slots=True)
class NoTable:
    """There is no table to read for this agent: mode Pod, or a database that it cannot have."""

    allowed: tuple[str, ...] | None = None
    """None in mode Pod; else the databases that this namespace may use, ``spec.liveness.database`` not among them."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The database does not answer: nothing is known of any row. ``since`` is monotonic."""

    since: float
    reason: str
    row_only: bool = False
    """The database answers, but this agent's row holds what nobody can read."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows that may be this agent's, by the database's clock ``now``; read at the monotonic ``taken_at``."""

    now: datetime
    taken_at: float
    rows: tuple[AgentLivenessRecord, ...] = ()


RowsReading = NoTable | Unreadable | Rows


@dataclass(frozen=True, slots=True)
class Rejection:
    """The API server refused to create the pod of this generation, ``attempts`` times so far."""

    generation: int
    message: str
    attempts: int
    retry_at: float
    """Monotonic."""
    namespace_terminating: bool = False


@dataclass(frozen=True, slots=True)
class Memory:
    """What earlier passes of this operator have seen and need not survive it; times are monotonic.

    Losing it costs time, never correctness: each entry only ever makes the operator wait longer.
    """

    instance: str = ""
    """The instance that the entries below are about."""
    fresh_at: float | None = None
    """When a fresh heartbeat was last seen, with no unreadable reading since."""
    expired_since: float | None = None
    """Since when each reading has shown the row expired."""
    running_since: float | None = None
    """When the container was first seen running."""
    idle_since: float | None = None
    """Since when each reading has shown no task."""
    task_written_at: float | None = None
    """When the current task was last written into status."""
    rejection: Rejection | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """Everything that the plan of one AgentProcess is made of."""

    resource: AgentProcess
    template_hash: str
    pods: tuple[PodView, ...]
    """Its pods, and those of earlier objects of its name; the last sight of those that have gone, too."""
    rows: RowsReading
    now: datetime
    clock: float
    memory: Memory = field(default_factory=Memory)
    final_rows: RowsReading | None = None
    """The rows as read once *after* the instance's end; None when that has not been needed or done."""
    vanished: bool = False
    """A live GET has shown that the pod of the recorded instance, not seen to end, is gone."""
    orphaning: bool = False
    """The object is being deleted with its pods left behind on purpose (``--cascade=orphan``)."""
    ledger: bool = False
    """A store is configured, and due to be tried."""
