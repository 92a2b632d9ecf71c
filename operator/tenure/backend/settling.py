"""Outcomes of one session: applied in the database exactly once, acknowledged only when that is durable.

An outcome comes from the stream and from the server's slot, in any order and any number of times. It stays in
the slot until it is acknowledged, so whatever dies in between finds it there.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenure.backend.errors import BackendError, FinalError, RetryableError
from tenure.backend.link import Link, delays
from tenure.backend.refusals import translated
from tenure.backend.turns import Turn
from tenure.ownership.errors import ControlError
from tenure.protocol.frames import Event
from tenure.storage.errors import DatabaseUnavailable, StorageError
from tenure.storage.records import Applied, Records, TurnName, outcome_of

log = logging.getLogger("tenure.backend")

T = TypeVar("T")


class Settling:
    """Applies the outcomes of one instance, one after another, for as long as it takes.

    ``turn`` tells the session's turn that may be open, which learns of its end.
    """

    def __init__(
        self,
        records: Records,
        link: Link,
        *,
        session_id: str,
        instance_id: str,
        server_identity: str,
        turn: Callable[[], Turn | None],
    ) -> None:
        self._records, self._link = records, link
        self._session_id, self._instance_id, self._server = session_id, instance_id, server_identity
        self._turn = turn
        self._queue: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._queued: set[int] = set()
        self._acknowledged = 0

    def take(self, turn_id: int, event: Event) -> None:
        """An outcome has come. Never waits."""
        if turn_id > self._acknowledged and turn_id not in self._queued:
            self._queued.add(turn_id)
            self._queue.put_nowait((turn_id, event))

    async def idle(self) -> None:
        """Wait until everything that was taken is applied."""
        await self._queue.join()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            turn_id, event = await self._queue.get()
            try:
                if await self._apply(turn_id, event):
                    await self._acknowledge(turn_id)
            except Exception as error:  # noqa: BLE001
                # A fault of ours must not keep the next outcome from being applied. This one stays at the server.
                log.error("session %s: an outcome is not applied: %s", self._session_id, type(error).__name__)
            finally:
                self._queued.discard(turn_id)
                self._queue.task_done()

    async def _apply(self, turn_id: int, event: Event) -> bool:
        """Whether it is durable now. While the database is away, it waits; the server keeps the outcome."""
        name = TurnName(session_id=self._session_id, server_identity=self._server, control_turn_id=turn_id)
        complained = False
        for wait in delays():
            try:
                applied = await self._records.turns.apply(name, outcome_of(event))
                await self._tell(applied)
            except DatabaseUnavailable as error:
                if not complained:
                    log.warning("session %s: an outcome waits: %s", self._session_id, error)
                complained = True
                await asyncio.sleep(wait)
                continue
            except StorageError as error:
                log.error("session %s: an outcome cannot be applied: %s", self._session_id, error)
                return False
            if applied is Applied.UNKNOWN:
                log.warning("session %s: an outcome of no turn that is recorded", self._session_id)
            return applied is not Applied.UNKNOWN
        raise AssertionError("delays have no end")

    async def _tell(self, applied: Applied) -> None:
        turn = self._turn()
        if turn is None or turn.end is not None or applied is Applied.UNKNOWN:
            return
        # Read back: another end may have come first, and the database has the last word.
        record = await self._records.turns.get(turn.id)
        if record is not None:
            turn.settle_with(record)

    async def _acknowledge(self, turn_id: int) -> None:
        """Best effort: an outcome that is not acknowledged is read, found applied and acknowledged next time."""
        try:
            peer = self._link.require()
            if peer.name == self._server:
                await peer.client.acknowledge(self._instance_id, turn_id)
                self._acknowledged = max(self._acknowledged, turn_id)
        except (ControlError, BackendError) as error:
            log.info("session %s: an outcome is not acknowledged yet: %s", self._session_id, error)


async def persistently(step: Callable[[], Awaitable[T]]) -> T | None:
    """Repeat a transaction until the database takes it; None when it refuses it."""
    for wait in delays():
        try:
            with translated():
                return await step()
        except RetryableError as error:
            log.warning("a record waits for its database: %s", error)
        except FinalError as error:
            log.error("a record was refused: %s", error)
            return None
        await asyncio.sleep(wait)
    raise AssertionError("delays have no end")
