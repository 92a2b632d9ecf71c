"""The happy path: launch, prompt, events, permission, outcome, stop, and what is in the database after each."""

import asyncio

import pytest
from tests.integration.backend.scene import SESSION, Scene

from tenure.backend import Final, FinalError, Retry, RetryableError, TurnState


async def test_a_session_is_launched_prompted_and_stopped_and_every_step_is_in_the_database(
    scene: Scene,
) -> None:
    async with scene.backend() as backend:
        session = await scene.launch(backend)
        assert await scene.execution() == "running"
        turn = await session.prompt("say hello\nwrite out.txt done")
        texts = []
        async for event in session.events():
            texts.append(event.type)
            if event.terminal:
                break
        end = await turn.outcome()
        assert end.state is TurnState.COMPLETED
        assert end.stop_reason == "end_turn"
        assert texts[-2:] == ["message_chunk", "complete"]
        assert await scene.turns() == ["completed"]
        assert await scene.session_state() == "waiting_for_input"
        assert (scene.server.workspace(SESSION) / "out.txt").read_text() == "done"
        await session.stop(completed=True)
        assert await scene.execution() == "stopped"
        assert await scene.session_state() == "completed"
        assert scene.server.descendants() == []
