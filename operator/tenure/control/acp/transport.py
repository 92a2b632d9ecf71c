"""ACP messages over an agent's standard input and output: waits, caps, and keeps the order.

The library (``acp.connection.Connection``) makes a task of every message that it receives. So this transport
keeps from it what an agent can flood: a ``session/update`` is passed on *inside* of ``receive()``, and nothing
more is read until that is done. What the library gets are answers, and a bounded number of requests.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import JsonValue

from tenure.control.acp.pipes import Input

READER_LIMIT = 64 * 1024
"""Bytes that are read ahead."""
LINE_LIMIT = 4 * 1024 * 1024
"""Bytes of the longest message; of a longer line nothing more is read."""
TOLERATED = 20
"""Lines that are no message, over the life of an agent: many print a greeting, or a warning, by mistake."""
REQUESTS = 32
"""Requests of an agent in flight; more are refused."""
LARGE = 256 * 1024
LARGE_REQUESTS = 8
"""Of them so many may be longer than ``LARGE`` bytes: they are kept until they are answered."""

Message = dict[str, Any]


class Problem(StrEnum):
    """What is wrong with a line."""

    NOT_JSON = "not_json"
    NOT_AN_OBJECT = "not_an_object"
    NO_MESSAGE = "no_message"


class LineTooLong(Exception):
    """A line above the cap; what was read of it is gone."""


@dataclass(frozen=True)
class Ears:
    """Who is told what comes in. ``notification`` may wait, and says whether it was
    one; ``failed`` gets a code of ``AgentFailed``; ``over``
    comes when everything was passed on, and what was asked of the agent fails when it returns."""

    notification: Callable[[str, JsonValue], Awaitable[bool]]
    garbage: Callable[[Problem, int], Awaitable[None]]
    activity: Callable[[], None]
    failed: Callable[[str], None]
    over: Callable[[], Awaitable[None]]


class AgentTransport:
    """A ``Transport`` of the library for one agent."""

    def __init__(self, output: asyncio.StreamReader, input_: Input, ears: Ears) -> None:
        self._output = output
        self._input = input_
        self._ears = ears
        self._sending = asyncio.Lock()
        self._garbage = 0
        self._since_pause = 0
        self._large: list[int | str] = []
        self.requests = 0
        """Requests of the agent that are not answered yet."""
        self.unsent = 0
        """Bytes of messages that wait because the agent does not read."""

    async def send(self, message: Message) -> None:
        """Write a message; waits while the agent does not read. Raises ``ConnectionError``."""
        data = _encode(message)
        self.unsent += len(data)
        try:
            async with self._sending:
                self._input.write(data)
                await self._input.drain()
        except ConnectionError:
            # An answer that nobody reads is no reason for the library to write a traceback.
            if "method" in message:
                raise
        finally:
            self.unsent -= len(data)
            if "method" not in message:
                self.requests -= 1
                if message["id"] in self._large:
                    self._large.remove(message["id"])

    def post(self, message: Message) -> None:
        """Write a message without waiting. Only for the few that are bounded otherwise."""
        self._input.write(_encode(message))

    async def receive(self) -> Message | None:
        """The next answer or request; None at the end, for whatever reason it came."""
        try:
            message = await self._receive()
            if message is not None:
                return message
        except LineTooLong:
            self._ears.failed("line_too_long")
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        await self._ears.over()
        return None

    async def close(self) -> None:
        """Part of the library's interface; the process's pipes are closed by the process."""

    async def _receive(self) -> Message | None:
        # Whoever was given the last message takes it up before the next one is read: so events keep their
        # order with answers and requests. Twice: the library makes a task of a request, and a request for a
        # permission makes another one of that.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        while True:
            self._since_pause += 1
            if self._since_pause % 16 == 0:
                # An agent that writes without end, to a host that never waits, must not keep the loop.
                await asyncio.sleep(0)
            line = await self._read_line()
            if not line:
                return None
            self._ears.activity()
            message = parse_message(line)
            if isinstance(message, Problem):
                if not await self._put_up_with(message):
                    return None
            elif message is None:
                continue
            elif "method" not in message:
                return message
            elif "id" not in message:
                understood = await self._ears.notification(message["method"], message.get("params"))
                if not understood and not await self._put_up_with(Problem.NO_MESSAGE):
                    return None
            else:
                self.requests += 1
                if self._admit(message["id"], len(line)):
                    return message
                error = {"code": -32000, "message": "too many requests at a time"}
                await self.send({"jsonrpc": "2.0", "id": message["id"], "error": error})

    def _admit(self, id: int | str, length: int) -> bool:
        if self.requests > REQUESTS:
            return False
        if length > LARGE:
            if len(self._large) >= LARGE_REQUESTS:
                return False
            self._large.append(id)
        return True

    async def _put_up_with(self, problem: Problem) -> bool:
        self._garbage += 1
        if self._garbage > TOLERATED:
            self._ears.failed("invalid_output")
            return False
        await self._ears.garbage(problem, self._garbage)
        return True

    async def _read_line(self) -> bytes:
        """A line, or what is left at the end; empty at the end. Raises ``LineTooLong``."""
        chunks: list[bytes] = []
        length = 0
        while True:
            try:
                chunks.append(await self._output.readuntil(b"\n"))
                complete = True
            except asyncio.LimitOverrunError as overrun:
                chunks.append(await self._output.readexactly(overrun.consumed))
                complete = False
            except asyncio.IncompleteReadError as end:
                chunks.append(end.partial)
                complete = True
            length += len(chunks[-1])
            if length > LINE_LIMIT:
                raise LineTooLong
            if complete:
                return b"".join(chunks)


def _encode(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def parse_message(line: bytes) -> Message | Problem | None:
    """The JSON-RPC message in a line; None for an empty line; a ``Problem`` for anything else.

    What passes here cannot make the library raise: it takes ids for keys and looks into errors.
    """
    if not line.strip():
        return None
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return Problem.NOT_JSON
    if not isinstance(message, dict):
        return Problem.NOT_AN_OBJECT
    return message if _is_message(message) else Problem.NO_MESSAGE


def _is_message(message: Message) -> bool:
    if "id" in message and (type(message["id"]) not in (int, str)):
        return False
    if "method" in message:
        return isinstance(message["method"], str)
    if "error" in message and "result" not in message:
        error = message["error"]
        return "id" in message and isinstance(error, dict) and type(error.get("code")) is int
    return "id" in message and "result" in message
