"""The schema ``tenure``: numbered SQL files, applied once each, in order, under an advisory lock.

A file that was released never changes: its checksum is recorded, and a difference stops the migration. To
change the schema, add the next number to ``storage/sql``.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from tenure.model.masked import Masked
from tenure.storage import statements
from tenure.storage.errors import MigrationRefused
from tenure.storage.pool import BoundedPool, Connection

_FILE_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")

CREATE_SCHEMA = "CREATE SCHEMA IF NOT EXISTS tenure"
CREATE_MIGRATIONS = """
CREATE TABLE IF NOT EXISTS tenure.migrations (
    number     INTEGER PRIMARY KEY,
    name       TEXT NOT NULL,
    checksum   TEXT NOT NULL,
    applied_at TIMESTAMPTZ NOT NULL DEFAULT now()
)
"""
EXISTS = "SELECT to_regclass('tenure.migrations') IS NOT NULL"
APPLIED = "SELECT number, name, checksum FROM tenure.migrations ORDER BY number"
RECORD = "INSERT INTO tenure.migrations (number, name, checksum) VALUES ($1, $2, $3)"


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file. ``checksum`` is SHA-256 of its text, in hex."""

    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def shipped_migrations() -> tuple[Migration, ...]:
    """Every migration that this version of Tenure brings, in order."""
    found = []
    for entry in files("tenure.storage").joinpath("sql").iterdir():
        match = _FILE_NAME.fullmatch(entry.name)
        if match:
            found.append(Migration(int(match[1]), match[2], entry.read_text(encoding="utf-8")))
    return tuple(sorted(found, key=lambda migration: migration.number))


async def migrate_schema(
    url: Masked, *, migrations: Sequence[Migration] | None = None, limit: float = 60.0
) -> tuple[str, ...]:
    """Bring the schema up to date; returns what was applied, as ``0001_agent_stops``.

    All or nothing, in one transaction, and safe when two programs do it at once. Raises
    ``MigrationRefused`` when the database was migrated by other files than ours, ``DatabaseUnavailable``
    for anything else.
    """
    todo = shipped_migrations() if migrations is None else tuple(migrations)
    pool = BoundedPool("store", url, limit=limit, size=1, application="tenure-migrate")

    async def work(connection: Connection) -> tuple[str, ...]:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", statements.SCHEMA_LOCK)
            if not await connection.fetchval(EXISTS):
                await connection.execute(CREATE_SCHEMA)
                await connection.execute(CREATE_MIGRATIONS)
            applied = {row["number"]: row["checksum"] for row in await connection.fetch(APPLIED)}
            _refuse_foreign(todo, applied)
            new = [migration for migration in todo if migration.number not in applied]
            for migration in new:
                await connection.execute(migration.sql)
                await connection.execute(RECORD, migration.number, migration.name, migration.checksum)
            return tuple(f"{migration.number:04}_{migration.name}" for migration in new)

    try:
        return await pool.run(work)
    finally:
        await pool.aclose()


def _refuse_foreign(ours: Sequence[Migration], applied: dict[int, str]) -> None:
    known = {migration.number: migration.checksum for migration in ours}
    for number, checksum in applied.items():
        if number not in known:
            raise MigrationRefused(
                f"the schema tenure has migration {number:04}, which this version of Tenure does not know: "
                "it was made by a newer version"
            )
        if known[number] != checksum:
            raise MigrationRefused(
                f"migration {number:04} was applied to this database with another text than ours"
            )
    missing = [number for number in known if applied and number < max(applied) and number not in applied]
    if missing:
        raise MigrationRefused(f"migration {missing[0]:04} is missing below ones that were applied")
