"""The client of one control server: it lets the server prove itself before it sends the credential.

Works against Tenure's own server and against others that speak the same protocol (agentctl).
"""

import asyncio
import re
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Literal, Self, TypeVar, overload

from tenure.model.masked import Masked
from tenure.ownership.calls import Calls, Done, read, refusal
from tenure.ownership.endpoint import Endpoint, ReadBudget
from tenure.ownership.errors import (
    ID_IN_USE,
    SESSION_IN_USE,
    BadAnswer,
    ControlError,
    NoAnswer,
    Refused,
    ShuttingDown,
)
from tenure.ownership.stream import ControlStream
from tenure.ownership.transport import Answer
from tenure.protocol.errors import ProtocolViolation
from tenure.protocol.frames import Event
from tenure.protocol.messages import (
    AckAnswer,
    AckRequest,
    ClaimAnswer,
    ConfirmAnswer,
    ConfirmRequest,
    CreateAnswer,
    CreateRequest,
    Details,
    HandshakeAnswer,
    HandshakeRequest,
    Health,
    Identity,
    Instance,
    Instances,
    InstancesWithEnvironment,
    InstanceWithEnvironment,
    OutcomeAnswer,
    RotateAnswer,
    ShutdownAnswer,
)
from tenure.protocol.outcome import TurnOutcome, read_outcome

__all__ = ["ControlClient", "Endpoint", "Event", "ReadBudget"]

_INSTANCES = "/api/v1/instances"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]{0,127}")
T = TypeVar("T")


