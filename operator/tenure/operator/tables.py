"""The latest reading of the liveness table for every agent that is tracked, and a wake when it says something
new.

One per named database. One query reads the rows of all agents, so often that what is written is acted upon within
``poll_seconds``; a notification, or an agent that is new here, causes a read of just those concerned, at once.
Heartbeats update the reading and wake nobody.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tenure.model.liveness import AgentLivenessRecord
from tenure.operator.cache import ObjectKey
from tenure.plan.observation import Rows, Unreadable
from tenure.storage.errors import DatabaseUnavailable
from tenure.storage.snapshot import LivenessSnapshot, RowLookup

log = logging.getLogger(__name__)

GAP = 0.1
"""Seconds between two reads: a burst of notifications, or a thousand new agents, is one read."""
SHARE = 0.8
"""Part of ``poll_seconds`` between two polls: the rest is for the read and the pass, as somebody who asks for a stop
right after a poll is to see it happen within ``poll_seconds``."""
UNREADABLE_ROW = "its row cannot be read (a time that is none, or an interval that is not positive)"


class Listener(Protocol):
    """``tenure.storage.notify.StopListener``."""

    def run(self) -> Coroutine[Any, Any, None]:
        """Listen until cancelled."""


class LivenessDatabase(Protocol):
    """What is needed of ``tenure.storage.database.Database``."""

    name: str

    async def snapshot(self, lookups: Sequence[RowLookup]) -> LivenessSnapshot:
        """One query. Raises ``DatabaseUnavailable``, within a time limit of its own."""

    def listener(self, on_change: Callable[[str | None], None]) -> Listener:
        """Calls ``on_change`` for each stop that is announced, with None for "read everything"."""


class TableMetrics(Protocol):
    """``tenure.telemetry.metrics.Metrics``."""

    def database_failed(self) -> None:
        """A read failed."""

    def heartbeat_age(self, seconds: float) -> None:
        """The age of one running agent's heartbeat, as read."""


@dataclass(slots=True)
class _Tracked:
    lookup: RowLookup
    ids: frozenset[str] = frozenset()
    """Instance ids by which a notification may mean this agent: those of the lookup, and of its rows."""
    reading: Rows | Unreadable | None = None
    material: object = None


