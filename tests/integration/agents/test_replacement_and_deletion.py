"""Changed templates, new tokens, deletions: all of them drain first, and there are never two pods of an agent."""

import asyncio
import json

import pytest
from tests.integration.agents.world import DEAF, OBEDIENT, World, all_of, shell
from tests.support.api import ApiError, path
from tests.support.wait import eventually


@pytest.mark.accept("L-17")
async def test_a_changed_template_and_a_new_token_replace_the_instance_once_its_task_is_done(
    world: World,
) -> None:
    async with world.operator():
        await all_of(world.create("template"), world.create("token"))
        template, token = await all_of(world.running("template"), world.running("token"))
        tasks = await all_of(world.busy("template"), world.busy("token"))
        changed = world.manifest("template")["spec"]["template"]
        changed["metadata"] = {"labels": {"version": "2"}}
        await all_of(world.change("template", template=changed), world.change("token", restartToken="2"))
        for name in ("template", "token"):
            status = await world.phase(name, "Draining")
            assert status["stop"]["origin"] == "Replacement"
        await asyncio.sleep(1)
        assert all(len(world.history.pod_names(name)) == 1 for name in ("template", "token"))
        await all_of(*(world.release(task) for task in tasks))
        await all_of(world.next_instance("template", template), world.next_instance("token", token))
        await world.assert_finished_once(*tasks)
        assert world.history.pods_of("template")[-1]["metadata"]["labels"]["version"] == "2"
        assert world.status("token")["instance"]["restartToken"] == "2"
        for name, former in (("template", template), ("token", token)):
            stop = world.status(name)["stops"][-1]
            assert (stop["instance"], stop["origin"], stop["graceful"]) == (former, "Replacement", True)
        # Nothing but the template counts: a label of the object or another grace replaces nobody.
        before = world.status("token")["instance"]["id"]
        await world.change("token", drain={"gracePeriodSeconds": 45}, stuckTaskSeconds=100)
        await world.until("token", lambda s: s["observedGeneration"] == 3)
        await asyncio.sleep(0.5)
        assert world.status("token")["instance"]["id"] == before


@pytest.mark.accept("L-17")
async def test_a_template_changed_twice_in_a_drain_makes_one_new_instance(world: World) -> None:
    async with world.operator():
        await world.create("critic")
        first = await world.running("critic")
        task = await world.busy("critic")
        for version in ("2", "3"):
            template = world.manifest("critic")["spec"]["template"]
            template["metadata"] = {"labels": {"version": version}}
            await world.change("critic", template=template)
            await world.phase("critic", "Draining")
        await world.release(task)
        await world.next_instance("critic", first)
        assert len(world.history.pod_names("critic")) == 2
        assert world.history.pods_of("critic")[-1]["metadata"]["labels"]["version"] == "3"


@pytest.mark.accept("L-17")
@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
async def test_a_deletion_lets_the_task_finish(world: World, propagation: str) -> None:
    async with world.operator():
        await world.create("critic")
        instance = await world.running("critic")
        task = await world.busy("critic")
        await world.delete("critic", propagation)
        await eventually(
            lambda: "deletionTimestamp" in world.history.pods[instance]["metadata"], within=10, every=0.02
        )
        # The row is asked too, and the grace is the one that the pod was made with.
        await eventually(lambda: world.is_marked(instance), within=10, what="the row is marked")
        assert world.history.pods[instance]["metadata"]["deletionGracePeriodSeconds"] == 30
        if propagation == "Foreground":
            status = await world.phase("critic", "Draining")
            assert status["stop"]["origin"] == "Deletion"
        await world.release(task)
        await world.pod_gone(instance)
        await eventually(lambda: "critic" not in world.history.resources, within=60)
        await world.assert_finished_once(task)
        rows = await world.ended_in_ledger("critic")
        assert [(r["origin"], r["graceful"], r["exit_code"]) for r in rows] == [("Deletion", True, 0)]
        assert len(world.history.pod_names("critic")) == 1


@pytest.mark.accept("L-17")
async def test_a_resource_made_again_under_its_name_waits_for_the_former_pod(world: World) -> None:
    async with world.operator():
        await world.create("critic")
        former = await world.running("critic")
        task = await world.busy("critic")
        await world.delete("critic")
        await eventually(lambda: "critic" not in world.history.resources, within=5)
        await world.create("critic")
        status = await world.phase("critic", "Pending")
        assert not status.get("instance", {}).get("id")
        await asyncio.sleep(1.5)
        assert len(world.history.pods) == 1
        await world.release(task)
        await world.pod_gone(former)
        second = await world.running("critic")
        assert second != former
        await world.assert_finished_once(task)
        assert "stop" not in world.status("critic"), "the end of another object's pod is none of its own"


