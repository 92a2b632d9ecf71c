"""Taking ownership of a control server, in an order that a crash at any point cannot spoil.

Identity and proof, then rotation (which is the authentication), then capabilities; the replacement stays in
memory until they pass. Then: store the credential, write the record, confirm. What a successor does after a
crash is decided from what is stored and from nothing else:

========================================  ==================================================================
stored                                    then
========================================  ==================================================================
by another incarnation                    adopt. If the crash came between rotation and store, the stored
                                          credential is the superseded one, and the rotation gives the same
                                          replacement again
by this one, rotation not confirmed       write the record again, confirm: *resumed*
by this one, confirmed                    write the record again: *resumed*, no contact
========================================  ==================================================================
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tenure.model.adoption import AdoptionOutcome, AdoptionReason
from tenure.model.masked import Masked
from tenure.ownership.client import ControlClient
from tenure.ownership.endpoint import Endpoint, ReadBudget
from tenure.ownership.errors import (
    BadAnswer,
    ControlError,
    ForeignServer,
    NoAnswer,
    NotAccepted,
    Refused,
    ShuttingDown,
)
from tenure.ownership.holding import CredentialStore, Holding, StoreConflict, StoreFailed
from tenure.plan.adoption.gates import verdict_of
from tenure.protocol.capabilities import REQUIRED, missing
from tenure.protocol.messages import Details, Identity
from tenure.protocol.proof import usable

T = TypeVar("T")
Record = Callable[[Holding], Awaitable[None]]
"""Writes the durable record of a stored holding, by compare-and-set; the same again is harmless. Raises
``StoreFailed``."""


@dataclass(frozen=True, slots=True)
class Adoption:
    """What became of an attempt.

    ``holding`` is what is stored, for an adoption. ``resumed``: an earlier attempt of this incarnation had
    stored it, and nothing was rotated. ``unconfirmed``: everything is stored, but the server has not been told
    yet; it is an adoption all the same, and the confirmation has to be tried again. ``identity`` is what the
    server told of itself, if it did, and ``details`` what it told its new owner.
    """

    outcome: AdoptionOutcome
    reason: AdoptionReason = AdoptionReason.NONE
    holding: Holding | None = None
    resumed: bool = False
    unconfirmed: bool = False
    identity: Identity | None = None
    details: Details | None = None


async def _no_record(holding: Holding) -> None:
    """For an owner without a record beside the store."""


@dataclass(frozen=True)
class Adopter:
    """How to adopt.

    ``incarnation`` names the lifetime of the backend that adopts for. ``deadline`` is how long, in seconds,
    rotation and stores are tried again with ``pause`` between; reads have their own ``budget``.
    """

    store: CredentialStore
    incarnation: str
    record: Record = _no_record
    required: frozenset[str] = REQUIRED
    budget: ReadBudget = field(default_factory=ReadBudget)
    deadline: float = 15.0
    pause: float = 0.2
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def adopt(self) -> Adoption:
        """Adopt the stored server, or finish its adoption. Raises ``StoreFailed`` when nothing can be loaded.

        After any outcome but an adoption nothing more has been, or may be, sent to that server; after a
        refused capability, which only an own and authenticated server gets, the ownership shutdown may.
        """
        holding = await self.store.load()
        if holding is None:
            return _failed(AdoptionReason.NO_RECORD)
        async with self._client(holding) as client:
            if holding.adopted_by == self.incarnation:
                return await self._finish(client, holding, self.clock() + self.deadline)
            return await self._take(client, holding)

    async def greet(self, endpoint: Endpoint, home_dir: str, nonce: Masked) -> Adoption:
        """Become the first owner of a fresh server, by its bootstrap nonce, and store the credential.

        ``REFUSED`` with ``AUTHENTICATION_FAILED``: the nonce is wrong, or was used, by a try whose answer was
        lost or by a thief; replace the server, which hosts nothing yet. The same for ``NO_ANSWER``.
        """
        stored = await self.store.load()
        version = stored.version if stored is not None else ""
        limit = self.clock() + self.deadline
        blank = Holding("", home_dir, endpoint, None)
        async with self._client(blank, known=False) as client:
            identity: Identity | None = None
            try:
                identity = await client.identity()
                credential = await client.handshake(nonce)
            except ControlError as error:
                return _failed(_reason_of(error), identity)
            holding = Holding(
                identity.server_identity,
                home_dir,
                endpoint,
                credential,
                adopted_by=self.incarnation,
                version=version,
            )
            try:
                holding = await self._until(limit, lambda: self.store.store(holding))
                await self._until(limit, lambda: self.record(holding))
            except StoreFailed:
                return _failed(AdoptionReason.CREDENTIAL_ROTATION_FAILED, identity)
            return Adoption(AdoptionOutcome.ADOPTED, holding=holding, identity=identity)

    async def _take(self, client: ControlClient, holding: Holding) -> Adoption:
        identity: Identity | None = None
        limit = self.clock() + self.deadline
        try:
            identity = await self._prove(client, holding)
            rotated = await self._until(limit, client.rotate)
            client.use(rotated.credential)
            details = await self._until(limit, client.details)
            # In the order of ``plan.adoption.gates``: who it is comes before what it can do.
            if details.home_dir != holding.home_dir:
                return _failed(AdoptionReason.IDENTITY_MISMATCH, identity)
            if missing(identity.capabilities, self.required):
                return _failed(AdoptionReason.CAPABILITY_INCOMPATIBLE, identity)
            taken = replace(
                holding,
                credential=rotated.credential,
                rotation_id=rotated.rotation_id,
                confirmed=False,
                adopted_by=self.incarnation,
            )
            stored = await self._until(limit, lambda: self.store.store(taken))
        except _Judged as judged:
            return _failed(judged.reason, identity or judged.identity)
        except (NoAnswer, BadAnswer, Refused, StoreFailed):
            return _failed(AdoptionReason.CREDENTIAL_ROTATION_FAILED, identity)
        except ControlError as error:
            return _failed(_reason_of(error), identity)
        done = await self._finish(client, stored, limit)
        return replace(done, resumed=False, identity=identity, details=details)

    async def _prove(self, client: ControlClient, holding: Holding) -> Identity:
        """Identity first; an unusable credential is decided before anything is asked that needs it."""
        if usable(holding.credential):
            try:
                return await client.prove()
            except ControlError as error:
                raise _Judged(_reason_of(error)) from None
        identity = None
        try:
            identity = await client.identity()
        except ControlError as error:
            reason = _reason_of(error)
        else:
            mismatch = identity.server_identity != holding.server_identity or not identity.capabilities
            reason = AdoptionReason.IDENTITY_MISMATCH if mismatch else AdoptionReason.CREDENTIAL_UNAVAILABLE
        raise _Judged(reason, identity)

    async def _finish(self, client: ControlClient, holding: Holding, limit: float) -> Adoption:
        """Record and confirm what is stored."""
        try:
            await self._until(limit, lambda: self.record(holding))
        except StoreFailed:
            return _failed(AdoptionReason.CREDENTIAL_ROTATION_FAILED)
        if holding.confirmed:
            return Adoption(AdoptionOutcome.ADOPTED, holding=holding, resumed=True)
        try:
            return Adoption(
                AdoptionOutcome.ADOPTED, holding=await self.confirm(client, holding), resumed=True
            )
        except (ShuttingDown, NotAccepted, ForeignServer) as error:
            return _failed(_reason_of(error))
        except (ControlError, StoreFailed):
            return Adoption(AdoptionOutcome.ADOPTED, holding=holding, resumed=True, unconfirmed=True)

    async def confirm(self, client: ControlClient, holding: Holding) -> Holding:
        """Tell the server that its replacement is stored, and store that it was told.

        ``client`` uses the holding's credential. Raises ``ControlError`` and ``StoreFailed``; may be repeated.
        """
        await client.confirm(holding.rotation_id)
        return await self.store.store(replace(holding, confirmed=True))

    def _client(self, holding: Holding, *, known: bool = True) -> ControlClient:
        return ControlClient(
            holding.endpoint,
            credential=holding.credential,
            home_dir=holding.home_dir,
            expected_identity=holding.server_identity if known else None,
            budget=self.budget,
        )

    async def _until(self, limit: float, once: Callable[[], Awaitable[T]]) -> T:
        """Try until it succeeds or the limit has passed; the last failure is raised. What is decided is not
        tried again: a refusal below 500, a conflict, a server that is not ours."""
        while True:
            try:
                return await once()
            except StoreConflict:
                raise
            except (NoAnswer, BadAnswer, Refused, StoreFailed) as error:
                if isinstance(error, Refused) and error.status < 500:
                    raise
                if self.clock() + self.pause >= limit:
                    raise
            await self.sleep(self.pause)


class _Judged(Exception):
    def __init__(self, reason: AdoptionReason, identity: Identity | None = None) -> None:
        self.reason = reason
        self.identity = identity


def _failed(reason: AdoptionReason, identity: Identity | None = None) -> Adoption:
    return Adoption(verdict_of(reason).outcome, reason, identity=identity)


def _reason_of(error: ControlError) -> AdoptionReason:
    """The reason that an error means, before the rotation."""
    match error:
        case ShuttingDown():
            return AdoptionReason.SHUTTING_DOWN
        case NotAccepted():
            return AdoptionReason.AUTHENTICATION_FAILED
        case NoAnswer():
            return AdoptionReason.NO_ANSWER
        case _:
            return AdoptionReason.IDENTITY_MISMATCH
