"""Where a ControlServer names no backend the operator drives the agent: its prompt is given once, whatever dies."""

import json
from base64 import b64encode

from tests.integration.hosted.hosting import Hosting, condition
from tests.integration.servers.canaries import PLANTED
from tests.integration.servers.world import WITHIN
from tests.support.api import Object, path
from tests.support.wait import eventually

from tenure.plan.hosted.conditions import BEGAN_ANEW

KEY = f"{PLANTED}-model"


async def test_a_prompt_is_done_and_its_session_is_over(hosting: Hosting) -> None:
    world = hosting.world
    async with world.operator() as operator:
        await hosting.server()
        await hosting.create(prompt="say done")
        status = await hosting.phase("Stopped")
        await hosting.condition("Ready", "False", "Completed")
        assert status["stop"]["message"] == "the agent has done what it was told"
        assert status["stop"]["graceful"] is True
        assert await hosting.rows() == ("stopped", "completed", "review", ["completed"])
        assert hosting.prompts() == 1
        assert world.evidence.living("one") == []
        assert operator.metric("tenure_agent_processes", phase="Stopped") in (0.0, 1.0)


async def test_a_new_token_loads_the_session_and_tells_it_again(hosting: Hosting) -> None:
    world = hosting.world
    world.evidence.forgiven.append("asked twice")
    async with world.operator():
        await hosting.server()
        await hosting.create(prompt="fail -32000")
        status = await hosting.phase("Failed")
        assert status["stop"]["message"] == "what the agent was told to do ended with an error"
        assert await hosting.rows() == ("failed", "waiting_for_input", "review", ["failed"])
        await hosting.change(restartToken="again")
        await eventually(lambda: hosting.prompts() == 2, within=WITHIN, what="it is told again")
        await hosting.until(lambda s: s["stop"] and s["instance"]["restartToken"] == "again", within=WITHIN)
        await hosting.phase("Failed")
        assert world.evidence.agent("one", "loaded"), "the second agent loads what was said in the session"
        assert hosting.prompts() == 2


async def test_an_agent_that_does_not_load_its_session_says_so(hosting: Hosting) -> None:
    world = hosting.world
    async with world.operator():
        await hosting.server(agentProfiles=[hosting.profile("one", "--no-load")])
        await hosting.create()
        await hosting.phase("Running")

        async def named() -> bool:
            return bool((await world.session("one"))["resume_token"])

        await eventually(named, within=WITHIN, what="the agent's own name of the session is written down")
        assert condition(await hosting.status(), "Ready")["message"] == "the agent runs in its control server"
        await hosting.change(restartToken="again")
        await hosting.until(lambda s: condition(s, "Ready").get("message") == BEGAN_ANEW)
        notes = await eventually(lambda: hosting.events("Restarted"), within=WITHIN, what="it is told")
        await eventually(lambda: told_anew(hosting), within=WITHIN, what="and that it began anew")
        assert len(world.evidence.agent("one", "session")) == 2, notes
    async with world.operator():
        await hosting.change(drain={"gracePeriodSeconds": 31})

        def seen(status: Object) -> bool:
            return status["observedGeneration"] == 3 and status["phase"] == "Running"

        status = await hosting.until(seen, what="the next operator has seen it")
        assert condition(status, "Ready")["message"] == BEGAN_ANEW


async def told_anew(hosting: Hosting) -> bool:
    return any("began anew" in note for note in await hosting.events("Restarted"))


async def test_an_agent_without_a_prompt_runs_until_it_is_asked_to_stop(hosting: Hosting) -> None:
    world = hosting.world
    async with world.operator():
        await hosting.server()
        await hosting.create()
        await hosting.condition("Ready", "True", "Running")
        await hosting.condition("Alive", "True")
        await eventually(lambda: len(world.evidence.living("one")) == 1, within=WITHIN)
        await hosting.change(desiredState="StopRequested")
        status = await hosting.phase("Stopped")
        assert (status["stop"]["origin"], status["stop"]["graceful"]) == ("Resource", True)
        await hosting.condition("Ready", "True", "StoppedAsAsked")
        assert world.evidence.living("one") == []
        await hosting.change(desiredState="Running")
        await hosting.phase("Running")
        await eventually(lambda: len(world.evidence.pids("one")) == 2, within=WITHIN)


