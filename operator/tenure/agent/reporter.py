"""Heartbeats of one agent process, and the request to stop that comes back on the same tick."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Protocol

from tenure.agent.settings import INSTANCE_ID, AgentSettings, checked_interval, checked_kind, open_storage
from tenure.storage.errors import DatabaseUnavailable, StorageError
from tenure.storage.liveness import EPOCH, AgentLivenessRecord, HeartbeatClock, LivenessStorage

log = logging.getLogger("tenure.agent")

LONGEST_CALL, SHORTEST_CALL = 5.0, 1.0
_FINISH_TICK = 1.0


class StopFlag(Protocol):
    """``asyncio.Event`` and ``threading.Event`` both are one."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...


def call_limit(interval: float) -> float:
    """Seconds that one tick may take: never longer than an interval, so that a frozen server costs one
    tick; at most five, and at least one, so that a slow connect succeeds with any interval."""
    return min(LONGEST_CALL, max(SHORTEST_CALL, interval))


class LivenessReporter:
    """Writes this process's row on every tick, reads it back, and sets ``stop_event`` when a stop was asked
    for.

    ``stop_event`` is the event that SIGTERM sets too, so there is one way to end. Without it the reporter
    only heartbeats; without ``storage`` it does nothing, and the rest of the agent works as ever.
    ``liveness_interval`` is in seconds. ``instance_id``: ``TENURE_INSTANCE_ID`` when set, else a new UUID.

    A failing database never raises out of here: it is logged, and the next tick tries again. Ticks go on
    after a stop was seen, until ``stop()``: an agent that takes long over its last task is alive meanwhile.

    As a context manager: ``start()``, and ``stop()`` unless the block raised. A crash is no graceful exit,
    and its row goes on telling what it held until it expires.
    """

    def __init__(
        self,
        storage: LivenessStorage | None,
        process_kind: str,
        liveness_interval: float = 30.0,
        *,
        stop_event: StopFlag | None = None,
        instance_id: str | None = None,
    ) -> None:
        self.instance_id = instance_id or os.environ.get(INSTANCE_ID) or _new_id()
        self.process_kind = checked_kind(process_kind)
        self.interval = checked_interval(liveness_interval)
        self.stop_event = stop_event
        self._storage = storage
        self._owns_storage = False
        self._limit = call_limit(liveness_interval)
        self._current: tuple[int | None, str | None] = (None, None)
        self._ticks: asyncio.Task[None] | None = None
        self._between_ticks = True
        self._migrated = False
        self._failing = False

    @classmethod
    def from_env(
        cls,
        *,
        stop_event: StopFlag | None = None,
        process_kind: str | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> "LivenessReporter":
        """A reporter as the environment says: TENURE_INSTANCE_ID, TENURE_PROCESS_KIND,
        TENURE_LIVENESS_INTERVAL, TENURE_DATABASE_URL. It closes its own database connections in the end.

        Raises ``SettingsError`` for a value that is not allowed.
        """
        settings = AgentSettings.from_env(
            os.environ if environ is None else environ, process_kind=process_kind
        )
        url = settings.database_url
        limit = call_limit(settings.liveness_interval)
        reporter = cls(
            None if url is None else open_storage(url, limit=limit),
            settings.process_kind,
            settings.liveness_interval,
            stop_event=stop_event,
            instance_id=settings.instance_id,
        )
        reporter._owns_storage = True
        return reporter

    @property
    def started(self) -> bool:
        return self._ticks is not None

    def set_current_task(self, task_id: int | None, task_type: str | None = None) -> None:
        """Say what this process works on; the next tick writes it. Best effort: no write of its own."""
        self._current = (task_id, task_type)

    def clear_current_task(self) -> None:
        """Nothing in hand; the next tick writes it."""
        self._current = (None, None)

    @contextlib.contextmanager
    def task(self, task_id: int | None, task_type: str | None = None) -> Iterator[None]:
        """``with reporter.task(17, "review"):`` around the work on one task."""
        self.set_current_task(task_id, task_type)
        try:
            yield
        finally:
            self.clear_current_task()

    async def start(self) -> None:
        """Write the first row and begin to tick. A database that is down delays this by the limit of one
        call."""
        if self._ticks is not None:
            return
        if self._storage is None:
            log.info("no liveness database: a stop reaches this agent by signal only")
        await self._tick()
        self._ticks = asyncio.create_task(self._tick_forever(), name="tenure-liveness")

    async def stop(self) -> None:
        """End the ticks and write the last row: no task, heartbeat at the Unix epoch. Harmless when
        repeated."""
        if not await self._end_ticks():
            return
        self.clear_current_task()
        if self._storage is not None:
            try:
                async with asyncio.timeout(self._limit):
                    await self._write(self._storage, HeartbeatClock.EPOCH)
            except Exception as error:  # noqa: BLE001 - nothing may keep the agent from ending
                log.warning("the last liveness row was not written: %s", _shown(error))
        await self._close()

    async def _end_ticks(self) -> bool:
        ticks, self._ticks = self._ticks, None
        if ticks is None:
            return False
        if not self._between_ticks:
            # A write that is cancelled in mid-flight could still arrive, after the last row: let it finish.
            await asyncio.wait({ticks}, timeout=_FINISH_TICK)
        ticks.cancel()
        await asyncio.wait({ticks})
        return True

    async def _close(self) -> None:
        if self._owns_storage and self._storage is not None:
            await self._storage.aclose()

    async def __aenter__(self) -> "LivenessReporter":
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            await self.stop()
        else:
            await self.abandon()

    async def abandon(self) -> None:
        """End without a last row, as a crash does: the row expires by itself."""
        await self._end_ticks()
        await self._close()

    async def _tick_forever(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while self._ticks is not None:
            # A fixed rhythm: the time that a write took is no longer interval. Missed ticks are not made up
            # for.
            due = max(due + self.interval, loop.time())
            await asyncio.sleep(due - loop.time())
            await self._tick()

    async def _tick(self) -> None:
        """One heartbeat and one look at the own row. Never raises (but for being cancelled)."""
        storage = self._storage
        if storage is None:
            return
        self._between_ticks = False
        try:
            async with asyncio.timeout(self._limit):
                await self._prepare(storage)
                await self._write(storage, HeartbeatClock.DATABASE)
                await self._look(storage)
        except Exception as error:  # noqa: BLE001 - no trouble with the database is trouble for the agent
            self._failing = True
            log.warning("no heartbeat this time: %s", _shown(error))
        else:
            if self._failing:
                log.info("heartbeating again")
            self._failing = False
        finally:
            self._between_ticks = True

    async def _prepare(self, storage: LivenessStorage) -> None:
        """Make or complete the table, once. An agent that may not do that heartbeats all the same."""
        if self._migrated:
            return
        try:
            report = await storage.migrate()
            for sentence in report.changed:
                log.info("liveness: %s", sentence)
        except DatabaseUnavailable:
            raise
        except StorageError as error:
            log.warning("%s", _shown(error))
        self._migrated = True

    async def _write(self, storage: LivenessStorage, clock: HeartbeatClock) -> None:
        task_id, task_type = self._current
        record = AgentLivenessRecord(
            instance_id=self.instance_id,
            process_kind=self.process_kind,
            hostname=socket.gethostname(),
            pid=os.getpid(),
            liveness_interval_s=self.interval,
            started_at=EPOCH,  # both times are the database's to say
            last_heartbeat_at=EPOCH,
            current_task_id=task_id,
            current_task_type=task_type,
        )
        await storage.upsert_agent_liveness(record, clock=clock)

    async def _look(self, storage: LivenessStorage) -> None:
        stop = self.stop_event
        if stop is None:
            return
        row = await storage.get_agent_liveness(self.instance_id)
        if row is not None and row.stop_requested and not stop.is_set():
            log.info("a stop was asked for in the liveness table")
            stop.set()


def _new_id() -> str:
    from uuid import uuid4  # a sixth of this package's import time, and rarely needed

    return str(uuid4())


def _shown(error: BaseException) -> str:
    """An error as it may be logged: our own words, or just the type, for a text may hold a URL with its
    password."""
    if isinstance(error, StorageError):
        return str(error)
    return "no answer within the time limit" if isinstance(error, TimeoutError) else type(error).__name__
