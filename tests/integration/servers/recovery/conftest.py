"""Servers to be recovered: one real process for the tests of a file, or a double that can be made to misbehave."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.integration.ownership.site import Site, agentctl, endpoint_of
from tests.integration.servers.recovery.stage import Stage, staged
from tests.support.control import RunningServer, running_server
from tests.support.postgres import (  # noqa: F401 - fixtures
    database_url,
    own_postgres,
    postgres_server,
)

from tenure.model.masked import Masked
from tenure.storage.migrations import migrate_schema


@pytest.fixture(scope="module")
def shared_server() -> Iterator[tuple[RunningServer, dict[str, Masked]]]:
    """A server and, once somebody has shaken hands with it, its credential."""
    with ThreadPoolExecutor(1) as thread:
        runner, running = asyncio.Runner(), running_server(tls=True)
        server = thread.submit(runner.run, running.__aenter__()).result()
        try:
            yield server, {}
        finally:
            thread.submit(runner.run, running.__aexit__(None, None, None)).result()
            thread.submit(runner.close).result()


@pytest.fixture
async def stage(
    shared_server: tuple[RunningServer, dict[str, Masked]],
    database_url: str,  # noqa: F811
    tmp_path: Path,
) -> AsyncIterator[Stage]:
    """A real server, without instances, and an empty store."""
    await migrate_schema(Masked(database_url))
    server, kept = shared_server
    site = Site(
        endpoint_of(server), server.identity, server.home_dir, server.nonce, server.workspaces, real=server
    )
    async with staged(site, kept.get("credential"), database_url, tmp_path) as made:
        kept["credential"] = made.server.credential
        for instance in await made.alive():
            await made.client.delete(instance)
        yield made


@pytest.fixture
async def double(database_url: str, tmp_path: Path) -> AsyncIterator[Stage]:  # noqa: F811
    """The double of agentctl, which lets several instances be of one session."""
    await migrate_schema(Masked(database_url))
    async with agentctl() as site, staged(site, None, database_url, tmp_path) as made:
        yield made
