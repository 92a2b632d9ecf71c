"""Streams of instances, against agentctl's double and Tenure's own server."""

import asyncio
import contextlib
import json
from typing import Any

import pytest
from aiohttp import WSMsgType, web
from tests.integration.ownership.site import BUDGET, Site, agentctl, tenure
from tests.support.wait import eventually

from tenure.ownership import stream as streams
from tenure.ownership.client import ControlClient
from tenure.ownership.errors import Declined, NoAnswer, NotAccepted, Refused, StreamClosed
from tenure.ownership.stream import ControlStream, StreamEnd
from tenure.protocol.frames import Action, Event


async def until_terminal(stream: ControlStream) -> list[Event]:
    seen = []
    async with asyncio.timeout(20):
        async for event in stream.events():
            seen.append(event)
            if event.terminal:
                return seen
    raise AssertionError(f"ended with {stream.end}: {seen}")


async def ended(stream: ControlStream) -> None:
    await eventually(lambda: stream.end is not None, within=60)


async def attached(client: ControlClient, site: Site, name: str = "i-1") -> ControlStream:
    await client.create(site.request(name, f"s-{name}"))
    stream = await client.stream(name)
    if site.real is not None:
        await stream.send(Action.INITIALIZE, timeout=20)
        await stream.send(Action.SESSION_NEW, timeout=20)
    return stream


async def prompt(stream: ControlStream, text: str, key: str = "") -> int:
    answer: Any = await stream.send(Action.PROMPT, {"text": text, "turn_key": key}, timeout=20)
    return int(answer["turn_id"])


async def test_a_turn_is_prompted_told_retained_and_acknowledged(site: Site) -> None:
    async with await site.owned() as client:
        stream = await attached(client, site)
        turn = await prompt(stream, "say hello")
        if site.double is not None:
            await site.double.finish("i-1")
        end = (await until_terminal(stream))[-1]
        assert (end.type, end.control_turn_id) == ("complete", turn)
        outcome = await client.outcome("i-1")
        assert outcome is not None and outcome.turn_id == turn
        assert (await client.outcome("i-1")) == outcome
        await client.acknowledge("i-1", turn + 1)
        assert await client.outcome("i-1") == outcome
        await client.acknowledge("i-1", turn)
        assert await client.outcome("i-1") is None
        await stream.aclose()
        assert stream.end is StreamEnd.CLOSED
        await client.delete("i-1")


async def test_an_action_that_is_not_known_is_declined_and_the_stream_goes_on(site: Site) -> None:
    async with await site.owned() as client:
        stream = await attached(client, site)
        with pytest.raises(Declined) as declined:
            await stream.send("agent.juggle", timeout=20)
        assert declined.value.code and declined.value.code not in str(declined.value)
        assert await prompt(stream, "say hello") >= 1
        await client.delete("i-1")


async def test_a_newer_stream_ends_the_older_one(site: Site) -> None:
    async with await site.owned() as client:
        older = await attached(client, site)
        newer = await client.stream("i-1")
        await eventually(lambda: older.end is not None, within=60)
        if site.real is not None:
            assert older.end is StreamEnd.NEWER_STREAM
        assert newer.end is None
        with pytest.raises(StreamClosed):
            await older.send(Action.CANCEL)
        await client.delete("i-1")
        await eventually(lambda: newer.end is StreamEnd.INSTANCE_ENDED, within=60)


@pytest.mark.accept("O-002.3")
async def test_a_rotation_closes_the_superseded_sides_streams_and_lets_it_open_no_other(site: Site) -> None:
    async with await site.owned() as old, site.client() as new:
        stream = await attached(old, site)
        new.use(old._calls.credential)
        rotated = await new.rotate()
        # Before the rotation is answered, the server has closed it.
        await eventually(lambda: stream.end is not None, within=60)
        if site.real is not None:
            assert stream.end is StreamEnd.RELEASED
        with pytest.raises(NotAccepted) as refused:
            await old.stream("i-1")
        assert refused.value.superseded
        new.use(rotated.credential)
        again = await new.stream("i-1")
        assert await prompt(again, "say hello") >= 1
        await new.delete("i-1")


async def test_no_stream_of_an_instance_that_is_not_there(site: Site) -> None:
    async with await site.owned() as client:
        with pytest.raises(Refused) as refused:
            await client.stream("nobody")
        assert refused.value.status == 404


