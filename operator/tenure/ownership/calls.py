"""How one call to a control server is made: attempts, proof before credential, reading of the answer."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from tenure.model.masked import Masked
from tenure.ownership.endpoint import Endpoint, ReadBudget
from tenure.ownership.errors import (
    CODES,
    BadAnswer,
    ControlError,
    Doubt,
    ForeignServer,
    NoAnswer,
    NotAccepted,
    Refused,
    ShuttingDown,
)
from tenure.ownership.transport import Answer, Lane, Lanes
from tenure.protocol.errors import CredentialUnavailable, ProtocolViolation
from tenure.protocol.messages import ErrorBody, Identity, ProveAnswer, ProveRequest
from tenure.protocol.proof import new_challenge, usable, verify
from tenure.protocol.wire import SMALL, B, Body, parse

T = TypeVar("T")


class Done(Body):
    """An answer of which only the HTTP status matters: 200 with a text, or 204 without."""


class Calls:
    """Calls to one server, with one credential at a time."""

    def __init__(
        self,
        endpoint: Endpoint,
        credential: Masked | None,
        home_dir: str,
        expected_identity: str | None,
        budget: ReadBudget,
    ) -> None:
        self.credential = credential
        self.budget = budget
        self.lanes = Lanes(endpoint)
        self._endpoint = endpoint
        self._home_dir = home_dir
        self._expected_identity = expected_identity
        # The credential for which a proof has been seen.
        self._proven: Masked | None = None
        self._proving = asyncio.Lock()

    def usable(self) -> Masked:
        credential = self.credential
        if credential is None or not usable(credential):
            raise CredentialUnavailable
        return credential

    async def open_read(self, kind: type[B], method: str, path: str) -> B:
        async def once() -> B:
            async with self.lanes.lane() as lane:
                return read(kind, await self.exchange(lane, method, path, kind), 200, superseded=False)

        return await self.attempts(once)

    async def call(
        self,
        kind: type[B],
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        status: int = 200,
        timeout: float | None = None,
        retries: int | None = None,
    ) -> B:
        credential = self.usable()

        async def once() -> B:
            async with self.lanes.lane() as lane:
                await self.admit(lane, credential)
                answer = await self.exchange(lane, method, path, kind, body=body, bearer=credential)
            if kind is Done and 200 <= answer.status < 300:
                return kind()
            return read(kind, answer, status, superseded=True)

        return await self.attempts(once, timeout=timeout, retries=retries)

    async def proven(self) -> Identity:
        """See ``ControlClient.prove``."""
        credential = self.usable()

        async def once() -> Identity:
            async with self.lanes.lane() as lane:
                return await self._prove_on(lane, credential, first=True)

        return await self.attempts(once)

    async def admit(self, lane: Lane, credential: Masked) -> None:
        """After this the credential may be sent on the lane."""
        if not self._endpoint.tls:
            await self._prove_on(lane, credential, first=False)
            return
        # One proof serves all calls that wait for it: each connection shows the same pinned key.
        if self._proven == credential:
            return
        async with self._proving:
            if self._proven != credential:
                await self._prove_on(lane, credential, first=False)

    async def _prove_on(self, lane: Lane, credential: Masked, *, first: bool) -> Identity:
        try:
            answer = await self.exchange(lane, "GET", "/identity", Identity)
            identity = read(Identity, answer, 200, superseded=False)
        except (BadAnswer, Refused, NotAccepted):
            raise ForeignServer(Doubt.IDENTITY, certain=False) from None
        if not identity.capabilities:
            # Advertising nothing at all is not a small set: it is no control server.
            raise ForeignServer(Doubt.IDENTITY)
        if self._expected_identity is not None and identity.server_identity != self._expected_identity:
            raise ForeignServer(Doubt.IDENTITY)
        challenge = new_challenge()
        try:
            body = ProveRequest(challenge=challenge).to_wire()
            answer = await self.exchange(lane, "POST", "/ownership/prove", ProveAnswer, body=body)
            proofs = read(ProveAnswer, answer, 200, superseded=False).proofs
        except (BadAnswer, Refused, NotAccepted):
            raise ForeignServer(Doubt.PROOF, certain=False) from None
        if verify(proofs, credential, challenge, self._home_dir):
            self._proven = credential
            return identity
        if not first and self._proven is not None and self._proven == credential:
            # It did prove this credential before, to us. Credentials live in the memory of the one process that
            # holds the port: either a newer one was confirmed, or our server is gone. Both are final.
            raise NotAccepted(superseded=True)
        raise ForeignServer(Doubt.PROOF)

    async def exchange(
        self,
        lane: Lane,
        method: str,
        path: str,
        kind: type[Body],
        *,
        body: bytes | None = None,
        bearer: Masked | None = None,
    ) -> Answer:
        limit = max(kind.max_bytes, SMALL)
        return await lane.exchange(method, self._endpoint.base + path, body=body, bearer=bearer, limit=limit)

    async def attempts(
        self,
        once: Callable[[], Awaitable[T]],
        *,
        timeout: float | None = None,
        retries: int | None = None,
    ) -> T:
        """Try, and try again without delay. The last failure is raised."""
        seconds = self.budget.timeout if timeout is None else timeout
        again = self.budget.retries if retries is None else retries
        used = 0
        while True:
            try:
                async with asyncio.timeout(seconds):
                    return await once()
            except TimeoutError:
                failure: ControlError = NoAnswer("no answer in time")
            except (NoAnswer, BadAnswer, Refused, ForeignServer) as error:
                failure = error
            if used >= again or _decided(failure):
                failure.retries = used
                raise failure
            used += 1


def _decided(failure: ControlError) -> bool:
    """Whether another try would end like this one."""
    match failure:
        case Refused():
            return failure.status < 500
        case ForeignServer():
            return failure.certain
        case _:
            return False


def read(kind: type[B], answer: Answer, status: int, *, superseded: bool) -> B:
    if answer.status != status:
        raise refusal(answer, superseded=superseded)
    try:
        message = parse(kind, answer.data)
    except ProtocolViolation as violation:
        problem = str(violation)
    else:
        # To write one, a status need not be given. Whoever reads one wants to have it said.
        if "status" not in kind.model_fields or "status" in message.model_fields_set:
            return message
        problem = f"{kind.__name__}: status is missing"
    raise BadAnswer(problem)


def refusal(answer: Answer, *, superseded: bool) -> ControlError:
    """What a status other than the expected one means. Of the body only a code that we know is kept."""
    if answer.status in (401, 403):
        return NotAccepted(superseded=superseded)
    code = ""
    if answer.status == 409:
        with suppress(ProtocolViolation):
            code = parse(ErrorBody, answer.data).error
        if code not in CODES:
            return ShuttingDown()
    if answer.status < 400:
        return BadAnswer("its status is not the one that the protocol names")
    return Refused(answer.status, code)
