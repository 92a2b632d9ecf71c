"""Streams: who reads, what may be asked, and how each one ends."""

import asyncio
import contextlib
import json
from pathlib import Path

import aiohttp
import pytest
from tests.integration.control.instances.hosting import SOON, Clock, Closed, Reader, hosting
from tests.support.agents import read_journal, scripted_command
from tests.support.wait import eventually

from tenure.control.instances import Timing


async def test_a_newer_stream_closes_the_older_one_and_gets_the_events(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        hosted, older = await host.ready()
        newer = await host.attached(hosted)
        assert await older.closed() == 4001
        await newer.prompt("say for the newer one")
        assert len(await newer.until("complete")) == 2
        assert not older.events


async def test_what_is_asked_on_a_replaced_stream_is_not_done(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        hosted, older = await host.ready()
        newer = await host.attached(hosted)
        with contextlib.suppress(ConnectionError):
            await older.send("agent.prompt", {"text": "say no"})
        assert await older.closed() == 4001
        await newer.prompt("say yes")
        await newer.until("complete")
        assert [entry["text"] for entry in read_journal(host.journal, "prompt")] == ["say yes"]


@pytest.mark.accept("O-002.2")
async def test_closing_all_streams_leaves_none_open_and_drops_what_waits_for_its_turn(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        command = scripted_command(host.journal, "--answer-after", str(tmp_path / "answer"))
        readers = []
        for _ in range(3):
            hosted = await host.made(agent_command=command)
            reader = await host.attached(hosted)
            await reader.send("agent.initialize")
            await reader.send("agent.session.new")
            readers.append((hosted, reader))
        await eventually(lambda: len(read_journal(host.journal, "started")) == 3, within=SOON)
        closed = [asyncio.create_task(reader.closed()) for _, reader in readers]
        await host.instances.close_streams(1.0)
        assert all(not hosted.attached and not hosted.streams for hosted, _ in readers)
        assert [await one for one in closed] == [4002] * 3
        (tmp_path / "answer").touch()
        await eventually(lambda: len(read_journal(host.journal, "initialized")) == 3, within=SOON)
        hosted, _ = readers[0]
        again = await host.attached(hosted)
        await again.granted("agent.initialize")
        # The new session that was asked for under the old stream never came about.
        assert not read_journal(host.journal, "session")


@pytest.mark.accept("O-002.2")
async def test_what_waits_behind_another_stream_s_request_is_dropped_with_its_own_stream(
    tmp_path: Path,
) -> None:
    async with hosting(tmp_path) as host:
        command = scripted_command(host.journal, "--answer-after", str(tmp_path / "answer"))
        hosted = await host.made(agent_command=command)
        first = await host.attached(hosted)
        await first.send("agent.initialize")
        await eventually(lambda: hosted.lane.locked(), within=SOON)
        second = await host.attached(hosted)
        assert await first.closed() == 4001
        await second.send("agent.session.new")
        assert await second.granted("agent.permissions.list") == {"permissions": []}
        closed = asyncio.create_task(second.closed())
        await host.instances.close_streams(1.0)
        assert await closed == 4002
        (tmp_path / "answer").touch()
        third = await host.attached(hosted)
        # It waits for all that came before it.
        await third.granted("agent.initialize")
        assert not read_journal(host.journal, "session")


@pytest.mark.accept("O-002.2")
async def test_a_peer_that_takes_nothing_does_not_hold_up_the_closing_of_streams(tmp_path: Path) -> None:
    async with hosting(tmp_path, retention_limit=10) as host:
        hosted, stalled = await host.ready()
        await stalled.prompt("updates 600 60000")
        await eventually(lambda: hosted.outbox.paused, within=SOON)
        connection = hosted.streams[0]._ws.get_extra_info("socket")
        async with asyncio.timeout(SOON):
            await host.instances.close_streams(0.2)
        await eventually(lambda: not hosted.streams, within=SOON)
        # Not only given up: what it was to be told does not wait for it either.
        await eventually(lambda: connection.fileno() == -1, within=SOON)
        again = await host.attached(hosted)
        assert (await again.until("complete"))[-1]["type"] == "complete"


async def test_unknown_actions_and_malformed_payloads_are_answered_and_the_stream_stays(
    tmp_path: Path,
) -> None:
    async with hosting(tmp_path) as host:
        _, reader = await host.ready()
        assert await reader.refused("agent.unheard.of", {"x": 1}) == "unknown_action"
        for action in ("agent.prompt", "agent.session.load", "agent.permissions.respond"):
            payload: object
            for payload in (None, [], {"text": 1}, "x"):
                assert await reader.refused(action, payload) == "malformed_payload"
        await reader.prompt("say still here")
        await reader.until("complete")


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("no json", 1007),
        ("[]", 1007),
        ('{"type":"request","action":"agent.cancel"}', 1007),
        ('{"type":"response","id":"1"}', 1007),
        ('{"type":"message_chunk","text":"x"}', 1007),
        ('{"type":"notification","action":"agent.events.ack","payload":{}}', 1007),
        ("[" * 100_000, 1007),
        (b"binary", 1003),
    ],
)
async def test_a_malformed_frame_closes_the_stream_with_a_code_and_harms_nothing_else(
    tmp_path: Path, frame: str | bytes, code: int
) -> None:
    async with hosting(tmp_path) as host:
        hosted, reader = await host.ready()
        if isinstance(frame, bytes):
            await reader.ws.send_bytes(frame)
        else:
            await reader.ws.send_str(frame)
        assert await reader.closed() == code
        await eventually(lambda: not hosted.streams, within=SOON)
        again = await host.attached(hosted)
        await again.prompt("say unharmed")
        await again.until("complete")


async def test_a_frame_that_is_too_long_closes_the_stream(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        hosted, reader = await host.ready()
        # The server does not read to its end: whether the code arrives is a matter of luck.
        with contextlib.suppress(ConnectionError):
            await reader.ws.send_str("x" * (4 * 1024 * 1024 + 1))
        assert await reader.closed() in (1009, 1006)
        await eventually(lambda: not hosted.streams, within=SOON)
        again = await host.attached(hosted)
        await again.prompt("say unharmed")
        await again.until("complete")


async def test_notifications_that_nobody_knows_are_ignored(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        _, reader = await host.ready()
        await reader.ws.send_str('{"type":"notification","action":"agent.something.new","payload":{"a":1}}')
        await reader.prompt("say x")
        await reader.until("complete")


async def test_requests_of_the_agent_are_served_in_order_and_overtaken_by_the_others(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        hosted = await host.made(
            agent_command=scripted_command(host.journal, "--answer-after", str(tmp_path / "answer"))
        )
        reader = await host.attached(hosted)
        slow = [
            await reader.send("agent.initialize"),
            await reader.send("agent.session.new"),
            await reader.send("agent.prompt", {"text": "say hello"}),
        ]
        assert await reader.granted("agent.permissions.list") == {"permissions": []}
        assert await reader.granted("agent.stderr") == {"lines": []}
        assert await reader.granted("agent.cancel") == {}
        assert await reader.refused("agent.permissions.cancel", {"pending_id": "x"}) == "not_open"
        assert not reader.answers
        (tmp_path / "answer").touch()
        assert [(await reader.answer(number))["type"] for number in slow] == ["response"] * 3
        await reader.until("complete")


async def test_initialize_is_asked_of_the_agent_once_and_answered_to_every_reader(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        hosted = await host.made(auto_start=False)
        assert hosted.status == "starting"
        reader = await host.attached(hosted)
        assert await reader.refused("agent.session.new") == "not_started"
        first = await reader.granted("agent.initialize")
        assert hosted.status == "running"
        await host.detached(hosted, reader)
        again = await host.attached(hosted)
        assert await again.granted("agent.initialize") == first
        assert len(read_journal(host.journal, "initialized")) == 1


async def test_sessions_are_opened_loaded_and_reset_and_the_enumeration_knows_the_last(
    tmp_path: Path,
) -> None:
    async with hosting(tmp_path) as host:
        hosted = await host.made()
        reader = await host.attached(hosted)
        opened = await reader.opened()
        assert hosted.details(1).provider_session_id == opened
        await reader.prompt("say remembered")
        await reader.until("complete")
        reset = (await reader.granted("agent.session.reset"))["session_id"]
        assert reset != opened
        assert hosted.details(1).provider_session_id == reset
        assert await reader.granted("agent.session.load", {"session_id": opened}) == {"session_id": opened}
        assert hosted.details(1).provider_session_id == opened
        # The history comes as events.
        assert (await reader.event())["type"] == "message_chunk"


async def test_the_agent_s_stderr_can_be_read(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        _, reader = await host.ready()
        await reader.prompt("stderr it hurts")
        await reader.until("complete")

        async def hurts() -> bool:
            lines = (await reader.granted("agent.stderr"))["lines"]
            return lines == ["it hurts"]

        await eventually(hurts, within=SOON)


async def test_a_silent_peer_is_detached_and_one_that_answers_pings_is_not(tmp_path: Path) -> None:
    clock = Clock()
    async with hosting(tmp_path, clock=clock, timing=Timing(ping=0.02)) as host:
        hosted = await host.made()
        alive = await host.attached(hosted, autoping=False)
        for _ in range(5):
            message = await alive.ws.receive(SOON)
            assert message.type is aiohttp.WSMsgType.PING
            clock.now += 19.0
            await alive.ws.pong(message.data)
            # The answer comes behind the pong: it was heard.
            assert await until_answered(alive, await alive.send("agent.permissions.list"))
        assert hosted.attached
        clock.now += 20.0
        await eventually(lambda: not hosted.attached, within=SOON)


async def until_answered(reader: Reader, number: str) -> bool:
    """Read by hand, past pings that nobody answers."""
    while True:
        message = await reader.ws.receive(SOON)
        if message.type is aiohttp.WSMsgType.TEXT:
            return bool(json.loads(message.data)["id"] == number)
        assert message.type is aiohttp.WSMsgType.PING


async def test_a_peer_that_vanishes_is_detached_and_the_next_one_goes_on(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        hosted, reader = await host.ready()
        await reader.prompt("wait go\nsay for the next one")
        reader.abort()
        await eventually(lambda: not hosted.attached, within=SOON)
        (host.workspace() / "go").touch()
        again = await host.attached(hosted)
        assert [event["type"] for event in await again.until("complete")] == ["message_chunk", "complete"]


async def test_a_peer_that_asks_and_never_reads_is_read_no_further(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        hosted, _ = await host.ready()
        flooding = await host.attached(hosted)
        frame = json.dumps({"id": "1", "type": "request", "action": "agent.stderr", "payload": "x" * 50_000})

        async def flood() -> None:
            for _ in range(2000):
                await flooding.ws.send_str(frame)

        task = asyncio.create_task(flood())
        _, other = await host.ready()
        await other.prompt("updates 50")
        await other.until("complete")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        again = await host.attached(hosted)
        await again.prompt("say unharmed")
        await again.until("complete")


async def test_readers_that_come_and_go_by_the_dozen_leave_nothing_behind(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        hosted, reader = await host.ready()
        await reader.prompt("wait go\nupdates 300")
        readers: list[Reader] = [await host.attached(hosted, ack=True) for _ in range(24)]
        (host.workspace() / "go").touch()
        events = await readers[-1].event()
        assert events["seq"] == 1
        for stale in readers[:-1]:
            with contextlib.suppress(Closed):
                assert await stale.closed() in (4001, 1006)
        await eventually(lambda: len(hosted.streams) == 1, within=SOON)
