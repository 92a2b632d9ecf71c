"""P-1 and P-2: how fast resources become pods, many at once and one alone."""

import asyncio
import copy
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

from tenure.model.ids import template_hash
from tenure.model.resources import parse_agent_process
from tenure.plan.render import render_pod
from tests.bench.machine import cpu_seconds, in_ms, median, quantile
from tests.bench.report import Figure
from tests.bench.say import say
from tests.bench.stage import REQUESTS, Stage, side_by_side, stage
from tests.support.api import Object, path
from tests.support.manifests import agent_manifest
from tests.support.wait import eventually

CLIENTS = 20
WARM_UP = 30
ALLOWANCE = 0.030
REST = 0.2
"""Seconds between two lone ones: what follows the pod of one (its status, its Event) is over by then."""
SHARE = 0.6


async def creation(scale: float) -> list[Figure]:
    """Both on one stage; floor, operator, floor, so that a change of the machine's mood shows in both."""
    many, samples = max(50, round(1000 * scale)), max(20, round(200 * scale))
    async with stage() as here:
        ours, theirs = await here.namespace("bench"), await here.namespace("floor")
        async with here.operator([ours]) as operator:
            await operator.leading()
            bare = await _warm_up(here, ours)
            await operator.settled(2)
            before = await bare.rate(theirs, "first", many)
            cpu = cpu_seconds(operator.pid)
            rate = await _rate(here, ours, many)
            await operator.settled(2)
            cpu = (cpu_seconds(operator.pid) - cpu) / many
            after = await bare.rate(theirs, "second", many)
            say(f"P-1: floor {before:.0f}/s and {after:.0f}/s, operator {rate:.0f}/s; now one at a time")
            alone = await _latencies(here, ours, samples, bare.resource)
            floor = await _latencies(here, theirs, samples, bare.pod)
    return [_throughput(many, rate, (before, after), cpu), _latency(alone, floor)]


def _throughput(many: int, rate: float, floors: tuple[float, float], cpu: float) -> Figure:
    floor = sum(floors) / len(floors)
    return Figure(
        id="P-1",
        what=f"{many} AgentProcesses created by {CLIENTS} clients, until {many} pods exist",
        measured=f"{rate:.0f} pods/s",
        floor=f"{floor:.0f} pods/s ({floors[0]:.0f} before, {floors[1]:.0f} after)",
        ratio=rate / floor,
        target=f">= {SHARE} of the floor",
        met=rate / floor >= SHARE,
        note=f"the operator takes {in_ms(cpu)} of CPU for an agent, from the event to its last status",
        detail={"per_second": rate, "floors_per_second": floors, "operator_cpu_seconds_each": cpu},
    )


def _latency(alone: list[float], floor: list[float]) -> Figure:
    allowed = ALLOWANCE + 2 * median(floor)
    return Figure(
        id="P-2",
        what=f"a lone AgentProcess, from the request to its pod seen in a watch, {len(alone)} times",
        measured=f"median {in_ms(median(alone))}, p99 {in_ms(quantile(alone, 0.99))}",
        floor=f"lone pod: median {in_ms(median(floor))}, p99 {in_ms(quantile(floor, 0.99))}",
        ratio=median(alone) / median(floor),
        target=f"median <= 30 ms + 2 floors = {in_ms(allowed)}",
        met=median(alone) <= allowed,
        detail={"seconds": alone, "floor_seconds": floor},
    )


class Bare:
    """A client that makes the requests that the operator cannot do without, and decides nothing."""

    def __init__(self, here: Stage, pod: Object, status: Object) -> None:
        self._client = here.client
        self._pod = pod
        self._status = {"status": status}

    async def resource(self, namespace: str, name: str) -> Object:
        """Create an AgentProcess."""
        return await self._client.create(path("agentprocesses", namespace), agent_manifest(name))

    async def pod(self, namespace: str, name: str, owner: Object | None = None) -> Object:
        """Create a pod as the operator does."""
        meta = {**self._pod["metadata"], "name": name, "namespace": namespace}
        if owner is None:
            del meta["ownerReferences"]
        else:
            reference = {**meta["ownerReferences"][0], "name": name, "uid": owner["metadata"]["uid"]}
            meta["ownerReferences"] = [reference]
        return await self._client.create(path("pods", namespace), {**self._pod, "metadata": meta})

    async def rate(self, namespace: str, prefix: str, many: int) -> float:
        """Resource, pod and one status patch, ``REQUESTS`` at a time; pods per second."""

        async def one(name: str) -> None:
            owner = await self.resource(namespace, name)
            await self.pod(namespace, name, owner)
            await self._client.patch(path("agentprocesses", namespace, name, "status"), self._status)

        began = time.monotonic()
        await side_by_side(REQUESTS, (f"{prefix}-{number}" for number in range(many)), one)
        return many / (time.monotonic() - began)


async def _warm_up(here: Stage, namespace: str) -> Bare:
    """Some agents by the operator; what it wrote for one of them is what the floor will write."""
    names = [f"warm-{number}" for number in range(WARM_UP)]
    await here.create_agents(namespace, names)
    await here.counted("pods", namespace, len(names), within=60)

    async def known() -> Object | None:
        found = await here.client.get(path("agentprocesses", namespace, names[0]))
        return found if found.get("status", {}).get("instance", {}).get("id") else None

    raw = await eventually(known, within=30, what="the status of a new agent")
    resource = parse_agent_process(raw)
    body = render_pod(resource, 1, template_hash(resource.spec.template))
    return Bare(here, copy.deepcopy(body), raw["status"])


async def _rate(here: Stage, namespace: str, many: int) -> float:
    expected = many + await here.count("pods", namespace)
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        names = (f"many-{number}" for number in range(many))
        group.create_task(here.create_agents(namespace, names, clients=CLIENTS))
        await here.counted("pods", namespace, expected, within=300)
        ended = time.monotonic()
    return many / (ended - began)


async def _latencies(
    here: Stage, namespace: str, samples: int, create: Callable[[str, str], Awaitable[object]]
) -> list[float]:
    """Seconds from the request to the pod's first event in a watch that was open before."""
    taken = []
    async with first_seen(here, namespace) as seen:
        for number in range(samples):
            name = f"lone-{number}"
            await asyncio.sleep(REST)
            began = time.monotonic()
            await create(namespace, name)
            probe = partial(seen.get, name)
            taken.append(await eventually(probe, within=30, every=0.002, what=f"the pod of {name}") - began)
    return taken


@asynccontextmanager
async def first_seen(here: Stage, namespace: str) -> AsyncIterator[dict[str, float]]:
    """When the first pod of each owner (or the pod itself, if nobody owns it) showed; filled as they come."""
    seen: dict[str, float] = {}
    url = path("pods", namespace)
    version = (await here.client.get(url, limit="1"))["metadata"]["resourceVersion"]

    async def look() -> None:
        async for _, pod in here.client.watch(url, resourceVersion=version):
            owners = pod["metadata"].get("ownerReferences") or [pod["metadata"]]
            seen.setdefault(owners[0]["name"], time.monotonic())

    task = asyncio.create_task(look())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.wait([task])
