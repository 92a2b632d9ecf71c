"""Keeping a claim: a loop that renews well inside the server's own unowned period, and needs nothing but it."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tenure.model.masked import Masked
from tenure.ownership.errors import ControlError, NoAnswer, NotAccepted, ShuttingDown
from tenure.protocol import claims
from tenure.protocol.errors import CredentialUnavailable
from tenure.protocol.messages import Identity


class Claimant(Protocol):
    """What renewal needs of a client (``ControlClient``)."""

    async def prove(self) -> Identity:
        """What the server tells of itself, once it has proven to be ours: its period is what counts."""

    async def claim(self) -> None:
        """Renew."""

    def use(self, credential: Masked | None) -> None:
        """Present this credential from now on."""


class Ended(StrEnum):
    """Why renewal stopped for good."""

    SUPERSEDED = "superseded"
    SHUTTING_DOWN = "shutting_down"


@dataclass(frozen=True, slots=True)
class Renewed:
    """One attempt. ``error`` is None when it succeeded; ``failures`` counts those in a row, this one included."""

    began_at: float
    error: Exception | None = None
    failures: int = 0


class Renewal:
    """Claims the server again and again, until it is cancelled or the server answers that it is over.

    ``credential`` is asked before each attempt, so that rotations are followed. Stop the renewal of an owner
    before *this process* rotates: the old credential is refused from then on. ``client`` is better one of its
    own, with no retries: the loop itself is the retry. Callbacks do not raise; ``clock`` and ``sleep`` are in
    seconds.
    """

    def __init__(
        self,
        client: Claimant,
        credential: Callable[[], Masked | None],
        *,
        on_attempt: Callable[[Renewed], None] | None = None,
        on_end: Callable[[Ended], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._credential = credential
        self._on_attempt = on_attempt
        self._on_end = on_end
        self._clock = clock
        self._sleep = sleep
        self._period_ms: int | None = None
        self._failures = 0
        self._presented: Masked | None = None

    @property
    def period_ms(self) -> int | None:
        """The server's own unowned period, once it has told it."""
        return self._period_ms

    async def run(self) -> Ended:
        """Renew until it is over. Cancel it to detach."""
        while True:
            began = self._clock()
            ended = await self._attempt(began)
            if ended is not None:
                if self._on_end is not None:
                    self._on_end(ended)
                return ended
            await self._sleep(max(0.0, claims.next_renewal(began, self._period()) - self._clock()))

    async def _attempt(self, began: float) -> Ended | None:
        error: Exception | None = None
        ended: Ended | None = None
        try:
            async with asyncio.timeout(claims.renewal_timeout(self._period())):
                await self._renew()
        except TimeoutError:
            error = NoAnswer("no answer in time")
        except NotAccepted as refused:
            error = refused
            # A rotation of our own may have come in between.
            ended = Ended.SUPERSEDED if self._credential() == self._presented else None
        except ShuttingDown as refused:
            error, ended = refused, Ended.SHUTTING_DOWN
        except (ControlError, CredentialUnavailable) as failure:
            error = failure
        self._failures = self._failures + 1 if error is not None else 0
        if self._on_attempt is not None:
            self._on_attempt(Renewed(began, error, self._failures))
        return ended

    async def _renew(self) -> None:
        self._presented = self._credential()
        self._client.use(self._presented)
        if self._period_ms is None:
            self._period_ms = (await self._client.prove()).unowned_period_ms
        await self._client.claim()

    def _period(self) -> int:
        # Not known yet: no server of ours has a shorter one.
        return self._period_ms if self._period_ms is not None else claims.FLOOR_MS
