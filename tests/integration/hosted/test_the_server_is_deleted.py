"""A ControlServer is deleted, and its installation with it, for it had no id of its own. Once its pod is gone, too, its
agents have ended for certain: rows and statuses say so, and the sessions are free."""

import asyncio
import signal
from dataclasses import dataclass
from typing import Any

import pytest
from tests.integration.hosted.hosting import Hosting
from tests.integration.servers.world import WITHIN
from tests.support.api import Object, path
from tests.support.wait import eventually

from tenure.cluster.errors import Unavailable
from tenure.model.masked import Masked
from tenure.plan.hosted.ends import SERVER_ENDED, SERVER_GONE
from tenure.storage.records import LaunchRequest, Records

LOOKS = 8.0
"""Seconds in which an agent of which nothing is known is looked at twice, at least."""
CUT = (["abandoned"], ["failed"])
"""A server that is told to end may tell it of the turn before its stream is cut."""


@dataclass
class Silent:
    """A cluster whose API server says nothing about pods while it is ``silent``."""

    inner: Any
    silent: bool = False
    asked: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def get_pod(self, namespace: str, name: str) -> Any:
        if self.silent:
            self.asked += 1
            raise Unavailable(0, "Timeout", "no answer within 0 s")
        return await self.inner.get_pod(namespace, name)


async def row_is(hosting: Hosting, status: str, session: str = "one") -> None:
    async def look() -> bool:
        return (await hosting.rows(session))[0] == status

    await eventually(look, within=WITHIN, what=f"the row is {status}")


async def two_agents(hosting: Hosting, profiles: list[Object]) -> None:
    """On one server: ``one``, and ``two``, which may hold it up."""
    living = hosting.world.evidence.living
    await hosting.server("one", "two", named=False, agentProfiles=profiles)
    for name in ("one", "two"):
        await hosting.create(name, restartPolicy="Never")
    for name in ("one", "two"):
        await hosting.phase("Running", name=name)
        await eventually(lambda name=name: living(name), within=WITHIN, what="its agent")


async def launched_by_a_library(hosting: Hosting, session: str) -> None:
    """Beside the session ``one``, on the same server, which a library knows by its identity."""
    world = hosting.world
    [found] = await world.sql(
        """SELECT e.installation_id, c.server_identity FROM tenure.executors_running e
        JOIN tenure.control_servers c USING (namespace, installation_id) WHERE e.session_id = 'one'"""
    )
    records = Records(Masked(world.url), namespace=world.namespace)
    try:
        await records.executions.launch(
            LaunchRequest(
                session_id=session,
                task_id=session,
                installation_id=found["installation_id"],
                agent_execution_id=f"i-{session}",
                created_by="backend/1",
                container_identity=found["server_identity"],
            )
        )
    finally:
        await records.aclose()


async def test_an_agent_that_nobody_told_anything_has_ended_with_it(hosting: Hosting) -> None:
    world = hosting.world
    async with world.operator():
        await hosting.server(named=False)
        await hosting.create(restartPolicy="Never")
        await hosting.phase("Running")
        await hosting.delete_server()
        status = await hosting.phase("Failed")
        assert (status["stop"]["message"], status["stop"].get("graceful")) == (SERVER_GONE, None)
        await hosting.condition("Stopped", "True")
        await hosting.condition("Alive", "False", "NoInstance")
        assert (await hosting.rows())[0] == "stopped"
        assert world.evidence.living("one") == []


async def test_a_turn_in_hand_is_abandoned_and_waits_for_a_person(hosting: Hosting) -> None:
    world = hosting.world
    async with world.operator():
        await hosting.server(named=False)
        await hosting.create(prompt="wait gate", restartPolicy="Always")
        await eventually(lambda: hosting.prompts() == 1, within=WITHIN, what="it was told")
        await hosting.delete_server()
        status = await hosting.phase("Failed")
        assert (status["stop"]["message"], status["stop"]["graceful"]) == (SERVER_GONE, False)
        row, session, task, turns = await hosting.rows()
        assert (row, session, task) == ("stopped", "waiting_for_input", "review")
        assert turns in CUT
        assert hosting.prompts() == 1


@pytest.mark.parametrize("what", ["its pod", "its resource", "a signal"])
async def test_an_agent_that_goes_with_its_server_has_not_ended_by_itself(
    hosting: Hosting, what: str
) -> None:
    """Another agent holds the server up, which answers meanwhile: of this one there is nothing here."""
    world = hosting.world
    profiles = [hosting.profile("one"), hosting.profile("two", "--linger")]
    async with world.operator():
        await two_agents(hosting, profiles)
        if what == "its pod":
            await world.delete_pod(await world.server_pod())
        elif what == "a signal":
            # As a node that shuts down sends one: no pod is deleted.
            world.kill_server(await world.server_pod(), signal.SIGTERM)
        else:
            await hosting.delete_server()
        await eventually(lambda: not world.evidence.living("one"), within=WITHIN, what="one is gone")
        looks = 0
        while world.evidence.living("two"):
            row = (await hosting.rows())[0]
            if world.evidence.living("two"):
                assert row == "running"
                looks += 1
            await asyncio.sleep(0.1)
        assert looks > 0
        for name in ("one", "two"):
            await row_is(hosting, "stopped", name)
        status = await hosting.phase("Failed")
        assert status["stop"]["message"] == (SERVER_GONE if what == "its resource" else SERVER_ENDED)


