"""A backend under test: real control server, real agents, real PostgreSQL."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.integration.backend.scene import Scene
from tests.support.control import running_server
from tests.support.postgres import (  # noqa: F401 - fixtures
    PostgresServer,
    database_url,
    own_postgres,
    postgres_server,
)

from tenure.model.masked import Masked
from tenure.storage.migrations import migrate_schema


@pytest.fixture
async def scene(database_url: str, tmp_path: Path) -> AsyncIterator[Scene]:  # noqa: F811
    """One control server, one empty store, and backends on top of them."""
    await migrate_schema(Masked(database_url))
    async with running_server() as server:
        made = Scene(server, database_url, tmp_path)
        try:
            yield made
        finally:
            await made.aclose()
