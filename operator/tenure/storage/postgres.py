"""The liveness table in PostgreSQL, through asyncpg. The statements are in ``statements.py``."""

import json
from dataclasses import dataclass
from typing import Any

from tenure.model.masked import Masked
from tenure.storage import statements
from tenure.storage.errors import DatabaseUnavailable, StorageError, sqlstate_of
from tenure.storage.liveness import (
    EPOCH,
    AgentLivenessRecord,
    HeartbeatClock,
    MigrationReport,
)
from tenure.storage.pool import DEFAULT_LIMIT, BoundedPool, Connection
from tenure.storage.rows import fitting, newest_first, storable

# Somebody else is making the same thing this moment, without our lock: look again.
_RACES = {"23505", "42P07", "42701", "42710", "40P01", "XX000"}


@dataclass(frozen=True, slots=True)
class _Shape:
    """The table as it is: its columns' types, and what this role may still add to it."""

    columns: dict[str, str]
    schema: str
    indexed: bool
    notifies: bool
    owned: bool
    may_create: bool

    @property
    def stoppable(self) -> bool:
        return "desired_state" in self.columns

    @property
    def complete(self) -> bool:
        return self.stoppable and self.indexed and self.notifies


class PostgresLivenessStorage:
    """``LivenessStorage`` on PostgreSQL. Connects when first used, reconnects by itself, holds at most two
    connections.

    ``limit``: seconds that any call may take, connecting included. Bound to the event loop of its first call.
    """

    def __init__(
        self,
        url: Masked,
        *,
        name: str = "liveness",
        limit: float = DEFAULT_LIMIT,
        application: str = "tenure-agent",
    ) -> None:
        self._pool = BoundedPool(name, url, limit=limit, size=2, application=application)
        self._upsert: tuple[str, int] | None = None

    async def migrate(self) -> MigrationReport:
        """Make or complete the table, as far as this role may. Raises ``DatabaseUnavailable`` when a role
        without the right to do so finds no table, or one without the column."""
        for last in (False, False, True):
            try:
                return await self._pool.run(_migrate)
            except _Race:
                if last:
                    raise DatabaseUnavailable(self._pool.name, "the table keeps changing meanwhile") from None
        raise AssertionError("the last attempt returns or raises")

    async def upsert_agent_liveness(
        self, record: AgentLivenessRecord, *, clock: HeartbeatClock = HeartbeatClock.RECORD
    ) -> None:
        """See ``LivenessStorage``. A task id that the column cannot hold is left out: it never costs a
        heartbeat."""
        started_at, heartbeat = _times(record, clock)

        async def work(connection: Connection) -> None:
            sql, bits = await self._upsert_for(connection)
            await connection.execute(
                sql,
                storable(record.instance_id),
                storable(record.process_kind),
                storable(record.hostname),
                record.pid,
                record.liveness_interval_s,
                started_at,
                heartbeat,
                fitting(record.current_task_id, bits),
                None if record.current_task_type is None else storable(record.current_task_type),
            )

        try:
            await self._pool.run(work)
        except StorageError:
            self._upsert = None  # perhaps the table is not what it was
            raise

    async def _upsert_for(self, connection: Connection) -> tuple[str, int]:
        """The upsert that suits the table found, and the width of its task id in bits."""
        if self._upsert is None:
            shape = await _shape(connection)
            if shape is None:
                raise DatabaseUnavailable(self._pool.name, "a table is missing: run `tenure migrate`")
            sql = statements.upsert(
                shape.columns.get("started_at", ""), shape.columns.get("last_heartbeat_at", "")
            )
            self._upsert = sql, 32 if shape.columns.get("current_task_id") == "integer" else 64
        return self._upsert

    async def list_agent_liveness(self) -> list[AgentLivenessRecord]:
        """See ``LivenessStorage``. Sorted here: in TEXT columns times with different offsets have no order
        of their own."""

        async def work(connection: Connection) -> list[Any]:
            return [row[0] for row in await connection.fetch(statements.LIST)]

        return newest_first(json.loads(row) for row in await self._pool.run(work))

    async def get_agent_liveness(self, instance_id: str) -> AgentLivenessRecord | None:
        """See ``LivenessStorage``. A row that nobody can read is None."""

        async def work(connection: Connection) -> str | None:
            found: str | None = await connection.fetchval(statements.GET, storable(instance_id))
            return found

        row = await self._pool.run(work)
        found = [] if row is None else newest_first([json.loads(row)])
        return found[0] if found else None

    async def request_agent_stop(self, instance_id: str) -> bool:
        """See ``LivenessStorage``."""

        async def work(connection: Connection) -> bool:
            return await connection.fetchval(statements.REQUEST_STOP, storable(instance_id)) is not None

        return await self._pool.run(work)

    async def aclose(self) -> None:
        """Close the connections; a later call opens new ones."""
        await self._pool.aclose()


