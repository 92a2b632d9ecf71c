"""The one control server that a backend drives at a time: found by its hand-over, claimed, and followed through
rotations and replacements."""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from tenure.backend.errors import Final, FinalError, Retry, RetryableError
from tenure.backend.handover import HandOverSource
from tenure.ownership.client import ControlClient
from tenure.ownership.endpoint import Endpoint, ReadBudget
from tenure.ownership.errors import ControlError, ForeignServer, NoAnswer, NotAccepted
from tenure.ownership.renewal import Ended, Renewal
from tenure.protocol.capabilities import Capability
from tenure.protocol.handover import HandOver
from tenure.protocol.messages import Identity, Instance

log = logging.getLogger("tenure.backend")


def delays(longest: float = 5.0) -> Iterator[float]:
    """Seconds to wait before the next attempts, without end: 0.1, doubled up to ``longest``."""
    for power in itertools.count():
        yield min(longest, 0.1 * 2 ** min(power, 16))


@dataclass(frozen=True, slots=True, eq=False)
class Peer:
    """A control server under one credential."""

    handover: HandOver
    endpoint: Endpoint
    client: ControlClient = field(repr=False)
    identity: Identity

    @property
    def name(self) -> str:
        """The server's identity."""
        return self.identity.server_identity

    def knows_turn_keys(self, instance: Instance) -> bool:
        """Whether a prompt that is sent again under its key is done only once.

        agentctl advertises ``agent-delivery.v1`` too and knows no keys, but it gives each instance a port of
        its own. Whoever serves an instance on the port on which it is called speaks this protocol as it is.
        """
        delivers = Capability.AGENT_DELIVERY in self.identity.capabilities
        return delivers and instance.port in (0, self.endpoint.port)


class Link:
    """Keeps one ``Peer`` while it can: takes the hand-over, lets the server prove itself, renews the claim, and
    waits for the next hand-over when this one does not do any more.

    ``settle`` is called with each new peer before anybody else may use it; the claim is renewed meanwhile. It
    is called again after it raised a ``RetryableError``.
    """

    def __init__(
        self,
        source: HandOverSource,
        settle: Callable[[Peer], Awaitable[None]],
        budget: ReadBudget | None = None,
    ) -> None:
        self._source = source
        self._settle = settle
        self._budget = budget
        self._peer: Peer | None = None
        self._failure: FinalError | None = None
        self._changed = asyncio.Condition()
        self._trouble = asyncio.Event()
        self._superseded: Peer | None = None

    def require(self) -> Peer:
        """The peer. Raises ``RetryableError`` (no hand-over at present) or ``FinalError`` (there will be none)."""
        if self._failure is not None:
            raise self._failure
        if self._peer is None:
            raise RetryableError(Retry.NO_HAND_OVER, "there is no control server for this backend at present")
        return self._peer

    async def wait(self) -> Peer:
        """The peer, as soon as there is one. Raises ``FinalError``."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._peer or self._failure)
            return self.require()

    def report(self, peer: Peer, error: ControlError) -> None:
        """A call to ``peer`` failed: look whether it is still the one to call."""
        if isinstance(error, NotAccepted | ForeignServer):
            self._superseded = peer
        if isinstance(error, NotAccepted | ForeignServer | NoAnswer):
            self._trouble.set()

    async def run(self) -> None:
        """Until cancelled, or until there will be no hand-over any more."""
        try:
            handover = await self._source.wait_newer(None)
            while True:
                handover = await self._serve(handover)
        except FinalError as error:
            log.error("no control server any more: %s", error)
            await self._publish(None, error)
        except Exception as error:
            # A fault of ours: nobody must wait for ever for what it prevents.
            log.error("the hand-over is not followed any more: %s", type(error).__name__)
            await self._publish(None, FinalError(Final.CLOSED, "the hand-over is not followed any more"))
            raise

    async def aclose(self, failure: FinalError) -> None:
        """Nobody waits for a peer any more."""
        await self._publish(None, failure)

    async def _serve(self, handover: HandOver) -> HandOver:
        """Use one hand-over for as long as it does; returns its successor."""
        try:
            endpoint = Endpoint(handover.endpoint, handover.server_name, handover.certificate)
        except ValueError as error:
            log.error("the hand-over is of no use: %s", error)
            return await self._source.wait_newer(handover)
        client = ControlClient(
            endpoint,
            credential=handover.credential,
            home_dir=handover.home_dir,
            expected_identity=handover.server_identity,
            budget=self._budget,
        )
        try:
            async with client:
                return await self._while_it_lasts(handover, endpoint, client)
        finally:
            await self._publish(None)

    async def _while_it_lasts(
        self, handover: HandOver, endpoint: Endpoint, client: ControlClient
    ) -> HandOver:
        waits, settled = delays(), False
        peer: Peer | None = None
        while True:
            error: ControlError | None = None
            try:
                identity = await client.prove()
            except ControlError as caught:
                error = caught
            else:
                peer = peer or Peer(handover, endpoint, client, identity)
                settled = await self._drive(peer, settled)
                waits = delays()
            if error is not None:
                log.warning("the control server cannot be used: %s", error)
            refused = isinstance(error, NotAccepted) or (peer is not None and self._superseded is peer)
            if refused:
                await self._publish(None)
            # After a 401 only a newer hand-over helps; an address that is silent, or strange, may recover.
            successor = await self._successor(handover, None if refused else next(waits))
            if successor is not None:
                return successor

    async def _drive(self, peer: Peer, settled: bool) -> bool:
        """Renew the claim, settle, publish; returns at the first sign of trouble. Whether it was settled."""
        self._trouble.clear()
        renewal = asyncio.create_task(self._renew(peer), name="claims")
        settling = asyncio.create_task(self._settled(peer), name="settle") if not settled else None
        trouble = asyncio.create_task(self._trouble.wait(), name="trouble")
        try:
            if settling is not None:
                await asyncio.wait({settling, trouble}, return_when=asyncio.FIRST_COMPLETED)
                if not settling.done():
                    return False
                await settling
            await self._publish(peer)
            await trouble
            return True
        finally:
            await cancelled(renewal, trouble, *([settling] if settling is not None else []))

    async def _settled(self, peer: Peer) -> None:
        for wait in delays():
            try:
                await self._settle(peer)
                return
            except RetryableError as error:
                log.warning("not settled with the control server yet: %s", error)
            await asyncio.sleep(wait)

    async def _renew(self, peer: Peer) -> None:
        client = ControlClient(
            peer.endpoint,
            credential=peer.handover.credential,
            home_dir=peer.handover.home_dir,
            expected_identity=peer.handover.server_identity,
            # The loop is the retry.
            budget=ReadBudget(retries=0),
        )
        async with client:
            ended = await Renewal(client, lambda: peer.handover.credential).run()
        if ended is Ended.SUPERSEDED:
            self._superseded = peer
        self._trouble.set()

    async def _successor(self, handover: HandOver, within: float | None) -> HandOver | None:
        try:
            async with asyncio.timeout(within):
                return await self._source.wait_newer(handover)
        except TimeoutError:
            return None

    async def _publish(self, peer: Peer | None, failure: FinalError | None = None) -> None:
        async with self._changed:
            self._peer, self._failure = peer, failure or self._failure
            self._changed.notify_all()


async def cancelled(*tasks: "asyncio.Task[object]") -> None:
    """Cancel tasks and wait for their end. What they raise is logged by whoever awaits them, not here."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
