"""The stage itself, before any operator stands on it: backend program, agents, journals and the judge of them."""

import asyncio
import sys

import pytest
from tests.integration.backend.owner import Owner
from tests.integration.servers.history import container_of
from tests.integration.servers.world import INSTALLATION, World
from tests.support.api import Object
from tests.support.control import running_server
from tests.support.wait import eventually

pytestmark = pytest.mark.timeout(180)
WITHIN = 30.0


async def running(world: World, other_than: str = "") -> Object:
    def look() -> Object | None:
        for pod in world.backends():
            told = container_of(pod)
            if "running" in told.get("state", {}) and told["containerID"] != other_than:
                return pod
        return None

    return await eventually(look, within=WITHIN, what="the backend runs")


async def test_a_backend_that_is_killed_in_place_finds_its_agent_and_its_turn(world: World) -> None:
    workspaces = world.evidence.workspaces
    async with running_server(flags={"workspace-root": str(workspaces)}) as server:
        owner = await Owner.of(server, world.evidence.folder / "handover")
        await world.sql(
            "INSERT INTO tenure.control_servers (namespace, installation_id, name, server_identity, adopted_by,"
            " recovered_by) VALUES ($1, $2, 'main', $3, 'somebody', 'somebody')",
            world.namespace,
            INSTALLATION,
            server.identity,
        )
        template = world.backend_template(gate=False)
        env = template["spec"]["containers"][0]["env"]
        env[:] = [each for each in env if each["name"] != "HANDOVER_SECRET"]
        env.append({"name": "HANDOVER_DIRECTORY", "value": str(owner.directory)})
        template["metadata"]["name"] = "alone"
        await world.api.create(f"/api/v1/namespaces/{world.namespace}/pods", template)
        pod = await running(world)
        owner.hand_over(pod_uid=pod["metadata"]["uid"])
        agent = await world.launched("s-1")
        await world.working("s-1")
        world.kill_backend(pod)
        again = await running(world, container_of(pod)["containerID"])
        await world.attached(again, sessions=["s-1"])
        world.open_gate("s-1")
        await world.evidence.outcomes("s-1", 1)
        assert world.evidence.living("s-1") == [agent]
        assert await world.turns("s-1") == ["completed"]
        world.evidence.prompt("s-1", "say more")
        await world.evidence.outcomes("s-1", 2)
        assert await world.turns("s-1") == ["completed", "completed"]
        await owner.aclose()


async def test_the_judge_sees_two_agents_a_lost_turn_a_double_one_and_a_leak(world: World) -> None:
    """A judge that sees nothing would pass every test."""
    evidence = world.evidence
    evidence.agent_journal("s-1").write_text(
        '{"what": "started", "pid": 1}\n'
        '{"what": "prompt", "pid": 1, "text": "a"}\n{"what": "prompt", "pid": 1, "text": "a"}\n'
        '{"what": "finished", "pid": 1, "text": "a", "stop_reason": "end_turn"}\n'
    )
    words = (sys.executable, "-c", "import time; time.sleep(60)", str(evidence.agent_journal("s-2")))
    processes = [await asyncio.create_subprocess_exec(*words) for _ in range(2)]
    evidence.agent_journal("s-2").write_text(
        "".join(f'{{"what": "started", "pid": {each.pid}}}\n' for each in processes)
    )
    try:
        await eventually(lambda: evidence.offences, within=5, what="two agents are seen")
    finally:
        for each in processes:
            each.kill()
            await each.wait()
    world.canaries.learn("credential", "0123456789abcdef")
    turn = {"turn": 7, "before": "completed", "after": "failed"}
    found = [
        *evidence.judge([], [turn, turn]),
        *world.canaries.found_in("a log", "token 0123456789abcdef"),
    ]
    for part in (
        "two agents of s-2 at once",
        "the outcome of turn 7 was written 2 times",
        "s-1 was asked twice",
        "turns lost",
        "a log has the secret",
    ):
        assert any(part in sentence for sentence in found), (part, found)
    evidence.forgiven += ["two agents of s-2", "s-1 was asked twice", "turns lost"]
