"""Events that nobody takes: paused at the limit, in order, none lost; delivered once a reader is there."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.integration.control.instances.hosting import SOON, Host, hosting
from tests.support.wait import eventually

from tenure.control.instances.hosted import Hosted

LIMIT = 100
PRODUCED = 150


async def paused(hosted: Hosted) -> bool:
    """Whether production stands still: a full buffer, and the next event before it."""
    await eventually(lambda: hosted.outbox.paused > 0, within=SOON, what="production to pause")
    return True


def texts(events: list[dict[str, Any]]) -> list[str]:
    return [event["text"].strip() for event in events if event["type"] == "message_chunk"]


@pytest.mark.accept("S-001.5", "S-001.6", "S-004.3")
async def test_150_events_of_a_detached_agent_pause_at_100_and_all_arrive_in_order(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        hosted, reader = await host.ready()
        # So large that the agent's pipe holds few of them: what it has written it has handed over.
        await reader.prompt(f"wait go\nupdates {PRODUCED} 16000 written")
        await host.detached(hosted, reader)
        (host.workspace() / "go").touch()
        assert await paused(hosted)
        written = int((host.workspace() / "written").read_text())
        assert written < PRODUCED
        assert (hosted.outbox.newest - hosted.outbox.first + 1, hosted.outbox.paused) == (LIMIT, 1)
        assert not hosted.outcome().retained

        again = await host.attached(hosted)
        events = await again.until("complete")
        assert texts(events) == [str(number) for number in range(PRODUCED)]
        seqs = [event["seq"] for event in events]
        assert seqs == list(range(seqs[0], seqs[0] + PRODUCED + 1))


async def test_an_attached_reader_that_does_not_read_pauses_its_agent_and_nobody_else(
    tmp_path: Path,
) -> None:
    async with hosting(tmp_path, retention_limit=10) as host:
        hosted, stalled = await host.ready()
        _, other = await host.ready()
        await stalled.prompt("updates 600 60000 written")
        assert await paused(hosted)
        await other.prompt("updates 300 1000")
        assert len(await other.until("complete")) == 301
        # Still, or again: what the connection itself holds is taken bit by bit.
        assert await paused(hosted)
        assert int((host.workspace() / "written").read_text()) < 600
        assert texts(await stalled.until("complete")) == [str(number) for number in range(600)]


@pytest.mark.accept("S-001.6")
async def test_production_pauses_at_the_bytes_too(tmp_path: Path) -> None:
    async with hosting(tmp_path, retention_bytes=1_000_000) as host:
        hosted, reader = await host.ready()
        await reader.prompt("wait go\nupdates 20 300000")
        await host.detached(hosted, reader)
        (host.workspace() / "go").touch()
        assert await paused(hosted)
        assert hosted.outbox.newest - hosted.outbox.first + 1 == 4
        again = await host.attached(hosted)
        assert texts(await again.until("complete")) == [str(number) for number in range(20)]


CLASSES = {
    "message": ("say x", "message_chunk"),
    "thought": ("think x", "reasoning"),
    "tool call": ("tool t1 x", "tool_call"),
    "tool update": ("tooldone t1", "tool_update"),
    "plan": ("plan a; b", "plan"),
    "commands": (
        'update {"sessionUpdate":"available_commands_update","availableCommands":'
        '[{"name":"help","description":"d"}]}',
        "available_commands",
    ),
    "mode": ('update {"sessionUpdate":"current_mode_update","currentModeId":"m"}', "session_mode"),
    "permission": ("permission x", "permission_request"),
    "garbage": ("raw this is no JSON", "invalid_output"),
    "success": ("stop end_turn", "complete"),
    "refusal": ("fail -32001", "error"),
    "exit": ("exit 3", "agent_exited"),
}


@pytest.mark.accept("S-001.6", "S-001.5")
@pytest.mark.parametrize("kind", CLASSES)
async def test_every_class_of_event_waits_for_a_place_and_arrives(tmp_path: Path, kind: str) -> None:
    script, type_ = CLASSES[kind]
    async with hosting(tmp_path, retention_limit=1) as host:
        hosted, reader = await host.ready()
        await reader.prompt(f"wait go\nsay fills the buffer\n{script}")
        await host.detached(hosted, reader)
        (host.workspace() / "go").touch()
        assert await paused(hosted)
        # Full by number, and nothing beyond it, whatever the class of what comes next.
        assert hosted.outbox.newest - hosted.outbox.first + 1 == 1
        again = await host.attached(hosted)
        seen = await again.until(type_)
        assert texts(seen)[0] == "fills the buffer"
        assert [event["seq"] for event in seen] == list(range(seen[0]["seq"], seen[0]["seq"] + len(seen)))


@pytest.mark.accept("S-001.10")
@pytest.mark.parametrize("kind", CLASSES)
async def test_a_stop_releases_a_paused_producer_of_every_class_and_completes(
    tmp_path: Path, kind: str
) -> None:
    script, _ = CLASSES[kind]
    async with hosting(tmp_path, retention_limit=1) as host:
        hosted, reader = await host.ready()
        await reader.prompt(f"wait go\nsay fills the buffer\n{script}")
        await host.detached(hosted, reader)
        (host.workspace() / "go").touch()
        assert await paused(hosted)
        async with asyncio.timeout(SOON):
            assert await host.instances.stop(hosted.id)
        assert hosted.outbox.paused == 0
        assert host.instances.find(hosted.id) is None


async def test_events_are_numbered_by_instance_without_a_hole(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        for _ in range(2):
            _, reader = await host.ready()
            await reader.prompt("updates 5")
            assert [event["seq"] for event in await reader.until("complete")] == [1, 2, 3, 4, 5, 6]


async def _lost_on_the_way(host: Host, hosted: Hosted, *, ack: bool) -> None:
    """A reader that vanishes after the server has written to it, before it read anything."""
    reader = await host.attached(hosted, ack=ack)
    await reader.opened()
    await reader.prompt("updates 20")
    await eventually(lambda: hosted.outcome().retained, within=SOON)
    reader.abort()
    await eventually(lambda: not hosted.attached, within=SOON)


@pytest.mark.accept("S-001.5", "S-004.3")
async def test_what_an_acknowledging_reader_did_not_acknowledge_comes_again_with_its_seq(
    tmp_path: Path,
) -> None:
    async with hosting(tmp_path) as host:
        hosted = await host.made()
        await _lost_on_the_way(host, hosted, ack=True)
        again = await host.attached(hosted, ack=True)
        events = await again.until("complete")
        assert [event["seq"] for event in events] == list(range(1, 22))
        assert texts(events) == [str(number) for number in range(20)]
        await again.acknowledge(15)
        assert await again.granted("agent.stderr") is not None
        again.abort()
        await eventually(lambda: not hosted.attached, within=SOON)
        third = await host.attached(hosted, ack=True)
        assert [event["seq"] for event in await third.until("complete")] == list(range(16, 22))


async def test_a_reader_that_does_not_acknowledge_is_not_told_twice(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        hosted, reader = await host.ready()
        await reader.prompt("updates 20")
        await reader.until("complete")
        await host.detached(hosted, reader)
        again = await host.attached(hosted)
        await again.prompt("say new")
        assert [event["seq"] for event in await again.until("complete")] == [22, 23]


async def test_unacknowledged_events_count_for_the_limit(tmp_path: Path) -> None:
    async with hosting(tmp_path, retention_limit=10) as host:
        hosted = await host.made()
        reader = await host.attached(hosted, ack=True)
        await reader.opened()
        await reader.prompt("updates 30")
        seen = [await reader.event() for _ in range(10)]
        assert await paused(hosted)
        for _ in range(21):
            await reader.acknowledge(seen[-1]["seq"])
            seen.append(await reader.event())
        assert [event["seq"] for event in seen] == list(range(1, 32))
        assert seen[-1]["type"] == "complete"


async def test_an_acknowledgement_of_what_was_not_sent_loses_nothing(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        hosted, first = await host.ready()
        await first.prompt("wait go\nupdates 40 1000000")
        await host.detached(hosted, first)
        (host.workspace() / "go").touch()
        await eventually(lambda: hosted.outcome().retained, within=SOON)
        # It reads nothing: most of it cannot have been sent.
        reader = await host.attached(hosted, ack=True)
        await reader.acknowledge(10**9)
        await eventually(lambda: hosted.outbox.first > 1, within=SOON)
        missing = hosted.outbox.first
        assert missing < 41
        reader.abort()
        await eventually(lambda: not hosted.attached, within=SOON)
        again = await host.attached(hosted, ack=True)
        assert [event["seq"] for event in await again.until("complete")] == list(range(missing, 42))


async def test_an_event_that_nobody_could_read_keeps_its_place(tmp_path: Path) -> None:
    deep = json.dumps({"sessionUpdate": "tool_call", "toolCallId": "t", "title": "x", "rawInput": nested(70)})
    async with hosting(tmp_path) as host:
        _, reader = await host.ready()
        await reader.prompt(f"update {deep}\nsay after")
        events = await reader.until("complete")
        assert [event["type"] for event in events][-2:] == ["message_chunk", "complete"]
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value