def _times(record: AgentLivenessRecord, clock: HeartbeatClock) -> tuple[str | None, str | None]:
    """``started_at`` and ``last_heartbeat_at`` as parameters: ISO 8601, None for the database's clock."""
    match clock:
        case HeartbeatClock.DATABASE:
            return None, None
        case HeartbeatClock.EPOCH:
            return None, EPOCH.isoformat()
        case HeartbeatClock.RECORD:
            return record.started_at.isoformat(), record.last_heartbeat_at.isoformat()


class _Race(StorageError):
    """Somebody made the same thing at the same moment."""


async def _shape(connection: Connection) -> _Shape | None:
    row = await connection.fetchrow(statements.SHAPE)
    if row is None:
        return None
    return _Shape(
        columns=json.loads(row["columns"]),
        schema=row["schema"],
        indexed=row["indexed"],
        notifies=row["notifies"],
        owned=row["owned"],
        may_create=row["may_create"],
    )


async def _migrate(connection: Connection) -> MigrationReport:
    shape = await _shape(connection)
    if shape is not None and (shape.complete or not shape.owned):
        # The usual case, and the one of an agent: nothing to do or nothing that this role may do. No lock
        # is taken.
        return _report(shape, ())
    try:
        async with connection.transaction():
            await connection.execute("SET LOCAL lock_timeout = '4s'")
            await connection.execute("SELECT pg_advisory_xact_lock($1)", statements.LIVENESS_LOCK)
            changed = [sentence async for sentence in _changes(connection)]
            shape = await _shape(connection)
            assert shape is not None
            return _report(shape, tuple(changed))
    except Exception as error:
        if sqlstate_of(error) in _RACES:
            raise _Race from None
        raise


async def _changes(connection: Connection) -> Any:
    """Make what is missing, yielding one sentence for each change."""
    shape = await _shape(connection)
    if shape is None:
        await connection.execute(statements.CREATE_TABLE)
        yield "made the table cks_agent_liveness"
        shape = await _shape(connection)
        assert shape is not None
    if not shape.stoppable:
        await connection.execute(statements.ADD_DESIRED_STATE)
        yield "added the column desired_state"
    if not shape.indexed:
        await connection.execute(statements.CREATE_KIND_INDEX)
        yield "made the index idx_agent_liveness_kind"
    if not shape.notifies and shape.may_create and await _make_trigger(connection, shape.schema):
        yield "made the trigger tenure_stop_notify"


async def _make_trigger(connection: Connection, schema: str) -> bool:
    """False when the server will not have it, for whatever reason: the trigger only makes things faster."""
    try:
        async with connection.transaction():  # a savepoint: a refusal undoes this and nothing else
            await connection.execute(statements.CREATE_NOTIFY_FUNCTION.format(schema=schema))
            await connection.execute(statements.CREATE_NOTIFY_TRIGGER.format(schema=schema))
    except Exception as error:
        if sqlstate_of(error) is None or sqlstate_of(error) in _RACES:
            raise
        return False
    return True


def _report(shape: _Shape, changed: tuple[str, ...]) -> MigrationReport:
    """Raises ``StorageError`` when stops cannot work on this table and this role may not change that."""
    if not shape.stoppable:
        raise StorageError(
            "cks_agent_liveness has no column desired_state and this role may not add it: "
            "run `tenure migrate` as the owner of the table"
        )
    missing = []
    if not shape.indexed:
        missing.append("index idx_agent_liveness_kind: looking up rows by host name reads the whole table")
    if not shape.notifies:
        missing.append("trigger tenure_stop_notify: stops are noticed by polling only")
    return MigrationReport(changed=changed, notify=shape.notifies, missing=tuple(missing))
