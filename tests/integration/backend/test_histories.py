"""A session that had an agent before: the next one loads what was said in it, or it is said that it did not."""

import json

from tests.integration.backend.scene import SESSION, Scene

from tenure.backend import Backend, Session

LONG = 400
"""Turns of a session whose history is more than waits here and at the server."""


async def one_turn(scene: Scene, session: Session, text: str) -> list[str]:
    """What is told until the end of the turn."""
    turn = await session.prompt(text)
    said = []
    async for event in session.events():
        said.append(str(event.fields.get("text", event.type)))
        if event.terminal and event.control_turn_id == turn.control_turn_id:
            break
    return said


async def had_one(scene: Scene, backend: Backend) -> str:
    """Launch the session, prompt it once, and stop it; the agent's own name of it."""
    session = await scene.launch(backend)
    assert not session.began_anew
    await one_turn(scene, session, "say first")
    await scene.until(lambda: named(scene, session.agent_session_id))
    await session.stop()
    return session.agent_session_id


async def named(scene: Scene, name: str) -> bool:
    rows = await scene.fetch(
        "SELECT resume_token FROM tenure.executors_running WHERE session_id = $1", SESSION
    )
    return bool(rows[0][0] == name)


def lengthen(scene: Scene, name: str) -> None:
    """The agent finds so many turns in its journal."""
    entry = {"what": "finished", "pid": 1, "session": name, "text": "long ago", "stop_reason": "end_turn"}
    with scene.journal.open("a") as file:
        file.write((json.dumps(entry) + "\n") * LONG)


async def test_the_next_agent_loads_it_and_only_what_is_new_is_told(scene: Scene) -> None:
    async with scene.backend() as backend:
        name = await had_one(scene, backend)
        lengthen(scene, name)
        session = await scene.launch(backend)
        assert [entry["session"] for entry in scene.told("loaded")] == [name]
        assert (session.agent_session_id, session.began_anew) == (name, False)
        assert await one_turn(scene, session, "say second") == ["second", "complete"]
        assert len(scene.told("session")) == 1


async def test_an_agent_that_declines_begins_anew_and_that_is_said_for_as_long_as_it_lives(
    scene: Scene,
) -> None:
    async with scene.backend() as backend:
        name = await had_one(scene, backend)
        session = await scene.launch(backend, agent_command=scene.command("--no-load"))
        assert session.began_anew
        assert session.agent_session_id != name
        assert await one_turn(scene, session, "say second") == ["second", "complete"]
        await scene.until(lambda: named(scene, session.agent_session_id))
    async with scene.backend() as backend:
        (found,) = await backend.resume_sessions()
        assert found.began_anew
        await found.ready()
        assert found.began_anew
        await found.stop()
        again = await scene.launch(backend)
        assert [entry["session"] for entry in scene.told("loaded")] == [found.agent_session_id]
        assert not again.began_anew


async def test_a_launch_may_do_without(scene: Scene) -> None:
    async with scene.backend() as backend:
        name = await had_one(scene, backend)
        session = await scene.launch(backend, load=False, metadata={"mine": "kept"})
        assert session.agent_session_id != name
        assert not session.began_anew
        assert scene.told("loaded") == []
        rows = await scene.fetch("SELECT metadata ->> 'mine' FROM tenure.executors_running")
        assert rows == [("kept",)]
