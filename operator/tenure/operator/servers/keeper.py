"""Keeping claims: one loop for each server that is ours, beside passes, Lease, database and API server.

It lives as long as the process. While the Lease is held, passes say what is kept; once it is lost nobody does, and the
loops go on with what they have, until a server says that it is over, or the API server answers again: then somebody
else may have taken over.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import structlog

from tenure.operator.servers.ports import OwnedServer, ServerKey
from tenure.ownership.endpoint import ReadBudget
from tenure.ownership.errors import NotAccepted, ShuttingDown
from tenure.ownership.renewal import Ended, Renewal, Renewed
from tenure.telemetry.metrics import ClaimResult

BUDGET = ReadBudget(timeout=5.0, retries=0)
"""The loop itself is the retry."""

log = structlog.stdlib.get_logger(__name__)


@dataclass(slots=True)
class _Kept:
    server: OwnedServer
    task: asyncio.Task[None] | None = None
    ended: Ended | None = None
    failures: int = 0
    answered_at: float | None = None


class Keeper:
    """Renews claims until told otherwise.

    ``on_end(key, server, how)`` hears when a server has ended its ownership: superseded, or shutting down. It is set by
    whoever runs passes, and reset when they end.
    """

    def __init__(self, claimed: Callable[[ClaimResult], None] = lambda result: None) -> None:
        self._claimed = claimed
        self.on_end: Callable[[ServerKey, OwnedServer, Ended], None] = _nobody
        self.on_change: Callable[[ServerKey], None] = lambda key: None
        """A server has fallen silent, or answers again."""
        self._kept: dict[ServerKey, _Kept] = {}

    def keep(self, key: ServerKey, server: OwnedServer) -> None:
        """Renew for this server from now on, and for no other of this ControlServer. A rotation is followed without
        a break; a server that has ended its ownership is not asked again."""
        kept = self._kept.get(key)
        known = kept is not None and _same(kept.server, server)
        if kept is not None and known and (kept.ended is None or kept.server.credential == server.credential):
            kept.server = server
            return
        self.release(key)
        kept = _Kept(server)
        self._kept[key] = kept
        kept.task = asyncio.create_task(self._renew(key, kept), name=f"claims {key}")

    def held(self, key: ServerKey) -> OwnedServer | None:
        """The server that is renewed for."""
        kept = self._kept.get(key)
        return kept.server if kept is not None and kept.ended is None else None

    def silent(self, key: ServerKey) -> bool:
        """Whether the server did not answer the latest two renewals."""
        kept = self._kept.get(key)
        return kept is not None and kept.failures >= 2

    def release(self, key: ServerKey) -> None:
        """Renew no longer. Nothing is told to the server: this is a detach."""
        kept = self._kept.pop(key, None)
        if kept is not None and kept.task is not None:
            kept.task.cancel()

    def __len__(self) -> int:
        return sum(kept.ended is None for kept in self._kept.values())

    def without_lease(self) -> None:
        """The Lease is lost: go on with what is kept, and tell nobody."""
        self.on_end, self.on_change = _nobody, lambda key: None
        if len(self):
            log.warning("claims are renewed without the Lease", servers=len(self))

    def release_all(self) -> None:
        """Renew for nobody any more."""
        for key in list(self._kept):
            self.release(key)

    async def aclose(self) -> None:
        """Release everything and wait for the loops' end."""
        tasks = [kept.task for kept in self._kept.values() if kept.task is not None]
        self.release_all()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _renew(self, key: ServerKey, kept: _Kept) -> None:
        client = kept.server.client(BUDGET)

        def attempted(attempt: Renewed) -> None:
            before = self.silent(key)
            kept.failures = attempt.failures
            self._claimed(_result(attempt))
            if attempt.error is not None:
                log.info("a claim was not renewed", server=str(key), error=type(attempt.error).__name__)
            if self._kept.get(key) is kept and self.silent(key) is not before:
                self.on_change(key)

        renewal = Renewal(client, lambda: kept.server.credential, on_attempt=attempted)
        try:
            ended = await renewal.run()
        finally:
            with suppress(Exception):
                await client.aclose()
        kept.ended = ended
        log.warning("a control server is not ours any more", server=str(key), how=str(ended))
        if self._kept.get(key) is kept:
            self.on_end(key, kept.server, ended)


def _same(one: OwnedServer, other: OwnedServer) -> bool:
    """Whether the two differ in their credential at most."""
    return replace(one, credential=other.credential, rotation_id=other.rotation_id) == other


def _result(attempt: Renewed) -> ClaimResult:
    match attempt.error:
        case None:
            return ClaimResult.GRANTED
        case NotAccepted():
            return ClaimResult.SUPERSEDED
        case ShuttingDown():
            return ClaimResult.SHUTTING_DOWN
        case _:
            return ClaimResult.NO_ANSWER


def _nobody(key: ServerKey, server: OwnedServer, how: Ended) -> None:
    """Nobody listens: there is no pass."""
