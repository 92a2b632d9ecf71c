"""Somebody deletes, makes anew or overwrites what is the operator's: no agent is lost by that, or started twice."""

import asyncio
from base64 import b64encode

import pytest
from tests.integration.servers.history import container_of, incarnation
from tests.integration.servers.test_ownership import recovered, running
from tests.integration.servers.test_refusals import left_alone, next_server, runs
from tests.integration.servers.world import NAME, WITHIN, World
from tests.support.api import Object, path
from tests.support.wait import eventually

pytestmark = pytest.mark.timeout(240)

GARBAGE = b64encode(b"garbage").decode()
OTHER = b64encode(b"0123456789abcdef" * 4).decode()


@pytest.mark.accept("S-003.6", "S-002.8")
async def test_a_resource_that_is_made_anew_takes_no_agent_for_dead_whose_pod_still_runs(
    world: World,
) -> None:
    """As after ``kubectl replace --force``: the old server's pod is not the new object's, and ends late, or never."""
    async with world.operator():
        await world.set_up("s-1")
        server = await world.server_pod()
        await world.working("s-1")
        agent, old = world.evidence.living("s-1"), await world.record()
        await world.api.delete(path("controlservers", world.namespace, NAME), propagation="Orphan")

        async def gone() -> bool:
            return await world.api.find(path("controlservers", world.namespace, NAME)) is None

        await eventually(gone, within=WITHIN, what="the object is gone")
        await world.create()

        async def fresh() -> bool:
            record = await world.record()
            other = record["server_identity"] not in (None, old["server_identity"])
            return other and record["recovered_by"] == old["recovered_by"]

        await eventually(fresh, within=WITHIN, what="another server is in use, and recovery is over")
        assert runs(world, server)
        assert (await world.session("s-1"))["status"] == "running"
        assert world.evidence.living("s-1") == agent
        # Orphaned, too, and nobody's now: that bars the hand-over, and nothing else.
        await world.condition("Stalled", "True", "ForeignChild")
        await world.delete_pod(server)

        async def repaired() -> bool:
            return bool((await world.session("s-1"))["status"] == "stopped")

        await eventually(repaired, within=3 * WITHIN, what="the row ends when the old object's pod has gone")
        assert not set(agent) & set(world.evidence.living("s-1"))


@pytest.mark.accept("S-003.6")
async def test_a_pod_without_its_label_is_a_server_all_the_same(world: World) -> None:
    async with world.operator():
        server, agent = await left_alone(world)
        secret = path("secrets", world.namespace, server["metadata"]["name"])
        await world.api.patch(secret, {"data": {"credential": OTHER}})
        await next_server(world, server)
        # It is on record no more, and by this no watch shows it, and no list that looks for labels.
        pod = path("pods", world.namespace, server["metadata"]["name"])
        await world.api.patch(pod, {"metadata": {"labels": {"tenure.dev/role": None}}})
    async with world.operator():
        await world.condition("Ready", "True")
        fresh = await world.server_pod(other_than=[server["metadata"]["uid"]])
        life = await world.delete_pod(await world.backend())
        await world.backend(other_than=[life])
        assert fresh["metadata"]["uid"] == (await world.record())["pod_uid"]
        assert world.evidence.living("s-1") == [agent]
        assert (await world.session("s-1"))["status"] == "running"


async def served(world: World) -> Object:
    """A server in use that would end soon if nobody claimed it, the operator being its backend; its pod."""
    manifest = world.manifest(floor_seconds=4, idleTimeoutSeconds=8)
    del manifest["spec"]["backend"]
    await world.api.create(path("controlservers", world.namespace), manifest)
    await recovered(world)
    await world.condition("Ready", "True")
    return await world.server_pod()


@pytest.mark.accept("O-003.2")
@pytest.mark.parametrize("what", ["it is deleted", "its certificate is none", "its credential is another"])
async def test_a_server_in_use_is_kept_whatever_becomes_of_its_secret(world: World, what: str) -> None:
    async with world.operator():
        server = await served(world)
        secret = path("secrets", world.namespace, server["metadata"]["name"])
        if what == "it is deleted":
            await world.api.delete(secret)
        elif what == "its certificate is none":
            await world.api.patch(secret, {"data": {"certificate": GARBAGE}})
        else:
            await world.api.patch(secret, {"data": {"credential": OTHER}})
        await world.change(agentProfiles=[{"name": "any", "command": ["agent"]}])
        await world.until(lambda s: s.get("observedGeneration") == 2, what="a pass has seen it")
        if what != "its credential is another":
            await world.condition("Ready", "False", "CredentialLost")
            await world.condition("Ready", "True")
        # Three times its unowned period: a fact about time, and nothing to wait for.
        await asyncio.sleep(12)
        (pod,) = (p for p in world.server_pods() if p["metadata"]["uid"] == server["metadata"]["uid"])
        assert "running" in container_of(pod)["state"], container_of(pod)
        first = (await world.record())["adopted_by"]
    if what == "its credential is another":
        return
    async with world.operator():
        # It was written again, from memory: so another operator can take the server over.
        await eventually(lambda: taken_over(world, first), within=WITHIN, what="the next operator has it")
        assert (await world.record())["pod_uid"] == server["metadata"]["uid"]


async def taken_over(world: World, first: str) -> bool:
    record = await world.record()
    return record["adopted_by"] != first and record["recovered_by"] == record["adopted_by"]


async def test_a_bootstrap_secret_of_garbage_costs_one_pod(world: World) -> None:
    async with world.operator():
        await world.create()
        spoilt = asyncio.create_task(_spoil_the_first(world))
        await world.alone()
        backend = await running(world)
        await spoilt
        # The operator of this world fails the test for anything that it did not foresee.
        await recovered(world, by=incarnation(backend))


async def _spoil_the_first(world: World) -> None:
    while True:
        for item in await world.api.list(path("secrets", world.namespace)):
            name = item["metadata"]["name"]
            if name.endswith("-1-bootstrap"):
                await world.api.patch(path("secrets", world.namespace, name), {"data": {"tls.crt": GARBAGE}})
                return
        await asyncio.sleep(0.01)
