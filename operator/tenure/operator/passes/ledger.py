"""The ledger of stops as passes use it: written when the store answers, left for later when it does not."""

import time
from collections.abc import Callable
from typing import Protocol

from tenure.model.resources import AgentProcess
from tenure.model.status import StopRecord
from tenure.storage.errors import DatabaseUnavailable, EntryRefused
from tenure.storage.stops import StopEntry

RETRY = 10.0
"""Seconds for which a store that did not answer is left alone."""


class Store(Protocol):
    """The database that holds the schema ``tenure``."""

    async def record_stop(self, entry: StopEntry) -> None:
        """Write one entry; a finished one stays as it is. Raises ``DatabaseUnavailable``, ``EntryRefused``."""


class StopWriter:
    """Writes stops. Without a store ``status.stops`` alone is the ledger."""

    def __init__(self, store: Store | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._not_before = 0.0

    def due(self) -> bool:
        """There is a store, and no reason to wait before trying it."""
        return self._store is not None and self._clock() >= self._not_before

    @property
    def configured(self) -> bool:
        """There is a store."""
        return self._store is not None

    async def record(self, entry: StopEntry) -> bool:
        """Whether it was written."""
        if self._store is None or not self.due():
            return False
        try:
            await self._store.record_stop(entry)
        except EntryRefused:
            # Its author may edit a status; nobody else's stops wait for that.
            return False
        except DatabaseUnavailable:
            self._not_before = self._clock() + RETRY
            return False
        return True


def entry_of(
    resource: AgentProcess, stop: StopRecord, grace_seconds: int, task_id: int | None = None
) -> StopEntry:
    """The ledger's row for a stop that has begun or finished."""
    requested = stop.requested_at or stop.finished_at
    assert requested is not None, "a stop has begun or finished at some time"
    return StopEntry(
        namespace=resource.namespace,
        pod_uid=stop.instance,
        name=resource.name,
        instance_id=stop.instance,
        origin=str(stop.origin),
        requested_at=requested,
        finished_at=stop.finished_at,
        graceful=stop.graceful,
        exit_code=stop.exit_code,
        grace_seconds=grace_seconds,
        task_id_at_request=task_id,
    )
