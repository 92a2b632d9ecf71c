"""``spec.desiredState: StopRequested``: the task in hand is finished, the pod ends, and status tells it."""

import asyncio
import time
from datetime import datetime

import pytest
from tests.integration.agents.history import condition
from tests.integration.agents.world import DEAF, OBEDIENT, World, all_of, shell
from tests.support.wait import eventually

SLOW = "trap 'sleep 7; exit 0' TERM; while :; do sleep 60 & wait $!; done"
"""A plain agent that takes seven seconds to end."""


async def beats_after(world: World, instance: str, former: datetime) -> bool:
    return bool((await world.row(instance))["last_heartbeat_at"] > former)


@pytest.mark.accept("L-9")
async def test_a_stop_marks_the_row_and_lets_the_task_in_hand_finish(world: World) -> None:
    async with world.operator():
        await world.create("critic")
        instance = await world.running("critic")
        task = await world.busy("critic")
        waiting = await world.give("critic", released=True)
        await world.stop("critic")
        status = await world.phase("critic", "Draining")
        assert status["stop"]["origin"] == "Resource"
        assert condition(world.history.resources["critic"], "Draining")["reason"] == "StopByResource"
        # Status says so before the agent is told: from its second heartbeat after the mark on it knows.
        await eventually(lambda: world.is_marked(instance), within=10, what="the row is marked")
        for _ in range(2):
            former = (await world.row(instance))["last_heartbeat_at"]
            await eventually(lambda f=former: beats_after(world, instance, f), within=10, what="a heartbeat")
        await world.release(task)
        stop = await world.stopped("critic", instance)
        assert (stop["graceful"], stop["exitCode"], stop["origin"]) == (True, 0, "Resource")
        await world.phase("critic", "Stopped")
        assert (await world.row(instance))["desired_state"] == "stop_requested"
        await world.assert_finished_once(task)
        assert await world.journal(waiting) == [], "no task is claimed after the request"
        assert world.history.phases("critic")[-2:] == ["Draining", "Stopped"]
        # A stop stays a stop: nothing wakes the agent up again by itself.
        await asyncio.sleep(1.5)
        assert world.history.pod_names("critic") == [status["instance"]["podName"]]


@pytest.mark.accept("L-9")
async def test_an_agent_without_the_library_is_stopped_by_its_signal(world: World) -> None:
    async with world.operator():
        await world.create("plain", shell(OBEDIENT))
        instance = await world.running("plain")
        await world.stop("plain")
        stop = await world.stopped("plain", instance)
        assert (stop["graceful"], stop["exitCode"]) == (True, 0)
        await world.phase("plain", "Stopped")


@pytest.mark.accept("L-11")
async def test_an_agent_that_outlives_its_grace_is_killed_and_reported(world: World) -> None:
    async with world.operator() as operator:
        liveness = world.liveness(intervalSeconds=60)
        await world.create("deaf", shell(DEAF), drain={"gracePeriodSeconds": 1}, liveness=liveness)
        instance = (await world.pod_running("deaf"))["metadata"]["uid"]
        await world.insert_row(instance, process_kind="deaf", liveness_interval_s=60.0)
        await world.phase("deaf", "Running")
        began = time.monotonic()
        await world.stop("deaf")
        # A last heartbeat says that the agent was about to end. It was killed all the same.
        await world.sql("UPDATE cks_agent_liveness SET last_heartbeat_at = to_timestamp(0)")
        stop = await world.stopped("deaf", instance)
        assert time.monotonic() - began >= 1
        assert (stop["graceful"], stop["exitCode"]) == (False, 137)
        assert "grace" in stop["message"]
        events = await world.told("deaf", "StopForced")
        assert next(e for e in events if e["reason"] == "StopForced")["type"] == "Warning"
        assert operator.metric("tenure_stops_total", graceful="false") == 1
        stopped = condition(world.history.resources["deaf"], "Stopped")
        assert (stopped["status"], "ungracefully" in stopped["message"]) == ("True", True)


