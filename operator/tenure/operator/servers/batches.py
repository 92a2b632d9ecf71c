"""Rows of sessions that are published at the same time, many in one statement.

Each session goes on when its own row is durable. A row that the statement does not take is written alone, so that no
row spoils or delays another's.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from uuid import UUID

from tenure.storage.errors import EntryRefused, StorageError
from tenure.storage.records import Executor, Records

MOST = 32
"""Rows of one statement."""
PATIENCE = 0.01
"""Seconds that a row waits for others, while any may come."""
ALONE = 16
"""Rows that are written alone at a time: each has a time limit that also runs while it waits for a connection."""


@dataclass(slots=True)
class _Batch:
    rows: list[tuple[Executor, str]] = field(default_factory=list)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    written: frozenset[UUID] = frozenset()
    failure: StorageError | None = None


class Batches:
    """Of one recovery. It has no task of its own: who comes first writes for all that come while it waits."""

    def __init__(self, records: Records) -> None:
        self._inventory = records.inventory
        self._open: _Batch | None = None
        self._coming = 0
        self._alone = asyncio.Semaphore(ALONE)

    @contextmanager
    def coming(self) -> Iterator[None]:
        """As long as a session is read whose row may be written next. When none is, no row waits."""
        self._coming += 1
        try:
            yield
        finally:
            self._coming -= 1
            if not self._coming:
                self._close()

    async def retracked(self, executor: Executor, agent_execution_id: str) -> bool:
        """See ``Inventory.retracked``; raises the same."""
        if executor.unstopped_by is None:
            batch = await self._together(executor, agent_execution_id)
            if batch.failure is not None:
                raise batch.failure
            if executor.id in batch.written:
                return True
        # Also when whoever wrote for this one was cancelled.
        async with self._alone:
            return await self._inventory.retracked(executor, agent_execution_id)

    async def _together(self, executor: Executor, agent_execution_id: str) -> _Batch:
        batch = self._open
        if batch is not None:
            batch.rows.append((executor, agent_execution_id))
            if len(batch.rows) == MOST:
                self._close()
            await batch.ended.wait()
            return batch
        batch = self._open = _Batch([(executor, agent_execution_id)])
        if not self._coming:
            self._close()
        await self._write(batch)
        return batch

    async def _write(self, batch: _Batch) -> None:
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE):
                    await batch.closed.wait()
            self._close(batch)
            if len(batch.rows) > 1:
                batch.written = await self._inventory.retracked_together(batch.rows)
        except EntryRefused:
            # One of them, and nothing has been written.
            pass
        except StorageError as failure:
            # For each of them: else each would wait for an answer by itself, one time limit longer.
            batch.failure = failure
        finally:
            self._close(batch)
            batch.ended.set()

    def _close(self, batch: _Batch | None = None) -> None:
        """Nobody joins the batch that is open any more; ``batch``: if it is this one."""
        if self._open is not None and batch in (None, self._open):
            self._open.closed.set()
            self._open = None
