"""Turns: ids, keys, outcomes; one end for each."""

import os
import signal
from pathlib import Path

import pytest
from tests.integration.control.instances.hosting import SOON, hosting
from tests.support.agents import read_journal
from tests.support.wait import eventually


@pytest.mark.accept("S-004.1", "S-004.6")
async def test_an_outcome_is_kept_with_its_turn_id_until_it_is_acknowledged(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        hosted, reader = await host.ready()
        turn = await reader.prompt("say hello")
        events = await reader.until("complete")
        assert [event["type"] for event in events] == ["message_chunk", "complete"]
        assert events[-1]["control_turn_id"] == turn
        assert events[-1]["stop_reason"] == "end_turn"
        for _ in range(3):
            kept = hosted.outcome()
            assert (kept.retained, kept.turn_id) == (True, turn)
            assert kept.event is not None
            assert (kept.event.type, kept.event.control_turn_id) == ("complete", turn)
        hosted.acknowledge(turn + 1)
        assert hosted.outcome().retained
        hosted.acknowledge(turn)
        hosted.acknowledge(turn)
        assert not hosted.outcome().retained


@pytest.mark.accept("S-004.1")
async def test_an_outcome_is_kept_when_nobody_is_attached(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        hosted, reader = await host.ready()
        turn = await reader.prompt("wait go")
        await host.detached(hosted, reader)
        (host.workspace() / "go").touch()
        kept = await eventually(lambda: hosted.outcome().retained and hosted.outcome(), within=SOON)
        assert kept.turn_id == turn
        again = await host.attached(hosted)
        assert (await again.until("complete"))[-1]["control_turn_id"] == turn


async def test_turn_ids_are_counted_over_all_instances(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        _, one = await host.ready()
        _, other = await host.ready()
        first = await one.prompt("say a")
        second = await other.prompt("say b")
        await one.until("complete")
        third = await one.prompt("say c")
        assert 1 <= first < second < third


async def test_the_same_turn_key_is_the_same_turn_and_is_prompted_once(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        hosted, reader = await host.ready()
        turn = await reader.prompt("wait go", turn_key="17")
        assert await reader.prompt("wait go", turn_key="17") == turn
        (host.workspace() / "go").touch()
        await reader.until("complete")
        assert await reader.prompt("wait go", turn_key="17") == turn
        assert hosted.outcome().turn_id == turn
        assert len(read_journal(host.journal, "prompt")) == 1


async def test_a_turn_key_is_known_after_a_crash_of_the_backend_and_after_the_agent_s_end(
    tmp_path: Path,
) -> None:
    async with hosting(tmp_path) as host:
        hosted, reader = await host.ready()
        turn = await reader.prompt("exit 3", turn_key="17")
        reader.abort()
        again = await host.attached(hosted)
        assert await again.prompt("exit 3", turn_key="17") == turn
        await eventually(lambda: hosted.status == "stopped", within=SOON)
        assert await again.prompt("exit 3", turn_key="17") == turn


async def test_a_second_prompt_is_refused_while_a_turn_runs_and_taken_after_it(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        _, reader = await host.ready()
        turn = await reader.prompt("wait go")
        assert await reader.refused("agent.prompt", {"text": "say no"}) == "turn_in_progress"
        assert await reader.refused("agent.session.new") == "turn_in_progress"
        (host.workspace() / "go").touch()
        assert [e["type"] for e in await reader.until("complete")] == ["complete"]
        assert await reader.prompt("say yes") > turn


async def test_a_prompt_is_answered_at_once_and_before_its_events(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        _, reader = await host.ready()
        await reader.prompt("say first\nwait never")
        assert not reader.events
        assert (await reader.event())["type"] == "message_chunk"


async def test_a_prompt_without_a_session_opens_no_turn(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        hosted = await host.made()
        reader = await host.attached(hosted)
        assert await reader.refused("agent.prompt", {"text": "say x"}) == "no_session"
        assert not hosted.outcome().retained


async def test_a_newer_prompt_clears_the_slot(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        hosted, reader = await host.ready()
        await reader.prompt("say hello")
        await reader.until("complete")
        assert hosted.outcome().retained
        await reader.prompt("wait go")
        assert not hosted.outcome().retained


async def test_a_cancelled_turn_ends_as_cancelled(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        hosted, reader = await host.ready()
        turn = await reader.prompt("sleep 600")
        await reader.granted("agent.cancel")
        end = (await reader.until("complete"))[-1]
        assert (end["stop_reason"], end["control_turn_id"]) == ("cancelled", turn)
        assert hosted.outcome().turn_id == turn


async def test_an_agent_s_error_ends_the_turn_with_an_error_event(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        hosted, reader = await host.ready()
        turn = await reader.prompt("fail -32001")
        end = (await reader.until("error"))[-1]
        assert (end["code"], end["control_turn_id"]) == ("agent_error", turn)
        kept = hosted.outcome().event
        assert kept is not None
        assert kept.type == "error"
        await reader.prompt("say still here")
        await reader.until("complete")


@pytest.mark.accept("S-004.4")
@pytest.mark.parametrize("how", ["exit 3", "die 9", "die 11"])
async def test_an_agent_s_death_is_the_one_end_of_its_turn_and_told_before_its_own(
    tmp_path: Path, how: str
) -> None:
    async with hosting(tmp_path) as host:
        hosted, reader = await host.ready()
        turn = await reader.prompt(f"say last words\n{how}")
        events = await reader.until("agent_exited")
        assert [event["type"] for event in events] == ["message_chunk", "error", "agent_exited"]
        assert (events[1]["code"], events[1]["control_turn_id"]) == ("exited", turn)
        assert hosted.outcome().turn_id == turn
        assert hosted.status == "stopped"
        assert await reader.refused("agent.prompt", {"text": "say x"}) == "exited"


@pytest.mark.accept("S-004.4")
async def test_a_turn_that_was_done_keeps_its_outcome_when_its_agent_then_dies(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        hosted, reader = await host.ready()
        turn = await reader.prompt("say done")
        ends = await reader.until("complete")
        os.kill(read_journal(host.journal, "started")[0]["pid"], signal.SIGKILL)
        ends += await reader.until("agent_exited")
        assert [e["type"] for e in ends if e["type"] in ("complete", "error")] == ["complete"]
        kept = hosted.outcome()
        assert kept.event is not None
        assert (kept.turn_id, kept.event.type) == (turn, "complete")


@pytest.mark.accept("S-004.4", "S-001.10")
async def test_a_stop_ends_an_open_turn_once_and_tells_its_reader(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        hosted, reader = await host.ready()
        turn = await reader.prompt("say working\nsleep 600")
        await reader.event()
        assert await host.instances.stop(hosted.id)
        kept = hosted.outcome().event
        assert kept is not None
        assert (kept.type, kept.fields["code"]) == ("error", "stopped")
        end = await reader.event()
        assert (end["type"], end["code"], end["control_turn_id"]) == ("error", "stopped", turn)
        assert await reader.closed() == 4003
        assert not reader.events
        assert host.instances.find(hosted.id) is None