class ControlClient:
    """One control server, as its owner sees it. An async context manager; ``aclose`` does the same.

    ``home_dir`` is the server's home directory: the proof is bound to it. ``expected_identity`` is the recorded
    one, or None for a server that is met for the first time. ``credential`` may be None or unusable: every call
    that needs one then raises ``CredentialUnavailable``, and sends nothing.

    Every call that carries the credential first lets the server prove that it knows it, on the same connection
    (plain HTTP) or once for each credential (TLS, where every connection shows the pinned key). All of them
    raise ``NoAnswer``, ``BadAnswer``, ``ForeignServer``, ``NotAccepted``, ``ShuttingDown`` and ``Refused``.
    What may be repeated without harm is, up to ``budget.retries`` times, when no answer came, a bad one, or a
    status of 500 and above. Calls may run at the same time.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        credential: Masked | None,
        home_dir: str,
        expected_identity: str | None,
        budget: ReadBudget | None = None,
    ) -> None:
        self.endpoint = endpoint
        self._budget = budget or ReadBudget()
        self._calls = Calls(endpoint, credential, home_dir, expected_identity, self._budget)
        self._streams: set[ControlStream] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every stream and connection. Nothing is told to the server: this is a detach."""
        await asyncio.gather(*(stream.aclose() for stream in tuple(self._streams)))
        await self._calls.lanes.aclose()

    def use(self, credential: Masked | None) -> None:
        """Present this credential from now on, after a rotation. Calls in flight finish with the old one."""
        self._calls.credential = credential

    # What anybody may ask

    async def health(self) -> Health:
        """``GET /health``."""
        return await self._calls.open_read(Health, "GET", "/health")

    async def identity(self) -> Identity:
        """``GET /identity``: not compared with anything. ``BadAnswer`` for a server without identity."""
        return await self._calls.open_read(Identity, "GET", "/identity")

    async def handshake(self, nonce: Masked) -> Masked:
        """Exchange the bootstrap nonce for the first credential, and use that from now on.

        Tried once: the nonce is good for one exchange, and ``NoAnswer`` leaves open whether it happened.
        ``NotAccepted``: wrong, or used.
        """

        async def once() -> HandshakeAnswer:
            async with self._calls.lanes.lane() as lane:
                body = HandshakeRequest(nonce=nonce).to_wire()
                answer = await self._calls.exchange(
                    lane, "POST", "/auth/handshake", HandshakeAnswer, body=body
                )
            return read(HandshakeAnswer, answer, 200, superseded=False)

        token = (await self._calls.attempts(once, retries=0)).token
        self.use(token)
        return token

    async def prove(self) -> Identity:
        """Compare the identity and let the server prove that it holds our credential. Returns the identity.

        ``ForeignServer`` when either fails, also when it answers with something else than the protocol's.
        """
        return await self._calls.proven()

    # What needs a credential

    async def rotate(self) -> RotateAnswer:
        """Replace the credential. The client goes on with the old one until ``use`` is called.

        May be repeated any number of times with the same credential: the answer is the same.
        """
        return await self._calls.call(RotateAnswer, "POST", "/api/v1/ownership/rotate")

    async def confirm(self, rotation_id: int) -> None:
        """The replacement is stored: the server forgets what it superseded."""
        body = ConfirmRequest(rotation_id=rotation_id).to_wire()
        await self._calls.call(ConfirmAnswer, "POST", "/api/v1/ownership/confirm", body=body)

    async def claim(self) -> None:
        """Renew the claim."""
        await self._calls.call(ClaimAnswer, "POST", "/api/v1/ownership/claim")

    async def details(self) -> Details:
        """``GET /api/v1/ownership/details``."""
        return await self._calls.call(Details, "GET", "/api/v1/ownership/details")

    async def shutdown(self) -> None:
        """Have the server stop every instance and exit. One that is already doing so counts as done."""
        try:
            await self._calls.call(ShutdownAnswer, "POST", "/api/v1/ownership/shutdown")
        except ShuttingDown:
            return

    async def create(self, request: CreateRequest) -> CreateAnswer:
        """Start an instance under an id that the caller chose, and stored, before.

        Sent once. When the answer is lost, or says that the id or the session is in use, a read of that id
        decides: an instance for that session is the answer. ``Refused`` with the code ``session_in_use``:
        another instance holds the session. ``NoAnswer``: not known, and the same request may be made again.
        Raises ``ValueError`` when the request names no id.
        """
        if request.id is None:
            raise ValueError("an instance is created under an id that the caller chose")
        try:
            return await self._calls.call(
                CreateAnswer,
                "POST",
                _INSTANCES,
                body=request.to_wire(),
                status=201,
                timeout=self._budget.launch_timeout,
                retries=0,
            )
        except (NoAnswer, BadAnswer) as error:
            failure: ControlError = error
        except Refused as error:
            if error.code not in (SESSION_IN_USE, ID_IN_USE) and error.status < 500:
                raise
            failure = error
        found = await self._find(request.id)
        if found is None or found.session_id != request.session_id:
            raise failure
        return CreateAnswer(id=found.id, port=found.port)

    @overload
    async def instances(self, environment: Literal[False] = False) -> tuple[Instance, ...]: ...
    @overload
    async def instances(self, environment: Literal[True]) -> tuple[InstanceWithEnvironment, ...]: ...
    async def instances(self, environment: bool = False) -> tuple[Instance, ...]:
        """Every instance. Environments hold provider keys: they are decoded only when asked for, and whoever
        asks keeps them in memory only."""
        if environment:
            return (await self._calls.call(InstancesWithEnvironment, "GET", _INSTANCES)).instances
        return (await self._calls.call(Instances, "GET", _INSTANCES)).instances

    @overload
    async def instance(self, instance_id: str, environment: Literal[False] = False) -> Instance: ...
    @overload
    async def instance(self, instance_id: str, environment: Literal[True]) -> InstanceWithEnvironment: ...
    async def instance(self, instance_id: str, environment: bool = False) -> Instance:
        """One instance, its environment only when asked for. ``Refused`` with 404 when there is none."""
        kind = InstanceWithEnvironment if environment else Instance
        return await self._calls.call(kind, "GET", _path(instance_id))

    async def delete(self, instance_id: str) -> None:
        """Stop an instance and have it gone; one that is not there counts as done."""
        try:
            await self._calls.call(Done, "DELETE", _path(instance_id), timeout=self._budget.stop_timeout)
        except Refused as error:
            if error.status != 404:
                raise

    async def outcome(self, instance_id: str) -> TurnOutcome | None:
        """The terminal outcome that the instance retains; reading discards nothing. ``Refused`` with 404 when
        there is no such instance."""
        path = _path(instance_id, "/turn-outcome")
        answer = await self._calls.call(OutcomeAnswer, "GET", path)
        try:
            return read_outcome(answer)
        except ProtocolViolation as violation:
            problem = str(violation)
        raise BadAnswer(problem)

    async def acknowledge(self, instance_id: str, turn_id: int) -> None:
        """Have the outcome of this turn discarded: only after it is durable. May be repeated."""
        path = _path(instance_id, "/turn-outcome/ack")
        await self._calls.call(AckAnswer, "POST", path, body=AckRequest(turn_id=turn_id).to_wire())

    async def stream(self, instance_id: str) -> ControlStream:
        """Attach to an instance: the events that wait come first. Closes whoever was attached before.

        Reads the instance first, to learn its port. ``Refused`` with 404 when there is no such instance.
        """
        path = _path(instance_id, "/agent/stream?ack=1")
        port = (await self.instance(instance_id)).port
        url = self.endpoint.base + path
        if not self.endpoint.tls and port not in (0, self.endpoint.port):
            # agentctl: each instance listens for itself, and proves nothing there. The control port of the same
            # host proved itself a moment ago, on the lane that stays open meanwhile.
            url = self.endpoint.on_port(port) + "/api/v1/agent/stream"
        stream = await self._calls.attempts(lambda: self._attach(url))
        self._streams.add(stream)
        stream.on_end(self._streams.discard)
        return stream

    # How

    async def _attach(self, url: str) -> ControlStream:
        credential = self._calls.usable()
        async with AsyncExitStack() as lanes:
            lane = await lanes.enter_async_context(self._calls.lanes.lane())
            await self._calls.admit(lane, credential)
            if not url.startswith(self.endpoint.base + "/"):
                lane = await lanes.enter_async_context(self._calls.lanes.lane())
            socket = await lane.websocket(url, bearer=credential, max_bytes=Event.max_bytes)
            if isinstance(socket, int):
                raise refusal(Answer(socket, b""), superseded=True)
            return ControlStream(socket, lanes.pop_all().aclose, timeout=self._budget.timeout)

    async def _find(self, instance_id: str) -> Instance | None:
        try:
            return await self.instance(instance_id)
        except Refused as error:
            if error.status != 404:
                raise
            return None


def _path(instance_id: str, rest: str = "") -> str:
    if _ID.fullmatch(instance_id) is None:
        raise ValueError("an instance id has 1 to 128 letters, digits, dots, dashes and underscores")
    return f"{_INSTANCES}/{instance_id}{rest}"
