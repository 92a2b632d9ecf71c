"""A server that ended, and one that does not start: what people are told of it."""

import pytest
from tests.integration.servers.history import condition, incarnation
from tests.integration.servers.test_ownership import recovered, running
from tests.integration.servers.test_refusals import left_alone
from tests.integration.servers.world import NAME, WITHIN, World
from tests.support.api import Object, path
from tests.support.wait import eventually

pytestmark = pytest.mark.timeout(240)


async def ends(world: World) -> list[Object]:
    """The Events of ended servers."""
    return await world.events("ServerEnded")


def message(world: World) -> str:
    """Of the condition Ready, as last seen."""
    return str(condition(world.history.resources[NAME], "Ready")["message"])


async def says(world: World, *words: str) -> None:
    """Wait until the condition Ready says all of this."""
    what = f"Ready says {words}"
    try:
        await eventually(lambda: all(w in message(world) for w in words), within=WITHIN, what=what)
    except AssertionError as error:
        raise AssertionError(f"{error}; it says {message(world)!r}") from None


async def seen_by_another(world: World, phase: str) -> None:
    """The next operator starts, and has had a pass over the ControlServer, with whatever it told of it."""
    async with world.operator() as operator:
        await eventually(
            lambda: operator.metric("tenure_control_servers", phase=phase) == 1,
            within=WITHIN,
            what="the next operator has looked",
        )
        await operator.contexts[-1].events.flushed()


@pytest.mark.accept("K-5", "M-2")
async def test_a_server_that_is_killed_while_no_backend_is_there_is_told_once(world: World) -> None:
    async with world.operator() as operator:
        server, _ = await left_alone(world)
        world.kill_server(server)
        await world.condition("Ready", "False", "ServerEnded")
        await says(world, "(Error, exit code 137)", "no backend runs")
        await world.told("ServerEnded")
        await operator.contexts[-1].events.flushed()
    await seen_by_another(world, "Pending")
    await seen_by_another(world, "Pending")
    (event,) = await ends(world)
    assert event["type"] == "Warning"
    assert event["note"] == (
        "the control server has ended (Error, exit code 137): the agent of 1 session is gone"
    )
    async with world.operator() as operator:
        await world.scale(1)
        await world.backend()
        await operator.contexts[-1].events.flushed()
    assert len(await ends(world)) == 1, "the next backend's recovery tells what became of the session"


@pytest.mark.accept("K-5")
async def test_a_server_that_ended_while_no_operator_was_there_is_told_by_the_next(world: World) -> None:
    async with world.operator():
        server, _ = await left_alone(world)
    world.kill_server(server)
    await seen_by_another(world, "Pending")
    await seen_by_another(world, "Pending")
    assert [event["type"] for event in await ends(world)] == ["Warning"]


@pytest.mark.accept("K-5")
async def test_a_server_that_is_killed_under_its_backend_is_told_once(world: World) -> None:
    async with world.operator() as operator:
        await world.set_up("s-1", "s-2")
        server = await world.server_pod()
        world.kill_server(server)
        await world.server_pod(other_than=[server["metadata"]["uid"]])
        await world.until(
            lambda s: (s.get("pod") or {}).get("uid") != server["metadata"]["uid"] and s.get("recoveredBy")
        )
        await operator.contexts[-1].events.flushed()
    (event,) = await ends(world)
    assert (event["type"], event["reason"]) == ("Warning", "ServerEnded")
    assert "exit code 137): the agents of 2 sessions are gone" in event["note"]


@pytest.mark.accept("O-003.1", "M-1")
async def test_a_server_that_stopped_itself_is_told_as_that_and_once(world: World) -> None:
    async with world.operator() as operator:
        await left_alone(world, floor_seconds=3, idleTimeoutSeconds=8)
        await world.told("UnownedShutdown")
        await world.condition("Ready", "False", "ServerEnded")
        await operator.contexts[-1].events.flushed()
    await seen_by_another(world, "Pending")
    assert len(await world.events("UnownedShutdown")) == 1
    assert not await ends(world)


