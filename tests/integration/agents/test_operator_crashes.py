"""The operator ends before or after any of its writes, or never hears what became of one: a fresh operator
reaches the same end. No second pod, no lost stop, one line in the ledger."""

import asyncio
import signal
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.integration.agents.world import CRASHES_WHEN_TOLD, OBEDIENT, World, shell
from tests.support.api import path
from tests.support.crashing import Crashing, Moment
from tests.support.operator import database, operator_process
from tests.support.postgres import PostgresServer
from tests.support.wait import eventually

from tenure.cluster.ports import AgentCluster

# An operator that is killed in the middle of a call leaves the socket of that call to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

AT_ONCE = 8
LEASE = 8
"""Seconds, for operators that are killed: short, and long enough for a busy machine."""
BACKOFF = {"initialSeconds": 1, "maxSeconds": 1}


@dataclass(frozen=True)
class Scenario:
    """``prepare`` brings an agent into the state before, under an operator that is well, and returns its
    instance; ``act`` is what a user does; ``check`` waits for the end state."""

    name: str
    prepare: Callable[[World, str], Awaitable[str]]
    act: Callable[[World, str, str], Awaitable[object]]
    check: Callable[[World, str, str], Awaitable[object]]


async def nothing(world: World, name: str) -> str:
    return ""


async def runs(world: World, name: str, **spec: Any) -> str:
    """An agent without the library, and the row that one with it would have."""
    options = {"backoff": BACKOFF, "liveness": world.liveness(intervalSeconds=60), **spec}
    await world.create(name, shell(CRASHES_WHEN_TOLD), **options)
    pod = await world.pod_running(name)
    uid: str = pod["metadata"]["uid"]
    await world.insert_row(uid, process_kind=name, liveness_interval_s=60.0)
    await world.phase(name, "Running")
    return uid


async def create(world: World, name: str, instance: str) -> None:
    await world.create(name, shell(OBEDIENT))


async def is_running(world: World, name: str, instance: str) -> None:
    await world.phase(name, "Running")
    assert len(world.history.pod_names(name)) == 1
    assert "stop" not in world.status(name)


async def evict(world: World, name: str, instance: str) -> None:
    await world.api.evict(world.namespace, world.pod_name(name))


async def crash(world: World, name: str, instance: str) -> None:
    world.kubelet.kill(world.namespace, world.pod_name(name), number=signal.SIGUSR1)


async def mark(world: World, name: str, instance: str) -> None:
    await world.mark(instance)


async def stop(world: World, name: str, instance: str) -> None:
    await world.stop(name)


async def replace(world: World, name: str, instance: str) -> None:
    await world.change(name, restartToken="2")


def is_stopped(origin: str) -> Callable[[World, str, str], Awaitable[object]]:
    async def check(world: World, name: str, instance: str) -> None:
        end = await world.stopped(name, instance)
        assert end["origin"] == origin
        await world.phase(name, "Stopped")
        await _in_ledger_once(world, name, instance, origin)
        assert len(world.history.pod_names(name)) == 1

    return check


def is_followed(origin: str) -> Callable[[World, str, str], Awaitable[object]]:
    async def check(world: World, name: str, instance: str) -> None:
        await world.next_instance(name, instance, phase="Starting")
        await _in_ledger_once(world, name, instance, origin)
        assert len(world.history.pod_names(name)) == 2

    return check


async def is_restarted(world: World, name: str, instance: str) -> None:
    await world.next_instance(name, instance, phase="Starting")
    status = world.status(name)
    assert (status["restarts"], status["backoff"]["failures"]) == (1, 1), "the end was counted once"
    assert not status.get("stops")
    assert await world.ledger(name) == []
    assert len(world.history.pod_names(name)) == 2


async def _in_ledger_once(world: World, name: str, instance: str, origin: str) -> None:
    await world.until(name, lambda s: [e for e in s.get("stops") or () if e.get("recorded")], within=20)
    stops = world.status(name)["stops"]
    assert [(e["instance"], e["origin"]) for e in stops] == [(instance, origin)]
    rows = await world.ledger(name)
    assert [(r["pod_uid"], r["origin"], r["graceful"]) for r in rows] == [
        (instance, origin, stops[0].get("graceful"))
    ]
    # A pod that is gone before anybody saw its end leaves no exit code, and this agent wrote no last heartbeat.
    assert (stops[0].get("graceful"), stops[0].get("exitCode")) in ((True, 0), (None, None))


SCENARIOS = [
    Scenario("create", nothing, create, is_running),
    Scenario("resource", runs, stop, is_stopped("Resource")),
    Scenario("table", runs, mark, is_stopped("Table")),
    Scenario("disruption", runs, evict, is_followed("Disruption")),
    Scenario("replacement", runs, replace, is_followed("Replacement")),
    Scenario("crash", runs, crash, is_restarted),
]
IDS = [scenario.name for scenario in SCENARIOS]


MakeWorld = Callable[..., Awaitable[World]]


