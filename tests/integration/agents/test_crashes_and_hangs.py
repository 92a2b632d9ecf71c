"""Ends that nobody asked for, and agents that run without a sign of life."""

import asyncio
import signal
from datetime import datetime

import pytest
from tests.integration.agents.history import condition
from tests.integration.agents.world import CRASHES_WHEN_TOLD, OBEDIENT, World, all_of, shell
from tests.support.wait import eventually

CRASHES = "exit 3"


@pytest.mark.accept("L-13")
async def test_a_crash_restarts_with_a_back_off_that_doubles(world: World) -> None:
    async with world.operator() as operator:
        await world.create("crasher", shell(CRASHES))
        await world.until("crasher", lambda s: s.get("restarts") == 3, within=20)
        waits, failures = [], []
        for item in world.history.versions("crasher"):
            backoff = item.get("status", {}).get("backoff")
            if backoff and backoff["failures"] not in failures:
                failures.append(backoff["failures"])
                ended = _time(item["status"]["stop"]["finishedAt"])
                waits.append((_time(backoff["until"]) - ended).total_seconds())
        assert failures == [1, 2, 3]
        # The node reports an end in whole seconds, and the wait begins when the operator hears of it.
        for wait, wanted in zip(waits, (1, 2, 4), strict=True):
            assert wanted <= wait < wanted + 5
        stop = world.status("crasher")["stop"]
        assert "origin" not in stop, "nobody asked"
        assert (stop["exitCode"], stop["graceful"]) == (3, False)
        assert "stops" not in world.status("crasher") or world.status("crasher")["stops"] == []
        pending = next(
            i for i in world.history.versions("crasher") if i.get("status", {}).get("phase") == "Pending"
        )
        assert condition(pending, "Ready")["reason"] == "BackingOff"
        events = await world.told("crasher", "Restarted", "Restarted")
        restarted = [e for e in events if e["reason"] == "Restarted"]
        assert len(restarted) == 2
        assert operator.metric("tenure_stops_total", graceful="false") == 0, "no stop was asked for"
        assert await world.ledger("crasher") == []


@pytest.mark.accept("L-13")
async def test_the_restart_policy_says_which_ends_are_followed_by_a_start(world: World) -> None:
    async with world.operator():
        await all_of(
            world.create("never", shell("exit 3"), restartPolicy="Never"),
            world.create("completed", shell("exit 0")),
            world.create("always", shell("exit 0"), restartPolicy="Always"),
        )
        await all_of(
            world.phase("never", "Failed"),
            world.phase("completed", "Stopped"),
            world.until("always", lambda s: s.get("restarts", 0) >= 1 and s["instance"]["ordinal"] >= 2),
        )
        assert condition(world.history.resources["never"], "Ready")["reason"] == "Failed"
        assert condition(world.history.resources["completed"], "Ready")["reason"] == "Completed"
        assert condition(world.history.resources["completed"], "Stopped")["status"] == "True"
        for name in ("never", "completed"):
            assert len(world.history.pod_names(name)) == 1
        # A new token starts either again.
        await all_of(world.change("never", restartToken="2"), world.change("completed", restartToken="2"))
        for name in ("never", "completed"):
            await world.until(name, lambda s: s["instance"]["ordinal"] == 2)


@pytest.mark.accept("L-13")
async def test_a_hung_agent_is_reported_or_replaced_as_its_policy_says(world: World) -> None:
    async with world.operator():
        await all_of(
            world.create("reported", hung={"policy": "Report", "afterIntervals": 3}),
            world.create(
                "replaced", hung={"policy": "Restart", "afterIntervals": 3}, drain={"gracePeriodSeconds": 1}
            ),
        )
        reported, replaced = await all_of(world.running("reported"), world.running("replaced"))
        for name in ("reported", "replaced"):
            world.kubelet.kill(world.namespace, world.pod_name(name), number=signal.SIGSTOP)
        await world.phase("reported", "Hung")
        # Three intervals until the row expires, three more until it counts.
        age = "extract(epoch FROM now() - last_heartbeat_at)::float"
        [row] = await world.sql(
            f"SELECT {age} AS seconds FROM cks_agent_liveness WHERE instance_id = $1",
            reported,
        )
        assert row["seconds"] >= 5.9
        alive = condition(world.history.resources["reported"], "Alive")
        assert (alive["status"], alive["reason"]) == ("False", "HeartbeatExpired")
        assert condition(world.history.resources["reported"], "Ready")["status"] == "False"
        await world.told("reported", "HeartbeatExpired")
        stop = await world.stopped("replaced", replaced)
        assert (stop["origin"], stop["graceful"]) == ("Replacement", False)
        await world.next_instance("replaced", replaced)
        # Report only says so, and takes it back.
        assert world.status("reported")["instance"]["id"] == reported
        world.kubelet.kill(world.namespace, world.pod_name("reported"), number=signal.SIGCONT)
        await world.phase("reported", "Running")
        await world.condition("reported", "Alive", "True")
        assert len(world.history.pod_names("reported")) == 1


