"""With a backend the operator launches and stops agents, and says nothing to them."""

import pytest
from tests.integration.hosted.hosting import Hosting, condition
from tests.integration.servers.world import WITHIN
from tests.support.wait import eventually


async def hosted(hosting: Hosting, session: str = "one") -> None:
    """Tell the backend that an AgentProcess launches this session."""
    order = hosting.world.evidence.orders / session
    order.mkdir(exist_ok=True)
    (order / "hosted").touch()


async def test_the_backend_prompts_and_the_operator_launches_and_stops(hosting: Hosting) -> None:
    world = hosting.world
    async with world.operator():
        await hosting.server(backend=True)
        await world.deploy()
        await hosting.create()
        await hosting.phase("Running")
        await hosted(hosting)
        note = world.evidence.prompt("one", "wait gate\nsay done")
        await world.evidence.began(note, within=WITHIN)
        await hosting.change(desiredState="StopRequested")
        await hosting.condition("Draining", "True", "StopByResource")
        assert len(world.evidence.living("one")) == 1
        world.open_gate("one")
        status = await hosting.phase("Stopped")
        assert status["stop"]["graceful"] is True
        assert await hosting.rows() == ("stopped", "waiting_for_input", "review", ["completed"])
        assert world.evidence.living("one") == []


async def test_a_turn_is_cut_at_the_end_of_the_grace(hosting: Hosting) -> None:
    world = hosting.world
    async with world.operator():
        await hosting.server(backend=True)
        await world.deploy()
        await hosting.create(drain={"gracePeriodSeconds": 2})
        await hosting.phase("Running")
        await hosted(hosting)
        note = world.evidence.prompt("one", "wait gate")
        await world.evidence.began(note, within=WITHIN)
        await hosting.change(desiredState="StopRequested")
        status = await hosting.phase("Stopped")
        assert await hosting.rows() == ("stopped", "waiting_for_input", "review", ["abandoned"])
        assert status["stop"]["graceful"] is False


async def test_a_prompt_in_the_resource_is_refused(hosting: Hosting) -> None:
    world = hosting.world
    async with world.operator():
        await hosting.server(backend=True)
        await world.deploy()
        await world.backend()
        await hosting.create(prompt="say done")
        found = await hosting.condition("Stalled", "True", "PromptNeedsNoBackend")
        assert "ControlServer main has a backend" in found["message"]
        assert await eventually(lambda: hosting.events("LaunchRefused"), within=WITHIN)
        assert world.evidence.pids("one") == []


async def test_an_agent_that_crashed_is_started_again_by_its_policy(hosting: Hosting) -> None:
    world = hosting.world
    async with world.operator():
        await hosting.server(backend=True)
        await world.deploy()
        await hosting.create(backoff={"initialSeconds": 1})
        await hosting.phase("Running")
        await hosted(hosting)
        note = world.evidence.prompt("one", "exit 3")
        await world.evidence.began(note, within=WITHIN)
        await eventually(
            lambda: len(world.evidence.pids("one")) == 2, within=2 * WITHIN, what="another agent"
        )
        status = await hosting.phase("Running")
        assert status["restarts"] == 1


@pytest.mark.parametrize(("history", "loads"), [("Load", 1), ("Discard", 0)])
async def test_the_backend_loads_the_session_by_the_profile(
    hosting: Hosting, history: str, loads: int
) -> None:
    world = hosting.world
    async with world.operator():
        await hosting.server(backend=True, agentProfiles=[hosting.profile("one", history=history)])
        await world.deploy()
        await hosting.create()
        await hosting.phase("Running")
        await hosted(hosting)

        async def named() -> str:
            return (await world.session("one"))["resume_token"] or ""

        first = await eventually(named, within=WITHIN, what="the agent's own name of the session is known")
        await hosting.change(restartToken="again")
        began = lambda: world.evidence.agent("one", "session") + world.evidence.agent("one", "loaded")  # noqa: E731
        await eventually(lambda: len(began()) == 2, within=WITHIN, what="another agent has a session")
        assert len(world.evidence.agent("one", "loaded")) == loads
        note = world.evidence.prompt("one", "say done")
        await world.evidence.began(note, within=WITHIN)

        async def another() -> bool:
            return await named() != first

        if loads:
            assert await named() == first
        else:
            await eventually(another, within=WITHIN, what="the new name is written down")


@pytest.mark.accept("S-002.8")
async def test_a_launch_is_refused_while_recovery_has_not_decided(hosting: Hosting) -> None:
    """The session's former agent is on record, and its server's recovery is not over: nothing is launched beside it."""
    world = hosting.world
    async with world.operator() as operator:
        await hosting.server(backend=True)
        await world.deploy()
        await world.backend()
        await world.launched("one")
        await world.scale(0)
        await eventually(lambda: not world.backends(), within=WITHIN, what="the backend has gone")
        await world.sql("UPDATE tenure.control_servers SET recovered_by = NULL")
        await hosting.create()
        await hosting.condition("Ready", "Unknown", "RecoveryInProgress")
        refused = lambda: operator.metric(  # noqa: E731
            "tenure_launches_refused_total", reason="recovery_in_progress"
        )
        await eventually(lambda: refused() == 1, within=WITHIN, what="it is counted once")
        assert await eventually(lambda: hosting.events("LaunchRefused"), within=WITHIN)
        await world.scale(1)
        await world.backend()
        status = await hosting.until(lambda s: condition(s, "Ready").get("reason") == "SessionInUse")
        assert status["phase"] == "Pending"
        assert len(world.evidence.pids("one")) == 1
        world.evidence.end("one")
        await hosting.phase("Running")


@pytest.mark.parametrize(("step", "moment"), [("row", "after"), ("create", "before"), ("create", "after")])
async def test_a_launch_goes_on_when_the_operator_died_in_it(
    hosting: Hosting, step: str, moment: str
) -> None:
    """The backend lives, so nothing is recovered: the same instance is asked for again, and there is one agent."""
    world = hosting.world
    async with world.operator():
        await hosting.server(backend=True)
        await world.deploy()
        await world.backend()
    command = ("-m", "tests.integration.hosted.dying", step, moment)
    async with world.operator_process(command=command) as first:
        await hosting.create()
        await eventually(lambda: first.process.poll() is not None, within=WITHIN, what="it dies")
    meant = (await hosting.status())["instance"]["id"]
    async with world.operator():
        status = await hosting.phase("Running")
        assert status["instance"]["id"] == meant
        await eventually(lambda: len(world.evidence.living("one")) == 1, within=WITHIN, what="its agent")
        assert len(world.evidence.pids("one")) == 1
        await hosting.change(desiredState="StopRequested")
        await hosting.phase("Stopped")
        assert world.evidence.living("one") == []
