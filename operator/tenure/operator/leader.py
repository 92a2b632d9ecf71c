"""Being the one operator of a scope: campaign for the Lease, work while it is held, stop in time.

An own loop instead of the client library's: that one lets connection errors escape while its leader runs on.
All times are monotonic. Of a duration D: renewed every D/3; given up 2D/3 after the last renewal that went
through, so that the work has D/3 to end; and if it does not, the process is ended before D has passed.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

import structlog

from tenure.cluster.client import KubernetesClient
from tenure.cluster.errors import ApiError
from tenure.cluster.lease import LeaseLost, LeaseSlot, Standing
from tenure.operator.deadman import Deadman, end_process

POLL_SECONDS = 1.0
"""How often a standby looks, so how late it notices that the Lease was released."""
_RELEASE_LIMIT = 2.0
_HARD_SHARE = 0.95

T = TypeVar("T")

log = structlog.stdlib.get_logger(__name__)


def unique_identity(pod_name: str) -> str:
    """A holder's name that no other process has, a restarted container of the same pod included."""
    return f"{pod_name}_{uuid.uuid4().hex[:12]}"


class Leadership:
    """One Lease (cluster-wide), or one in each watched namespace, all or nothing.

    ``on_change`` hears of each win and loss, ``on_look`` each time that the Lease was read in a campaign, so that the
    API server answers; ``overrun`` is called, in a thread, when work outlives the Lease.
    """

    def __init__(
        self,
        client: KubernetesClient,
        *,
        namespaces: Sequence[str],
        name: str,
        identity: str,
        seconds: int,
        monotonic: Callable[[], float] = time.monotonic,
        on_change: Callable[[bool], None] = lambda leading: None,
        on_look: Callable[[], None] = lambda: None,
        overrun: Callable[[], object] = end_process,
    ) -> None:
        if not namespaces:
            raise ValueError("a Lease needs a namespace")
        self.identity = identity
        self._seconds = seconds
        self._monotonic = monotonic
        self._on_change = on_change
        self._on_look = on_look
        self._overrun = overrun
        # Sorted, so that two contenders claim in the same order and one of them wins the first.
        self._slots = [
            LeaseSlot(
                client,
                namespace=namespace,
                name=name,
                identity=identity,
                seconds=seconds,
                monotonic=monotonic,
            )
            for namespace in sorted(set(namespaces))
        ]
        self._leads_until = 0.0
        self._read_at = float("-inf")
        self._told: tuple[str, dict[str, str]] | None = None
        self.lost = asyncio.Event()
        """Set when the Lease was lost (not when it was given up)."""

    @property
    def leading(self) -> bool:
        """Whether work may begin now; turns False by the clock alone, even if no task gets to run."""
        return self._monotonic() < self._leads_until

    @property
    def readable(self) -> bool:
        """Whether the Lease was read or renewed lately: what makes a standby ready."""
        return self.leading or self._monotonic() - self._read_at < self._seconds

    async def lead(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Wait for the Lease, run ``work``, and return when it ends or the Lease is lost; then release.

        ``work`` is cancelled when the Lease is lost; an error of its own is raised from here. When this is
        cancelled, ``work`` is cancelled first, and the Lease renewed until it has ended, then released.
        """
        self.lost.clear()
        try:
            began = await self._campaign()
            with Deadman(self._overrun, monotonic=self._monotonic) as deadman:
                await self._lead(work, began, deadman)
        finally:
            await self._release()

    async def _lead(
        self, work: Callable[[], Coroutine[Any, Any, None]], began: float, deadman: Deadman
    ) -> None:
        self._extend(began, deadman)
        self._on_change(True)
        log.info("leading", identity=self.identity, scope=[slot.namespace for slot in self._slots])
        job = asyncio.create_task(work(), name="work under the Lease")
        renewal = asyncio.create_task(self._renew_until_lost(deadman), name="lease renewal")
        try:
            await asyncio.wait({job, renewal}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            job.cancel()
            await asyncio.wait({job})
            renewal.cancel()
            await asyncio.gather(renewal, return_exceptions=True)
            self._leads_until = 0.0
            self._on_change(False)
            error = None if job.cancelled() else job.exception()
        if error is not None:
            raise error

    async def _campaign(self) -> float:
        """Until every Lease is ours; returns when (before the first claim was sent)."""
        while True:
            began = self._monotonic()
            pause = POLL_SECONDS
            try:
                standings = await self._look()
                if Standing.HELD in standings:
                    self._tell_waiting()
                    pause = min(pause, max(slot.wait for slot in self._slots))
                elif await self._claim_all(began):
                    return began
            except ApiError as error:
                self._tell_once("the Lease cannot be read or claimed", error=str(error))
                await self._release()
            await asyncio.sleep(max(0.05, pause))

    async def _look(self) -> list[Standing]:
        standings = await _all(slot.look(self._call_limit) for slot in self._slots)
        self._read_at = self._monotonic()
        self._on_look()
        return standings

    async def _claim_all(self, began: float) -> bool:
        try:
            for slot in self._slots:
                await slot.claim(self._call_limit)
        except LeaseLost as error:
            log.info("another operator was faster", error=str(error))
            await self._release()
            return False
        if self._monotonic() - began > self._seconds / 3:
            log.warning("claiming took too long to begin safely", leases=len(self._slots))
            await self._release()
            return False
        return True

    async def _renew_until_lost(self, deadman: Deadman) -> None:
        pause = self._seconds / 3
        while True:
            await asyncio.sleep(min(pause, max(0.0, self._leads_until - self._monotonic())))
            began = self._monotonic()
            remaining = self._leads_until - began
            if remaining <= 0:
                return self._lose("no renewal went through in time")
            try:
                async with asyncio.timeout(remaining):
                    await _all(slot.renew(min(remaining, self._call_limit)) for slot in self._slots)
            except LeaseLost as error:
                return self._lose(str(error))
            except (ApiError, TimeoutError) as error:
                log.warning("the Lease was not renewed", error=str(error), left=round(remaining, 1))
                pause = min(1.0, self._seconds / 15)
                continue
            self._read_at = self._monotonic()
            self._extend(began, deadman)
            # From its beginning: a renewal that took long must not leave less time for the next.
            pause = max(0.0, began + self._seconds / 3 - self._read_at)

    def _extend(self, began: float, deadman: Deadman) -> None:
        """Count from before the renewal was sent: whoever saw its effect saw it later than that."""
        self._leads_until = began + self._seconds * 2 / 3
        deadman.extend(began + self._seconds * _HARD_SHARE)

    def _lose(self, why: str) -> None:
        self._leads_until = 0.0
        self.lost.set()
        log.warning("the Lease is lost", why=why, identity=self.identity)

    async def _release(self) -> None:
        self._leads_until = 0.0
        touched = [slot for slot in self._slots if slot.touched]
        try:
            await _all(slot.release(_RELEASE_LIMIT) for slot in touched)
        except ApiError as error:
            log.info("the Lease was not released; it will run out", error=str(error))

    @property
    def _call_limit(self) -> float:
        return self._seconds / 3

    def _tell_waiting(self) -> None:
        holders = ", ".join(sorted({slot.holder for slot in self._slots if slot.holder and slot.wait}))
        self._tell_once("standing by: another operator leads", holder=holders)

    def _tell_once(self, event: str, **facts: str) -> None:
        """A campaign looks every second; the log hears what is new."""
        if (event, facts) != self._told:
            self._told = (event, facts)
            log.info(event, **facts)


async def _all(calls: Iterable[Awaitable[T]]) -> list[T]:
    """All results; a lost Lease among the errors goes before the others. Nothing is left running."""
    answers = await asyncio.gather(*calls, return_exceptions=True)
    errors = [answer for answer in answers if isinstance(answer, BaseException)]
    for error in sorted(errors, key=lambda e: not isinstance(e, LeaseLost)):
        raise error
    return [answer for answer in answers if not isinstance(answer, BaseException)]
