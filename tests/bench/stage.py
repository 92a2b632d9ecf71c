"""A control plane, a PostgreSQL with Tenure's tables, and bare requests: what most measurements happen on."""

import asyncio
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.bench.operator_process import TENURE, OperatorProcess
from tests.cluster.control_plane import ControlPlane, remove, start_for_tests
from tests.support.api import AdminClient, path
from tests.support.cluster import admin, apply_crds, new_namespace
from tests.support.manifests import agent_manifest
from tests.support.postgres import PostgresServer, running_postgres
from tests.support.wait import eventually

Item = TypeVar("Item")
REQUESTS = 50
"""Requests that a bare client has under way at once."""


@dataclass
class Stage:
    """Everything is ended by the ``async with`` of ``stage()``."""

    plane: ControlPlane
    client: AdminClient
    postgres: PostgresServer
    folder: Path
    databases: Path
    operators: int = 0

    def operator(self, namespaces: Sequence[str] = ()) -> OperatorProcess:
        """The operator, with the stage's database as its default one and its store."""
        self.operators += 1
        return OperatorProcess(
            kubeconfig=self.plane.kubeconfig,
            databases=self.databases,
            log=self.folder / f"operator-{self.operators}.log",
            namespaces=namespaces,
        )

    async def namespace(self, prefix: str) -> str:
        """A namespace in which pods can be created."""
        return await new_namespace(self.client, prefix=prefix)

    async def count(self, plural: str, namespace: str) -> int:
        """How many objects there are, without having them sent."""
        answer = await self.client.get(path(plural, namespace), limit="1")
        return len(answer["items"]) + int(answer["metadata"].get("remainingItemCount") or 0)

    async def counted(
        self, plural: str, namespace: str, wanted: int, *, within: float, every: float = 0.05
    ) -> None:
        """Return when there are so many."""

        async def enough() -> bool:
            return await self.count(plural, namespace) >= wanted

        await eventually(enough, within=within, every=every, what=f"{wanted} {plural} in {namespace}")

    async def create_agents(
        self, namespace: str, names: Iterable[str], *, clients: int = REQUESTS, **spec: object
    ) -> None:
        """AgentProcesses, by so many clients side by side."""
        url = path("agentprocesses", namespace)
        await side_by_side(clients, names, lambda name: self.client.create(url, agent_manifest(name, **spec)))


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    """Start everything; some five seconds."""
    async with AsyncExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="tenure-bench-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        plane = start_for_tests()
        stack.callback(remove, plane)
        apply_crds(plane)
        postgres = stack.enter_context(running_postgres())
        url = await postgres.fresh_database("bench")
        databases = prepare_database(url, folder)
        client = await stack.enter_async_context(admin(plane))
        yield Stage(plane, client, postgres, folder, databases)


def prepare_database(url: str, folder: Path) -> Path:
    """Tenure's tables, and the directory that tells an operator of the database; returns the directory."""
    environment = {**os.environ, "TENURE_DATABASE_URL": url}
    subprocess.run([TENURE, "migrate"], env=environment, check=True, capture_output=True)
    entry = folder / "databases" / "default"
    entry.mkdir(parents=True)
    (entry / "url").write_text(url)
    (entry / "store").touch()
    return entry.parent


async def side_by_side(width: int, items: Iterable[Item], do: Callable[[Item], Awaitable[object]]) -> None:
    """``do`` for every item, ``width`` at a time; the first error ends all."""
    source = iter(items)

    async def worker() -> None:
        for item in source:
            await do(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(width):
            group.create_task(worker())
