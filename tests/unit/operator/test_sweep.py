import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.objects import agent_process, pod
from tests.support.wait import eventually

from tenure.cluster.calls import AGENT_PROCESSES, PODS, Resource
from tenure.cluster.client import Listing
from tenure.cluster.errors import Unavailable
from tenure.operator import sweep as module
from tenure.operator.cache import ObjectCache, ObjectKey
from tenure.operator.sweep import Sweep

CRITIC = ObjectKey("agents", "critic")
Json = dict[str, Any]


class ApiDouble:
    """The API server as a sweep uses it: lists of metadata, and single reads."""

    def __init__(self) -> None:
        self.objects: dict[Resource, list[Json]] = {AGENT_PROCESSES: [], PODS: []}
        self.error: Exception | None = None
        self.listed: list[tuple[Resource, str | None, str]] = []
        self.read: list[str] = []

    async def list_objects(self, resource: Resource, namespace: str | None, label_selector: str) -> Listing:
        self.listed.append((resource, namespace, label_selector))
        await asyncio.sleep(0)
        if self.error is not None and resource is PODS:
            raise self.error
        found = [{"metadata": item["metadata"]} for item in self.objects[resource]]
        return Listing(tuple(found), "100")

    async def get_agent_process(self, namespace: str, name: str) -> Json | None:
        return self._get(AGENT_PROCESSES, name)

    async def get_pod(self, namespace: str, name: str) -> Json | None:
        return self._get(PODS, name)

    def _get(self, resource: Resource, name: str) -> Json | None:
        self.read.append(name)
        return next((o for o in self.objects[resource] if o["metadata"]["name"] == name), None)


class Bench:
    def __init__(self, *, opened: bool = True, **options: Any) -> None:
        self.api = ApiDouble()
        self.cache = ObjectCache()
        self.opened = asyncio.Event()
        if opened:
            self.opened.set()
        self.sweep = Sweep(
            self.cache,
            self.api,
            self.api,  # type: ignore[arg-type]
            opened=self.opened,
            settle=0.1,
            **options,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Bench"]:
        task = asyncio.create_task(self.sweep.run())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SOON", 0.01)
    monkeypatch.setattr(module, "RETRY", 0.05)
    monkeypatch.setattr(module, "CHECK_SECONDS", 0.01)


async def test_ghosts_go_and_what_exists_stays() -> None:
    bench = Bench()
    bench.cache.put_agent_process(agent_process("critic"))
    bench.cache.put_agent_process(agent_process("planner"))
    bench.cache.put_pod(pod(uid="p"))
    bench.api.objects[AGENT_PROCESSES] = [agent_process("planner")]
    await bench.sweep.once()
    assert bench.cache.agent_process(CRITIC) is None
    assert bench.cache.agent_process(ObjectKey("agents", "planner"))
    assert bench.cache.pods_of(CRITIC)[0].departed
    assert bench.sweep.dropped == 2


async def test_only_pods_with_our_label_are_listed_and_in_each_namespace_when_there_are_several() -> None:
    bench = Bench(namespaces=["red", "blue"])
    await bench.sweep.once()
    assert sorted(bench.api.listed, key=str) == sorted(
        [
            (AGENT_PROCESSES, "red", ""),
            (AGENT_PROCESSES, "blue", ""),
            (PODS, "red", "tenure.dev/role"),
            (PODS, "blue", "tenure.dev/role"),
        ],
        key=str,
    )


async def test_what_no_event_brought_is_read_by_itself() -> None:
    bench = Bench()
    bench.api.objects[AGENT_PROCESSES] = [agent_process("critic", version=7)]
    bench.api.objects[PODS] = [pod(uid="p", version=8), pod("foreign", owner=None)]
    bench.cache.put_agent_process(agent_process("critic", version=5))
    await bench.sweep.once()
    stored = bench.cache.agent_process(CRITIC)
    assert stored is not None
    assert stored["metadata"]["resourceVersion"] == "7"
    assert [view.uid for view in bench.cache.pods_of(CRITIC)] == ["p"]
    assert sorted(bench.api.read) == ["critic", "critic-0a1b2c3d-1"]


async def test_what_an_event_brings_in_time_is_not_read() -> None:
    bench = Bench()
    bench.api.objects[AGENT_PROCESSES] = [agent_process("critic", version=7)]
    sweeping = asyncio.create_task(bench.sweep.once())
    await eventually(lambda: bench.api.listed, within=10, every=0.001)
    bench.cache.put_agent_process(agent_process("critic", version=7))
    await sweeping
    assert bench.api.read == []


async def test_a_failed_list_drops_nothing_of_its_kind_and_is_tried_again() -> None:
    bench = Bench()
    bench.cache.put_pod(pod(uid="p"))
    bench.api.error = Unavailable(503, "ServiceUnavailable", "try later")
    async with bench.running():
        await eventually(lambda: len(bench.api.listed) >= 4, within=10, every=0.01)
        assert not bench.cache.pods_of(CRITIC)[0].departed
        assert not bench.sweep.synced.is_set()
        bench.api.error = None
        await eventually(bench.sweep.synced.is_set, within=10, every=0.01)
        assert bench.cache.pods_of(CRITIC)[0].departed


async def test_the_cache_counts_as_complete_only_when_the_watches_are_open_and_have_brought_everything() -> (
    None
):
    bench = Bench(opened=False)
    bench.api.objects[AGENT_PROCESSES] = [agent_process("critic", version=7)]
    async with bench.running():
        await eventually(lambda: len(bench.api.listed) == 2, within=10, every=0.001)
        await asyncio.sleep(0.3)
        assert not bench.sweep.synced.is_set()
        assert bench.api.read == [], "nobody reads one by one what a watch is about to bring"
        bench.cache.put_agent_process(agent_process("critic", version=7))
        bench.opened.set()
        await eventually(bench.sweep.synced.is_set, within=10, every=0.01)
        assert bench.api.read == []


async def test_it_sweeps_again_in_every_period_and_soon_when_asked() -> None:
    bench = Bench(period=60.0)
    async with bench.running():
        await eventually(bench.sweep.synced.is_set, within=10, every=0.01)
        for _ in range(20):
            bench.sweep.soon()
        await eventually(lambda: len(bench.api.listed) == 4, within=10, every=0.01)
    bench = Bench(period=0.02)
    async with bench.running():
        await eventually(lambda: len(bench.api.listed) >= 8, within=10, every=0.01)
