"""A world for each test: a namespace, a database, a node made of processes; the operator is the test's to start."""

import asyncio
import logging
import shutil
import sys
import tempfile
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.cluster.control_plane import ControlPlane
from tests.integration.servers.canaries import Canaries
from tests.integration.servers.evidence import AUDIT, Evidence
from tests.integration.servers.history import History
from tests.integration.servers.world import DATABASE_SECRET, DEPLOYMENTS, World, environment
from tests.support.api import AdminClient, ApiError, path
from tests.support.cluster import (
    admin,
    control_plane,
    control_plane_with_crds,
    delete_namespace,
    new_namespace,
)
from tests.support.kubelet import Kubelet
from tests.support.postgres import PostgresServer, own_postgres, postgres_server

from tenure.model.masked import Masked
from tenure.storage.migrations import migrate_schema
from tenure.storage.postgres import PostgresLivenessStorage

__all__ = ["control_plane", "control_plane_with_crds", "own_postgres", "postgres_server"]

TEMPLATE = "servers_template"


@pytest_asyncio.fixture
async def api(control_plane_with_crds: ControlPlane) -> AsyncIterator[AdminClient]:
    """An admin client in the test's own event loop."""
    async with admin(control_plane_with_crds) as client:
        yield client


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that pods see too: not below /tmp, where those of servers have a volume of their own."""
    made = Path(tempfile.mkdtemp(prefix="tenure-servers-", dir="/var/tmp"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest_asyncio.fixture
async def kubelet(api: AdminClient, folder: Path) -> AsyncIterator[Kubelet]:
    """The node: pods become processes."""
    root = folder / "node"
    root.mkdir()
    async with Kubelet(api, folder=root, environment=environment(root)) as running:
        yield running


@pytest_asyncio.fixture
async def make_world(
    control_plane_with_crds: ControlPlane,
    api: AdminClient,
    kubelet: Kubelet,
    folder: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> AsyncIterator[Callable[..., Awaitable[World]]]:
    """Worlds on a database server of the test's choice, watched from their beginning, and judged in the end."""
    made: list[tuple[World, list[asyncio.Task[None]]]] = []
    caplog.set_level(logging.DEBUG, logger="tenure")

    async def make(server: PostgresServer) -> World:
        namespace = await new_namespace(api, prefix="servers")
        url = await migrated_database(server)
        canaries = Canaries()
        canaries.learn("url", url)
        secret = {"metadata": {"name": DATABASE_SECRET}, "data": {"url": b64encode(url.encode()).decode()}}
        await api.create(path("secrets", namespace), secret)
        history = History(api, namespace, canaries=canaries)
        evidence = Evidence(folder / namespace)
        world = World(
            control_plane_with_crds, api, kubelet, namespace, server, url, history, evidence, canaries
        )
        watching = [asyncio.create_task(history.run()), asyncio.create_task(evidence.watch())]
        made.append((world, watching))
        return world

    yield make
    offences = []
    said = capfd.readouterr()
    sys.stdout.write(said.out)
    sys.stderr.write(said.err)
    try:
        for world, _ in made:
            print("backends said last:", *world.evidence.backend()[-20:], sep="\n")
            _print_last_words(kubelet.folder, world.namespace)
            world.texts.append(("the operator's log", caplog.text + said.out + said.err))
            offences += await world.offences()
    finally:
        for world, watching in made:
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            await world.leave()
            await _remove(api, world.namespace)
    assert not offences, offences


def _print_last_words(folder: Path, namespace: str) -> None:
    """What servers said last, and backends: pytest shows it when the test has failed."""
    for log in sorted(folder.glob(f"{namespace}_*.log")):
        print(f"{log.name}:", *log.read_text(errors="replace").splitlines()[-5:], sep="\n  ")


async def _remove(api: AdminClient, namespace: str) -> None:
    try:
        await api.delete(f"{DEPLOYMENTS.format(namespace)}/backend", propagation="Background")
    except ApiError as error:
        if error.status != 404:
            raise
    await delete_namespace(api, namespace)


@pytest_asyncio.fixture
async def world(make_world: Callable[..., Awaitable[World]], postgres_server: PostgresServer) -> World:
    """A world on the shared database server."""
    return await make_world(postgres_server)


@pytest_asyncio.fixture
async def frail_world(own_postgres: PostgresServer, make_world: Callable[..., Awaitable[World]]) -> World:
    """A world whose database server may be stopped and frozen."""
    return await make_world(own_postgres)


async def migrated_database(server: PostgresServer) -> str:
    """A new database with the liveness table, the schema ``tenure``, and an audit of turns."""
    connection = await server.connect()
    try:
        known = await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", TEMPLATE)
    finally:
        await connection.close()
    if not known:
        await server.execute(f"CREATE DATABASE {TEMPLATE}")
        url = Masked(server.url(TEMPLATE))
        storage = PostgresLivenessStorage(url)
        try:
            await storage.migrate()
        finally:
            await storage.aclose()
        await migrate_schema(url)
        await server.execute(AUDIT, database=TEMPLATE)
    fresh = await server.fresh_database("servers")
    name = fresh.rsplit("/", 1)[1]
    await server.execute(f'DROP DATABASE "{name}"')
    await server.execute(f'CREATE DATABASE "{name}" TEMPLATE {TEMPLATE}')
    return fresh
