"""A backend goes, another comes: the agent does not notice, and nothing that it did meanwhile is lost."""

import asyncio

import pytest
from tests.integration.backend.scene import SESSION, WITHIN, Scene

from tenure.backend import Event, FinalError, Session, TurnState


async def the_turn_of(session: Session) -> list[Event]:
    """Events up to the end of the turn."""
    seen = []
    async with asyncio.timeout(WITHIN):
        async for event in session.events():
            seen.append(event)
            if event.terminal:
                break
    return seen


def numbers(events: list[Event]) -> list[object]:
    return [event.fields["seq"] for event in events]


@pytest.mark.accept("S-001.1", "S-001.4", "S-001.5")
async def test_a_backend_that_leaves_stops_nothing_and_the_next_one_hears_everything_in_order(
    scene: Scene,
) -> None:
    gate = scene.directory / "gate"
    async with scene.backend() as backend:
        session = await scene.launch(backend)
        turn = await session.prompt(f"say before\nwait {gate}\nupdates 150\nsay after")
        async for event in session.events():
            if event.type == "message_chunk":
                break
    with pytest.raises(FinalError):
        await turn.outcome()
    (pid,) = scene.agent_pids()
    gate.touch()
    assert await scene.execution() == "running"
    assert await scene.turns() == ["open"]

    async with scene.backend() as backend:
        (session,) = await backend.resume_sessions()
        assert session.open_turn is not None
        events = await the_turn_of(session)
        texts = [str(event.fields.get("text", "")) for event in events if event.type == "message_chunk"]
        assert [text for text in texts if text.isdigit()] == [str(number) for number in range(150)]
        # The event in hand when the former backend left was not dealt with: it comes again, and is the only one.
        assert numbers(events) == list(range(events[0].fields["seq"], events[0].fields["seq"] + len(events)))
        assert texts[0] == "before"
        assert (await session.open_turn.outcome()).completed if session.open_turn else True
        await session.settled()
        assert await scene.turns() == ["completed"]
        assert scene.agent_pids() == {pid}
        assert len(scene.told("started")) == len(scene.told("session")) == 1


@pytest.mark.accept("S-004.3")
async def test_what_happens_between_recovery_and_attaching_is_delivered(scene: Scene) -> None:
    gate, written = scene.directory / "gate", scene.directory / "written"
    async with scene.backend() as backend:
        session = await scene.launch(backend)
        await session.prompt(f"wait {gate}\nupdates 40 1 {written}")
    async with scene.backend() as backend:
        # Recovered: the session is published, and not attached yet.
        assert await scene.fetch("SELECT 1 FROM tenure.control_servers WHERE recovered_by = adopted_by")
        gate.touch()
        await scene.until(lambda: written.exists() and written.read_text() == "40")
        (session,) = await backend.resume_sessions()
        events = await the_turn_of(session)
        assert len([event for event in events if event.type == "message_chunk"]) == 40
        assert events[-1].type == "complete"


async def test_events_that_were_not_read_come_again_and_those_that_were_do_not(scene: Scene) -> None:
    async with scene.backend() as backend:
        session = await scene.launch(backend)
        turn = await session.prompt("updates 10")
        await turn.outcome()
        # Whoever tells the server what was read does not come to it before the detach.
        session._follower._read.set = lambda: None  # type: ignore[method-assign]
        first = []
        async for event in session.events():
            first.append(event)
            if len(first) == 4:
                break
        # The first three were dealt with: the next one was asked for.
    async with scene.backend() as backend:
        (session,) = await backend.resume_sessions()
        second = await the_turn_of(session)
    assert second[0].fields["seq"] == first[3].fields["seq"]
    assert len(first) + len(second) - 1 == len({*numbers(first), *numbers(second)})


@pytest.mark.accept("S-004.1", "S-004.6")
async def test_an_outcome_is_kept_until_it_is_in_the_database_and_then_acknowledged(scene: Scene) -> None:
    gate = scene.directory / "gate"
    async with scene.backend() as backend:
        session = await scene.launch(backend, events=False)
        turn = await session.prompt(f"wait {gate}")
    gate.touch()
    await scene.until(lambda: scene.told("finished"))
    async with scene.backend() as backend:
        peer = backend._core.link.require()
        for _ in range(2):
            kept = await scene.until(lambda: peer.client.outcome(session.instance_id))
            assert kept.turn_id == turn.control_turn_id
        assert await scene.turns() == ["open"]
        (again,) = await backend.resume_sessions(events=False)
        await scene.until(lambda: again.open_turn is None)
        assert await scene.turns() == ["completed"]

        async def emptied() -> bool:
            return await peer.client.outcome(session.instance_id) is None

        await scene.until(emptied)
        await peer.client.acknowledge(session.instance_id, turn.control_turn_id or 0)
        assert await scene.turns() == ["completed"]


async def test_a_permission_request_waits_for_the_next_backend(scene: Scene) -> None:
    async with scene.backend() as backend:
        session = await scene.launch(backend, events=False)
        await session.prompt("permission Shall I")
        await scene.until(session.permissions)
    async with scene.backend() as backend:
        (session,) = await backend.resume_sessions()
        assert session.open_turn is not None
        await session.ready()
        (asked,) = await session.permissions()
        await session.answer(asked.pending_id, asked.options[0].option_id)
        assert (await session.open_turn.outcome()).state is TurnState.COMPLETED


async def test_a_session_that_nobody_records_is_stopped_and_a_record_without_instance_is_repaired(
    scene: Scene,
) -> None:
    async with scene.backend() as backend:
        await scene.launch(backend, "kept", events=False)
        lost = await scene.launch(backend, "lost", events=False)
        await scene.launch(backend, "unknown", events=False)
        await lost.prompt("wait never")
        peer = backend._core.link.require()
        await lost.detach()
        await peer.client.delete(lost.instance_id)
    await scene.execute("UPDATE tenure.executors_running SET status = 'stopped' WHERE session_id = 'unknown'")
    async with scene.backend() as backend:
        (kept,) = await backend.resume_sessions(events=False)
        assert kept.id == "kept"
        assert await scene.turns("lost") == ["abandoned"]
        assert await scene.session_state("lost") == "waiting_for_input"
        assert await scene.execution("lost") == "stopped"
        assert len(scene.server.descendants()) == 1
        assert await backend.resume_sessions() == (kept,)
        assert (await (await kept.prompt("say hello")).outcome()).completed


async def test_an_instance_that_somebody_stops_ends_its_session_truthfully(scene: Scene) -> None:
    async with scene.backend() as backend:
        session = await scene.launch(backend, events=False)
        turn = await session.prompt("wait never")
        await backend._core.link.require().client.delete(session.instance_id)
        end = await turn.outcome()
        assert end.state in (TurnState.FAILED, TurnState.CANCELLED, TurnState.ABANDONED)
        await scene.until(lambda: backend.sessions == ())
        await scene.until(lambda: _ended(scene))
        assert await scene.session_state() == "waiting_for_input"
        await scene.launch(backend)


async def _ended(scene: Scene) -> bool:
    return await scene.execution(SESSION) == "failed"
