"""Stopping: the open turn may finish, nothing new begins, and every step may be repeated."""

import asyncio

import pytest
from tests.integration.backend.scene import Scene

from tenure.backend import Final, FinalError, TurnState
from tenure.storage.records.executions import Executions


async def test_a_drain_waits_for_the_open_turn_and_refuses_another(scene: Scene) -> None:
    gate = scene.directory / "gate"
    async with scene.backend() as backend:
        session = await scene.launch(backend, events=False)
        turn = await session.prompt(f"wait {gate}\nappend out.txt finished")
        stopping = asyncio.create_task(session.stop(grace=15, completed=True))
        await scene.until(lambda: status_is(scene, "stopping"))
        with pytest.raises(FinalError) as refused:
            await session.prompt("say more")
        assert refused.value.reason is Final.SESSION_ENDED
        gate.touch()
        await stopping
        assert (await turn.outcome()).state is TurnState.COMPLETED
        assert (scene.workspace() / "out.txt").read_text().split() == ["finished"]
        assert await scene.session_state() == "completed"
        assert scene.server.descendants() == []


async def test_at_the_end_of_its_grace_the_turn_ends_without_being_finished(scene: Scene) -> None:
    async with scene.backend() as backend:
        session = await scene.launch(backend, events=False)
        turn = await session.prompt("wait never")
        await session.stop(grace=0.2)
        assert (await turn.outcome()).state in (TurnState.CANCELLED, TurnState.FAILED, TurnState.ABANDONED)
        assert await scene.execution() == "stopped"
        assert await scene.session_state() == "waiting_for_input"
        await session.stop()
        assert len(await scene.turns()) == 1


async def test_a_stop_that_failed_half_way_is_repeated(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    from tenure.backend import RetryableError
    from tenure.storage.errors import DatabaseUnavailable

    real = Executions.ended

    async def away(*_: object, **__: object) -> bool:
        raise DatabaseUnavailable("store", "not reachable")

    async with scene.backend() as backend:
        session = await scene.launch(backend, events=False)
        monkeypatch.setattr(Executions, "ended", away)
        with pytest.raises(RetryableError):
            await session.stop()
        assert await scene.execution() == "stopping"
        monkeypatch.setattr(Executions, "ended", real)
        await session.stop()
        assert await scene.execution() == "stopped"


async def test_a_completed_session_is_so_whoever_finishes_its_stop(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tenure.backend import RetryableError
    from tenure.storage.errors import DatabaseUnavailable

    real = Executions.ended

    async def away(*_: object, **__: object) -> bool:
        raise DatabaseUnavailable("store", "not reachable")

    async with scene.backend() as backend:
        session = await scene.launch(backend, events=False)
        assert (await (await session.prompt("say hello")).outcome()).completed
        monkeypatch.setattr(Executions, "ended", away)
        with pytest.raises(RetryableError):
            await session.stop(completed=True)
    monkeypatch.setattr(Executions, "ended", real)
    async with scene.backend() as backend:
        await backend.resume_sessions()
        assert await scene.execution() == "stopped"
        assert await scene.session_state() == "completed"
        again = await scene.launch(backend, events=False)
        assert await scene.session_state() == "waiting_for_input"
        await again.stop()


async def test_a_launch_that_its_caller_gives_up_is_undone(scene: Scene) -> None:
    async with scene.backend() as backend:
        gate = scene.directory / "hello"
        launching = asyncio.create_task(
            scene.launch(backend, agent_command=scene.command("--answer-after", str(gate)))
        )
        await scene.until(lambda: scene.told("started"))
        launching.cancel()
        await asyncio.wait({launching})
        assert launching.cancelled()
        await scene.until(lambda: status_is(scene, "failed"))
        assert scene.server.descendants() == []
        await scene.launch_again(backend)


async def test_a_launch_in_flight_when_the_backend_is_closed_is_left_to_the_next_one(scene: Scene) -> None:
    gate = scene.directory / "hello"
    async with scene.backend() as backend:
        launching = asyncio.create_task(
            scene.launch(backend, agent_command=scene.command("--answer-after", str(gate)))
        )
        await scene.until(lambda: scene.told("started"))
        await scene.until(lambda: backend.sessions)
    with pytest.raises((FinalError, Exception)):
        await launching
    gate.touch()
    assert await scene.execution() == "running"
    async with scene.backend() as backend:
        (session,) = await backend.resume_sessions(events=False)
        assert (await (await session.prompt("say hello")).outcome()).completed
    assert len(scene.told("started")) == 1


async def test_a_prompt_that_its_caller_gives_up_is_refused_or_done_all_the_same(scene: Scene) -> None:
    gate = scene.directory / "gate"
    async with scene.backend() as backend:
        session = await scene.launch(backend, events=False)
        held = session._core.records.turns.bind
        entered = asyncio.Event()

        async def slow(*arguments: object) -> None:
            entered.set()
            await scene.until(gate.exists)
            await held(*arguments)  # type: ignore[arg-type]

        session._core.records.turns.bind = slow  # type: ignore[method-assign]
        prompting = asyncio.create_task(session.prompt("say hello"))
        await entered.wait()
        prompting.cancel()
        await asyncio.wait({prompting})
        turn = session.open_turn
        gate.touch()
        if turn is not None:
            assert (await turn.outcome()).completed
        assert await scene.turns() == ["completed"]


async def test_a_prompt_in_flight_when_the_session_is_detached_says_so(scene: Scene) -> None:
    async with scene.backend() as backend:
        session = await scene.launch(backend, events=False)
        session._follower.attached.clear()
        session._follower._outbox = asyncio.Queue()  # nothing is sent any more
        prompting = asyncio.create_task(session.prompt("say hello"))
        await scene.until(lambda: session.open_turn)
        await session.detach()
        with pytest.raises(FinalError) as closed:
            await prompting
        assert closed.value.reason is Final.CLOSED


async def status_is(scene: Scene, status: str) -> bool:
    return await scene.execution() == status
