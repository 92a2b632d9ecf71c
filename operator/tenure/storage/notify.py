"""Hearing of a stop at once: LISTEN on the channel of the table's trigger.

Notifications are a hint that it is worth reading the table now; the polling is what guarantees that a stop
is seen. A LISTEN connection says nothing when its server freezes or a firewall forgets it, so it is probed.
"""

import asyncio
import logging
import random
from collections.abc import Callable

from tenure.model.masked import Masked
from tenure.storage.errors import StorageError, reason_of
from tenure.storage.pool import DEFAULT_LIMIT, Connection, checked_postgres_url, connect
from tenure.storage.statements import NOTIFY_CHANNEL, PROBE

log = logging.getLogger("tenure.storage.notify")

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0


class StopListener:
    """Calls ``on_change(instance_id)`` for each stop that the database announces.

    ``on_change(None)`` means "read everything": after every connect, since what was announced before is
    lost, and for an announcement without a name. Called in the event loop; it must not block.
    ``probe_every`` and ``limit`` are seconds.
    """

    def __init__(
        self,
        name: str,
        url: Masked,
        on_change: Callable[[str | None], None],
        *,
        probe_every: float = 5.0,
        limit: float = DEFAULT_LIMIT,
    ) -> None:
        self.name = name
        self.connected = False
        self._url = url
        self._on_change = on_change
        self._probe_every = probe_every
        self._limit = limit

    async def run(self) -> None:
        """Listen until cancelled, connecting again as often as needed. Raises nothing else."""
        pause = FIRST_PAUSE
        told: str | None = None
        while True:
            try:
                await self._listen()
            except Exception as error:  # noqa: BLE001 - whatever happens to this connection, the next is tried
                reason = reason_of(error)
            if self.connected:
                self.connected = False
                pause, told = FIRST_PAUSE, None
            if reason != told:
                log.warning("database %r: not listening for stops, polling only: %s", self.name, reason)
                told = reason
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _listen(self) -> None:
        """One connection, from connecting to its loss, which is an exception."""
        checked_postgres_url(self.name, self._url)
        async with asyncio.timeout(self._limit):
            connection = await connect(self._url, limit=self._limit, application="tenure-operator-listen")
        lost = asyncio.Event()
        try:
            connection.add_termination_listener(lambda _: lost.set())
            async with asyncio.timeout(self._limit):
                await connection.add_listener(NOTIFY_CHANNEL, self._heard)
            self.connected = True
            log.info("database %r: listening for stops", self.name)
            self._on_change(None)
            await self._watch(connection, lost)
        finally:
            connection.terminate()

    async def _watch(self, connection: Connection, lost: asyncio.Event) -> None:
        while True:
            try:
                async with asyncio.timeout(self._probe_every):
                    await lost.wait()
            except TimeoutError:
                pass
            else:
                raise ConnectionResetError
            async with asyncio.timeout(self._limit):
                if await connection.fetchval(PROBE):
                    # A standby announces nothing: this was the primary, and is no longer.
                    raise StorageError("the server is a standby")

    def _heard(self, connection: Connection, pid: int, channel: str, payload: str) -> None:
        self._on_change(payload or None)
