"""What comes at a bad moment: a backend that ends while its server fails, a server that is slow when it is to end, an
operator that comes after the recovery, a database that is away between a write and its answer."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tests.integration.servers import changelings
from tests.integration.servers.history import condition, incarnation
from tests.integration.servers.test_false_servers import IDENTITY, QUICK, ROTATE
from tests.integration.servers.test_false_servers import left_alone as left_as_changeling
from tests.integration.servers.test_ownership import handed_over, recovered, running
from tests.integration.servers.test_refusals import left_alone, next_server, runs
from tests.integration.servers.world import NAME, WITHIN, World
from tests.integration.servers.wrapping import Wrapping
from tests.support.api import path
from tests.support.operator import RunningOperator
from tests.support.wait import eventually

from tenure.storage.errors import DatabaseUnavailable
from tenure.storage.records import ControlServers

pytestmark = pytest.mark.timeout(240)


@pytest.mark.accept("S-003.7")
async def test_a_backend_that_ends_during_a_failing_adoption_leaves_the_next_one_a_deadline(
    world: World,
) -> None:
    async with world.operator():
        server = await left_as_changeling(world, recovery=QUICK)
        failing = {ROTATE: {"status": 500, "body": {"error": "not now"}}}
        other = await changelings.change(world, server, failing)
        await world.alone("next")
        first = await running(world)
        await eventually(lambda: ROTATE in other.asked, within=WITHIN, what="the adoption is under way")
        life = world.kill_backend(first)
        second = await running(world, other_than=life)
        record = await recovered(world, by=incarnation(second))
        assert record["pod_uid"] != server["metadata"]["uid"]


@pytest.mark.accept("S-005.1")
async def test_a_server_that_was_slow_to_answer_is_stopped_when_it_does(world: World) -> None:
    async with world.operator():
        await changelings.create(world, agentSurvival="Disabled", recovery=QUICK)
        pod = await world.alone()
        backend = await running(world)
        await recovered(world, by=incarnation(backend))
        await handed_over(world, backend)
        server = await world.server_pod()
        slow = await changelings.change(world, server, {IDENTITY: {"silent": True}})
        await world.api.delete(path("pods", world.namespace, pod["metadata"]["name"]), grace=0)
        # The second time: the first was given up, its answer never came.
        await eventually(lambda: len(slow.asked) >= 2, within=WITHIN, what="it is asked again")
        await changelings.change(world, server, {})
        await eventually(lambda: not runs(world, server), within=30, what="the server has ended")


@pytest.mark.accept("K-2")
async def test_an_operator_that_comes_after_a_recovery_unsays_nothing_of_it(world: World) -> None:
    async with world.operator():
        first = await world.set_up("s-1")
        await world.working("s-1")
        life = world.kill_backend(first)
        await world.backend(other_than=[life])
        await world.until(lambda s: s["conditions"] and s.get("recovery", {}).get("retracked") == 1)
        await world.condition("Ready", "True")
        said = told_of_recovery(world)
        assert said[1] == "Recovered"
    async with world.operator() as operator:
        await _looked_after(world, operator)
        assert told_of_recovery(world) == said


def told_of_recovery(world: World) -> tuple[Any, ...]:
    """What the status says of the latest recovery."""
    recovered = condition(world.history.resources[NAME], "Recovered")
    return (
        world.status()["recovery"],
        recovered["reason"],
        recovered["message"],
        recovered["lastTransitionTime"],
    )


async def _looked_after(world: World, operator: RunningOperator) -> None:
    """Wait until this operator has enumerated the instances, and a pass that followed has written what is new."""
    await eventually(
        lambda: operator.metric("tenure_control_servers", phase="Running") == 1,
        within=WITHIN,
        what="it is seen",
    )
    budget = f"/apis/policy/v1/namespaces/{world.namespace}/poddisruptionbudgets"
    for item in await world.api.list(budget):
        await world.api.delete(f"{budget}/{item['metadata']['name']}")

    async def protected() -> bool:
        return bool(await world.api.list(budget))

    await world.change(detachedEventLimit=99)
    await eventually(protected, within=2 * WITHIN, what="the server is looked after")
    await world.change(detachedEventLimit=98)
    await world.until(lambda s: s.get("observedGeneration") == 3, what="a pass that follows")


@pytest.mark.accept("M-1")
async def test_a_server_that_was_left_alone_and_stops_itself_is_counted_once(world: World) -> None:
    async with world.operator() as operator:
        server, _ = await left_alone(world, floor_seconds=4, idleTimeoutSeconds=8)
        await world.api.delete(path("secrets", world.namespace, server["metadata"]["name"]))
        await next_server(world, server)
        await eventually(lambda: not runs(world, server), within=WITHIN, what="it stops itself")
        await eventually(
            lambda: operator.metric("tenure_unowned_shutdowns_total") == 1,
            within=WITHIN,
            what="it is counted",
        )
        await world.told("UnownedShutdown")
    async with world.operator() as operator:
        await world.condition("Ready", "True")
        await world.change(detachedEventLimit=99)
        await world.until(lambda s: s.get("observedGeneration") == 2, what="the next operator has looked")
        assert operator.metric("tenure_unowned_shutdowns_total") == 0
        assert len(await world.events("UnownedShutdown")) == 1


def losing_the_answer(
    method: Callable[..., Awaitable[Any]], lost: list[str]
) -> Callable[..., Awaitable[Any]]:
    """The same call, done each time, and answered from the second time on."""

    async def call(*args: Any, **options: Any) -> Any:
        found = await method(*args, **options)
        if method.__name__ not in lost:
            lost.append(method.__name__)
            raise DatabaseUnavailable("store", "the connection was lost")
        return found

    return call


@pytest.mark.accept("M-1")
async def test_what_is_durable_is_told_though_its_answer_was_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.operator() as operator:
        first = await world.set_up("s-1")
        await world.working("s-1")
        before = operator.metric("tenure_recovery_duration_seconds_count")
        lost: list[str] = []
        for name in ("set_recovered", "vacate"):
            monkeypatch.setattr(ControlServers, name, losing_the_answer(getattr(ControlServers, name), lost))
        life = world.kill_backend(first)
        second = await world.backend(other_than=[life])
        await eventually(
            lambda: operator.metric("tenure_instances_retracked_total") == 1,
            within=WITHIN,
            what="it is counted",
        )
        assert operator.metric("tenure_recovery_duration_seconds_count") == before + 1
        assert lost == ["set_recovered"]

        server = await world.server_pod()
        await world.api.delete(path("secrets", world.namespace, server["metadata"]["name"]))
        life = world.kill_backend(second)
        await world.backend(other_than=[life])
        assert lost == ["set_recovered", "vacate"]
        refused = {"outcome": "refused", "reason": "credential_unavailable"}
        assert operator.metric("tenure_adoptions_total", **refused) == 1
        await world.condition("Adopted", "False", "CredentialUnavailable")
        assert operator.metric("tenure_instances_retracked_total") == 1


@dataclass(kw_only=True)
class Behind(Wrapping):
    """Its answer about a ControlServer is on its way while ``meanwhile`` happens."""

    meanwhile: Callable[[], Awaitable[None]] | None = None

    async def get_control_server(self, namespace: str, name: str) -> Any:
        found = await self.inner.get_control_server(namespace, name)
        happens, self.meanwhile = self.meanwhile, None
        if happens is not None:
            await happens()
        return found


@pytest.mark.accept("S-005.5")
async def test_what_was_said_before_a_backend_started_holds_for_it(world: World) -> None:
    cluster = Behind()
    async with world.operator(wrap_servers=cluster):
        server, _ = await left_alone(world)

        async def meanwhile() -> None:
            await world.change(agentSurvival="Disabled")
            await world.scale(1)
            await world.backend(recovered=False)
            # The operator's own watch tells of it at the same time: by then, as good as certainly.
            await asyncio.sleep(0.5)

        cluster.meanwhile = meanwhile
        await world.change(detachedEventLimit=99)
        await world.backend()
        assert cluster.meanwhile is None
        assert (await world.record())["pod_uid"] != server["metadata"]["uid"]
        await eventually(lambda: not runs(world, server), within=WITHIN, what="the survivor has ended")
