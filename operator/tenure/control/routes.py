"""The routes: who may call them, what they are asked and what they answer.

Each body is read before the decision that it is for. Reading waits, so whoever was permitted before is asked
again after: between the second permission and the effect nothing waits.
"""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from aiohttp import WSCloseCode, web
from aiohttp.web_request import BaseRequest

from tenure.control.http import Rejected, headers, read_body, success
from tenure.control.instances import (
    CreateRefused,
    Hosted,
    Instances,
    StopFailed,
    stream_socket,
    wants_acknowledgement,
)
from tenure.control.owner import Owner
from tenure.model.masked import Masked
from tenure.protocol import messages
from tenure.protocol.errors import ProtocolViolation
from tenure.protocol.rotation import Operation, Refused
from tenure.protocol.wire import Body, parse

M = TypeVar("M", bound=Body)
R = TypeVar("R")

NOT_PERMITTED = 4005
"""Close code of a stream whose credential lost its rank while it was being opened."""
_CLOSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Call:
    """A request, who sends it, and the instance that its path names."""

    request: BaseRequest
    presented: Masked | None
    instance_id: str


Answering = Callable[[Call], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Route:
    """One method on one path. ``operation`` is None where anyone may call."""

    method: str
    path: re.Pattern[str]
    operation: Operation | None
    answer: Answering


class Stopped(Body):
    """``DELETE /api/v1/instances/{id}``, 200."""

    status: str = "stopped"


class Routes:
    """The answers of every route. ``details`` and ``identity`` do not change in a server's life."""

    def __init__(
        self,
        owner: Owner,
        instances: Instances,
        identity: messages.Identity,
        details: messages.Details,
        port: Callable[[], int],
    ) -> None:
        self._owner = owner
        self._instances = instances
        self._identity = identity
        self._details = details
        self._port = port

    def table(self) -> tuple[Route, ...]:
        """All routes."""
        ownership, api = "/api/v1/ownership", "/api/v1/instances"
        one = api + r"/(?P<id>[^/]+)"
        rows: tuple[tuple[str, str, Operation | None, Answering], ...] = (
            ("GET", "/health", None, self.health),
            ("GET", "/identity", None, self.identity),
            ("POST", "/auth/handshake", None, self.handshake),
            ("POST", "/ownership/prove", None, self.prove),
            ("POST", f"{ownership}/rotate", Operation.ROTATE, self.rotate),
            ("POST", f"{ownership}/confirm", Operation.CONFIRM, self.confirm),
            ("POST", f"{ownership}/claim", Operation.CLAIM, self.claim),
            ("GET", f"{ownership}/details", Operation.DETAILS, self.details),
            ("POST", f"{ownership}/shutdown", Operation.SHUTDOWN, self.shutdown),
            ("POST", api, Operation.CREATE, self.create),
            ("GET", api, Operation.LIST, self.enumerate),
            ("GET", one, Operation.INSPECT, self.inspect),
            ("DELETE", one, Operation.STOP, self.stop),
            ("GET", f"{one}/turn-outcome", Operation.OUTCOME, self.outcome),
            ("POST", f"{one}/turn-outcome/ack", Operation.ACK, self.acknowledge),
            ("GET", f"{one}/agent/stream", Operation.STREAM, self.stream),
        )
        return tuple(
            Route(method, re.compile(path), operation, answer) for method, path, operation, answer in rows
        )

    # -- anyone

    async def health(self, call: Call) -> web.Response:
        """The program runs and answers."""
        return success(messages.Health(timestamp=datetime.now(UTC)))

    async def identity(self, call: Call) -> web.Response:
        """Identity, capabilities and unowned period, to the end of the server and to anybody."""
        return success(self._identity)

    async def handshake(self, call: Call) -> web.Response:
        """The bootstrap nonce for the first credential. A shutdown is told before a malformed body is."""
        data = await read_body(call.request, messages.HandshakeRequest.max_bytes)
        nonce = None
        # Of what is none, the machine makes "missing", or a shutdown.
        with contextlib.suppress(ProtocolViolation):
            nonce = parse(messages.HandshakeRequest, data).nonce
        return success(messages.HandshakeAnswer(token=_granted(self._owner.handshake(nonce)).token))

    async def prove(self, call: Call) -> web.Response:
        """Proofs of possession, for a fresh challenge."""
        data = await read_body(call.request, messages.ProveRequest.max_bytes)
        challenge = ""
        # An empty challenge is malformed, unless there is a shutdown to tell of first.
        with contextlib.suppress(ProtocolViolation):
            challenge = parse(messages.ProveRequest, data).challenge
        return success(messages.ProveAnswer(proofs=_granted(self._owner.prove(challenge)).proofs))

    # -- ownership

    async def rotate(self, call: Call) -> web.Response:
        """Replace the credential; every older stream is closed before this is answered."""
        done = _granted(await self._owner.rotate(call.presented))
        return success(messages.RotateAnswer(rotation_id=done.rotation_id, credential=done.credential))

    async def confirm(self, call: Call) -> web.Response:
        """The owner has stored the replacement."""
        asked = await self._asked(call, Operation.CONFIRM, messages.ConfirmRequest)
        _granted(self._owner.confirm(call.presented, asked.rotation_id))
        return success(messages.ConfirmAnswer())

    async def claim(self, call: Call) -> web.Response:
        """The owner is there."""
        _granted(self._owner.claim(call.presented))
        return success(messages.ClaimAnswer())

    async def details(self, call: Call) -> web.Response:
        """What only the owner is told of the server."""
        return success(self._details)

    async def shutdown(self, call: Call) -> web.Response:
        """Stop everything. The answer does not wait for it."""
        _granted(self._owner.shutdown(call.presented))
        return success(messages.ShutdownAnswer())

    # -- instances

    async def create(self, call: Call) -> web.Response:
        """Register an instance, in one step with the permission, and start its agent if asked to."""
        asked = await self._asked(call, Operation.CREATE, messages.CreateRequest)
        try:
            hosted = self._instances.admit(asked)
            await self._instances.launch(hosted)
        except CreateRefused as refused:
            raise Rejected(refused.status, refused.error) from None
        return success(messages.CreateAnswer(id=hosted.id, port=self._port()), 201)

    async def enumerate(self, call: Call) -> web.Response:
        """All instances, with their environments."""
        return success(messages.InstancesWithEnvironment(instances=self._instances.enumerate()))

    async def inspect(self, call: Call) -> web.Response:
        """One instance, with its environment."""
        return success(self._hosted(call).details(self._port()))

    async def stop(self, call: Call) -> web.Response:
        """Stop an instance: answered when agent and descendants are gone."""
        try:
            known = await self._instances.stop(call.instance_id)
        except StopFailed:
            raise Rejected(500, "the agent is still there; try again") from None
        if not known:
            raise _no_instance()
        return success(Stopped())

    async def outcome(self, call: Call) -> web.Response:
        """The outcome that is retained; reading discards nothing."""
        return success(self._hosted(call).outcome())

    async def acknowledge(self, call: Call) -> web.Response:
        """Discard the outcome of this turn, if it is retained; an instance that is gone has none."""
        asked = await self._asked(call, Operation.ACK, messages.AckRequest)
        hosted = self._instances.find(call.instance_id)
        if hosted is not None:
            hosted.acknowledge(asked.turn_id)
        return success(messages.AckAnswer())

    async def stream(self, call: Call) -> web.StreamResponse:
        """The instance's stream, until it is over."""
        self._hosted(call)
        socket = stream_socket()
        socket.headers.update(headers())
        if not socket.can_prepare(call.request).ok:
            raise Rejected(400, "a WebSocket upgrade is needed", headers={"Upgrade": "websocket"})
        await socket.prepare(call.request)
        # The upgrade waited. From here to the attachment nothing does: what a rotation in between refuses
        # is not attached, and what is attached the next rotation closes.
        refused = self._owner.permit(call.presented, Operation.STREAM, admitted=True)
        hosted = self._instances.find(call.instance_id)
        try:
            if refused is None and hosted is not None:
                acknowledges = wants_acknowledgement(call.request.rel_url.query)
                await hosted.attach(socket, acknowledges=acknowledges).run()
        finally:
            await _ended(socket, call.request, NOT_PERMITTED if refused is not None else WSCloseCode.OK)
        return socket

    # -- shared

    async def _asked(self, call: Call, operation: Operation, kind: type[M]) -> M:
        """The body of a call that was permitted, and still is after it arrived."""
        data = await read_body(call.request, kind.max_bytes)
        refused = self._owner.permit(call.presented, operation, admitted=True)
        if refused is not None:
            raise rejection(refused)
        problem = ""
        try:
            return parse(kind, data)
        except ProtocolViolation as violation:
            problem = str(violation)
        raise Rejected(400, problem)

    def _hosted(self, call: Call) -> Hosted:
        hosted = self._instances.find(call.instance_id)
        if hosted is None:
            raise _no_instance()
        return hosted


def rejection(refused: Refused) -> Rejected:
    """A refusal of the ownership machine as an answer."""
    asks = {"WWW-Authenticate": "Bearer"} if refused.status == 401 else None
    return Rejected(refused.status, refused.error, headers=asks)


def _granted(outcome: R | Refused) -> R:
    if isinstance(outcome, Refused):
        raise rejection(outcome)
    return outcome


def _no_instance() -> Rejected:
    return Rejected(404, "there is no such instance")


async def _ended(socket: web.WebSocketResponse, request: BaseRequest, code: int) -> None:
    """See that the socket is closed, whether or not its peer listens."""
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await socket.close(code=code)
    # Still not written: the peer reads nothing, and a polite end would wait for it.
    if request.transport is not None and unwritten(request.transport) > 0:
        request.transport.abort()


def unwritten(transport: asyncio.WriteTransport) -> int:
    """Bytes that its peer has not taken yet; of one that has gone, 0."""
    try:
        return transport.get_write_buffer_size()
    except AttributeError:
        # One with TLS that was closed twice has let go of what it would have to ask (``asyncio.sslproto``).
        return 0
