"""The database goes away in the middle: agents work on, outcomes wait at the control server, and nothing is
acknowledged before it is durable."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.integration.backend.scene import SESSION, WITHIN, Scene
from tests.support.control import running_server
from tests.support.postgres import PostgresServer

from tenure.backend import Retry, RetryableError
from tenure.model.masked import Masked
from tenure.storage.migrations import migrate_schema


@pytest.fixture
async def scene(own_postgres: PostgresServer, tmp_path: Path) -> AsyncIterator[Scene]:
    url = await own_postgres.fresh_database()
    await migrate_schema(Masked(url))
    async with running_server() as server:
        yield Scene(server, url, tmp_path)


@pytest.mark.accept("S-004.6", "S-004.4")
async def test_an_outcome_waits_for_the_database_and_is_applied_once_on_its_return(
    scene: Scene, own_postgres: PostgresServer
) -> None:
    gate = scene.directory / "gate"
    async with scene.backend() as backend:
        session = await scene.launch(backend, events=False)
        turn = await session.prompt(f"wait {gate}")
        await asyncio.to_thread(own_postgres.stop)
        gate.touch()
        await scene.until(lambda: scene.told("finished"))
        peer = backend._core.link.require()

        async def kept() -> bool:
            retained = await peer.client.outcome(session.instance_id)
            return retained is not None and retained.turn_id == turn.control_turn_id

        await scene.until(kept)
        with pytest.raises(RetryableError) as refused:
            await session.prompt("say more")
        assert refused.value.reason is Retry.DATABASE_UNAVAILABLE
        with pytest.raises(RetryableError) as refused:
            await scene.launch(backend, "session-2")
        assert refused.value.reason is Retry.DATABASE_UNAVAILABLE
        assert await kept(), "nothing is acknowledged that is not durable"
        assert turn.end is None
        await asyncio.to_thread(own_postgres.start)
        async with asyncio.timeout(WITHIN):
            assert (await turn.outcome()).completed
            await session.settled()
        assert await peer.client.outcome(session.instance_id) is None
        assert await scene.turns() == ["completed"]

        async def goes_on() -> object:
            try:
                return await (await session.prompt("say again")).outcome()
            except RetryableError:
                return None

        await scene.until(goes_on)
        assert len(scene.told("prompt")) == 2
        assert len(scene.told("started")) == 1


async def test_a_backend_that_dies_while_the_database_is_away_leaves_the_outcome_to_the_next_one(
    scene: Scene, own_postgres: PostgresServer
) -> None:
    gate = scene.directory / "gate"
    process = await scene.start(text=f"wait {gate}")
    await scene.until(lambda: scene.told("prompt"))
    await scene.until(lambda: _bound(scene))
    await asyncio.to_thread(own_postgres.stop)
    gate.touch()
    await scene.until(lambda: scene.told("finished"))
    process.kill()
    await process.wait()
    await asyncio.to_thread(own_postgres.start)
    assert await scene.run(text=f"wait {gate}") == 0
    assert await scene.turns() == ["completed"]
    assert len(scene.told("prompt")) == len(scene.told("started")) == 1


async def _bound(scene: Scene) -> bool:
    return bool(await scene.fetch("SELECT 1 FROM tenure.turns WHERE control_turn_id IS NOT NULL"))


async def test_the_number_of_a_turn_that_could_not_be_written_down_is_found_by_its_outcome(
    scene: Scene, own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database goes between the sending of a prompt and the writing of its number."""
    from tenure.storage.records.turns import Turns

    gate = scene.directory / "gate"
    real = Turns.bind

    async def bind(self: Turns, *args: object) -> None:
        await asyncio.to_thread(own_postgres.stop)
        await real(self, *args)  # type: ignore[arg-type]

    async with scene.backend() as backend:
        session = await scene.launch(backend, events=False)
        monkeypatch.setattr(Turns, "bind", bind)
        turn = await session.prompt(f"wait {gate}")
        assert turn.control_turn_id is not None
        monkeypatch.setattr(Turns, "bind", real)
        gate.touch()
        await scene.until(lambda: scene.told("finished"))
        await asyncio.to_thread(own_postgres.start)
        async with asyncio.timeout(WITHIN):
            assert (await turn.outcome()).completed
    assert await scene.fetch("SELECT control_turn_id FROM tenure.turns WHERE session_id = $1", SESSION) == [
        (turn.control_turn_id,)
    ]


