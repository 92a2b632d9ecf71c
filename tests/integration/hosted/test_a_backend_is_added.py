"""A ControlServer that the operator drives gets a backend: from then on one of the two drives its agents, not both."""

import asyncio

from tests.integration.hosted.hosting import Hosting
from tests.integration.servers.world import WITHIN
from tests.support.wait import eventually


def drivers() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("driver of")]


async def test_the_operator_leaves_an_agent_at_work_to_the_backend(hosting: Hosting) -> None:
    world = hosting.world
    async with world.operator():
        await hosting.server()
        await hosting.create(prompt="wait gate\nsay done")
        await eventually(lambda: hosting.prompts() == 1, within=WITHIN, what="it was told")
        agent = world.evidence.living("one")
        assert drivers() == ["driver of one"]
        await world.change(backend={"selector": {"matchLabels": {"app": "backend"}}, "container": "backend"})
        await world.deploy()
        await world.attached(await world.backend(), sessions=["one"])
        # A stream that is newer closes the older: two drivers would go on taking it from each other.
        await eventually(lambda: not drivers(), within=10, what="the operator drives nothing")
        world.open_gate("one")

        async def done() -> bool:
            return (await hosting.rows())[3] == ["completed"]

        await eventually(done, within=WITHIN, what="the backend applies the outcome")
        assert world.evidence.living("one") == agent
        assert drivers() == []
        assert hosting.prompts() == 1
