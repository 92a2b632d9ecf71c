"""One of the operator's named databases."""

from collections.abc import Callable, Sequence

from tenure.model.masked import Masked
from tenure.storage import statements
from tenure.storage.errors import DatabaseUnavailable
from tenure.storage.notify import StopListener
from tenure.storage.pool import DEFAULT_LIMIT, BoundedPool, Connection
from tenure.storage.records import Records
from tenure.storage.snapshot import LivenessSnapshot, RowLookup, lookup_row, read_liveness
from tenure.storage.stops import StopEntry, StopLedger

__all__ = ["Database", "DatabaseUnavailable"]


class Database:
    """A database as the operator uses it. It connects when first needed and reconnects by itself.

    ``namespaces``: those that may use it, None for all. ``store``: it holds the schema ``tenure`` too.
    Every method ends within ``limit`` seconds, connecting included, and raises ``DatabaseUnavailable`` when
    it fails.
    """

    def __init__(
        self,
        name: str,
        url: Masked,
        *,
        namespaces: frozenset[str] | None = None,
        store: bool = False,
        limit: float = DEFAULT_LIMIT,
    ) -> None:
        self.name = name
        self.url = url
        self.namespaces = namespaces
        self.store = store
        self.limit = limit
        self._pool = BoundedPool(name, url, limit=limit, size=4, application="tenure-operator")
        self._ledger = StopLedger(self._pool)

    def __repr__(self) -> str:
        return f"Database({self.name!r}, store={self.store})"

    def allows(self, namespace: str) -> bool:
        """Whether agents of this namespace may be looked up and stopped here."""
        return self.namespaces is None or namespace in self.namespaces

    async def snapshot(self, lookups: Sequence[RowLookup]) -> LivenessSnapshot:
        """The rows of all these pods and the database's clock, in one query."""
        return await read_liveness(self._pool, lookups)

    async def lookup(self, lookup: RowLookup) -> LivenessSnapshot:
        """The rows of one ended pod, however old their heartbeat."""
        return await lookup_row(self._pool, lookup)

    async def request_agent_stop(self, instance_id: str) -> bool:
        """Mark the row of this instance; False when there is none (yet)."""

        async def work(connection: Connection) -> bool:
            return await connection.fetchval(statements.REQUEST_STOP, instance_id) is not None

        return await self._pool.run(work)

    async def record_stop(self, entry: StopEntry) -> None:
        """Write one entry of the ledger; a finished one stays as it is. Only of use on the store."""
        await self._ledger.record(entry)

    def records(self, namespace: str) -> Records:
        """The records of one namespace, over this database's connections. Raises ``ValueError`` when it is not the
        store, or not for that namespace."""
        if not self.store or not self.allows(namespace):
            raise ValueError(f"database {self.name!r} keeps no records of this namespace")
        return Records.over(self._pool, namespace)

    def listener(self, on_change: Callable[[str | None], None]) -> StopListener:
        """A listener for stops asked for in this database's table; see ``StopListener``."""
        return StopListener(self.name, self.url, on_change, limit=self.limit)

    async def aclose(self) -> None:
        """Close the connections; a later call opens new ones."""
        await self._pool.aclose()