@pytest.mark.accept("L-17")
async def test_a_hung_or_deaf_pod_is_replaced_only_when_it_has_ended(world: World) -> None:
    async with world.operator():
        await world.create("deaf", shell(DEAF), drain={"gracePeriodSeconds": 2})
        first = await world.running("deaf")
        await world.change("deaf", restartToken="1")
        await world.next_instance("deaf", first)
        stop = world.status("deaf")["stops"][-1]
        assert (stop["origin"], stop["graceful"], stop["exitCode"]) == ("Replacement", False, 137)


async def test_the_containers_beside_the_agent_end_when_the_agent_has_ended(world: World) -> None:
    manifest = world.manifest(
        "helped", shell("trap 'exit 0' USR1 TERM; while :; do sleep 60 & wait $!; done")
    )
    manifest["spec"]["template"]["spec"]["containers"].append(
        {"name": "helper", "image": "example.invalid/helper:1", "command": shell(OBEDIENT)}
    )
    async with world.operator():
        await world.api.create(path("agentprocesses", world.namespace), manifest)
        instance = await world.running("helped")
        world.kubelet.kill(world.namespace, world.pod_name("helped"), number=10)
        stop = await world.stopped("helped", instance)
        assert ("origin" in stop, stop["graceful"], stop["exitCode"]) == (False, True, 0)
        await world.pod_gone(instance)
        await world.phase("helped", "Stopped")


@pytest.mark.accept("L-17")
async def test_the_namespaces_deletion_lets_the_task_finish_and_starts_nothing(world: World) -> None:
    async with world.operator():
        await all_of(world.create("critic"), world.create("plain", shell(OBEDIENT)))
        critic, plain = await all_of(world.running("critic"), world.running("plain"))
        task = await world.busy("critic")
        await world.api.delete(path("namespaces", None, world.namespace))
        await world.pod_gone(plain)
        # The pods go first, and the resource still says Running: a create that is refused for this is no fault.
        await asyncio.sleep(1)
        assert critic in world.history.pods
        await world.release(task)
        await world.pod_gone(critic)
        await world.assert_finished_once(task)
        await eventually(lambda: not world.history.resources, within=60)
        assert {len(world.history.pod_names(name)) for name in ("critic", "plain")} == {1}
        rows = await world.ended_in_ledger("critic")
        assert rows[0]["graceful"] is True


@pytest.mark.accept("L-19")
async def test_deleting_works_with_the_operator_down(world: World) -> None:
    async with world.operator():
        await all_of(
            world.create("background"),
            world.create("foreground", shell(OBEDIENT)),
            world.create("orphan", shell(OBEDIENT)),
        )
        background, foreground, orphan = await all_of(
            *(world.running(name) for name in ("background", "foreground", "orphan"))
        )
        task = await world.busy("background")
    for item in [*world.history.resources.values(), *world.history.pods.values()]:
        assert not item["metadata"].get("finalizers")
        assert not [key for key in item["metadata"].get("annotations") or {} if "kopf" in key]
    for plural in ("events", "secrets", "configmaps", "serviceaccounts", "leases"):
        for item in await world.api.list(path(plural, world.namespace)):
            assert "kopf" not in json.dumps(item["metadata"]), plural
            assert not item["metadata"].get("finalizers"), plural
    assert "kopf" not in json.dumps(await world.api.get(path("namespaces", None, world.namespace)))
    await all_of(
        world.delete("background"), world.delete("foreground", "Foreground"), world.delete("orphan", "Orphan")
    )
    await all_of(world.pod_gone(foreground), eventually(lambda: not world.history.resources, within=60))
    assert background in world.history.pods, "it still has its task in hand"
    await world.release(task)
    await world.pod_gone(background)
    await world.assert_finished_once(task)
    # Left behind on purpose: it goes on, and is nobody's.
    left = await world.api.get(path("pods", world.namespace, world.history.pods[orphan]["metadata"]["name"]))
    assert not left["metadata"].get("ownerReferences")
    assert left["status"]["phase"] == "Running"


@pytest.mark.accept("L-19")
async def test_an_orphaned_pod_is_left_alone_by_the_operator_too(world: World) -> None:
    async with world.operator():
        await world.create("orphan", shell(OBEDIENT))
        instance = await world.running("orphan")
        await world.delete("orphan", "Orphan")
        await eventually(lambda: not world.history.resources, within=60)
        await asyncio.sleep(1)
        pod = world.history.pods[instance]
        assert "deletionTimestamp" not in pod["metadata"]
        assert pod["status"]["phase"] == "Running"


@pytest.mark.accept("L-19")
async def test_a_namespace_goes_with_the_operator_down(world: World) -> None:
    async with world.operator():
        await world.create("plain", shell(OBEDIENT))
        await world.running("plain")
    await world.api.delete(path("namespaces", None, world.namespace))

    async def gone() -> bool:
        try:
            await world.api.get(path("namespaces", None, world.namespace))
        except ApiError as error:
            return error.status == 404
        return False

    await eventually(gone, within=90)