async def test_the_turn_in_hand_is_finished_before_the_agent_stops(hosting: Hosting) -> None:
    world = hosting.world
    async with world.operator():
        await hosting.server()
        await hosting.create(prompt="wait gate\nsay done")
        await eventually(lambda: hosting.prompts() == 1, within=WITHIN, what="it was told")
        await hosting.change(desiredState="StopRequested")
        await hosting.condition("Draining", "True", "StopByResource")

        async def stopping() -> bool:
            return (await hosting.rows())[0] == "stopping"

        # The status is written first.
        await eventually(stopping, within=WITHIN, what="the row says so, too")
        assert len(world.evidence.living("one")) == 1
        world.open_gate("one")
        status = await hosting.phase("Stopped")
        assert status["stop"]["graceful"] is True
        assert await hosting.rows() == ("stopped", "completed", "review", ["completed"])
        await hosting.change(desiredState="Running")
        await hosting.condition("Ready", "False", "Completed")
        assert hosting.prompts() == 1
        assert {"StopRequested", "Draining", "Stopped"} <= {
            reason
            for reason in ("StopRequested", "Draining", "Stopped")
            if await eventually(lambda r=reason: hosting.events(r), within=WITHIN)
        }


async def test_at_the_end_of_its_grace_the_turn_is_abandoned(hosting: Hosting) -> None:
    world = hosting.world
    async with world.operator():
        await hosting.server()
        await hosting.create(prompt="wait gate", drain={"gracePeriodSeconds": 2})
        await eventually(lambda: hosting.prompts() == 1, within=WITHIN, what="it was told")
        await hosting.change(desiredState="StopRequested")
        status = await hosting.phase("Stopped")
        assert status["stop"]["graceful"] is False
        assert await hosting.rows() == ("stopped", "waiting_for_input", "review", ["abandoned"])
        assert await eventually(lambda: hosting.events("StopForced"), within=WITHIN)


async def test_a_crash_in_the_middle_of_a_turn_waits_for_a_person(hosting: Hosting) -> None:
    world = hosting.world
    async with world.operator():
        await hosting.server()
        await hosting.create(prompt="exit 3", backoff={"initialSeconds": 1})
        await hosting.phase("Failed")
        row, session, task, turns = await hosting.rows()
        assert (row, session, task) == ("failed", "waiting_for_input", "review")
        assert turns in (["failed"], ["abandoned"])
        assert hosting.prompts() == 1


async def test_requests_for_permission_are_answered_by_the_profile(hosting: Hosting) -> None:
    world = hosting.world
    async with world.operator():
        await hosting.server(
            "one",
            "two",
            agentProfiles=[
                hosting.profile("one", permissions="AllowOnce"),
                hosting.profile("two", permissions="Deny"),
            ],
        )
        for name in ("one", "two"):
            await hosting.create(name, prompt="permission to write")
        for name, outcome in (("one", "allow"), ("two", "deny")):
            await hosting.phase("Stopped", name=name)
            answers = [entry["outcome"] for entry in world.evidence.agent(name, "permission")]
            assert len(answers) == 1
            assert answers[0].startswith(outcome)


async def test_an_agent_gets_the_keys_of_its_profile_once_they_are_there(hosting: Hosting) -> None:
    """And nobody else does: the world looks for them in logs, Events, statuses and rows."""
    world = hosting.world
    async with world.operator():
        reference = {"secretKeyRef": {"name": "model", "key": "api-key"}}
        env = [{"name": "MODEL_API_KEY", "valueFrom": reference}, {"name": "PLAIN", "value": "seen"}]
        await hosting.server(agentProfiles=[hosting.profile("one", env=env)])
        await hosting.create(prompt="environ environment")
        found = await hosting.condition("Stalled", "True", "LaunchRejected")
        assert found["message"] == "there is no key api-key in a Secret model"
        key = b64encode(KEY.encode()).decode()
        secret = {"metadata": {"name": "model"}, "data": {"api-key": key}}
        await world.api.create(path("secrets", world.namespace), secret)
        await hosting.phase("Stopped")
        environment = json.loads((world.evidence.workspaces / "one" / "environment").read_text())
        assert (environment["MODEL_API_KEY"], environment["PLAIN"]) == (KEY, "seen")


async def test_what_is_in_the_way_is_said(hosting: Hosting) -> None:
    world = hosting.world
    async with world.operator():
        await hosting.create("early")
        found = await hosting.condition("Stalled", "True", "ControlServerNotFound", name="early")
        assert "main" in found["message"]
        await hosting.server()
        await hosting.condition("Stalled", "True", "AgentProfileNotFound", name="early")
        body = hosting.manifest("lost", session="one")
        body["spec"]["session"]["workspacePath"] = str(world.evidence.workspaces / "nowhere")
        await world.api.create(f"/apis/tenure.dev/v1alpha1/namespaces/{world.namespace}/agentprocesses", body)
        await hosting.condition("Stalled", "True", "LaunchRejected", name="lost")
        (world.evidence.workspaces / "nowhere").mkdir()
        await hosting.phase("Running", name="lost")
        await hosting.create("rival", session="one")
        await hosting.condition("Ready", "Unknown", "SessionInUse", name="rival")
        # It runs as soon as its process is there, and writes its journal later. The world looks for a second one.
        await eventually(lambda: len(world.evidence.living("one")) == 1, within=WITHIN, what="one agent")
