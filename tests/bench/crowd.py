"""P-5 and P-6: an operator that starts among thousands, how long it takes and how much memory."""

import time
from dataclasses import dataclass, field

from tests.bench.creation import first_seen
from tests.bench.machine import cpu_seconds, median, peak_mib, resident_mib
from tests.bench.population import Population
from tests.bench.report import Figure
from tests.bench.say import say
from tests.bench.stage import REQUESTS, Stage, side_by_side, stage
from tests.support.api import Object, path
from tests.support.wait import eventually

INTERVAL = 30
"""Seconds between two heartbeats of these agents: the default."""
STARTS = 3
SECONDS, GROWTH = 8.0, 2.3
RESIDENT, FOREIGN_EXTRA = 250.0, 20.0


@dataclass
class _Start:
    """What was seen of the starts among ``agents`` agents."""

    agents: int
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    floor: list[float] = field(default_factory=list)
    rested: list[float] = field(default_factory=list)
    peak: float = 0.0

    @property
    def resident(self) -> float:
        """Memory at rest: the median, since what the allocator keeps differs from start to start."""
        return median(self.rested)


async def crowd(scale: float, wanted: frozenset[str]) -> list[Figure]:
    """One stage that grows: empty, ``n`` agents, twice as many, then foreign pods too."""
    small, foreign = max(50, round(3000 * scale)), max(100, round(10_000 * scale))
    figures: list[Figure] = []
    async with stage() as here:
        people = Population(here, await here.namespace("bench"), interval=INTERVAL)
        empty = await _empty(here)
        async with people.heartbeating():
            once = await _among(here, people, small)
            if "P-5" in wanted:
                twice = await _among(here, people, 2 * small)
                figures += _starts(once, twice)
            if "P-6" in wanted:
                before = twice if "P-5" in wanted else once
                crowded = await _with_foreign(here, people, before.agents, foreign)
                figures += _memory(empty, once, before, crowded, foreign)
    return figures


async def _empty(here: Stage) -> _Start:
    seen = _Start(0)
    async with here.operator() as operator:
        await operator.leading()
        await operator.settled(3)
        seen.rested, seen.peak = [resident_mib(operator.pid)], peak_mib(operator.pid)
    return seen


async def _among(here: Stage, people: Population, agents: int) -> _Start:
    async with here.operator() as operator:
        await people.grow(operator, agents)
        await operator.settled(3)
    seen = _Start(agents)
    for number in range(STARTS):
        seen.floor.append(await _listing(here))
        await _start(here, people, seen, f"new-{agents}-{number}")
        say(f"started among {agents} agents: {seen.seconds[-1]:.2f} s, listing {seen.floor[-1]:.2f} s")
    return seen


async def _start(here: Stage, people: Population, seen: _Start, name: str) -> None:
    """One start, from nothing until a resource made meanwhile has its pod; then the memory, at rest."""
    async with first_seen(here, people.namespace) as pods:
        began = time.monotonic()
        async with here.operator() as operator:
            await here.create_agents(people.namespace, [name])
            at = await eventually(lambda: pods.get(name), within=600, every=0.01, what="the new agent's pod")
            seen.seconds.append(at - began)
            seen.cpu.append(cpu_seconds(operator.pid))
            await operator.settled(3)
            seen.rested.append(resident_mib(operator.pid))
            seen.peak = max(seen.peak, peak_mib(operator.pid))
            # Not one more for the next start.
            await here.client.delete(path("agentprocesses", people.namespace, name))
            await _no_pod_of(here, people.namespace, name)


async def _no_pod_of(here: Stage, namespace: str, name: str) -> None:
    url, selector = path("pods", namespace), f"tenure.dev/agent-process={name}"

    async def gone() -> bool:
        return not await here.client.list(url, labelSelector=selector)

    await eventually(gone, within=60, every=0.1, what=f"the pod of {name} is gone")


async def _listing(here: Stage) -> float:
    """Seconds of a bare client that lists what an operator has to know, page by page."""
    began = time.monotonic()
    for plural in ("agentprocesses", "pods"):
        token = ""
        while True:
            query = {"limit": "500", **({"continue": token} if token else {})}
            page = await here.client.get(path(plural), **query)
            token = page["metadata"].get("continue", "")
            if not token:
                break
    return time.monotonic() - began


async def _with_foreign(here: Stage, people: Population, agents: int, foreign: int) -> _Start:
    """The same agents, and so many pods that are nobody's business."""
    say(f"making {foreign} foreign pods")
    namespace = await here.namespace("foreign")
    url = path("pods", namespace)
    await side_by_side(
        REQUESTS, range(foreign), lambda number: here.client.create(url, _foreign(f"other-{number}"))
    )
    seen = _Start(agents)
    for number in range(STARTS):
        await _start(here, people, seen, f"new-foreign-{number}")
    return seen


def _foreign(name: str) -> Object:
    container = {"name": "other", "image": "example.invalid/other:1"}
    return {"metadata": {"name": name, "labels": {"app": "other"}}, "spec": {"containers": [container]}}


def _starts(once: _Start, twice: _Start) -> list[Figure]:
    figures = []
    for seen in (once, twice):
        taken, floor = median(seen.seconds), median(seen.floor)
        first = seen is once
        figures.append(
            Figure(
                id="P-5",
                what=f"operator start with {seen.agents} agents and their pods, until a new agent has its pod; "
                f"median of {STARTS}",
                measured=f"{taken:.2f} s ({median(seen.cpu):.2f} s of CPU)",
                floor=f"listing them: {floor:.2f} s",
                ratio=taken / floor,
                target=f"<= {SECONDS:g} s" if first else f"<= {GROWTH:g} times the time with half as many",
                met=taken <= (SECONDS if first else GROWTH * median(once.seconds)),
                note=""
                if first
                else f"twice the agents take {taken / median(once.seconds):.2f} times as long",
                detail={"seconds": seen.seconds, "cpu_seconds": seen.cpu, "floor_seconds": seen.floor},
            )
        )
    return figures


def _memory(empty: _Start, once: _Start, before: _Start, crowded: _Start, foreign: int) -> list[Figure]:
    extra = crowded.resident - before.resident
    return [
        Figure(
            id="P-6",
            what=f"peak memory of the operator with {once.agents} agents and their pods",
            measured=f"{once.peak:.0f} MiB (at rest {once.resident:.0f})",
            floor=f"empty: {empty.peak:.0f} MiB (at rest {empty.resident:.0f})",
            ratio=once.peak / empty.peak,
            target=f"<= {RESIDENT:g} MiB",
            met=once.peak <= RESIDENT,
            detail={"resident_mib": once.rested, "peak_mib": once.peak},
        ),
        Figure(
            id="P-6",
            what=f"memory at rest with {foreign} foreign pods beside {before.agents} agents",
            measured=f"{crowded.resident:.0f} MiB",
            floor=f"without them: {before.resident:.0f} MiB",
            ratio=crowded.resident / before.resident,
            target=f"<= +{FOREIGN_EXTRA:g} MiB",
            met=extra <= FOREIGN_EXTRA,
            note=f"foreign pods: {extra:+.1f} MiB at rest, {crowded.peak - before.peak:+.1f} MiB at the peak",
            detail={
                "resident_mib": crowded.rested,
                "resident_without_mib": before.rested,
                "peak_mib": crowded.peak,
                "peak_without_mib": before.peak,
            },
        ),
    ]
