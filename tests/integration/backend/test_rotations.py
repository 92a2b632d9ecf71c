"""The owner rotates under a live backend: the backend goes on with the next hand-over, and nothing is lost."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.integration.backend.owner import Owner
from tests.integration.backend.scene import WITHIN, Scene
from tests.support.control import running_server

from tenure.backend import Backend, HandOverDirectory, Retry, RetryableError
from tenure.model.masked import Masked
from tenure.ownership.client import ControlClient
from tenure.storage.migrations import migrate_schema


@pytest.fixture(params=["plain", "TLS"])
async def scene(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> AsyncIterator[Scene]:
    await migrate_schema(Masked(database_url))
    async with running_server(tls=request.param == "TLS") as server:
        yield Scene(server, database_url, tmp_path)


@pytest.fixture
async def owner(scene: Scene) -> AsyncIterator[Owner]:
    made = await Owner.of(scene.server, scene.directory / "handover", pod_uid="pod-1")
    made.hand_over()
    yield made
    await made.aclose()


@contextlib.asynccontextmanager
async def handed(scene: Scene, owner: Owner) -> AsyncIterator[Backend]:
    source = HandOverDirectory(owner.directory, pod_uid="pod-1", interval=0.05)
    async with Backend.connect(source, scene.database_url) as backend:
        async with asyncio.timeout(WITHIN):
            await backend.ready()
        yield backend


@pytest.mark.parametrize("confirmed", [True, False])
async def test_streams_follow_a_rotation_and_no_event_is_lost_or_told_twice(
    scene: Scene, owner: Owner, confirmed: bool
) -> None:
    gate, written = scene.directory / "gate", scene.directory / "written"
    async with handed(scene, owner) as backend:
        session = await scene.launch(backend)
        turn = await session.prompt(f"updates 30 1 {written}\nwait {gate}\nupdates 30\nsay end")
        seen = []

        async def read() -> None:
            async for event in session.events():
                seen.append(event)
                if event.terminal:
                    return

        reading: asyncio.Task[None] | None = None
        await scene.until(lambda: written.exists() and written.read_text() == "30")
        for number in range(3):
            if number == 2:
                # What nobody had read when the stream ended has come again by now.
                reading = asyncio.create_task(read())
            await owner.rotate(confirm=confirmed)
            await scene.until(lambda: not session.attached, "the rotation to end the stream")
            owner.hand_over()
            await scene.until(lambda: session.attached, "the stream to be opened again")
        gate.touch()
        assert reading is not None
        async with asyncio.timeout(WITHIN):
            await reading
            assert (await turn.outcome()).completed
        assert [event.fields["seq"] for event in seen] == list(range(1, len(seen) + 1))
        chunks = [event.fields.get("text") for event in seen if event.type == "message_chunk"]
        assert chunks == [*map(str, range(30)), *map(str, range(30)), "end"]
        # And it goes on, launches and stops too.
        await session.stop()
        await (await scene.launch(backend, "session-2", events=False)).stop()
    assert len(scene.told("prompt")) == 1


async def test_between_a_rotation_and_its_hand_over_things_are_retryable_and_a_prompt_waits(
    scene: Scene, owner: Owner
) -> None:
    async with handed(scene, owner) as backend:
        session = await scene.launch(backend, events=False)
        await owner.rotate()
        with pytest.raises(RetryableError) as refused:
            await scene.launch(backend, "session-2")
        assert refused.value.reason in (Retry.NO_HAND_OVER, Retry.NO_ANSWER)
        prompting = asyncio.create_task(session.prompt("say hello"))
        await scene.until(lambda: turns_are(scene, ["open"]))
        owner.hand_over(pod_uid="somebody-else")
        done, _ = await asyncio.wait({prompting}, timeout=0.5)
        assert not done
        owner.hand_over()
        async with asyncio.timeout(WITHIN):
            assert (await (await prompting).outcome()).completed
        assert len(scene.told("prompt")) == 1
        assert await scene.turns() == ["completed"]
        # The launch that could not be made was undone meanwhile, or never begun by a backend that knew of the
        # rotation before; its session is free.
        await scene.until(lambda: execution_is(scene, "session-2", "failed", ""))
        await scene.launch_again(backend, "session-2", events=False)


async def turns_are(scene: Scene, states: list[str]) -> bool:
    return await scene.turns() == states


async def execution_is(scene: Scene, session_id: str, *status: str) -> bool:
    return await scene.execution(session_id) in status


async def test_a_new_process_with_an_old_hand_over_waits_for_the_next_one(scene: Scene, owner: Owner) -> None:
    async with handed(scene, owner) as backend:
        await scene.launch(backend, events=False)
    await owner.rotate()
    source = HandOverDirectory(owner.directory, pod_uid="pod-1", interval=0.05)
    async with Backend.connect(source, scene.database_url) as backend:
        ready = asyncio.create_task(backend.ready())
        done, _ = await asyncio.wait({ready}, timeout=1.0)
        assert not done
        owner.hand_over()
        async with asyncio.timeout(WITHIN):
            await ready
            (session,) = await backend.resume_sessions(events=False)
            assert (await (await session.prompt("say hello")).outcome()).completed


async def test_the_backend_claims_too_so_that_an_owner_that_is_away_is_not_missed(
    scene: Scene, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed = asyncio.Event()
    real = ControlClient.claim

    async def claim(client: ControlClient) -> None:
        await real(client)
        claimed.set()

    monkeypatch.setattr(ControlClient, "claim", claim)
    async with handed(scene, owner), asyncio.timeout(WITHIN):
        await claimed.wait()
