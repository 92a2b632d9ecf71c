"""The liveness table in SQLite, through aiosqlite: for one host, and for tests.

Times are ISO 8601 text in UTC. The database's clock is this host's, as for every program that opens the file.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from sqlite3 import OperationalError, Row
from typing import TypeVar

import aiosqlite

from tenure.storage.errors import DatabaseUnavailable, StorageError, reason_of
from tenure.storage.liveness import (
    EPOCH,
    AgentLivenessRecord,
    HeartbeatClock,
    MigrationReport,
)
from tenure.storage.rows import fitting, newest_first, storable

T = TypeVar("T")

CREATE_TABLE = """
CREATE TABLE IF NOT EXISTS cks_agent_liveness (
    instance_id         TEXT PRIMARY KEY,
    process_kind        TEXT NOT NULL,
    hostname            TEXT NOT NULL,
    pid                 INTEGER NOT NULL,
    liveness_interval_s REAL NOT NULL,
    started_at          TEXT NOT NULL,
    last_heartbeat_at   TEXT NOT NULL,
    current_task_id     INTEGER,
    current_task_type   TEXT,
    desired_state       TEXT
)
"""
CREATE_KIND_INDEX = """
CREATE INDEX IF NOT EXISTS idx_agent_liveness_kind ON cks_agent_liveness (process_kind, last_heartbeat_at)
"""
COLUMNS = "PRAGMA table_info(cks_agent_liveness)"
INDEXES = "PRAGMA index_list(cks_agent_liveness)"
ADD_DESIRED_STATE = "ALTER TABLE cks_agent_liveness ADD COLUMN desired_state TEXT"

# NULL means the database's clock, in the spelling of Python's isoformat.
_NOW = "strftime('%Y-%m-%dT%H:%M:%f+00:00', 'now')"
UPSERT = f"""
INSERT INTO cks_agent_liveness
    (instance_id, process_kind, hostname, pid, liveness_interval_s, started_at, last_heartbeat_at,
     current_task_id, current_task_type)
VALUES (?, ?, ?, ?, ?, coalesce(?, {_NOW}), coalesce(?, {_NOW}), ?, ?)
ON CONFLICT (instance_id) DO UPDATE SET
    last_heartbeat_at = excluded.last_heartbeat_at,
    current_task_id   = excluded.current_task_id,
    current_task_type = excluded.current_task_type
"""  # noqa: S608 - the only thing put in is the constant above
GET = "SELECT * FROM cks_agent_liveness WHERE instance_id = ?"
LIST = "SELECT * FROM cks_agent_liveness"
REQUEST_STOP = "UPDATE cks_agent_liveness SET desired_state = 'stop_requested' WHERE instance_id = ?"


class SqliteLivenessStorage:
    """``LivenessStorage`` in one file. Each call opens the file anew: no lock and no handle outlives it.

    ``limit``: seconds that a call may take, waiting for other writers included.
    """

    def __init__(self, path: Path | str, *, name: str = "liveness", limit: float = 5.0) -> None:
        self._path = Path(path)
        self._name = name
        self._limit = limit

    async def _run(self, work: Callable[[aiosqlite.Connection], Awaitable[T]]) -> T:
        try:
            async with (
                asyncio.timeout(self._limit + 1),
                aiosqlite.connect(self._path, timeout=self._limit, isolation_level=None) as connection,
            ):
                connection.row_factory = Row
                return await work(connection)
        except StorageError:
            raise
        except OperationalError as error:
            # sqlite3's texts name tables and columns, never values; still, only ours are shown.
            missing = "no such table" in str(error) or "no such column" in str(error)
            reason = (
                "a table is missing: call migrate()"
                if missing
                else "cannot be opened, is locked, or is no database"
            )
        except Exception as error:  # noqa: BLE001 - whatever a driver raises, callers see one type
            reason = reason_of(error)
        raise DatabaseUnavailable(self._name, reason)

    async def migrate(self) -> MigrationReport:
        """See ``LivenessStorage``. SQLite has no trigger that another process could hear."""

        async def work(connection: aiosqlite.Connection) -> MigrationReport:
            before = await _columns(connection)
            if "desired_state" in before and await _indexed(connection):
                return MigrationReport()
            # One writer at a time: whoever comes second looks again and finds it done.
            await connection.execute("BEGIN IMMEDIATE")
            changed = []
            before = await _columns(connection)
            if not before:
                await connection.execute(CREATE_TABLE)
                changed.append("made the table cks_agent_liveness")
            elif "desired_state" not in before:
                await connection.execute(ADD_DESIRED_STATE)
                changed.append("added the column desired_state")
            if not await _indexed(connection):
                await connection.execute(CREATE_KIND_INDEX)
                changed.append("made the index idx_agent_liveness_kind")
            await connection.execute("COMMIT")
            return MigrationReport(changed=tuple(changed))

        return await self._run(work)

    async def upsert_agent_liveness(
        self, record: AgentLivenessRecord, *, clock: HeartbeatClock = HeartbeatClock.RECORD
    ) -> None:
        """See ``LivenessStorage``."""
        started_at: str | None = None
        heartbeat: str | None = None
        if clock is HeartbeatClock.RECORD:
            started_at, heartbeat = record.started_at.isoformat(), record.last_heartbeat_at.isoformat()
        elif clock is HeartbeatClock.EPOCH:
            heartbeat = EPOCH.isoformat()

        async def work(connection: aiosqlite.Connection) -> None:
            await connection.execute(
                UPSERT,
                (
                    storable(record.instance_id),
                    storable(record.process_kind),
                    storable(record.hostname),
                    record.pid,
                    record.liveness_interval_s,
                    started_at,
                    heartbeat,
                    fitting(record.current_task_id, 64),
                    None if record.current_task_type is None else storable(record.current_task_type),
                ),
            )

        await self._run(work)

    async def list_agent_liveness(self) -> list[AgentLivenessRecord]:
        """See ``LivenessStorage``."""

        async def work(connection: aiosqlite.Connection) -> list[dict[str, object]]:
            return [dict(row) for row in await connection.execute_fetchall(LIST)]

        return newest_first(await self._run(work))

    async def get_agent_liveness(self, instance_id: str) -> AgentLivenessRecord | None:
        """See ``LivenessStorage``. A row that nobody can read is None."""

        async def work(connection: aiosqlite.Connection) -> list[dict[str, object]]:
            return [dict(row) for row in await connection.execute_fetchall(GET, (storable(instance_id),))]

        found = newest_first(await self._run(work))
        return found[0] if found else None

    async def request_agent_stop(self, instance_id: str) -> bool:
        """See ``LivenessStorage``."""

        async def work(connection: aiosqlite.Connection) -> bool:
            return (await connection.execute(REQUEST_STOP, (storable(instance_id),))).rowcount > 0

        return await self._run(work)

    async def aclose(self) -> None:
        """Nothing is held between calls."""


async def _columns(connection: aiosqlite.Connection) -> set[str]:
    return {row["name"] for row in await connection.execute_fetchall(COLUMNS)}


async def _indexed(connection: aiosqlite.Connection) -> bool:
    return any(row["name"] == "idx_agent_liveness_kind" for row in await connection.execute_fetchall(INDEXES))
