"""A world for each test: a namespace, a database, a node made of processes; the operator is the test's to start."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest_asyncio
from tests.cluster.control_plane import ControlPlane
from tests.integration.agents.history import History
from tests.integration.agents.world import QUEUE, SECRET, World
from tests.support.api import AdminClient, path
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

TEMPLATE = "agents_template"


@pytest_asyncio.fixture
async def api(control_plane_with_crds: ControlPlane) -> AsyncIterator[AdminClient]:
    """An admin client in the test's own event loop."""
    async with admin(control_plane_with_crds) as client:
        yield client


@pytest_asyncio.fixture
async def kubelet(api: AdminClient) -> AsyncIterator[Kubelet]:
    """The node: pods become processes."""
    async with Kubelet(api) as kubelet:
        yield kubelet


@pytest_asyncio.fixture
async def make_world(
    control_plane_with_crds: ControlPlane, api: AdminClient, kubelet: Kubelet
) -> AsyncIterator[Callable[..., Awaitable[World]]]:
    """Worlds on a database server of the test's choice, watched from their beginning."""
    made: list[tuple[World, asyncio.Task[None]]] = []

    async def make(server: PostgresServer, url: str = "") -> World:
        namespace = await new_namespace(api, prefix="agents")
        url = url or await migrated_database(server)
        secret = {"metadata": {"name": SECRET}, "data": {"url": b64encode(url.encode()).decode()}}
        await api.create(path("secrets", namespace), secret)
        history = History(api, namespace)
        world = World(control_plane_with_crds, api, kubelet, namespace, server, url, history)
        made.append((world, asyncio.create_task(history.run(), name="history")))
        return world

    yield make
    for _, watching in made:
        watching.cancel()
    await asyncio.gather(*(watching for _, watching in made), return_exceptions=True)
    await asyncio.gather(*(world.leave() for world, _ in made))
    await asyncio.gather(*(delete_namespace(api, world.namespace) for world, _ in made))
    for world, _ in made:
        offences = [o for o in world.history.offences if not any(part in o for part in world.forgiven)]
        assert not offences, offences


@pytest_asyncio.fixture
async def world(make_world: Callable[..., Awaitable[World]], postgres_server: PostgresServer) -> World:
    """A world on the shared database server."""
    return await make_world(postgres_server)


@pytest_asyncio.fixture
async def frail_world(make_world: Callable[..., Awaitable[World]], own_postgres: PostgresServer) -> World:
    """A world whose database server may be stopped and frozen."""
    return await make_world(own_postgres)


async def migrated_database(server: PostgresServer) -> str:
    """A new database with the liveness table (with its trigger), the schema ``tenure`` and a queue."""
    known = await server_has(server, TEMPLATE)
    if not known:
        await server.execute(f"CREATE DATABASE {TEMPLATE}")
        url = Masked(server.url(TEMPLATE))
        storage = PostgresLivenessStorage(url)
        try:
            await storage.migrate()
        finally:
            await storage.aclose()
        await migrate_schema(url)
        await server.execute(QUEUE, database=TEMPLATE)
    return await _copy(server)


async def server_has(server: PostgresServer, name: str) -> bool:
    """Whether a database of this name exists."""
    connection = await server.connect()
    try:
        return bool(await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", name))
    finally:
        await connection.close()


async def _copy(server: PostgresServer) -> str:
    url = await server.fresh_database("agents")
    name = url.rsplit("/", 1)[1]
    await server.execute(f'DROP DATABASE "{name}"')
    await server.execute(f'CREATE DATABASE "{name}" TEMPLATE {TEMPLATE}')
    return url
