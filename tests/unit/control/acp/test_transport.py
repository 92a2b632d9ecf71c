"""Lines into messages, with caps; no process."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.control.acp import transport as module
from tenure.control.acp.pipes import Input, Tail
from tenure.control.acp.transport import AgentTransport, Ears, Problem, parse_message


class Heard:
    """Everything that a transport passes on."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.garbage: list[Problem] = []
        self.failed: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def notification(self, method: str, params: Any) -> bool:
        await self.gate.wait()
        self.told.append(params)
        return method != "bad"

    async def note(self, problem: Problem, count: int) -> None:
        self.garbage.append(problem)

    async def over(self) -> None:
        self.told.append("over")


class Pipe(asyncio.Transport):
    """A standard input that is written to and never read."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def is_closing(self) -> bool:
        return False


def build() -> tuple[AgentTransport, asyncio.StreamReader, Heard, Pipe, Input]:
    reader, heard, pipe, input_ = asyncio.StreamReader(limit=1024), Heard(), Pipe(), Input()
    input_.connection_made(pipe)
    ears = Ears(heard.notification, heard.note, lambda: None, heard.failed.append, heard.over)
    return AgentTransport(reader, input_, ears), reader, heard, pipe, input_


def line(**message: Any) -> bytes:
    return json.dumps(message).encode() + b"\n"


async def test_notifications_are_told_inside_of_receive_and_the_rest_is_returned() -> None:
    transport, reader, heard, _, _ = build()
    reader.feed_data(
        line(method="session/update", params=1) + line(id=0, result=None) + line(method="m", params=2)
    )
    reader.feed_data(line(id=7, method="ask") + b"\n  \n")
    reader.feed_eof()
    assert await transport.receive() == {"id": 0, "result": None}
    assert heard.told == [1]
    assert await transport.receive() == {"id": 7, "method": "ask"}
    assert await transport.receive() is None
    assert heard.told == [1, 2, "over"]


async def test_while_a_notification_waits_nothing_is_received() -> None:
    transport, reader, heard, _, _ = build()
    heard.gate.clear()
    reader.feed_data(line(method="session/update", params=1) + line(id=0, result=None))
    receiving = asyncio.create_task(transport.receive())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not receiving.done()
    heard.gate.set()
    assert await receiving == {"id": 0, "result": None}


async def test_a_line_is_put_together_up_to_the_cap_and_not_beyond(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINE_LIMIT", 100_000)
    transport, reader, heard, _, _ = build()
    whole = line(id=1, result="x" * 99_000)
    reader.feed_data(whole)
    assert await transport.receive() == json.loads(whole)
    reader.feed_data(b"x" * 200_000)
    assert await transport.receive() is None
    assert heard.failed == ["line_too_long"]


async def test_the_last_line_needs_no_end() -> None:
    transport, reader, _, _, _ = build()
    reader.feed_data(line(id=1, result=1).strip())
    reader.feed_eof()
    assert await transport.receive() == {"id": 1, "result": 1}


async def test_garbage_is_put_up_with_to_a_limit() -> None:
    transport, reader, heard, _, _ = build()
    reader.feed_data(
        b"?\n" * 18 + line(method="bad") + b"[]\n" + line(id=1, result=1) + b"?\n" + line(id=2, result=1)
    )
    assert await transport.receive() == {"id": 1, "result": 1}
    assert len(heard.garbage) == 20
    assert heard.garbage[-2:] == [Problem.NO_MESSAGE, Problem.NOT_AN_OBJECT]
    assert await transport.receive() is None
    assert heard.failed == ["invalid_output"]


async def test_more_requests_than_may_be_in_flight_are_refused() -> None:
    transport, reader, _, pipe, _ = build()
    for number in range(40):
        reader.feed_data(line(id=number, method="ask"))
    reader.feed_data(line(id=0, result=1))
    for number in range(32):
        assert (await transport.receive() or {})["id"] == number
    assert await transport.receive() == {"id": 0, "result": 1}
    assert [json.loads(one)["id"] for one in pipe.written] == list(range(32, 40))
    await transport.send({"id": 3, "result": {}})
    assert transport.requests == 31
    assert transport.unsent == 0


async def test_of_large_requests_only_a_few_are_in_flight() -> None:
    transport, reader, _, pipe, _ = build()
    for number in range(9):
        reader.feed_data(line(id=number, method="ask", params="x" * module.LARGE))
    for number in range(8):
        assert (await transport.receive() or {})["id"] == number
    reader.feed_data(line(id=10, method="ask"))
    assert (await transport.receive() or {})["id"] == 10
    assert [json.loads(one)["id"] for one in pipe.written] == [8]
    await transport.send({"id": 5, "result": {}})
    reader.feed_data(line(id=11, method="ask", params="x" * module.LARGE))
    assert (await transport.receive() or {})["id"] == 11


async def test_an_agent_that_does_not_read_makes_its_writers_wait_and_nobody_else() -> None:
    transport, _, _, pipe, input_ = build()
    input_.pause_writing()
    first = asyncio.create_task(transport.send({"method": "a", "id": 1}))
    second = asyncio.create_task(transport.send({"method": "b", "id": 2}))
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(pipe.written) == 1
    transport.post({"method": "session/cancel"})
    assert len(pipe.written) == 2
    input_.connection_lost(None)
    results = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(result) for result in results] == [ConnectionResetError] * 2
    # The library would log a traceback for an answer.
    transport.requests = 1
    await transport.send({"id": 3, "result": {}})


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["id", "method", "params", "result", "error", "code"]), inner, max_size=4
            )
        ),
    )
)
def test_whatever_passes_for_a_message_has_the_shape_that_the_library_takes_for_granted(value: Any) -> None:
    message = parse_message(json.dumps(value).encode())
    if isinstance(message, dict):
        hash(message.get("id"))
        assert isinstance(message.get("method", ""), str)
        if "method" not in message:
            assert "id" in message
            assert "result" in message or isinstance(message["error"]["code"], int)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_parser(data: bytes) -> None:
    parse_message(data)


async def test_a_tail_is_the_end_of_what_came_and_begins_with_a_character() -> None:
    tail = Tail(limit=10)
    for piece in (b"0123456789abc", b"", b"d" * 3, "€€€".encode()):
        tail.data_received(piece)
    assert tail.dropped
    assert tail.text() == "d€€€"
    tail.data_received(b"x" * 2)
    # Of the first euro sign one byte is gone now.
    assert tail.text() == "€€xx"


async def test_a_flood_is_left_in_its_pipe_for_a_moment() -> None:
    class Flood(asyncio.ReadTransport):
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[str] = []
            self.resumed = asyncio.Event()

        def pause_reading(self) -> None:
            self.calls.append("pause")

        def resume_reading(self) -> None:
            self.resumed.set()

    tail, flood = Tail(), Flood()
    tail.connection_made(flood)
    tail.data_received(b"a line\n")
    assert flood.calls == []
    tail.data_received(b"x" * 65536)
    assert flood.calls == ["pause"]
    await asyncio.wait_for(flood.resumed.wait(), 10)


async def test_a_tail_of_many_small_pieces_stays_small() -> None:
    tail = Tail(limit=1000)
    for _ in range(5000):
        tail.data_received(b"ab")
    assert tail.text() == "ab" * 500
    assert len(tail._kept) <= 257
