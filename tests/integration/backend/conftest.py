"""A backend under test: real control server, real agents, real PostgreSQL."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.integration.backend.scene import Scene
from tests.support.control import RunningServer, running_server
from tests.support.postgres import (  # noqa: F401 - fixtures
    PostgresServer,
    database_url,
    own_postgres,
    postgres_server,
)

from tenure.model.masked import Masked
from tenure.storage.migrations import migrate_schema


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RunningServer]:
    """One server for the tests of a file: to start one takes longer than most tests. What a test leaves in it is
    stopped by the next one's backend, which finds no record of it."""
    with ThreadPoolExecutor(1) as thread:
        runner, running = asyncio.Runner(), running_server()
        server = thread.submit(runner.run, running.__aenter__()).result()
        try:
            yield server
        finally:
            thread.submit(runner.run, running.__aexit__(None, None, None)).result()
            thread.submit(runner.close).result()


@pytest.fixture
async def scene(shared_server: RunningServer, database_url: str, tmp_path: Path) -> AsyncIterator[Scene]:  # noqa: F811
    """A control server, an empty store, and backends on top of them, which take turns as its owner."""
    await migrate_schema(Masked(database_url))
    made = Scene(
        shared_server, database_url, tmp_path, state=shared_server.directory / "owner" / "credential.json"
    )
    try:
        yield made
    finally:
        await made.aclose()


@pytest.fixture
async def fresh_scene(database_url: str, tmp_path: Path) -> AsyncIterator[Scene]:  # noqa: F811
    """The same with a server that nobody has owned."""
    await migrate_schema(Masked(database_url))
    async with running_server() as server:
        made = Scene(server, database_url, tmp_path, state=tmp_path / "owner" / "credential.json")
        try:
            yield made
        finally:
            await made.aclose()