async def test_a_launch_whose_row_may_have_been_written_is_undone_when_the_database_returns(
    scene: Scene, own_postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tenure.ownership.client import ControlClient

    real = ControlClient.create

    async def create(client: ControlClient, request: object) -> object:
        answer = await real(client, request)  # type: ignore[arg-type]
        await asyncio.to_thread(own_postgres.stop)
        raise_lost()
        return answer

    async with scene.backend() as backend:
        monkeypatch.setattr(ControlClient, "create", create)
        with pytest.raises(RetryableError) as refused:
            await scene.launch(backend)
        assert refused.value.reason is Retry.NO_ANSWER
        monkeypatch.setattr(ControlClient, "create", real)
        await scene.until(lambda: scene.server.descendants() == [], "the instance to be deleted")
        with pytest.raises(RetryableError) as refused:
            await scene.launch(backend)
        assert refused.value.reason is Retry.SESSION_IN_USE
        await asyncio.to_thread(own_postgres.start)
        await scene.until(lambda: _released(scene), "the row to be released")
        await scene.until(lambda: not backend._core.launching)
        session = await scene.launch(backend, events=False)
        assert (await (await session.prompt("say hello")).outcome()).completed


async def _released(scene: Scene) -> bool:
    return await scene.execution() == "failed"


def raise_lost() -> None:
    from tenure.ownership.errors import NoAnswer

    raise NoAnswer("no answer in time")


async def test_a_turn_of_which_nobody_heard_that_it_was_opened_is_the_one_that_the_next_prompt_opens(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commit came through and the answer did not: it must not be in the way for ever."""
    from tenure.storage.errors import DatabaseUnavailable
    from tenure.storage.records.turns import Turns

    real = Turns.open

    async def answer_lost(self: Turns, *args: object, **more: object) -> object:
        await real(self, *args, **more)  # type: ignore[arg-type]
        raise DatabaseUnavailable("records", "no answer in time")

    async with scene.backend() as backend:
        session = await scene.launch(backend, events=False)
        with monkeypatch.context() as patched:
            patched.setattr(Turns, "open", answer_lost)
            for _ in range(2):
                with pytest.raises(RetryableError) as refused:
                    await session.prompt("say never")
                assert refused.value.reason is Retry.DATABASE_UNAVAILABLE
        assert await scene.turns() == ["open"]
        async with asyncio.timeout(WITHIN):
            assert (await (await session.prompt("say once")).outcome()).completed
        assert await scene.turns() == ["completed"]
        async with asyncio.timeout(WITHIN):
            assert (await (await session.prompt("say twice")).outcome()).completed
        assert [entry["text"] for entry in scene.told("prompt")] == ["say once", "say twice"]


async def test_a_caller_that_stops_waiting_while_the_turn_is_opened_leaves_it_to_be_done(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tenure.storage.records.turns import Turns

    real, opened, gate = Turns.open, asyncio.Event(), asyncio.Event()

    async def slow(self: Turns, *args: object, **more: object) -> object:
        record = await real(self, *args, **more)  # type: ignore[arg-type]
        opened.set()
        await gate.wait()
        return record

    monkeypatch.setattr(Turns, "open", slow)
    async with scene.backend() as backend:
        session = await scene.launch(backend, events=False)
        asking = asyncio.create_task(session.prompt("say once"))
        await opened.wait()
        asking.cancel()
        await asyncio.wait({asking})
        assert asking.cancelled()
        gate.set()
        turn = await scene.until(lambda: session.open_turn or session._turn)
        async with asyncio.timeout(WITHIN):
            assert (await turn.outcome()).completed
        assert await scene.turns() == ["completed"]
        assert len(scene.told("prompt")) == 1
