"""Every storage of the liveness table, each on a table as somebody else may have made it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import aiosqlite
import pytest
from tests.support.postgres import (  # noqa: F401 - fixtures
    PostgresServer,
    database_url,
    own_postgres,
    postgres_server,
)
from tests.support.turns import Scene

from tenure.model.masked import Masked
from tenure.storage.liveness import LivenessStorage
from tenure.storage.migrations import migrate_schema
from tenure.storage.postgres import PostgresLivenessStorage
from tenure.storage.records import Records
from tenure.storage.sqlite import SqliteLivenessStorage

OLD_TABLE = """
CREATE TABLE cks_agent_liveness (
    instance_id TEXT PRIMARY KEY, process_kind TEXT NOT NULL, hostname TEXT NOT NULL, pid INTEGER NOT NULL,
    liveness_interval_s {real} NOT NULL, started_at {time} NOT NULL, last_heartbeat_at {time} NOT NULL,
    current_task_id INTEGER, current_task_type TEXT
)
"""
INDEX = "CREATE INDEX idx_agent_liveness_kind ON cks_agent_liveness (process_kind, last_heartbeat_at)"


@dataclass
class Bench:
    """A storage under test and a way around it, straight into its database."""

    kind: str
    storage: LivenessStorage
    another: Callable[[], LivenessStorage]
    execute: Callable[[str], Awaitable[None]]
    fetch: Callable[[str], Awaitable[list[tuple[object, ...]]]]
    time_type: str

    @property
    def real(self) -> str:
        return "REAL" if self.kind == "sqlite" else "DOUBLE PRECISION"

    async def make_old_table(self) -> None:
        """The table as it was before there was a ``desired_state``."""
        await self.execute(OLD_TABLE.format(real=self.real, time=self.time_type))
        await self.execute(INDEX)


def _sqlite(path: Path) -> Bench:
    async def execute(sql: str) -> None:
        async with aiosqlite.connect(path) as connection:
            await connection.execute(sql)
            await connection.commit()

    async def fetch(sql: str) -> list[tuple[object, ...]]:
        async with aiosqlite.connect(path) as connection:
            return [tuple(row) for row in await connection.execute_fetchall(sql)]

    def another() -> LivenessStorage:
        return SqliteLivenessStorage(path)

    return Bench("sqlite", another(), another, execute, fetch, "TEXT")


def _postgres(server: PostgresServer, url: str, time_type: str) -> Bench:
    database = url.rsplit("/", 1)[1]

    async def execute(sql: str) -> None:
        await server.execute(sql, database=database)

    async def fetch(sql: str) -> list[tuple[object, ...]]:
        connection = await server.connect(database)
        try:
            return [tuple(row) for row in await connection.fetch(sql)]
        finally:
            await connection.close()

    def another() -> LivenessStorage:
        return PostgresLivenessStorage(Masked(url), application="tenure-test")

    return Bench("postgres", another(), another, execute, fetch, time_type)


@pytest.fixture(params=["sqlite", "postgres", "postgres with TEXT times"])
async def bench(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    postgres_server: PostgresServer,  # noqa: F811
) -> AsyncIterator[Bench]:
    """Each storage in turn, on an empty database; closed at the end."""
    if request.param == "sqlite":
        made = _sqlite(tmp_path / "liveness.sqlite")
    else:
        url = await asyncio.to_thread(lambda: asyncio.run(postgres_server.fresh_database()))
        made = _postgres(postgres_server, url, "TEXT" if "TEXT" in request.param else "TIMESTAMPTZ")
        if made.time_type == "TEXT":
            await made.make_old_table()
    yield made
    await made.storage.aclose()


@pytest.fixture
async def records(database_url: str) -> AsyncIterator[Records]:  # noqa: F811
    """The records of the namespace team-a in a database of their own."""
    await migrate_schema(Masked(database_url))
    made = Records(Masked(database_url), namespace="team-a", application="tenure-test")
    yield made
    await made.aclose()


@pytest.fixture
async def rivals(records: Records, database_url: str) -> AsyncIterator[tuple[Records, ...]]:  # noqa: F811
    """The same records as twelve other processes have them: each with connections of its own."""
    made = tuple(Records(Masked(database_url), namespace="team-a", limit=20, size=1) for _ in range(12))
    yield made
    await asyncio.gather(*(each.aclose() for each in made))


@pytest.fixture
async def scene(records: Records, postgres_server: PostgresServer, database_url: str) -> Scene:  # noqa: F811
    """A launched session with an open turn."""
    return await Scene.begin(records, postgres_server, database_url)
