"""An operator that ends, starts or cannot reach the API server stops no agent, and forgets nothing."""

import asyncio
import json
import signal
from pathlib import Path

import pytest
from tests.integration.agents.world import CRASHES_WHEN_TOLD, OBEDIENT, World, all_of, shell
from tests.support.api import path
from tests.support.operator import database, operator_process
from tests.support.wait import eventually


@pytest.mark.accept("L-19", "L-17")
async def test_a_new_operator_replaces_nothing_and_its_sigterm_stops_nothing(
    world: World, tmp_path: Path
) -> None:
    async with world.operator():
        await all_of(world.create("critic"), world.create("plain", shell(OBEDIENT)))
        critic, plain = await all_of(world.running("critic"), world.running("plain"))
        task = await world.busy("critic")
        await world.until("critic", lambda s: s.get("currentTask"))
    options = {"databases": [database(world.url)], "namespaces": [world.namespace]}
    async with operator_process(world.plane, tmp_path, **options) as operator:
        await world.create("later", shell(OBEDIENT))
        await world.running("later")
        assert (await operator.page("readyz"))[0] == 200
        assert await operator.terminate() == 0
        lines = [json.loads(line) for line in operator.log().splitlines()]
        assert lines[-1]["event"] == "stopped; agents go on"
    await asyncio.sleep(0.5)
    assert [world.status(name)["instance"]["id"] for name in ("critic", "plain")] == [critic, plain]

    def all_run() -> bool:
        pods = world.history.pods.values()
        return len(pods) == 3 and all(pod["status"]["phase"] == "Running" for pod in pods)

    # That the last one runs may be news to this test's watch; one that was stopped would never run again.
    await eventually(all_run, within=5, what="all three run")
    await world.release(task)

    async def finished() -> bool:
        return await world.journal(task) == ["start", "finish"]

    await eventually(finished, within=5, what="the task is finished")


@pytest.mark.accept("L-9", "L-10", "L-18", "L-13")
async def test_what_happened_while_no_operator_was_there_is_seen_by_the_next(world: World) -> None:
    names = ("resource", "table", "toggled", "crashed", "deleted")
    async with world.operator():
        await all_of(
            *(world.create(name, shell(CRASHES_WHEN_TOLD), liveness=world.liveness()) for name in names)
        )
        pods = await all_of(*(world.pod_running(name) for name in names))
        uids = {name: pod["metadata"]["uid"] for name, pod in zip(names, pods, strict=True)}
        for name, uid in uids.items():
            await world.insert_row(uid, process_kind=name, liveness_interval_s=600.0)
        await all_of(*(world.phase(name, "Running") for name in names))
    await world.stop("resource")
    await world.mark(uids["table"])
    await world.stop("toggled")
    await world.start("toggled")
    world.kubelet.kill(world.namespace, world.pod_name("crashed"), number=signal.SIGUSR1)
    await world.api.delete(path("pods", world.namespace, world.pod_name("deleted")))
    await world.pod_gone(uids["deleted"])
    await asyncio.sleep(0.5)
    assert len(world.history.pods) == 4, "without an operator nothing else happens"
    async with world.operator():
        stops = await all_of(*(world.stopped(name, uids[name]) for name in ("resource", "table")))
        assert [stop["origin"] for stop in stops] == ["Resource", "Table"]
        await all_of(
            *(world.next_instance(name, uids[name], phase="Starting") for name in ("crashed", "deleted"))
        )
        assert world.status("crashed")["restarts"] == 1
        assert world.status("deleted")["stops"][-1]["origin"] == "Disruption"
        # A toggle that nobody saw is none.
        assert world.status("toggled")["instance"]["id"] == uids["toggled"]
        assert world.status("toggled")["phase"] == "Running"


@pytest.mark.accept("L-9")
async def test_an_api_server_that_is_away_costs_time_and_nothing_else(world: World) -> None:
    async with world.operator(lease_seconds=9, may_fail=True) as operator:
        await world.create("critic")
        first = await world.running("critic")
        task = await world.busy("critic")
        world.plane.stop_api_server()
        try:
            for _ in range(35):  # until the Lease is lost
                assert (await operator.page("healthz"))[0] == 200, "a restart would not help"
                await asyncio.sleep(0.2)
            await world.mark(first)
        finally:
            world.plane.start_api_server()
            await asyncio.to_thread(world.plane.wait_until_served)
        # The agent has read its row itself meanwhile: it finishes its task and takes no other.
        await world.release(task)
        stop = await world.stopped("critic", first, within=30)
        assert (stop["origin"], stop["graceful"], stop["exitCode"]) == ("Table", True, 0)
        await world.phase("critic", "Stopped")
        await world.assert_finished_once(task)
        assert len(world.history.pod_names("critic")) == 1
        await world.start("critic")
        await asyncio.sleep(0.5)
        await world.change("critic", restartToken="again")
        await world.next_instance("critic", first)
