"""One stream of one instance: a reader, and what it is told and asks for.

**Delivery.** Events come in order and have a ``seq``, which counts each instance's events from 1 without a hole.
Without more ado an event is forgotten once it is written, so what was written to a connection that then broke
is gone: that is all that agentctl's clients know. A reader that must not lose any opens the stream with
``?ack=1`` and, when what it read is durable, sends

    {"type": "notification", "action": "agent.events.ack", "payload": {"seq": 17}}

for everything up to that event. What it did not acknowledge waits, counts for the retention limit (so
acknowledge at least every tenth of it), and comes again, with the same ``seq``, on the next stream: skip what
you have. Permission requests that are still open come first on each stream, as they were, with
``listed_again``: recognise those by their ``pending_id`` instead.

A reader that stops reading holds up its own instance and nothing else.
"""

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import structlog
from aiohttp import WSMsgType, web

from tenure.control.instances.actions import IN_TURN, Answer, acknowledged_by, perform
from tenure.control.instances.config import Timing
from tenure.protocol.errors import ProtocolViolation
from tenure.protocol.frames import Action, Notification, Request, parse_frame
from tenure.protocol.wire import LARGE

if TYPE_CHECKING:
    from tenure.control.instances.hosted import Hosted

MAX_UNANSWERED = 256
"""Requests of one stream that are not answered yet; then nothing more is read from it."""
_BATCH = 32
_log = structlog.get_logger(__name__)


class CloseCode(IntEnum):
    """Why the server closes a stream."""

    NORMAL = 1000
    NOT_TEXT = 1003
    MALFORMED = 1007
    """A frame that is no JSON object, or is none that a reader sends."""
    TOO_LONG = 1009
    REPLACED = 4001
    """A newer stream on the same instance took over."""
    RELEASED = 4002
    """All streams are closed: the credential was rotated, or the server shuts down."""
    INSTANCE_STOPPED = 4003
    SILENT = 4004


def stream_socket() -> web.WebSocketResponse:
    """The socket of a stream, to be prepared: pings and pongs are the stream's own business."""
    return web.WebSocketResponse(autoping=False, compress=False, max_msg_size=LARGE)


def wants_acknowledgement(query: Mapping[str, str]) -> bool:
    """Whether a reader acknowledges events itself (``?ack=1``)."""
    return query.get("ack") == "1"


