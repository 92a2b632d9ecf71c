"""The stream of one instance: events come, requests go, answers are matched by id."""

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from enum import StrEnum

import aiohttp
from pydantic import JsonValue

from tenure.ownership.errors import Declined, NoAnswer, StreamClosed
from tenure.ownership.transport import PING, SILENCE, close_quietly
from tenure.protocol.errors import ProtocolViolation
from tenure.protocol.frames import Action, ErrorAnswer, Event, Notification, Request, Response, parse_frame

BUFFER = 1000
BUFFER_BYTES = 32 * 1024 * 1024
"""What waits for the reader before no more is read from the server, which then pauses production. Twice as much
while an answer is waited for: it may be behind the events."""
PENDING = 64
ACKNOWLEDGE_EVERY = 10


class StreamEnd(StrEnum):
    """Why a stream ended."""

    CLOSED = "closed"
    """We closed it."""
    NEWER_STREAM = "newer_stream"
    """Somebody attached to the same instance after us."""
    RELEASED = "released"
    """The server closed all streams: the credential was rotated, or it shuts down."""
    INSTANCE_ENDED = "instance_ended"
    VIOLATION = "violation"
    """The server sent what is no frame."""
    LOST = "lost"
    """Silent for too long, or cut off, or closed without a reason that we know."""


_CODES = {
    4001: StreamEnd.NEWER_STREAM,
    4002: StreamEnd.RELEASED,
    4003: StreamEnd.INSTANCE_ENDED,
    4005: StreamEnd.RELEASED,
}
_AGENTCTL_REASONS = {"agent_exited": StreamEnd.INSTANCE_ENDED, "agentctl_shutdown": StreamEnd.RELEASED}