class TableWatch:
    """Readings of one database; ``run()`` keeps them fresh. All methods belong to the operator's loop.

    ``wake(key)`` is called when a reading is the first one, when anything but the heartbeat's time changed in
    it, when a heartbeat expired or is fresh again, and when the table turned unreadable or readable.
    ``clock`` is monotonic.
    """

    def __init__(
        self,
        database: LivenessDatabase,
        *,
        wake: Callable[[ObjectKey], None],
        poll_seconds: float = 5.0,
        metrics: TableMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._wake = wake
        self._poll_seconds = poll_seconds
        self._metrics = metrics
        self._clock = clock
        self._tracked: dict[ObjectKey, _Tracked] = {}
        self._by_id: defaultdict[str, set[ObjectKey]] = defaultdict(set)
        self._hurry: set[ObjectKey] = set()
        self._everything = False
        self._news = asyncio.Event()
        self._down: Unreadable | None = None

    def track(self, key: ObjectKey, lookup: RowLookup) -> None:
        """Read this agent's rows from now on, at once for a start. The same again changes nothing.

        A lookup of the same pod in other words keeps the reading; one of another pod begins without any.
        """
        known = self._tracked.get(key)
        if known is not None and known.lookup == lookup:
            return
        fresh = _Tracked(lookup)
        if known is not None:
            if not set(known.lookup.instance_ids).isdisjoint(lookup.instance_ids):
                fresh.reading, fresh.material = known.reading, known.material
            self._unlist(key, known)
        if self._down is not None:
            fresh.reading, fresh.material = self._down, "unreadable"
        self._tracked[key] = fresh
        self._list(key, fresh, frozenset(lookup.instance_ids))
        self._hurry.add(key)
        self._news.set()

    def untrack(self, key: ObjectKey) -> None:
        """Nothing more is wanted of this agent's rows."""
        known = self._tracked.pop(key, None)
        self._hurry.discard(key)
        if known is not None:
            self._unlist(key, known)

    def reading(self, key: ObjectKey) -> Rows | Unreadable | None:
        """The latest; None when there has been none since ``track``, or the agent is not tracked."""
        known = self._tracked.get(key)
        return known.reading if known is not None else None

    async def run(self) -> None:
        """Read and listen until cancelled; nothing that a database does ends this."""
        async with asyncio.TaskGroup() as group:
            group.create_task(
                self._database.listener(self._announced).run(), name=f"listen {self._database.name}"
            )
            group.create_task(self._poll(), name=f"poll {self._database.name}")

    # --- when to read

    async def _poll(self) -> None:
        due = self._clock()
        while True:
            await self._until(due)
            self._news.clear()
            if self._everything or self._clock() >= due:
                due = self._clock() + SHARE * self._poll_seconds
                wanted = set(self._tracked)
            else:
                wanted = self._hurry & self._tracked.keys()
            self._everything = False
            self._hurry -= wanted
            if wanted:
                await self._read(wanted)
            await asyncio.sleep(GAP)

    async def _until(self, due: float) -> None:
        try:
            async with asyncio.timeout(max(due - self._clock(), 0.0)):
                await self._news.wait()
        except TimeoutError:
            pass

    def _announced(self, instance_id: str | None) -> None:
        if instance_id is None:
            self._everything = True
        elif instance_id in self._by_id:
            self._hurry |= self._by_id[instance_id]
        else:
            # Whoever is known by its row cannot be meant; an agent that makes its own id and has no row yet can.
            self._hurry.update(key for key, known in self._tracked.items() if known.lookup.hostname)
        self._news.set()

    # --- what was read

    async def _read(self, wanted: Iterable[ObjectKey]) -> None:
        lookups = {key: self._tracked[key].lookup for key in wanted}
        try:
            snapshot = await self._database.snapshot(list(lookups.values()))
        except DatabaseUnavailable as error:
            self._failed(error.reason)
        except Exception as error:  # noqa: BLE001 - Unknown, as any failed read; its text may hold anything
            self._failed(f"failed ({type(error).__name__})")
        else:
            self._take(lookups, snapshot)

    def _failed(self, reason: str) -> None:
        if self._metrics is not None:
            self._metrics.database_failed()
        if self._down is None:
            log.warning("the liveness table of database %r is unreadable: %s", self._database.name, reason)
            self._down = Unreadable(self._clock(), reason)
        for key, known in self._tracked.items():
            if known.reading is not self._down:
                self._set(key, known, self._down, "unreadable")

    def _take(self, lookups: Mapping[ObjectKey, RowLookup], snapshot: LivenessSnapshot) -> None:
        if self._down is not None:
            log.info("the liveness table of database %r is readable again", self._database.name)
            self._down = None
            self._everything = True
            self._news.set()
        taken_at = self._clock()
        by_id = {row.instance_id: row for row in snapshot.rows}
        by_host: defaultdict[tuple[str, str], list[AgentLivenessRecord]] = defaultdict(list)
        for row in snapshot.rows:
            by_host[row.process_kind, row.hostname].append(row)
        broken = set(snapshot.unreadable)
        for key, lookup in lookups.items():
            known = self._tracked.get(key)
            if known is None or known.lookup is not lookup:
                continue  # asked for something else meanwhile
            if not broken.isdisjoint(lookup.instance_ids):
                self._set(key, known, Unreadable(taken_at, UNREADABLE_ROW, row_only=True), "broken")
                continue
            found = {i: by_id[i] for i in lookup.instance_ids if i in by_id}
            if lookup.hostname:
                hosted = by_host.get((lookup.process_kind, lookup.hostname), ())
                found.update((row.instance_id, row) for row in hosted)
            self._list(key, known, frozenset(lookup.instance_ids) | found.keys())
            rows = Rows(snapshot.now, taken_at, tuple(found.values()))
            self._measure(rows)
            self._set(key, known, rows, _material(rows))

    def _measure(self, rows: Rows) -> None:
        if self._metrics is None:
            return
        for row in rows.rows:
            if not row.ended_gracefully:
                self._metrics.heartbeat_age((rows.now - row.last_heartbeat_at).total_seconds())

    def _set(self, key: ObjectKey, known: _Tracked, reading: Rows | Unreadable, material: object) -> None:
        first = known.reading is None
        if material == "broken" and known.material == "broken":
            return  # since the first time
        known.reading = reading
        if first or material != known.material:
            known.material = material
            self._wake(key)

    # --- who is meant by an id

    def _list(self, key: ObjectKey, known: _Tracked, ids: frozenset[str]) -> None:
        if ids != known.ids:
            self._unlist(key, known)
            known.ids = ids
            for instance_id in ids:
                self._by_id[instance_id].add(key)

    def _unlist(self, key: ObjectKey, known: _Tracked) -> None:
        for instance_id in known.ids:
            keys = self._by_id[instance_id]
            keys.discard(key)
            if not keys:
                del self._by_id[instance_id]
        known.ids = frozenset()


def _material(rows: Rows) -> object:
    """What a pass would decide differently for: everything but how old a heartbeat is."""
    return frozenset(
        (
            row.instance_id,
            row.stop_requested,
            row.current_task_id,
            row.current_task_type,
            row.ended_gracefully,
            row.alive(rows.now),
        )
        for row in rows.rows
    )