@pytest.mark.accept("L-13")
async def test_an_agent_without_a_row_is_judged_by_its_pod_alone(world: World) -> None:
    async with world.operator():
        await world.create("mute", shell(OBEDIENT), liveness=world.liveness())
        await world.phase("mute", "Starting")
        # Three intervals without a row, then it counts as running, and says so.
        await world.phase("mute", "Running")
        alive = condition(world.history.resources["mute"], "Alive")
        assert (alive["status"], alive["reason"]) == ("Unknown", "NotReported")
        await asyncio.sleep(1)
        assert "Hung" not in world.history.phases("mute")


@pytest.mark.accept("L-13")
async def test_a_task_held_for_too_long_is_reported_and_never_acted_upon(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.plan.agent_process.TASK_WRITE_SECONDS", 1.0)  # ten, in life
    async with world.operator():
        await world.create("critic", stuckTaskSeconds=2)
        instance = await world.running("critic")
        task = await world.busy("critic")
        await world.condition("critic", "Alive", "True", "TaskStuck", within=15)
        shown = world.status("critic")["currentTask"]
        assert (shown["id"], shown["type"]) == (task, "review")
        assert world.status("critic")["phase"] == "Running"
        await world.release(task)
        await world.condition("critic", "Alive", "True", "HeartbeatFresh", within=15)
        assert world.status("critic")["instance"]["id"] == instance
        assert "currentTask" not in world.status("critic")


@pytest.mark.accept("L-14")
async def test_the_row_of_a_former_pod_is_never_taken_for_the_new_pods(world: World) -> None:
    async with world.operator():
        await world.create(
            "plain",
            shell(CRASHES_WHEN_TOLD),
            liveness=world.liveness(),
        )
        first = await world.pod_running("plain")
        # An agent that makes its own id is found by its pod's name and its kind.
        await world.insert_row(
            "own-id-1", process_kind="plain", hostname=first["metadata"]["name"], liveness_interval_s=600.0
        )
        await world.until("plain", lambda s: (s.get("instance") or {}).get("rowID") == "own-id-1")
        await world.phase("plain", "Running")
        world.kubelet.kill(world.namespace, first["metadata"]["name"], number=signal.SIGUSR1)
        second = await world.next_instance("plain", first["metadata"]["uid"], phase="Starting")
        assert "rowID" not in world.status("plain")["instance"]
        # The former row is fresh for another half hour, and now it is marked: no word about the new pod.
        await world.mark("own-id-1")
        await world.phase("plain", "Running")
        alive = condition(world.history.resources["plain"], "Alive")
        assert (alive["status"], alive["reason"]) == ("Unknown", "NotReported")
        assert world.status("plain")["instance"]["id"] == second
        assert "stop" not in world.status("plain")
        # The newest of several rows with the pod's name is its row.
        name = world.pod_name("plain")
        await world.insert_row("own-id-2", process_kind="plain", hostname=name, liveness_interval_s=600.0)
        await world.condition("plain", "Alive", "True")
        assert world.status("plain")["instance"]["rowID"] == "own-id-2"


@pytest.mark.accept("L-20")
async def test_an_exit_with_0_while_draining_is_never_restarted(world: World) -> None:
    async with world.operator():
        await world.create("always", shell(OBEDIENT), restartPolicy="Always")
        instance = await world.running("always")
        await world.stop("always")
        await world.stopped("always", instance)
        await world.phase("always", "Stopped")
        await asyncio.sleep(2)
        assert len(world.history.pod_names("always")) == 1
        assert "restarts" not in world.status("always") or world.status("always")["restarts"] == 0


@pytest.mark.accept("L-20")
async def test_a_pod_that_succeeded_is_stopped_gracefully_whatever_its_row_says(world: World) -> None:
    async with world.operator():
        await world.create(
            "done",
            shell("trap 'exit 0' USR1 TERM; while :; do sleep 60 & wait $!; done"),
            liveness=world.liveness(),
        )
        pod = await world.pod_running("done")
        uid = pod["metadata"]["uid"]
        await world.insert_row(uid, process_kind="done", age=3600)
        await eventually(lambda: world.status("done")["instance"].get("rowID"), within=15)
        world.kubelet.kill(world.namespace, pod["metadata"]["name"], number=signal.SIGUSR1)
        stop = await world.stopped("done", uid)
        assert (stop["graceful"], stop["exitCode"]) == (True, 0)
        await world.phase("done", "Stopped")
        assert condition(world.history.resources["done"], "Alive")["reason"] == "NoInstance"


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