class ControlStream:
    """Attached to one instance until ``end`` is set. Made by ``ControlClient.stream``.

    Somebody has to take the events: when too many wait, nothing is read any more, answers neither.
    """

    def __init__(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        release: Callable[[], Awaitable[None]],
        *,
        timeout: float,
    ) -> None:
        self.end: StreamEnd | None = None
        self._socket = socket
        self._release = release
        self._timeout = timeout
        self._ids = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[JsonValue]] = {}
        self._events: deque[tuple[Event, int]] = deque()
        self._bytes = 0
        self._readable = asyncio.Event()
        self._room = asyncio.Event()
        self._listeners: list[Callable[[ControlStream], None]] = []
        self._released = False
        self._update()
        self._task = asyncio.create_task(self._receive(), name="control-stream")
        self._pings = asyncio.create_task(self._ping(), name="control-stream-pings")

    def on_end(self, listener: Callable[["ControlStream"], None]) -> None:
        """Call this once when the stream has ended; at once if it has."""
        if self.end is not None:
            listener(self)
        else:
            self._listeners.append(listener)

    async def send(
        self, action: Action | str, payload: JsonValue = None, *, timeout: float | None = None
    ) -> JsonValue:
        """Ask for an action and wait for the payload of its answer, ``timeout`` seconds (the read timeout).

        Raises ``Declined``, ``NoAnswer`` (nobody knows whether it happened) and ``StreamClosed``.
        """
        if self.end is not None:
            raise StreamClosed
        if len(self._waiting) >= PENDING:
            raise NoAnswer("too many requests wait for an answer on this stream")
        request = Request(id=str(next(self._ids)), action=str(action), payload=payload)
        answer: asyncio.Future[JsonValue] = asyncio.get_running_loop().create_future()
        self._waiting[request.id] = answer
        self._update()
        try:
            async with asyncio.timeout(self._timeout if timeout is None else timeout):
                await self._socket.send_str(request.to_wire().decode())
                return await answer
        except TimeoutError:
            failure = NoAnswer("no answer on the stream in time")
        except (aiohttp.ClientError, ConnectionError):
            failure = NoAnswer("the stream was cut off")
        finally:
            del self._waiting[request.id]
            if not answer.cancel() and not answer.cancelled():
                answer.exception()  # or asyncio complains that nobody looked at it
        raise failure

    async def events(self, *, acknowledge: bool = True) -> AsyncIterator[Event]:
        """The events in order, until the stream has ended and all that came are taken. For one reader.

        Asking for the next event says that the one before was dealt with: a server that numbers its events
        (``seq``) is told so, and delivers again, to the next stream, what it was not told of. With
        ``acknowledge`` off, the reader tells it by ``acknowledge()``, when it is done with them.
        """
        unsaid = 0
        seq: JsonValue = None
        while True:
            if acknowledge and unsaid and (not self._events or unsaid >= ACKNOWLEDGE_EVERY):
                await self.acknowledge(seq)
                unsaid = 0
            await self._readable.wait()
            if not self._events:
                return
            event, size = self._events.popleft()
            self._bytes -= size
            self._update()
            yield event
            if type(event.fields.get("seq")) is int:
                seq, unsaid = event.fields["seq"], unsaid + 1

    async def acknowledge(self, seq: JsonValue) -> None:
        """The events up to the one with this ``seq`` were dealt with. Never fails."""
        told = Notification(action=Action.EVENTS_ACK, payload={"seq": seq})
        # A stream that breaks says so by itself, and what is not acknowledged comes again.
        with suppress(TimeoutError, aiohttp.ClientError, ConnectionError):
            async with asyncio.timeout(self._timeout):
                await self._socket.send_str(told.to_wire().decode())

    async def aclose(self) -> None:
        """Detach. Events that have come and were not taken can still be read."""
        if self.end is None:
            self._ended(StreamEnd.CLOSED)
            self._task.cancel()
        await asyncio.wait({self._task})
        await self._cleanup()

    async def _receive(self) -> None:
        end = StreamEnd.LOST
        try:
            while True:
                await self._room.wait()
                message = await self._socket.receive(SILENCE)
                if message.type is aiohttp.WSMsgType.PING:
                    await self._answer_ping(message.data)
                elif message.type is aiohttp.WSMsgType.TEXT:
                    self._take(message.data)
                elif message.type is not aiohttp.WSMsgType.PONG:
                    end = _reason(message)
                    break
        except ProtocolViolation:
            end = StreamEnd.VIOLATION
        except (TimeoutError, aiohttp.ClientError, ConnectionError):
            end = StreamEnd.LOST
        finally:
            self._ended(end)
            await self._cleanup()

    async def _ping(self) -> None:
        """Say that we are there, also while nothing is read: pongs are read with the rest."""
        while True:
            await asyncio.sleep(PING)
            with suppress(TimeoutError, aiohttp.ClientError, ConnectionError):
                async with asyncio.timeout(PING):
                    await self._socket.ping()

    async def _answer_ping(self, data: bytes) -> None:
        # To a server that has closed meanwhile nothing can be written, but what it sent, and why, is still to be read.
        with suppress(TimeoutError, aiohttp.ClientError, ConnectionError):
            async with asyncio.timeout(PING):
                await self._socket.pong(data)

    def _take(self, data: str) -> None:
        frame = parse_frame(data)
        match frame:
            case Response() | ErrorAnswer():
                waiting = self._waiting.get(frame.id)
                if waiting is None or waiting.done():
                    return
                if isinstance(frame, ErrorAnswer):
                    waiting.set_exception(Declined(frame.payload.code))
                else:
                    waiting.set_result(frame.payload)
            case Event():
                self._events.append((frame, len(data)))
                self._bytes += len(data)
                self._update()
            case Request() | Notification():
                # Nothing that we know is asked or told this way.
                return

    def _update(self) -> None:
        much = 2 if self._waiting else 1
        _set(self._room, len(self._events) < BUFFER * much and self._bytes < BUFFER_BYTES * much)
        _set(self._readable, bool(self._events) or self.end is not None)

    def _ended(self, end: StreamEnd) -> None:
        if self.end is not None:
            return
        self.end = end
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(StreamClosed())
        self._update()
        for listener in self._listeners:
            listener(self)

    async def _cleanup(self) -> None:
        # Also when the task was cancelled before it began.
        if not self._released:
            self._released = True
            self._pings.cancel()
            await asyncio.wait({self._pings})
            await close_quietly(self._socket)
            await self._release()


def _reason(message: aiohttp.WSMessage) -> StreamEnd:
    if message.type is not aiohttp.WSMsgType.CLOSE:
        binary = message.type is aiohttp.WSMsgType.BINARY
        return StreamEnd.VIOLATION if binary else StreamEnd.LOST
    if message.data == aiohttp.WSCloseCode.OK:
        return _AGENTCTL_REASONS.get(message.extra or "", StreamEnd.LOST)
    return _CODES.get(message.data, StreamEnd.LOST)


def _set(event: asyncio.Event, on: bool) -> None:
    if on:
        event.set()
    else:
        event.clear()
