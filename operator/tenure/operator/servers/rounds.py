"""What one recovery knows, in memory: which instances there are, and what became of each record.

Losing it costs repetition: every part of a recovery may be done again.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tenure.model.adoption import NotRetracked, ReconstructionInput, RecoveryRead, StopReason
from tenure.model.reasons import ServerConditionReason, ServerConditionType
from tenure.model.server_status import InstanceMention, RecoveryStatus, ServerStatus
from tenure.operator.servers.stopping import Stops
from tenure.ownership.client import ControlClient
from tenure.plan.adoption.correlation import Stop
from tenure.protocol.messages import InstanceWithEnvironment


@dataclass(frozen=True, slots=True)
class Refused:
    """An instance that was refused, and what was missing first."""

    instance: str
    session: str
    missing: ReconstructionInput


@dataclass(slots=True)
class Tally:
    """What is told of a recovery once it is durable."""

    retracked: int = 0
    deadline_elapsed: int = 0
    ambiguous: int = 0
    refused: list[Refused] = field(default_factory=list)
    exhausted: Counter[RecoveryRead] = field(default_factory=Counter)
    stopped: list[Stop] = field(default_factory=list)

    def heard(self, stop: Stop) -> None:
        """A stop succeeded."""
        self.stopped.append(stop)

    @property
    def duplicates(self) -> int:
        """Losers that were stopped after a tiebreak."""
        return sum(stop.why is StopReason.DUPLICATE for stop in self.stopped)


@dataclass(slots=True)
class Round:
    """One recovery of one incarnation, about one server or about the lack of one."""

    incarnation: str
    about: str
    started_at: datetime | None = field(default_factory=lambda: datetime.now(UTC))
    """None: it is over, and nobody knows when it was."""
    began: float = field(default_factory=time.monotonic)
    instances: tuple[InstanceWithEnvironment, ...] | None = field(default=None, repr=False)
    """One successful enumeration, with environments: in memory only, and dropped when every record has its outcome."""
    enumeration_failed: bool = False
    fates: dict[str, NotRetracked | None] = field(default_factory=dict)
    """What became of each record, by row; None: re-tracked. A record with a fate gets no other."""
    published: frozenset[str] = frozenset()
    finished_at: datetime | None = None
    deadline_elapsed: bool = False
    hosted: int | None = None
    stopping: set[str] = field(default_factory=set)
    """Rows of which a stop is in flight after the deadline."""
    unstopped: dict[str, InstanceMention] = field(default_factory=dict)
    untracked: tuple[InstanceMention, ...] = ()
    tally: Tally = field(default_factory=Tally)
    told: bool = False
    inherited: bool = False
    """It was over before this one began: by another operator, or about another server."""
    said: RecoveryStatus | None = None
    """What the status says of that: it stays said."""
    stops: Stops = field(init=False)
    _tail: set[asyncio.Task[None]] = field(default_factory=set)
    _closing: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.stops = Stops(self.tally.heard)

    def go_on_from(self, status: ServerStatus) -> None:
        """It is over, and this was said of it; what was said of another incarnation's is not about this one."""
        self.told, self.inherited, self.started_at = True, True, None
        if status.backend is None or status.backend.incarnation != self.incarnation:
            return
        self.said = status.recovery
        if status.recovery is not None:
            self.started_at, self.finished_at = status.recovery.started_at, status.recovery.finished_at
        reasons = {c.reason for c in status.conditions if c.type == ServerConditionType.RECOVERED}
        self.deadline_elapsed = ServerConditionReason.DEADLINE_ELAPSED in reasons
        self.enumeration_failed = ServerConditionReason.ENUMERATION_FAILED in reasons
        self.unstopped = {mention.id: mention for mention in status.unstopped_instances}
        self.untracked = status.untracked_instances

    def later(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Work that goes on when the deadline has decided."""
        self._start(self._tail, work(), name)

    def close_later(self, client: ControlClient) -> None:
        """Close it when nobody uses it any more."""

        async def close() -> None:
            while others := (*self.stops.under_way, *self._tail):
                await asyncio.wait(others)
            await client.aclose()

        self._start(self._closing, close(), "closing a client")

    def cancel(self) -> tuple[asyncio.Task[None], ...]:
        """Have everything end; returns the tasks that end now. Clients are closed all the same: that is not cancelled,
        for a task that was cancelled before it began would close nothing."""
        for task in (*self.stops.under_way, *self._tail):
            task.cancel()
        return (*self.stops.under_way, *self._tail, *self._closing)

    async def quiet(self) -> None:
        """Wait until everything that goes on after the deadline has ended."""
        while tasks := (*self.stops.under_way, *self._tail, *self._closing):
            await asyncio.wait(tasks)

    def _start(self, tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            if not task.cancelled():
                task.exception()

        task.add_done_callback(ended)