async def test_what_happened_while_detached_comes_first_and_in_order(site: Site) -> None:
    async with await site.owned() as client:
        stream = await attached(client, site)
        turn = await prompt(stream, "sleep 0.3\nsay one\nsay two\nsay three", "k-1")
        await stream.aclose()
        if site.double is not None:
            for word in ("one", "two", "three"):
                await site.double.instances["i-1"].emit({"type": "message_chunk", "text": word})
            await site.double.finish("i-1")
        await eventually(lambda: client.outcome("i-1"), within=60)
        again = await client.stream("i-1")
        seen = await until_terminal(again)
        assert seen[-1].control_turn_id == turn
        said = json.dumps([event.fields for event in seen])
        assert said.index("one") < said.index("two") < said.index("three")
        await client.delete("i-1")


async def test_events_that_were_read_and_not_dealt_with_come_again() -> None:
    async with tenure() as site, await site.owned() as client:
        stream = await attached(client, site)
        await prompt(stream, "say hello")
        async with asyncio.timeout(10):
            async for event in stream.events():
                first = event.fields["seq"]
                break
        await stream.aclose()
        again = await client.stream("i-1")
        seen: list[Any] = [event.fields["seq"] for event in await until_terminal(again)]
        assert first in seen and seen == sorted(set(seen))
        await again.aclose()
        await client.delete("i-1")


async def test_a_client_that_closes_takes_its_streams_with_it_and_stops_nothing(site: Site) -> None:
    async with await site.owned() as client:
        stream = await attached(client, site)
        async with site.client(client._calls.credential) as other:
            mine = await other.stream("i-1")
        assert mine.end is StreamEnd.CLOSED
        await eventually(lambda: stream.end is not None, within=60)
        assert [i.id for i in await client.instances()] == ["i-1"]
        await client.delete("i-1")


async def test_a_server_that_is_killed_and_one_that_is_told_to_stop_end_streams_differently() -> None:
    told = (StreamEnd.RELEASED, StreamEnd.INSTANCE_ENDED)  # whichever comes first
    for how, ends in (("kill", (StreamEnd.LOST,)), ("stop", told)):
        async with tenure() as site, await site.owned() as client:
            stream = await attached(client, site)
            assert site.real is not None
            await (site.real.kill() if how == "kill" else site.real.stop())
            await ended(stream)
            assert stream.end in ends
            with pytest.raises(NoAnswer):
                await client.claim()


# Against a peer that does what no server does


class Peer:
    """The far end of one stream, in the test's hands."""

    def __init__(self) -> None:
        self.socket: asyncio.Future[web.WebSocketResponse] = asyncio.get_running_loop().create_future()
        self.received: list[dict[str, Any]] = []
        self.done = asyncio.Event()


async def _in_hand(site: Site, peer: Peer) -> None:
    """Let the double's instance port hand its stream over to the test."""

    async def stream(name: str, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        peer.socket.set_result(socket)
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                peer.received.append(json.loads(message.data))
        return socket

    assert site.double is not None
    site.double._stream = stream  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "frame",
    ["", "[]", "{", "null", '{"type":7}', '{"no":"type"}', '{"type":"response"}', "[" * 5000, '"text"'],
)
async def test_a_frame_that_is_none_ends_the_stream_as_a_violation(frame: str) -> None:
    async with agentctl() as site, await site.owned() as client:
        peer = Peer()
        await _in_hand(site, peer)
        stream = await attached(client, site)
        waiting = asyncio.create_task(stream.send(Action.CANCEL))
        await eventually(lambda: peer.received, within=60)
        await (await peer.socket).send_str(frame)
        await eventually(lambda: stream.end is StreamEnd.VIOLATION, within=60)
        with pytest.raises(StreamClosed):
            await waiting


async def test_a_binary_frame_is_a_violation_and_a_huge_one_ends_the_stream() -> None:
    for payload, end in ((b"{}", StreamEnd.VIOLATION), ("x" * (Event.max_bytes + 1), StreamEnd.LOST)):
        async with agentctl() as site, await site.owned() as client:
            peer = Peer()
            await _in_hand(site, peer)
            stream = await attached(client, site)
            socket = await peer.socket
            with contextlib.suppress(ConnectionError):
                await (socket.send_bytes(payload) if isinstance(payload, bytes) else socket.send_str(payload))
            await ended(stream)
            assert stream.end is end


