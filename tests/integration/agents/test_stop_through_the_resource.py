"""``spec.desiredState: StopRequested``: the task in hand is finished, the pod ends, and status tells it."""

import pytest
from tests.integration.agents.world import OBEDIENT, World, shell


@pytest.mark.accept("L-9")
async def test_a_stop_marks_the_row_and_lets_the_task_in_hand_finish(world: World) -> None:
    async with world.operator():
        await world.create("critic")
        instance = await world.running("critic")
        task = await world.busy("critic")
        await world.stop("critic")
        status = await world.phase("critic", "Draining")
        assert status["stop"]["origin"] == "Resource"
        await world.release(task)
        stop = await world.stopped("critic", instance)
        assert (stop["graceful"], stop["exitCode"], stop["origin"]) == (True, 0, "Resource")
        await world.phase("critic", "Stopped")
        row = await world.row(instance)
        assert row["desired_state"] == "stop_requested"
        await world.assert_finished_once(task)
        assert world.history.pod_names("critic") == [status["instance"]["podName"]]
        assert world.history.phases("critic")[-2:] == ["Draining", "Stopped"]


@pytest.mark.accept("L-9")
async def test_an_agent_without_the_library_is_stopped_by_its_signal(world: World) -> None:
    async with world.operator():
        await world.create("plain", shell(OBEDIENT))
        instance = await world.running("plain")
        await world.stop("plain")
        stop = await world.stopped("plain", instance)
        assert (stop["graceful"], stop["exitCode"]) == (True, 0)
        await world.phase("plain", "Stopped")
