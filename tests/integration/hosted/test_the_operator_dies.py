"""The operator drives an agent, and is killed around each of its steps: the prompt is done once all the same."""

import os

import pytest
from tests.integration.hosted.dying import STEPS
from tests.integration.hosted.hosting import Hosting
from tests.integration.servers.world import WITHIN
from tests.support.wait import eventually

DEEP = os.environ.get("TENURE_HYPOTHESIS") == "search"
BOTH = [(step, moment) for step in STEPS for moment in ("before", "after")]
MOMENTS = BOTH if DEEP else BOTH[::5]
"""A death costs some ten seconds of two operators' lives: every fifth place, and all of them in ``make test-deep``."""


@pytest.mark.parametrize(("step", "moment"), MOMENTS)
async def test_the_prompt_is_done_once_whatever_dies(hosting: Hosting, step: str, moment: str) -> None:
    world = hosting.world
    await hosting.server()
    await hosting.create(prompt="say done", backoff={"initialSeconds": 1})
    command = ("-m", "tests.integration.hosted.dying", step, moment)
    async with world.operator_process(command=command) as first:
        await eventually(
            lambda: first.process.poll() is not None, within=WITHIN, what=f"it dies {moment} {step}"
        )
    async with world.operator():
        status = await hosting.phase("Stopped", within=2 * WITHIN)
        assert status["stop"]["message"] == "the agent has done what it was told"
        row, session, task, turns = await hosting.rows()
        assert (row, session, task) == ("stopped", "completed", "review")
        assert turns == ["completed"]
        assert hosting.prompts() == 1
        assert world.evidence.living("one") == []


async def test_a_resource_deleted_while_nobody_looked_is_drained_and_stopped(hosting: Hosting) -> None:
    world = hosting.world
    await hosting.server("one", "two")
    async with world.operator_process() as first:
        for name in ("one", "two"):
            await hosting.create(name, prompt="wait gate\nsay done")
            await eventually(lambda n=name: hosting.prompts(n) == 1, within=WITHIN, what="it was told")
        first.process.kill()
        await eventually(lambda: first.process.poll() is not None, within=WITHIN, what="it has ended")
    for name in ("one", "two"):
        await hosting.delete(name)
    await hosting.create("two", session="three", prompt=None)
    async with world.operator():
        for name in ("one", "two"):

            async def stopping(session: str = name) -> bool:
                return (await hosting.rows(session))[0] == "stopping"

            await eventually(stopping, within=WITHIN, what=f"{name} drains")
            assert len(world.evidence.living(name)) == 1
            world.open_gate(name)

            async def stopped(session: str = name) -> bool:
                return (await hosting.rows(session))[0] == "stopped"

            await eventually(stopped, within=WITHIN, what=f"{name} is stopped")
            assert await hosting.rows(name) == ("stopped", "completed", "review", ["completed"])
            assert world.evidence.living(name) == []


async def test_a_deleted_resource_takes_its_agent_with_it_after_the_turn(hosting: Hosting) -> None:
    world = hosting.world
    async with world.operator():
        await hosting.server()
        await hosting.create(prompt="wait gate\nsay done")
        await eventually(lambda: hosting.prompts() == 1, within=WITHIN, what="it was told")
        await hosting.delete()

        async def status() -> str:
            return (await hosting.rows())[0]

        async def drains() -> bool:
            return await status() == "stopping"

        async def over() -> bool:
            return await status() == "stopped"

        await eventually(drains, within=WITHIN, what="it drains")
        assert len(world.evidence.living("one")) == 1
        world.open_gate("one")
        await eventually(over, within=WITHIN, what="it is stopped")
        assert await hosting.rows() == ("stopped", "completed", "review", ["completed"])
        assert world.evidence.living("one") == []
