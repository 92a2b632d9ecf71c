"""From kopf's loop into ours: events, in order, without the two threads fighting for the interpreter."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from tenure.telemetry.metrics import WatchedResource

log = logging.getLogger(__name__)

BATCH = 100
"""Events taken in at one go, so that a list of thousands does not hold up passes."""

Event = tuple[WatchedResource, bool, Mapping[str, Any]]
"""What it is about, whether it is gone, and its last state."""


def call_threadsafe(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object) -> None:
    """``call_soon_threadsafe``, or nothing when the loop is closed already."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        if not loop.is_closed():
            raise


class Feed:
    """Carries events from kopf's loop into ours, in order.

    A wake-up of another thread's loop costs both a fight for the interpreter lock, so there is one for all
    that kopf handled in one turn of its loop.
    """

    def __init__(
        self,
        home: asyncio.AbstractEventLoop,
        deliver: Callable[[WatchedResource, bool, Mapping[str, Any]], None],
    ) -> None:
        self._home = home
        self._deliver = deliver
        self._events: deque[Event] = deque()
        self._flushing = False
        self._draining = False
        self._closed = False

    # --- in the source's loop

    def push(self, *events: Event) -> None:
        """Hand over some events."""
        if self._closed:
            return
        self._events.extend(events)
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if not self._draining:
            self._draining = True
            call_threadsafe(self._home, self._drain)

    # --- in the home loop

    def close(self) -> None:
        """Deliver nothing more: whatever comes late is from a kopf that was given up."""
        self._closed = True
        self._events.clear()

    def _drain(self) -> None:
        # Before the first event is taken: a flush from now on schedules again.
        self._draining = False
        for _ in range(BATCH):
            if self._closed or not self._events:
                return
            try:
                self._deliver(*self._events.popleft())
            except Exception as error:  # noqa: BLE001 - one odd object must not stop the others
                log.error("an event could not be taken in: %s", type(error).__name__)
        if self._events and not self._draining:
            self._draining = True
            self._home.call_soon(self._drain)
