"""A backend that is killed at any moment: the next one finds the same agent, no turn is lost and none done twice."""

import pytest
from tests.integration.backend.driver import STEPS
from tests.integration.backend.scene import Scene

MOMENTS = [
    f"{when} {step}" for step in STEPS for when in ("before", "after") if step not in ("store", "ended")
]
WORK = "say working\nappend out.txt once\nsay done"


@pytest.mark.accept("S-001.2", "S-001.4", "S-004.1", "S-004.4", "S-004.6")
@pytest.mark.parametrize("kill", [*MOMENTS, "before ended", "after ended"])
async def test_what_a_killed_backend_began_the_next_one_finishes_once(scene: Scene, kill: str) -> None:
    await finished_by_the_next_one(scene, kill)


@pytest.mark.parametrize("kill", ["after store", "before record", "after record"])
async def test_also_when_the_server_was_new(fresh_scene: Scene, kill: str) -> None:
    await finished_by_the_next_one(fresh_scene, kill)


async def finished_by_the_next_one(scene: Scene, kill: str) -> None:
    assert await scene.run(text=WORK, kill=kill) == -9
    assert await scene.run(text=WORK) == 0

    assert len(scene.told("started")) == 1, "one agent was started, and no other one"
    assert len(scene.told("session")) == 1
    assert len(scene.told("prompt")) == 1, "the prompt was given to it once"
    assert len(scene.told("finished")) == 1
    assert (scene.workspace() / "out.txt").read_text().split() == ["once"]
    assert await scene.turns() == ["completed"]
    assert await scene.execution() == "stopped"
    # A stop that the former process had begun is finished; what it was for nobody knows any more.
    assert await scene.session_state() in ("completed", "waiting_for_input")
    assert scene.server.descendants() == []


@pytest.mark.accept("S-001.2", "S-004.1", "S-004.4")
@pytest.mark.parametrize("kill", ["after send", "before bind", "after bind"])
async def test_a_turn_that_ends_while_nobody_is_there_is_applied_by_the_next_backend(
    scene: Scene, kill: str
) -> None:
    gate = scene.directory / "gate"
    text = f"wait {gate}\nappend out.txt once"
    assert await scene.run(text=text, kill=kill) == -9
    (pid,) = scene.agent_pids()
    gate.touch()
    await scene.until(lambda: scene.told("finished"), "the agent to finish alone")
    assert await scene.turns() == ["open"]

    assert await scene.run(text=text) == 0
    assert scene.agent_pids() == {pid}
    assert len(scene.told("prompt")) == 1
    assert await scene.turns() == ["completed"]
