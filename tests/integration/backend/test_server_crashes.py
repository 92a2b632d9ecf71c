"""The control server is killed at any step: states stay truthful, and the backend goes on with the next server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.integration.backend import driver
from tests.integration.backend.scene import WITHIN, Scene
from tests.support.control import running_server

from tenure.backend import Backend, BackendError, Session
from tenure.model.masked import Masked
from tenure.storage.migrations import migrate_schema

STEPS = [
    f"{when} {step}"
    for step in ("row", "create", "hello", "session", "open", "send", "bind", "apply", "ack")
    for when in ("before", "after")
]


@pytest.fixture
async def directory(tmp_path: Path) -> Path:
    made = tmp_path / "installation"
    made.mkdir()
    return made


@contextlib.asynccontextmanager
async def another_server(scene: Scene, directory: Path) -> AsyncIterator[None]:
    """At the address of the one that died."""
    async with running_server(directory=directory, flags={"port": scene.server.port}) as server:
        scene.server = server
        yield


async def one_job(scene: Scene, backend: Backend) -> Session:
    session = await scene.launch(backend, events=False)
    turn = await session.prompt("append out.txt once")
    await turn.outcome()
    await session.settled()
    return session


@pytest.mark.parametrize("moment", STEPS)
async def test_a_server_that_dies_leaves_truthful_states_and_the_next_one_is_used(
    database_url: str, tmp_path: Path, directory: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await migrate_schema(Masked(database_url))
    when, _, step = moment.partition(" ")
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(running_server(directory=directory))
        scene = Scene(server, database_url, tmp_path)

        def kill() -> None:
            server.process.kill()
            server.process.wait()

        owner, name, _ = driver.STEPS[step]
        monkeypatch.setattr(owner, name, getattr(owner, name))  # put back in the end
        async with scene.backend() as backend:
            driver.intercept(step, *((kill, _nothing) if when == "before" else (_nothing, kill)))
            job = asyncio.create_task(one_job(scene, backend))
            await scene.until(lambda: server.process.poll() is not None, f"the step {step}")
            await stack.enter_async_context(another_server(scene, directory))
            try:
                async with asyncio.timeout(WITHIN):
                    session = await job
            except BackendError:
                pass
            else:
                await scene.until(lambda: session.over is not None)
            await scene.until(lambda: backend.server_identity == scene.server.identity, "the next server")
            await scene.until(lambda: settled(scene), "truthful states")
            turns = await scene.turns()
            assert turns in ([], ["completed"], ["abandoned"])
            await scene.until(lambda: not backend._core.launching, "a launch is undone")

            again = await scene.until(lambda: one_more_job(scene, backend), "another job on the next server")
            assert await scene.turns() == [*turns, "completed"]
            assert again.server_identity == scene.server.identity


def _nothing() -> None:
    pass


async def settled(scene: Scene) -> bool:
    """No session is said to run, no turn to be open."""
    assert await scene.execution() in ("stopped", "failed")
    assert "open" not in await scene.turns()
    assert await scene.session_state() in ("created", "waiting_for_input")
    return True


async def one_more_job(scene: Scene, backend: Backend) -> Session | None:
    try:
        return await one_job(scene, backend)
    except BackendError:
        return None
