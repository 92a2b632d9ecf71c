"""The operator's named databases as passes see them: who may use which, what was read last, and live calls."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from tenure.operator.cache import ObjectKey
from tenure.operator.tables import TableWatch
from tenure.plan.observation import Rows, Unreadable
from tenure.storage.database import Database
from tenure.storage.errors import DatabaseUnavailable
from tenure.storage.snapshot import LivenessSnapshot, RowLookup

T = TypeVar("T")


@dataclass(slots=True)
class Gate:
    """While calls of one kind fail, one at a time tries; the others fail at once with its words.

    A database that swallows questions would else keep every worker waiting, and agents of other databases with them.
    """

    on_failure: Callable[[], None] = lambda: None
    """Called for each call that was made and failed."""
    _failure: tuple[str, str] | None = None
    _trying: int = 0

    async def run(self, call: Callable[[], Awaitable[T]]) -> T:
        """The answer of ``call``. Raises ``DatabaseUnavailable``."""
        if self._failure is not None and self._trying:
            raise DatabaseUnavailable(*self._failure)
        self._trying += 1
        try:
            answer = await call()
        except DatabaseUnavailable as error:
            self._failure = error.name, error.reason
            self.on_failure()
            raise
        finally:
            self._trying -= 1
        self._failure = None
        return answer


@dataclass(frozen=True, slots=True)
class Table:
    """One database: the readings of its watch, and live calls for what cannot wait for the next reading."""

    database: Database
    watch: TableWatch
    lookups: Gate = field(default_factory=Gate)
    marks: Gate = field(default_factory=Gate)

    def track(self, key: ObjectKey, lookup: RowLookup) -> None:
        """Include this agent in the readings from now on."""
        self.watch.track(key, lookup)

    def untrack(self, key: ObjectKey) -> None:
        """No longer."""
        self.watch.untrack(key)

    def reading(self, key: ObjectKey) -> Rows | Unreadable | None:
        """The latest; None when there has been none since ``track``."""
        return self.watch.reading(key)

    async def lookup(self, lookup: RowLookup) -> LivenessSnapshot:
        """One live read. Raises ``DatabaseUnavailable``."""
        return await self.lookups.run(lambda: self.database.lookup(lookup))

    async def request_agent_stop(self, instance_id: str) -> bool:
        """Mark the row. Raises ``DatabaseUnavailable``."""
        return await self.marks.run(lambda: self.database.request_agent_stop(instance_id))


class NamedTables:
    """All of them, by name."""

    def __init__(self) -> None:
        self._tables: dict[str, Table] = {}

    def add(self, table: Table) -> None:
        """One more, under its database's name."""
        self._tables[table.database.name] = table

    def all(self) -> tuple[Table, ...]:
        """Each of them."""
        return tuple(self._tables.values())

    def allowed(self, namespace: str) -> tuple[str, ...]:
        """The names that agents of this namespace may use, in order."""
        return tuple(sorted(n for n, t in self._tables.items() if t.database.allows(namespace)))

    def of(self, database: str) -> Table:
        """One by name. Raises ``KeyError``."""
        return self._tables[database]

    def forget(self, key: ObjectKey, *, but: str | None = None) -> None:
        """Track this agent nowhere any more, or in this one database only."""
        for name, table in self._tables.items():
            if name != but:
                table.watch.untrack(key)
