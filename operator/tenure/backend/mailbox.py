"""The events of one session on their way from stream to user: in order, each once, bounded.

A control server numbers the events of an instance (``seq``, from 1, without holes) and keeps each until it is
acknowledged. So an event is acknowledged when its reader asks for the next one: whatever happens before, the
server sends it again, and the number tells a repetition.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from tenure.protocol.frames import Event

log = logging.getLogger("tenure.backend")

CAPACITY = 256
_UNREAD = 64


def seq_of(event: Event) -> int:
    """The event's number; 0 for a server that numbers nothing."""
    number = event.fields.get("seq")
    return number if type(number) is int and number > 0 else 0


class Mailbox:
    """Holds up to ``capacity`` events; with ``capacity`` 0 it keeps none, and counts them as read.

    ``consumed`` is called with the number of each event that was read.
    """

    def __init__(self, capacity: int, consumed: Callable[[int], None]) -> None:
        self._capacity = capacity
        self._consumed = consumed
        self._waiting: deque[Event] = deque()
        self._changed = asyncio.Condition()
        self._closed = False
        self._has_reader = False
        self._received = 0
        self.read = 0
        """The number of the last event that its reader is done with."""

    @property
    def full(self) -> bool:
        """Whether nothing more is taken from the stream until somebody reads."""
        return 0 < self._capacity <= len(self._waiting)

    async def put(self, event: Event) -> None:
        """Take an event from the stream; waits while there is no room. One that came before is passed over."""
        number = seq_of(event)
        if 0 < number <= self._received:
            return
        if self._capacity:
            async with self._changed:
                await self._changed.wait_for(lambda: not self.full or self._closed)
                self._waiting.append(event)
                self._changed.notify_all()
            if len(self._waiting) == _UNREAD and not self._has_reader:
                log.warning(
                    "nobody reads the events of a session: its agent will be paused (see Session.events)"
                )
        self._received = max(self._received, number)
        if not self._capacity:
            self._done(event)

    def skip(self, event: Event) -> None:
        """An event that is told to nobody. It counts as read with those before it: at once, or with one that comes
        after it."""
        all_read = self.read >= self._received
        self._received = max(self._received, seq_of(event))
        if all_read:
            self._done(event)

    async def get(self) -> Event | None:
        """The next event, None after the last one. It counts as read only when ``done`` is called."""
        self._has_reader = True
        async with self._changed:
            await self._changed.wait_for(lambda: self._waiting or self._closed)
            if not self._waiting:
                return None
            event = self._waiting.popleft()
            self._changed.notify_all()
            return event

    def done(self, event: Event) -> None:
        """Its reader has dealt with it."""
        self._done(event)

    async def close(self) -> None:
        """Nothing more comes; what waits can still be read."""
        async with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _done(self, event: Event) -> None:
        number = seq_of(event)
        if number > self.read:
            self.read = number
            self._consumed(number)
