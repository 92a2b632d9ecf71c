"""A PostgreSQL pool on which no call can hang, and whose errors can be shown.

asyncpg's pool, with what long-running programs need around it: connected on first use, a limit on every
call that includes connecting, a connection in doubt dropped by ``terminate()`` (a graceful close waits for
a server that may be frozen), one retry when a pooled connection turns out to be dead, and errors without
the server's words.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

import asyncpg

from tenure.model.masked import Masked
from tenure.storage.errors import DatabaseUnavailable, StorageError, loses_connection, reason_of, sqlstate_of

T = TypeVar("T")
Connection = Any  # asyncpg ships no types

DEFAULT_LIMIT = 5.0
_FOREIGN_STATEMENT = {"26000", "42P05"}
_SCHEMES = ("postgresql", "postgres")


def checked_postgres_url(name: str, url: Masked) -> Masked:
    """The URL, when it can be one of PostgreSQL. Raises ``DatabaseUnavailable`` that does not quote it."""
    try:
        scheme = urlsplit(url.reveal()).scheme
    except ValueError:
        scheme = ""
    if scheme not in _SCHEMES:
        raise DatabaseUnavailable(name, "the URL must begin with postgresql://")
    return url


async def connect(url: Masked, *, limit: float, application: str) -> Connection:
    """One connection outside of any pool, made within ``limit`` seconds. Raises what asyncpg raises."""
    return await asyncpg.connect(
        url.reveal(),
        timeout=limit,
        command_timeout=limit,
        statement_cache_size=0,
        server_settings={"application_name": application},
    )


class BoundedPool:
    """Up to ``size`` connections to the database called ``name``, made when first needed.

    Every call ends within ``limit`` seconds, connecting included. Bound to the event loop of its first use.
    """

    def __init__(
        self,
        name: str,
        url: Masked,
        *,
        limit: float = DEFAULT_LIMIT,
        size: int = 2,
        application: str = "tenure",
    ) -> None:
        self.name = name
        self.limit = limit
        self._url = url
        self._size = size
        self._application = application
        self._pool: Any = None
        # A prepared statement saves two of three messages to the server, on every tick of every agent.
        self._statement_cache = 20

    async def run(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Call ``work`` with a connection. Raises ``DatabaseUnavailable``; a ``StorageError`` of ``work``
        passes.

        ``work`` has to be repeatable: when its connection is lost it runs once more, on a fresh one.
        """
        try:
            async with asyncio.timeout(self.limit):
                return await self._attempts(work)
        except StorageError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a driver raises, callers see one type
            reason = reason_of(error)
        # Raised out here so that the driver's exception, with the server's words, is not even its context.
        raise DatabaseUnavailable(self.name, reason)

    async def _attempts(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        for last in (False, True):
            pool = await self._opened()
            connection = await pool.acquire()
            try:
                return await work(connection)
            except StorageError:
                raise
            except (asyncpg.PostgresError, asyncpg.InterfaceError, ConnectionError) as error:
                lost = loses_connection(error) or self._shares_sessions(error)
                if lost:
                    self._drop(pool)
                if last or not lost:
                    raise
            except BaseException:
                # A time limit or a cancellation: the server may still answer, to a question nobody remembers.
                connection.terminate()
                raise
            finally:
                await pool.release(connection)
        raise AssertionError("the second attempt returns or raises")

    def _shares_sessions(self, error: BaseException) -> bool:
        """Whether a pooler (PgBouncer in transaction mode) hands us another session for each transaction: then
        statements prepared in one are unknown or taken in the next. From now on none is kept."""
        found = sqlstate_of(error) in _FOREIGN_STATEMENT and self._statement_cache > 0
        if found:
            self._statement_cache = 0
        return found

    def _drop(self, pool: Any) -> None:
        """Leave every connection of this pool at once: what happened to one has happened to all. Calls that use
        another of them run again on a new pool."""
        if self._pool is pool:
            self._pool = None
        pool.terminate()

    async def _opened(self) -> Any:
        if self._pool is None:
            checked_postgres_url(self.name, self._url)
            self._pool = asyncpg.create_pool(
                self._url.reveal(),
                min_size=0,
                max_size=self._size,
                timeout=self.limit,
                command_timeout=self.limit,
                statement_cache_size=self._statement_cache,
                reset=_no_reset,
                server_settings={"application_name": self._application},
            )
            await self._pool
        return self._pool

    async def aclose(self) -> None:
        """Close every connection: politely within a second, else at once. The next call connects again."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            async with asyncio.timeout(min(1.0, self.limit)):
                await pool.close()
        except Exception:  # noqa: BLE001 - a server that does not say goodbye is left without one
            pool.terminate()


async def _no_reset(connection: Connection) -> None:
    """Nothing that we run changes a session, so giving a connection back needs no round trip."""