async def test_a_request_that_is_not_answered_fails_in_time_and_a_late_answer_is_for_nobody() -> None:
    async with agentctl() as site, await site.owned() as client:
        peer = Peer()
        await _in_hand(site, peer)
        stream = await attached(client, site)
        with pytest.raises(NoAnswer):
            await stream.send(Action.STDERR, timeout=1.0)
        await eventually(lambda: peer.received, within=60)
        late = {"id": peer.received[0]["id"], "type": "response", "action": "agent.stderr", "payload": 1}
        socket = await peer.socket
        await socket.send_str(json.dumps(late))
        asked = asyncio.create_task(stream.send(Action.STDERR))
        await eventually(lambda: len(peer.received) == 2, within=60)
        assert not asked.done()
        await socket.send_str(json.dumps({**late, "id": peer.received[1]["id"], "payload": 2}))
        assert await asked == 2


async def test_a_reader_that_stops_reading_makes_the_server_wait_and_still_gets_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "BUFFER", 10)
    async with agentctl() as site, await site.owned() as client:
        peer = Peer()
        await _in_hand(site, peer)
        stream = await attached(client, site)
        socket = await peer.socket
        for number in range(15):
            await socket.send_str(json.dumps({"type": "message_chunk", "number": number}))
        await eventually(lambda: len(stream._events) >= 10, within=60)
        assert len(stream._events) == 10
        asked = asyncio.create_task(stream.send(Action.STDERR))
        await eventually(lambda: peer.received, within=60)
        answer = {"id": peer.received[0]["id"], "type": "response", "action": "agent.stderr", "payload": 1}
        await socket.send_str(json.dumps(answer))
        assert await asked == 1
        seen: list[Any] = []
        async for event in stream.events():
            seen.append(event.fields["number"])
            if len(seen) == 15:
                break
        assert seen == list(range(15))


async def test_a_reader_that_is_behind_still_learns_why_the_server_has_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server waits a second for it, and then severs the connection: a ping cannot be answered any more."""
    monkeypatch.setattr(streams, "BUFFER", 1)

    async def serve(name: str, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(timeout=0.1)
        await socket.prepare(request)
        await socket.send_str(json.dumps({"type": "message_chunk", "number": 1}))
        await socket.ping()
        await socket.send_str(json.dumps({"type": "message_chunk", "number": 2}))
        await socket.close(code=4001)
        return socket

    async with agentctl() as site, await site.owned() as client:
        assert site.double is not None
        site.double._stream = serve  # type: ignore[method-assign]
        stream = await attached(client, site)
        connection = stream._socket._response.connection
        assert connection is not None
        await eventually(lambda: connection.transport is None or connection.transport.is_closing(), within=60)
        assert stream.end is None
        assert [event.fields["number"] async for event in stream.events()] == [1, 2]
        assert stream.end is StreamEnd.NEWER_STREAM


async def test_a_peer_that_falls_silent_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "SILENCE", 0.2)
    async with agentctl() as site, await site.owned() as client:
        await _in_hand(site, Peer())
        stream = await attached(client, site)
        await eventually(lambda: stream.end is StreamEnd.LOST, within=60)


async def test_we_say_that_we_are_there_also_while_we_read_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "PING", 0.05)
    monkeypatch.setattr(streams, "BUFFER", 0)
    pinged = 0

    async def stream(name: str, request: web.Request) -> web.StreamResponse:
        nonlocal pinged
        socket = web.WebSocketResponse(autoping=False)
        await socket.prepare(request)
        async for message in socket:
            pinged += message.type is WSMsgType.PING
        return socket

    async with agentctl() as site, await site.owned() as client:
        assert site.double is not None
        site.double._stream = stream  # type: ignore[method-assign]
        await attached(client, site)
        await eventually(lambda: pinged >= 3, within=60)


async def test_a_stream_is_closed_even_before_it_began_to_read() -> None:
    async with agentctl() as site, await site.owned() as client:
        await client.create(site.request())
        stream = await client.stream("i-1")
        await asyncio.gather(stream.aclose(), stream.aclose())
        assert [event async for event in stream.events()] == []
        assert BUDGET.retries == 2
