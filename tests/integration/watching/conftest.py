"""The real API server with the CRDs, and the operator's watches on it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

import pytest
from tests.cluster.control_plane import ControlPlane
from tests.support.cluster import api, control_plane, control_plane_with_crds, namespace

from tenure.cluster.agents import KubernetesAgentCluster
from tenure.cluster.client import KubernetesClient
from tenure.operator.cache import ObjectCache, ObjectKey
from tenure.operator.health import WatchAges
from tenure.operator.sweep import Sweep
from tenure.operator.watching import Watching

__all__ = ["api", "control_plane", "control_plane_with_crds", "namespace"]


@dataclass
class Watches:
    """The parts of an operator that watch, running."""

    cache: ObjectCache
    watching: Watching
    sweep: Sweep
    ages: WatchAges
    woken: list[ObjectKey] = field(default_factory=list)


Start = Callable[..., AbstractAsyncContextManager[Watches]]


@pytest.fixture
def watches(control_plane_with_crds: ControlPlane) -> Start:
    """``async with watches(...)``: cluster-wide, or in ``namespaces``; ``kubeconfig`` to be somebody else."""

    @asynccontextmanager
    async def start(
        *namespaces: str, kubeconfig: str | None = None, synced: bool = True, period: float = 300.0
    ) -> AsyncIterator[Watches]:
        environ = {"KUBECONFIG": kubeconfig or str(control_plane_with_crds.kubeconfig)}
        async with await KubernetesClient.connect(environ) as client:
            woken: list[ObjectKey] = []
            cache, ages = ObjectCache(woken.append), WatchAges()
            watching = Watching(
                cache,
                client.connection_facts,
                namespaces=namespaces,
                watches=ages,
                on_relist=lambda: sweep.soon(),
            )
            sweep = Sweep(
                cache,
                client,
                KubernetesAgentCluster(client),
                namespaces=namespaces,
                opened=watching.opened,
                period=period,
            )
            tasks = [asyncio.create_task(watching.run()), asyncio.create_task(sweep.run())]
            try:
                if synced:
                    async with asyncio.timeout(30):
                        await sweep.synced.wait()
                yield Watches(cache, watching, sweep, ages, woken)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    return start