@pytest.mark.accept("L-11")
async def test_a_grace_shortened_in_mid_drain_holds_and_a_longer_one_does_not(world: World) -> None:
    async with world.operator():
        await all_of(
            world.create("shorter", shell(DEAF), drain={"gracePeriodSeconds": 600}),
            world.create("longer", shell(DEAF), drain={"gracePeriodSeconds": 3}),
        )
        shorter, longer = await all_of(world.running("shorter"), world.running("longer"))
        await all_of(world.stop("shorter"), world.stop("longer"))
        await all_of(world.phase("shorter", "Draining"), world.phase("longer", "Draining"))
        await all_of(
            world.change("shorter", drain={"gracePeriodSeconds": 1}),
            world.change("longer", drain={"gracePeriodSeconds": 600}),
        )
        ends = await all_of(world.stopped("shorter", shorter), world.stopped("longer", longer))
        assert [end["graceful"] for end in ends] == [False, False]


@pytest.mark.accept("L-8")
async def test_an_agent_that_drains_for_more_than_three_intervals_is_alive_and_draining(world: World) -> None:
    restart = {"policy": "Restart", "afterIntervals": 3}
    async with world.operator():
        await all_of(
            world.create("critic", hung=restart),
            # It has a row, and no library that keeps it fresh.
            world.create("plain", shell(SLOW), hung=restart, liveness=world.liveness()),
        )
        critic, plain = await all_of(world.running("critic"), world.pod_running("plain"))
        task = await world.busy("critic")
        # From here on it has five seconds until it counts as hung, and would be stopped for that.
        await world.insert_row(plain["metadata"]["uid"], process_kind="plain", age=1)
        await world.phase("plain", "Running")
        await all_of(world.stop("critic"), world.stop("plain"))
        began = time.monotonic()
        end = asyncio.create_task(world.stopped("plain", plain["metadata"]["uid"]))
        while time.monotonic() - began < 5:
            item = world.history.resources["critic"]
            if item["status"]["phase"] == "Draining":
                assert condition(item, "Alive")["status"] == "True"
            await asyncio.sleep(0.1)
        assert world.status("critic")["phase"] == "Draining"
        await world.release(task)
        assert (await world.stopped("critic", critic))["graceful"] is True
        assert (await end)["graceful"] is True
        assert "Hung" not in world.history.phases("critic") + world.history.phases("plain")


@pytest.mark.accept("L-12")
async def test_starting_again_makes_a_new_instance_with_a_new_row(world: World) -> None:
    async with world.operator():
        await world.create("critic")
        first = await world.running("critic")
        await world.stop("critic")
        await world.stopped("critic", first)
        await world.start("critic")
        second = await world.next_instance("critic", first)
        # An agent counts as running by its pod alone when its row is late.
        await eventually(lambda: world.row(second), within=20, what="the row of the second")
        rows = await world.sql(
            "SELECT instance_id, desired_state FROM cks_agent_liveness ORDER BY started_at"
        )
        assert [tuple(row) for row in rows] == [(first, "stop_requested"), (second, None)]
        status = world.status("critic")
        assert status["instance"]["ordinal"] == 2
        assert status["restarts"] == 0, "nobody crashed"


@pytest.mark.accept("L-12")
async def test_running_set_during_a_drain_does_not_undo_the_drain(world: World) -> None:
    async with world.operator():
        await world.create("critic")
        first = await world.running("critic")
        task = await world.busy("critic")
        await world.stop("critic")
        await world.phase("critic", "Draining")
        await world.start("critic")
        await world.release(task)
        stop = await world.stopped("critic", first)
        assert (stop["origin"], stop["graceful"]) == ("Resource", True)
        await world.next_instance("critic", first)
        await world.assert_finished_once(task)


@pytest.mark.accept("L-9")
async def test_a_resource_made_with_a_stop_request_never_starts(world: World) -> None:
    async with world.operator():
        await world.create("idle", shell(OBEDIENT), desiredState="StopRequested")
        await world.phase("idle", "Stopped")
        assert (await world.condition("idle", "Ready", "True"))["reason"] == "StoppedAsAsked"
        assert world.history.pod_names("idle") == []
        await world.start("idle")
        await world.running("idle")


@pytest.mark.accept("L-9")
async def test_an_agent_that_never_started_is_stopped_gracefully(world: World) -> None:
    missing = {"name": "no-such-secret", "key": "url"}
    async with world.operator():
        await world.create("waits", liveness={"intervalSeconds": 1, "credentialsSecretRef": missing})
        status = await world.phase("waits", "Starting")
        await eventually(lambda: world.history.pods_of("waits")[0]["spec"].get("nodeName"), within=5)
        await world.stop("waits")
        stop = await world.stopped("waits", status["instance"]["id"])
        assert stop["graceful"] is True
        await world.phase("waits", "Stopped")
