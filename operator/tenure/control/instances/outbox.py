"""The events of one instance on their way to a reader: ``protocol.retention`` with somebody who waits.

Each event gets its place, ``seq``, at the moment at which it is kept: places have no holes, so a reader sees by
them what came twice and what is missing.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from tenure.protocol.retention import Offer, Retention, delivered, offer, stopped


@dataclass(eq=False, slots=True)
class Ticket:
    """The place of an event in the queue before a full buffer."""

    body: bytes
    taken: "asyncio.Future[int]" = field(repr=False)
    """Its ``seq``; 0 when it was released by the stop of the instance, or withdrawn."""

    @property
    def waits(self) -> bool:
        """Whether it has no place yet."""
        return not self.taken.done()


class Outbox:
    """What is not delivered yet, bounded, in order. Events are JSON objects as bytes, not empty."""

    def __init__(self, limit: int, max_bytes: int) -> None:
        self._kept: Retention[bytes] = Retention(limit, max_bytes=max_bytes)
        self._paused: deque[Ticket] = deque()
        self._first = 1
        self.on_arrival: Callable[[], None] | None = None
        """Called when there is a new event: the one stream that delivers them."""

    @property
    def first(self) -> int:
        """The ``seq`` of the oldest event that is kept, or of the next one."""
        return self._first

    @property
    def newest(self) -> int:
        """The ``seq`` of the newest event that is kept, or was."""
        return self._first + len(self._kept.waiting) - 1

    @property
    def paused(self) -> int:
        """How many events wait for a place."""
        return len(self._paused)

    @property
    def stopped(self) -> bool:
        """Whether nothing is taken any more."""
        return self._kept.stopped

    def offer(self, body: bytes) -> Ticket:
        """Give an event its turn: it has a place at once, or waits for one behind all that came before."""
        ticket = Ticket(body, asyncio.get_running_loop().create_future())
        if self._paused or not self._keep(ticket):
            self._paused.append(ticket)
        return ticket

    async def put(self, body: bytes) -> int:
        """Offer an event and wait for its place: its ``seq``, or 0 when the instance was stopped. A caller
        that is cancelled withdraws it."""
        if not self._paused:
            seq = self._kept_as(body)
            if seq is not None:
                return seq
        ticket = self.offer(body)
        if ticket.waits:
            try:
                await ticket.taken
            finally:
                self.withdraw(ticket)
        return ticket.taken.result()

    def withdraw(self, ticket: Ticket) -> bool:
        """Take an event back that has no place yet; False when it has one."""
        if ticket not in self._paused:
            return False
        self._paused.remove(ticket)
        if not ticket.taken.done():
            ticket.taken.set_result(0)
        return True

    def after(self, seq: int, at_most: int) -> tuple[bytes, ...]:
        """The events behind ``seq``, oldest first, as they are sent."""
        start = max(0, seq + 1 - self._first)
        return self._kept.waiting[start : start + at_most]

    def forget(self, seq: int) -> None:
        """Everything up to ``seq`` was delivered; again, or an older one, changes nothing."""
        count = min(seq, self.newest) - self._first + 1
        if count <= 0:
            return
        self._kept = delivered(self._kept, count)
        self._first += count
        while self._paused and self._keep(self._paused[0]):
            self._paused.popleft()

    def stop(self, *last: bytes) -> None:
        """Release whoever waits, now and later. The events that they waited with, and ``last``, are kept past
        the limit: an attached reader still gets them."""
        released = [ticket for ticket in self._paused if ticket.waits]
        self._paused.clear()
        for ticket in released:
            ticket.taken.set_result(0)
        bodies = [*(ticket.body for ticket in released), *last]
        frames = [_numbered(body, self.newest + i) for i, body in enumerate(bodies, 1)]
        self._kept = stopped(self._kept, *((frame, len(frame)) for frame in frames))
        self._tell()

    def _keep(self, ticket: Ticket) -> bool:
        """Whether the ticket waits no more."""
        if ticket.waits:
            seq = self._kept_as(ticket.body)
            if seq is None:
                return False
            ticket.taken.set_result(seq)
        # Otherwise its producer was cancelled in the very moment at which there was room.
        return True

    def _kept_as(self, body: bytes) -> int | None:
        """The place that an event got, 0 when it is released, None when there is none for it."""
        seq = self.newest + 1
        frame = _numbered(body, seq)
        self._kept, answer = offer(self._kept, frame, len(frame))
        if answer is Offer.TAKEN:
            self._tell()
            return seq
        return None if answer is Offer.PAUSE else 0

    def _tell(self) -> None:
        if self.on_arrival is not None:
            self.on_arrival()


def _numbered(body: bytes, seq: int) -> bytes:
    return b'{"seq":%d,' % seq + body[1:]
