"""One transaction of the records, and the order in which all of them lock.

The order: task (only while it is being inserted), session, inventory row, turns, existing task. Every transaction
changes the rows of one session, and first locks the session's own row; so whatever happens to one session happens
one after another. Publishing changes inventory rows only and locks no session; where it changes several rows it leaves
out what somebody else holds, so that it never waits with a row in hand. The control-server record is only read by
them: its writers use compare-and-set and lock nothing else. Repair locks the task before its own session's turns, which
nobody changes without holding that session. So no cycle is possible among ours; should a foreign one arise (a deadlock
with somebody at a prompt), the transaction runs again, a few times.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tenure.storage.errors import EntryRefused, StorageError, refuses_values, sqlstate_of
from tenure.storage.pool import BoundedPool, Connection

T = TypeVar("T")

ATTEMPTS = 5
"""How often one transaction is begun, at most. The pool's time limit covers all attempts."""

_AGAIN = {"40001", "40P01"}
_DUPLICATE = "23505"
_REFUSED = "the store does not take these values"


class Rows:
    """The rows of one namespace behind a pool. Base of everything that reads or writes records.

    Every method raises ``DatabaseUnavailable`` within the pool's limit, and ``EntryRefused`` for values that the
    tables do not take.
    """

    def __init__(self, pool: BoundedPool, namespace: str) -> None:
        self._pool = pool
        self._namespace = namespace

    async def _transact(
        self,
        body: Callable[[Connection], Awaitable[T]],
        *,
        on_duplicate: Callable[[], StorageError] | None = None,
        single: bool = False,
    ) -> T:
        """Run ``body`` in one transaction. It must be repeatable as a whole: it is repeated after a lost
        connection too, whose commit may have happened. ``on_duplicate`` makes the error for a violated key.
        ``single``: it is one statement, which is a transaction of its own and needs no round trips for more."""

        async def work(connection: Connection) -> T:
            for attempt in range(1, ATTEMPTS + 1):
                refusal: StorageError | None = None
                try:
                    if single:
                        return await body(connection)
                    # Named, because the locks above are written for it: a waiter sees what the other has done.
                    async with connection.transaction(isolation="read_committed"):
                        return await body(connection)
                except Exception as error:
                    if refuses_values(error):
                        refusal = EntryRefused(_REFUSED)
                        if on_duplicate is not None and sqlstate_of(error) == _DUPLICATE:
                            refusal = on_duplicate()
                    elif sqlstate_of(error) not in _AGAIN or attempt == ATTEMPTS:
                        raise
                if refusal is not None:
                    # Out here, so that the server's words are not even its context.
                    raise refusal
                await asyncio.sleep(random.uniform(0, 0.02 * attempt))
            raise AssertionError("the last attempt returns or raises")

        return await self._pool.run(work)

    async def _statement(self, sql: str, *values: object) -> object:
        """Run one statement, whose first parameter is the namespace; the first value that it returns."""

        async def body(connection: Connection) -> object:
            found: object = await connection.fetchval(sql, self._namespace, *values)
            return found

        return await self._transact(body, single=True)