async def test_a_server_that_fails_at_its_start_says_why(world: World) -> None:
    manifest = world.manifest()
    variables = manifest["spec"]["server"]["template"]["spec"]["containers"][0]["env"]
    variables[0]["value"] = "/nowhere/at/all"
    async with world.operator():
        await world.api.create(path("controlservers", world.namespace), manifest)
        await world.alone()
        await says(world, "ended at its start", "exit code 2", "names a directory that does not exist")
        assert "/nowhere" not in message(world), "settings are named, and no value is quoted"
        await eventually(lambda: len(world.server_pods()) > 1, within=WITHIN, what="it is tried again")

        def found() -> list[str]:
            seen = (item for item in world.history.versions(NAME) if item.get("status"))
            return [str(condition(item, "Ready")["message"]) for item in seen]

        def while_the_next_starts() -> bool:
            return any("not in use yet" in said and "the one before ended" in said for said in found())

        await eventually(while_the_next_starts, within=WITHIN, what="the reason while it is tried again")
        # Whatever comes next, the reason stays readable.
        first = next(number for number, said in enumerate(found()) if "exit code 2" in said)
        assert all("names a directory that does not exist" in said for said in found()[first:]), found()


async def test_a_pod_that_does_not_start_says_what_to_do(world: World) -> None:
    node = path("nodes", None, world.kubelet.node)
    await world.api.patch(node, {"spec": {"unschedulable": True}})
    try:
        async with world.operator():
            await world.create()
            # No scheduler and no registry is here: what they say of this pod is written by the test.
            await world.api.create(
                path("pods", world.namespace),
                {
                    "metadata": world.backend_template()["metadata"] | {"name": "alone"},
                    "spec": world.backend_template()["spec"] | {"nodeName": world.kubelet.node},
                },
            )
            pod = await eventually(lambda: next(iter(world.server_pods()), None), within=WITHIN)
            where = path("pods", world.namespace, pod["metadata"]["name"], "status")
            unscheduled = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "0/1 nodes are available: 1 Insufficient memory.",
            }
            await world.api.patch(where, {"status": {"conditions": [unscheduled]}})
            await says(world, "no node takes", "1 Insufficient memory", "spec.server.resources")
            waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "x": not found'}
            container = {"name": "server", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
            state = {**container, "state": {"waiting": waiting}}
            await world.api.patch(where, {"status": {"containerStatuses": [state]}})
            await says(world, "ImagePullBackOff", "not found", "spec.server.image", "imagePullSecrets")
    finally:
        await world.api.patch(node, {"spec": {"unschedulable": None}})


async def test_a_corrected_spec_reaches_a_server_that_does_not_start(world: World) -> None:
    missing = {"name": "GREETING", "valueFrom": {"secretKeyRef": {"name": "no-such-secret", "key": "text"}}}
    async with world.operator():
        made = await world.create()
        right = made["spec"]["server"]["template"]
        (container,) = right["spec"]["containers"]
        wrong = {"spec": {"containers": [{**container, "env": [*container["env"], missing]}]}}
        await world.change(server={"template": wrong})
        await world.alone()

        def waits() -> str:
            return next((pod["metadata"]["uid"] for pod in world.server_pods()), "")

        first = await eventually(waits, within=WITHIN, what="a pod is made that cannot start")
        await world.condition("Ready", "False", "ServerStarting")
        await world.change(server={"template": right})
        record = await recovered(world, by=incarnation(await running(world)))
        assert record["pod_uid"] != first


async def test_the_second_control_server_of_an_installation_says_nothing_of_the_server_of_the_first(
    world: World,
) -> None:
    async with world.operator():
        await world.create()
        await world.alone()
        await recovered(world, by=incarnation(await running(world)))
        await world.create("copy")
        stalled = await world.condition("Stalled", "True", "ForeignChild", name="copy")
        assert f"ControlServer {NAME} is older" in stalled["message"]
        for kind in ("Adopted", "Recovered"):
            await world.condition(kind, "Unknown", "NotObserved", name="copy")
        assert "serverIdentity" not in world.status("copy")
        world.kill_server(await world.server_pod())
        await world.condition("Recovered", "False", "ServerEnded")
        assert condition(world.history.resources["copy"], "Recovered")["reason"] == "NotObserved"
        await world.change("copy", idleTimeoutSeconds=1800)
        await world.until(lambda status: status.get("observedGeneration") == 2, name="copy")
        assert condition(world.history.resources["copy"], "Recovered")["reason"] == "NotObserved"
