"""What people and pipelines do: ``kubectl wait``, and reading conditions that are always there."""

import asyncio

import pytest
from tests.integration.agents.history import CONDITIONS
from tests.integration.agents.world import OBEDIENT, World, shell
from tests.support.cluster import kubectl
from tests.support.crashing import Crashing

from tenure.cluster.ports import AgentCluster


async def wait(world: World, name: str, what: str) -> None:
    """The real ``kubectl wait``, begun now."""
    words = (
        "wait",
        "--namespace",
        world.namespace,
        f"agentprocess/{name}",
        f"--for=condition={what}",
        "--timeout=15s",
    )
    await asyncio.to_thread(kubectl, world.plane, *words)


async def phase_now(world: World, name: str) -> str:
    """What the API server says: the watch of this test may be behind the one of ``kubectl``."""
    found: str = (await world.api.get(world.url_of(name)))["status"]["phase"]
    return found


@pytest.mark.accept("L-22")
async def test_kubectl_wait_works_for_ready_stopped_and_a_new_start(world: World) -> None:
    async with world.operator():
        await world.create("plain", shell(OBEDIENT))
        await wait(world, "plain", "Ready")
        assert await phase_now(world, "plain") == "Running"
        await world.stop("plain")
        await wait(world, "plain", "Stopped")
        assert await phase_now(world, "plain") == "Stopped"
        await wait(world, "plain", "Ready")  # stopped as asked is as ready as can be
        await world.start("plain")
        await wait(world, "plain", "Stopped=False")
        await world.running("plain")
        await wait(world, "plain", "Ready")
    for item in world.history.versions("plain"):
        found = item.get("status", {}).get("conditions")
        if found:
            assert {c["type"] for c in found} == CONDITIONS
            assert all(c["observedGeneration"] for c in found)
    assert len([i for i in world.history.versions("plain") if i.get("status")]) > 5


@pytest.mark.accept("L-22")
async def test_the_first_status_says_ready_unknown_and_has_every_condition(world: World) -> None:
    async with world.operator():
        await world.create("plain", shell(OBEDIENT))
        await world.running("plain")
    first = next(i["status"] for i in world.history.versions("plain") if i.get("status"))
    ready = next(c for c in first["conditions"] if c["type"] == "Ready")
    assert ready["status"] == "Unknown"
    assert {c["type"] for c in first["conditions"]} == CONDITIONS


@pytest.mark.accept("L-22")
async def test_nothing_is_written_when_nothing_changes(world: World) -> None:
    held: list[Crashing] = []

    def counting(cluster: AgentCluster) -> AgentCluster:
        held.append(Crashing(cluster))
        return held[-1]

    async with world.operator(wrap_cluster=counting):
        await world.create("critic")
        await world.running("critic")
        await world.condition("critic", "Alive", "True")
        await asyncio.sleep(1)
        written = list(held[0].writes)
        before = world.history.resources["critic"]["metadata"]["resourceVersion"]
        # Three heartbeats, and a change that concerns nobody.
        await world.api.patch(world.url_of("critic"), {"metadata": {"labels": {"seen": "yes"}}})
        await asyncio.sleep(3)
        assert held[0].writes == written
        assert world.history.resources["critic"]["metadata"]["resourceVersion"] != before
