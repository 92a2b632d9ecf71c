"""Agents on the unmodified reporter of ``cks-runtime``: they make their own ids, and are served by the same rules."""

import asyncio
import signal

import pytest
from tests.integration.agents.history import condition
from tests.integration.agents.world import World, all_of
from tests.support.cks import agent_command
from tests.support.wait import eventually


async def create(world: World, name: str, **spec: object) -> None:
    """One that holds a task for three seconds at a time."""
    options = {"liveness": world.liveness(), **spec}
    manifest = world.manifest(name, await asyncio.to_thread(agent_command), **options)
    environment = manifest["spec"]["template"]["spec"]["containers"][0]["env"]
    environment.append({"name": "CKS_TASK_SECONDS", "value": "3"})
    await world.api.create(f"/apis/tenure.dev/v1alpha1/namespaces/{world.namespace}/agentprocesses", manifest)


async def matched(world: World, name: str) -> tuple[str, str]:
    """The pod's UID and the id of the row that the agent made, once status shows that they belong together."""
    item = await world.until(
        name, lambda s: s["phase"] == "Running" and s["instance"].get("rowID"), within=30
    )
    instance = item["status"]["instance"]
    assert instance["id"] != instance["rowID"], "it makes its own id"
    row = await world.row(instance["rowID"])
    assert row is not None
    assert (row["hostname"], row["process_kind"]) == (instance["podName"], name)
    return instance["id"], instance["rowID"]


def finished(world: World, pod: str) -> int:
    """How many tasks it finished, by its own words."""
    return world.kubelet.log(world.namespace, pod).count("finished")


@pytest.mark.accept("L-21", "L-8", "L-10")
async def test_it_is_matched_stopped_and_reported_like_any_other(world: World) -> None:
    restart = {"policy": "Restart", "afterIntervals": 3}
    names = ("resource", "table", "crash", "hung")
    async with world.operator():
        await all_of(*(create(world, name, hung=restart) for name in names))
        found = dict(zip(names, await all_of(*(matched(world, name) for name in names)), strict=True))
        pods = {name: world.pod_name(name) for name in names}
        await world.condition("resource", "Alive", "True", "HeartbeatFresh")
        before = {name: finished(world, pods[name]) for name in names}
        world.kubelet.kill(world.namespace, pods["hung"], number=signal.SIGSTOP)
        world.kubelet.kill(world.namespace, pods["crash"], number=signal.SIGKILL)
        await world.stop("resource")
        await world.mark(found["table"][1])
        await all_of(world.phase("resource", "Draining"), world.phase("table", "Draining", within=5))
        await eventually(lambda: world.is_marked(found["resource"][1]), within=2, what="the row is marked")
        stops = await all_of(*(world.stopped(name, found[name][0]) for name in ("resource", "table")))
        assert [(s["origin"], s["graceful"], s["exitCode"]) for s in stops] == [
            ("Resource", True, 0),
            ("Table", True, 0),
        ]
        for name in ("resource", "table"):
            await world.phase(name, "Stopped")
            assert finished(world, pods[name]) > before[name], "the task in hand was finished"
            assert "ended" in world.kubelet.log(world.namespace, pods[name])
            assert (await world.row(found[name][1]))["last_heartbeat_at"].year == 1970
            assert "Hung" not in world.history.phases(name)
        # A crash is a crash, and the former row is not the new pod's.
        second = await world.next_instance("crash", found["crash"][0], phase="Starting")
        assert world.status("crash")["restarts"] == 1
        await eventually(
            lambda: world.status("crash")["instance"].get("rowID") not in (None, found["crash"][1]), within=15
        )
        assert second == world.status("crash")["instance"]["id"]
        # Silence is judged by the row that it made itself.
        await world.until("hung", lambda s: (s.get("stop") or {}).get("origin") == "Replacement", within=20)
        assert condition(world.history.resources["hung"], "Draining")["reason"] == "StopByReplacement"
        world.kubelet.kill(world.namespace, pods["hung"], number=signal.SIGKILL)