async def interrupted(
    make: Callable[[], Awaitable[World]], scenario: Scenario, moment: Moment, number: int
) -> list[str]:
    """One scenario in which ``moment`` happens at write ``number``, and its end state reached all the same.

    Returns the writes of the first operator since the user acted. 0 as number: nothing happens to it.
    """
    world, name, held = await make(), scenario.name, list[Crashing]()

    def wrap(cluster: AgentCluster) -> AgentCluster:
        held.append(Crashing(cluster))
        return held[-1]

    async with world.operator(wrap_cluster=wrap):
        instance = await scenario.prepare(world, name)
        held[0].arm(number, moment)
        await scenario.act(world, name, instance)
        check = asyncio.create_task(scenario.check(world, name, instance))
        dies = asyncio.create_task(held[0].died.wait())
        await asyncio.wait({check, dies}, return_when=asyncio.FIRST_COMPLETED)
        # Writes may coalesce: not every run makes the last one of the longest.
        over = not dies.done()
        for task in (check, dies):
            task.cancel()
        await asyncio.wait({check, dies})
        if over:
            check.result()
    if not over:
        async with world.operator():
            await scenario.check(world, name, instance)
    return held[0].writes


@pytest.mark.parametrize("scenario", SCENARIOS, ids=IDS)
async def test_a_fresh_operator_reaches_the_same_end_whichever_write_was_the_last(
    make_world: MakeWorld, postgres_server: PostgresServer, scenario: Scenario
) -> None:
    first = await make_world(postgres_server)
    make = partial(make_world, postgres_server, url=first.url)
    writes = await interrupted(make, scenario, Moment.BEFORE, 0)
    assert len(writes) >= 2, writes
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(number: int, moment: Moment) -> None:
        async with gate:
            try:
                await interrupted(make, scenario, moment, number)
            except BaseException as error:
                error.add_note(f"{scenario.name}: {moment} write {number} of {writes}")
                raise

    async with asyncio.TaskGroup() as group:
        for number in range(1, len(writes) + 1):
            for moment in Moment:
                group.create_task(one(number, moment))


@pytest.mark.accept("L-17")
async def test_a_create_that_may_still_be_under_way_is_not_repeated_under_its_name_and_may_land_late(
    world: World,
) -> None:
    held: list[Crashing] = []

    def wrap(cluster: AgentCluster) -> AgentCluster:
        held.append(Crashing(cluster))
        return held[-1]

    async with world.operator(wrap_cluster=wrap):
        held[0].arm(1, Moment.BEFORE)
        await world.create("critic", shell(OBEDIENT))
        async with asyncio.timeout(20):
            await held[0].died.wait()
    assert held[0].writes == ["create"]
    async with world.operator():
        instance = await world.running("critic")
        assert world.status("critic")["instance"]["ordinal"] == 2, "a name of unknown fate is given up"
        # Now it lands after all. The younger of two, whatever their numbers, never gets to work.
        late = await world.api.create(path("pods", world.namespace), held[0].pods[0])
        world.forgiven.append("two pods of critic")
        await eventually(
            lambda: late["metadata"]["uid"] in world.history.pods_seen, within=15, what="it is seen"
        )
        await world.pod_gone(late["metadata"]["uid"])
        assert world.status("critic")["instance"]["id"] == instance
        assert world.status("critic")["phase"] == "Running"


async def test_the_same_after_a_kill_of_the_real_process(
    make_world: MakeWorld, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    first = await make_world(postgres_server)
    make = partial(make_world, postgres_server, url=first.url)
    async with asyncio.TaskGroup() as group:
        for name, number in (("create", 1), ("resource", 2), ("replacement", 5), ("crash", 1)):
            for moment in (Moment.BEFORE, Moment.AFTER):
                scenario = next(s for s in SCENARIOS if s.name == name)
                group.create_task(killed(make, scenario, moment, number, tmp_path / f"{name}-{moment}"))


async def killed(
    make: Callable[[], Awaitable[World]], scenario: Scenario, moment: Moment, number: int, folder: Path
) -> None:
    """One scenario in which the operator's process is killed at write ``number``."""
    world, name, lease = await make(), scenario.name, f"tenure-{uuid.uuid4().hex[:8]}"
    options: dict[str, Any] = {"databases": [database(world.url)], "namespaces": [world.namespace]}
    async with world.operator():
        instance = await scenario.prepare(world, name)
    command = ("-m", "tests.support.crashing", moment, str(number))
    async with operator_process(
        world.plane, folder, lease_name=lease, lease_seconds=LEASE, command=command, **options
    ) as operator:
        await scenario.act(world, name, instance)
        await eventually(
            lambda: operator.process.poll() is not None, within=40, what=f"{name}: killed {moment} {number}"
        )
        assert operator.process.returncode == -signal.SIGKILL, operator.log()
        # The Lease that it could not give up runs out, and the next one takes over by itself.
        async with world.operator(lease_name=lease, lease_namespace=world.namespace):
            await scenario.check(world, name, instance)
