"""Without survival a server ends with its backend; one that somebody took is let go; nobody needs a backend."""

import asyncio

import pytest
from tests.integration.servers.history import incarnation
from tests.integration.servers.test_ownership import hand_over, handed_over, recovered, running
from tests.integration.servers.world import PROGRAMS, WITHIN, World
from tests.support.api import path
from tests.support.wait import eventually

from tenure.model.masked import Masked
from tenure.ownership.client import ControlClient
from tenure.ownership.endpoint import Endpoint

pytestmark = pytest.mark.timeout(180)


@pytest.mark.accept("S-005.1")
async def test_without_survival_the_server_ends_with_its_backend(world: World) -> None:
    async with world.operator() as operator:
        await world.create(agentSurvival="Disabled")
        pod = await world.alone()
        backend = await running(world)
        await recovered(world, by=incarnation(backend))
        await handed_over(world, backend)
        server = await world.server_pod()
        await world.api.delete(path("pods", world.namespace, pod["metadata"]["name"]))

        def ended() -> bool:
            found = [p for p in world.server_pods() if p["metadata"]["uid"] == server["metadata"]["uid"]]
            return not found or found[0]["status"].get("phase") in ("Succeeded", "Failed")

        await eventually(ended, within=30, what="the server has ended")
        assert not any((await hand_over(world)).values())
        assert operator.metric("tenure_adoptions_total", outcome="adopted", reason="none") == 0


@pytest.mark.accept("O-002.3")
async def test_a_server_that_somebody_else_has_taken_is_let_go(world: World) -> None:
    async with world.operator():
        await world.create(floor_seconds=4, idleTimeoutSeconds=8)
        await world.alone()
        backend = await running(world)
        await recovered(world, by=incarnation(backend))
        given = await handed_over(world, backend)
        endpoint = Endpoint(given["endpoint"], given["server-name"], given["certificate"])
        credential = Masked(given["credential"])
        async with ControlClient(
            endpoint,
            credential=credential,
            home_dir=given["home-dir"],
            expected_identity=given["server-identity"],
        ) as thief:
            rotated = await thief.rotate()
            thief.use(rotated.credential)
            await thief.confirm(rotated.rotation_id)
            await world.condition("OwnershipLost", "True")
        await world.told("OwnershipLost")
        record = await world.record()
        assert record["server_identity"] == given["server-identity"], "no other server is made in its place"
        assert (await hand_over(world))["credential"] == given["credential"]


async def test_without_a_store_no_server_is_made_and_the_resource_says_why(world: World) -> None:
    async with world.operator(databases=[]):
        await world.create()
        await world.alone()
        await world.condition("Stalled", "True", "NoDurableStore")
    assert world.server_pods() == []


async def test_where_no_backend_is_named_the_operator_is_the_backend(world: World) -> None:
    manifest = world.manifest()
    del manifest["spec"]["backend"]
    async with world.operator() as operator:
        await world.api.create(path("controlservers", world.namespace), manifest)
        first = await recovered(world)
        assert first["adopted_by"].endswith(operator.contexts[-1].own.process)
    async with world.operator() as operator:
        second = await recovered(world, other_than=first["adopted_by"])
        assert second["adopted_by"].endswith(operator.contexts[-1].own.process)
        assert second["server_identity"] == first["server_identity"]
        assert second["rotation_id"] == 1
        await world.condition("Ready", "True", "Serving")
        assert not await hand_over(world), "there is nobody to hand a credential over to"
    assert len(world.server_pods()) == 1


async def test_a_server_that_ends_before_it_answers_does_not_keep_the_next_one_waiting(world: World) -> None:
    manifest = world.manifest()
    hanging = {"STAND_IN_PROGRAM": PROGRAMS / "hanging.py", "HANGING": world.evidence.folder / "hanging"}
    env = [{"name": name, "value": str(value)} for name, value in hanging.items()]
    manifest["spec"]["server"]["template"]["spec"]["containers"][0]["env"] += env
    async with world.operator():
        await world.api.create(path("controlservers", world.namespace), manifest)
        await world.alone()
        first = await world.server_pod()

        def waited_for() -> bool:
            asked = any(task.get_name().startswith("handshake ") for task in asyncio.all_tasks())
            # It hangs: killed before that, it would leave it to the next one.
            return asked and (world.evidence.folder / "hanging").exists()

        await eventually(waited_for, within=WITHIN, what="the operator waits for the first server")
        world.kill_server(first)
        record = await recovered(world, by=incarnation(await running(world)))
        assert record["pod_uid"] != first["metadata"]["uid"]