class Stream:
    """Made by ``Hosted.attach``; ``run`` serves it until it is over."""

    def __init__(
        self,
        hosted: "Hosted",
        ws: web.WebSocketResponse,
        *,
        acknowledges: bool,
        timing: Timing,
        clock: Callable[[], float],
    ) -> None:
        self._hosted, self._ws, self._acknowledges = hosted, ws, acknowledges
        self._timing, self._clock = timing, clock
        self._heard = clock()
        self._written = hosted.outbox.first - 1
        self._answers: deque[Answer] = deque()
        self._wake = asyncio.Event()
        self._room = asyncio.Semaphore(MAX_UNANSWERED)
        self._in_turn: asyncio.Queue[Request] = asyncio.Queue()
        self._over: asyncio.Future[CloseCode] = asyncio.get_running_loop().create_future()
        self._bound = 1.0
        self._gone = asyncio.Event()

    @property
    def over(self) -> bool:
        """Nothing that comes on it is accepted any more, and nothing counts as delivered by it."""
        return self._over.done()

    @property
    def idle(self) -> bool:
        """Whether everything there is was written."""
        return self._written >= self._hosted.outbox.newest and not self._answers

    def wake(self) -> None:
        """There is something to write."""
        self._wake.set()

    def end(self, code: CloseCode, bound: float = 1.0) -> None:
        """The stream is over at once; the peer is told, and has ``bound`` seconds to agree."""
        if not self.over:
            self._bound = bound
            self._over.set_result(code)

    async def gone(self, within: float) -> None:
        """Wait until the connection is closed too; after ``within`` seconds it is severed."""
        try:
            await asyncio.wait_for(self._gone.wait(), within)
        except TimeoutError:
            self._sever()

    async def flushed(self, within: float) -> None:
        """Wait until everything is written, the stream is over, or ``within`` seconds have passed."""
        limit = asyncio.get_running_loop().time() + within
        while not (self.idle or self.over) and asyncio.get_running_loop().time() < limit:
            await asyncio.sleep(0.005)

    async def run(self) -> None:
        """Serve until the stream is over: closed by the peer, ended, or silent for too long."""
        parts = [
            asyncio.create_task(part, name=f"stream-{name}")
            for name, part in (
                ("read", self._read()),
                ("write", self._write()),
                ("watch", self._watch()),
                ("requests", self._requests()),
            )
        ]
        try:
            concerned: set[asyncio.Future[Any]] = {self._over, *parts}
            await asyncio.wait(concerned, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.end(CloseCode.NORMAL)
            self._hosted.detach(self)
            for part in parts:
                part.cancel()
            try:
                for result in await asyncio.gather(*parts, return_exceptions=True):
                    # A connection that broke says so to all who use it, by errors that need no mention.
                    if isinstance(result, Exception) and not isinstance(result, OSError):
                        _log.error("stream failed", instance=self._hosted.id, error=type(result).__name__)
                await self._close(self._over.result())
            finally:
                self._gone.set()
                self._hosted.forget(self)

    async def _close(self, code: CloseCode) -> None:
        bound = self._timing.close if code is CloseCode.SILENT else self._bound
        try:
            await asyncio.wait_for(self._ws.close(code=code), bound)
        except (TimeoutError, OSError):
            self._sever()
        except asyncio.CancelledError:
            self._sever()
            raise

    def _sever(self) -> None:
        """End the connection of a peer that takes nothing: a transport that is closed still tries to write."""
        connection = self._ws.get_extra_info("socket")
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    async def _watch(self) -> None:
        """Ping, and end the stream of a peer from which nothing came for too long."""
        while True:
            left = self._heard + self._timing.silence - self._clock()
            if left <= 0:
                return self.end(CloseCode.SILENT)
            pause = min(self._timing.ping, left)
            started = asyncio.get_running_loop().time()
            with contextlib.suppress(TimeoutError):
                # To a stalled peer even a ping may have to wait.
                await asyncio.wait_for(self._ws.ping(), pause)
            await asyncio.sleep(max(0.0, started + pause - asyncio.get_running_loop().time()))

    async def _read(self) -> None:
        while True:
            message = await self._ws.receive()
            if self.over:
                return
            self._heard = self._clock()
            match message.type:
                case WSMsgType.TEXT:
                    try:
                        await self._received(message.data)
                    except ProtocolViolation:
                        self.end(CloseCode.MALFORMED)
                case WSMsgType.PING:
                    await self._ws.pong(message.data)
                case WSMsgType.BINARY:
                    self.end(CloseCode.NOT_TEXT)
                case WSMsgType.PONG:
                    pass
                case _:
                    return

    async def _received(self, data: str) -> None:
        frame = parse_frame(data)
        match frame:
            case Request():
                await self._room.acquire()
                await self._requested(frame)
            case Notification(action=Action.EVENTS_ACK):
                seq = acknowledged_by(frame.payload)
                if self._acknowledges:
                    self._hosted.outbox.forget(min(seq, self._written))
            case Notification():
                pass
            case _:
                raise ProtocolViolation("Frame", "it is not one that a reader sends")

    async def _requested(self, request: Request) -> None:
        if self.over:
            return
        self._hosted.touch()
        if request.action in IN_TURN:
            self._in_turn.put_nowait(request)
        elif request.action == Action.CANCEL:
            self._hosted.spawn(self._answered(request))
        else:
            await self._answered(request)

    async def _requests(self) -> None:
        while True:
            request = await self._in_turn.get()
            # What the agent was asked is not taken back when the stream ends; what still waits is dropped.
            await asyncio.shield(self._hosted.spawn(self._in_its_turn(request)))

    async def _in_its_turn(self, request: Request) -> None:
        async with self._hosted.lane:
            if not self.over:
                await self._answered(request)

    async def _answered(self, request: Request) -> None:
        with self._hosted.in_flight():
            answer = await perform(self._hosted, request)
        if not self.over:
            self._answers.append(answer)
            self._wake.set()

    async def _write(self) -> None:
        for frame in self._hosted.permissions.again(self._hosted.outbox.first):
            await self._ws.send_frame(frame, WSMsgType.TEXT)
        while True:
            self._wake.clear()
            if self._answers:
                await self._write_answers()
            batch = self._hosted.outbox.after(self._written, _BATCH)
            if batch:
                await self._write_events(batch)
                if len(batch) == _BATCH:
                    # Writing waits only when the connection is full, and ten thousand events may be waiting.
                    await asyncio.sleep(0)
            elif not self._answers:
                await self._wake.wait()

    async def _write_answers(self) -> None:
        while self._answers:
            await self._ws.send_frame(self._answers[0].to_wire(), WSMsgType.TEXT)
            self._answers.popleft()
            self._room.release()

    async def _write_events(self, batch: tuple[bytes, ...]) -> None:
        try:
            for frame in batch:
                await self._ws.send_frame(frame, WSMsgType.TEXT)
                self._written += 1
                if self._answers:
                    await self._write_answers()
        finally:
            # A stream that is over may have been followed by another one: it decides then.
            if not self._acknowledges and not self.over:
                self._hosted.outbox.forget(self._written)