async def test_an_agent_that_was_about_to_begin_has_refused_nothing(hosting: Hosting) -> None:
    """Its server is told to end while it is asked to say hello; another agent holds the server up."""
    world = hosting.world
    never = str(world.evidence.workspaces / "never")
    profiles = [hosting.profile("one", "--answer-after", never), hosting.profile("two", "--linger")]
    async with world.operator():
        await two_agents(hosting, profiles)
        await hosting.delete_server()
        status = await hosting.phase("Failed")
        assert status["stop"]["message"] == SERVER_GONE
        assert (await hosting.rows())[0] == "stopped"


@pytest.mark.parametrize("spec", [{"desiredState": "StopRequested"}, {"restartToken": "again"}])
async def test_a_drain_ends_with_it(hosting: Hosting, spec: dict[str, str]) -> None:
    world = hosting.world
    async with world.operator():
        await hosting.server(named=False)
        await hosting.create(prompt="wait gate")
        await eventually(lambda: hosting.prompts() == 1, within=WITHIN, what="it was told")
        await hosting.change(**spec)
        await row_is(hosting, "stopping")
        await hosting.delete_server()
        status = await hosting.until(lambda found: (found.get("stop") or {}).get("finishedAt"))
        assert (status["stop"]["message"], status["stop"]["graceful"]) == (SERVER_GONE, False)
        row, session, task, turns = await hosting.rows()
        assert (row, session, task) == ("stopped", "waiting_for_input", "review")
        assert turns in CUT
        await hosting.condition("Draining", "False")


async def test_nothing_is_said_while_its_pod_is_there(hosting: Hosting) -> None:
    """``kubectl delete --cascade=orphan``: the agent works on, and nobody can ask its server for it."""
    world = hosting.world
    async with world.operator():
        await hosting.server(named=False)
        await hosting.create(restartPolicy="Never")
        await hosting.phase("Running")
        pod = await world.server_pod()
        await hosting.delete_server("Orphan")
        await hosting.phase("Unknown")
        await asyncio.sleep(LOOKS)
        assert (await hosting.status())["phase"] == "Unknown"
        assert (await hosting.rows())[0] == "running"
        assert len(world.evidence.living("one")) == 1
        await world.api.delete(path("pods", world.namespace, pod["metadata"]["name"]))
        await hosting.phase("Failed")
        assert (await hosting.rows())[0] == "stopped"
        assert world.evidence.living("one") == []


async def test_nothing_is_said_while_the_api_server_is_silent(hosting: Hosting) -> None:
    world = hosting.world
    clusters: list[Silent] = []

    def wrap(inner: Any) -> Any:
        clusters.append(Silent(inner))
        return clusters[-1]

    async with world.operator(wrap_servers=wrap):
        await hosting.server(named=False)
        await hosting.create(restartPolicy="Never")
        await hosting.phase("Running")
        for cluster in clusters:
            cluster.silent = True
        await hosting.delete_server()
        await hosting.phase("Unknown")
        await eventually(lambda: not world.server_pods(), within=WITHIN, what="its pod is gone")
        before = sum(cluster.asked for cluster in clusters)
        await eventually(
            lambda: sum(cluster.asked for cluster in clusters) >= before + 2,
            within=WITHIN,
            what="asked twice",
        )
        assert (await hosting.status())["phase"] == "Unknown"
        assert (await hosting.rows())[0] == "running"
        for cluster in clusters:
            cluster.silent = False
        await hosting.phase("Failed")
        assert (await hosting.rows())[0] == "stopped"


async def test_under_another_server_of_its_name_it_is_started_again(hosting: Hosting) -> None:
    world = hosting.world
    async with world.operator():
        await hosting.server(named=False)
        await hosting.create(backoff={"initialSeconds": 1})
        await hosting.phase("Running")
        first = await eventually(lambda: world.evidence.living("one"), within=WITHIN, what="its agent")
        await hosting.delete_server()
        await hosting.condition("Stalled", "True", "ControlServerNotFound")
        await hosting.server(named=False)
        await hosting.phase("Running")
        await eventually(lambda: len(world.evidence.living("one")) == 1, within=WITHIN, what="its agent")
        assert world.evidence.living("one") != first


async def test_what_was_deleted_together_leaves_its_session_free(hosting: Hosting) -> None:
    """As ``kubectl delete -f`` and ``kubectl apply -f`` do with one file."""
    world = hosting.world
    async with world.operator():
        await hosting.server(named=False)
        await hosting.create()
        await hosting.phase("Running")
        await hosting.delete_server()
        await hosting.delete()
        await row_is(hosting, "stopped")


async def test_what_was_deleted_while_nobody_looked_is_found_by_the_next_launch(hosting: Hosting) -> None:
    world = hosting.world
    async with world.operator():
        await hosting.server(named=False)
        await hosting.create()
        await hosting.phase("Running")
        await eventually(lambda: world.evidence.living("one"), within=WITHIN, what="its agent")
    await hosting.delete()
    await hosting.delete_server()
    await eventually(lambda: not world.server_pods(), within=WITHIN, what="its pod is gone")
    assert (await hosting.rows())[0] == "running"
    await launched_by_a_library(hosting, "two")
    # As an operator has written it that did not keep the pod's name.
    await world.sql("UPDATE tenure.executors_running SET metadata = metadata - 'server_pod'")
    async with world.operator():
        await hosting.server(named=False)
        await hosting.create()
        await hosting.phase("Running")
        await eventually(lambda: len(world.evidence.pids("one")) == 2, within=WITHIN, what="another agent")
        # Of one installation all are found by one.
        await row_is(hosting, "stopped", "two")
