"""The permission requests of one instance that wait for their answers."""

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tenure.control.instances.config import ActionRefused
from tenure.control.instances.outbox import Outbox, Ticket
from tenure.protocol import frames, retention
from tenure.protocol.frames import PermissionAnswer, PermissionRequest, PermissionsList
from tenure.protocol.retention import Announcement

MAX_OPEN = 64
"""Requests of one agent that may be open at a time, with those whose cancellation is not told yet. Whoever
asks more than that at a time is answered as cancelled."""
MAX_LISTED = 48 * 1024
"""Bytes of one request in a list: all that may be open fit into one frame. The event has it whole."""
MAX_OPEN_BYTES = 16 * 1024 * 1024
"""Bytes of all that are open."""
REMEMBERED = 1024
"""Answered requests that are remembered, to tell a second answer from one to a request that never was."""


@dataclass(eq=False, slots=True)
class _Open:
    request: PermissionRequest = field(repr=False)
    body: bytes = field(repr=False)
    listed: PermissionRequest = field(repr=False)
    answer: "asyncio.Future[PermissionAnswer]" = field(repr=False)
    waiting: Announcement
    ticket: Ticket | None = None

    @property
    def seq(self) -> int:
        """The place of its announcement; 0 when it has none."""
        return 0 if self.ticket is None or self.ticket.waits else self.ticket.taken.result()


class Permissions:
    """Opened by the agent, announced as events, answered by whoever reads the stream, listed again on attach.

    ``attached`` tells whether the instance has a reader; whoever changes that calls ``attachment_changed``.
    ``bound`` is the seconds that an announcement may wait for a full buffer while it has one.
    """

    def __init__(
        self, outbox: Outbox, *, clock: Callable[[], float], attached: Callable[[], bool], bound: float
    ) -> None:
        self._outbox, self._clock, self._attached, self._bound = outbox, clock, attached, bound
        self._open: dict[str, _Open] = {}
        self._settled: OrderedDict[str, None] = OrderedDict()
        self._untold: list[Ticket] = []
        self._changed: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._open)

    async def ask(self, request: PermissionRequest) -> PermissionAnswer:
        """Announce a request and wait for its answer, without limit. A caller that is cancelled takes the
        request back, which is told as ``permission_cancelled``."""
        cancelled = PermissionAnswer(pending_id=request.pending_id, cancelled=True)
        entry = self._opened(request)
        if entry is None:
            return cancelled
        try:
            if not await self._announce(entry):
                self.cancel(entry.request.pending_id)
            return await entry.answer
        finally:
            self.cancel(entry.request.pending_id)

    def answer(self, answer: PermissionAnswer) -> None:
        """What the reader decided. Raises ``ActionRefused`` for a request that is not open, and for an option
        that it does not offer: it stays open then."""
        entry = self._open.get(answer.pending_id)
        if entry is None and answer.pending_id in self._settled:
            raise ActionRefused(
                "already_answered", "This permission request was answered or cancelled before."
            )
        if entry is None:
            raise ActionRefused("not_open", "There is no such permission request.")
        if not answer.cancelled and answer.option_id not in {o.option_id for o in entry.request.options}:
            raise ActionRefused("unknown_option", "option_id is not one of the options of this request.")
        self._settle(entry, answer)

    def cancel(self, pending_id: str) -> None:
        """Answer a request as cancelled, and tell it to whoever was told of the request."""
        entry = self._open.get(pending_id)
        if entry is not None:
            body = self._cancelled(entry)
            self._untold = [ticket for ticket in self._untold if ticket.waits]
            self._untold.append(self._outbox.offer(body))

    def cancel_all(self) -> tuple[bytes, ...]:
        """Answer all requests as cancelled; the events that tell it."""
        return tuple(self._cancelled(entry) for entry in tuple(self._open.values()))

    def listing(self) -> PermissionsList:
        """All that are open, oldest first. What is too long for a list comes without its details."""
        return PermissionsList(permissions=tuple(entry.listed for entry in self._open.values()))

    def again(self, before: int) -> tuple[bytes, ...]:
        """The announcements that a former reader took (their ``seq`` is below ``before``) and that are still
        open, as they are listed again, with the ``seq`` that they had."""
        told = [entry for entry in self._open.values() if 0 < entry.seq < before]
        return tuple(b'{"seq":%d,"listed_again":true,' % entry.seq + entry.body[1:] for entry in told)

    def attachment_changed(self) -> None:
        """The instance was attached or detached: the bound of announcements begins to run, or stands still."""
        change = retention.attached if self._attached() else retention.detached
        for entry in self._open.values():
            entry.waiting = change(entry.waiting, self._clock())
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def _opened(self, request: PermissionRequest) -> _Open | None:
        self._untold = [ticket for ticket in self._untold if ticket.waits]
        known = request.pending_id in self._open
        if known or len(self._open) + len(self._untold) >= MAX_OPEN or self._outbox.stopped:
            return None
        body = frames.made("permission_request", json.loads(request.to_wire()))[1]
        listed = _listed(request)
        if listed is None or sum(len(e.body) for e in self._open.values()) + len(body) > MAX_OPEN_BYTES:
            return None
        waiting = retention.announce(self._clock(), attached=self._attached(), bound=self._bound)
        entry = _Open(request, body, listed, asyncio.get_running_loop().create_future(), waiting)
        self._open[request.pending_id] = entry
        return entry

    async def _announce(self, entry: _Open) -> bool:
        """Whether it has its place, or does not need one any more."""
        ticket = entry.ticket = self._outbox.offer(entry.body)
        while ticket.waits and not entry.answer.done():
            left = retention.seconds_left(entry.waiting, self._clock())
            if left == 0:
                return False
            if self._changed is None or self._changed.done():
                self._changed = asyncio.get_running_loop().create_future()
            concerned: set[asyncio.Future[Any]] = {ticket.taken, entry.answer, self._changed}
            await asyncio.wait(concerned, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        return True

    def _settle(self, entry: _Open, answer: PermissionAnswer) -> None:
        del self._open[entry.request.pending_id]
        if entry.ticket is not None:
            self._outbox.withdraw(entry.ticket)
        if not entry.answer.done():
            entry.answer.set_result(answer)
        self._settled[entry.request.pending_id] = None
        while len(self._settled) > REMEMBERED:
            self._settled.popitem(last=False)

    def _cancelled(self, entry: _Open) -> bytes:
        request = entry.request
        self._settle(entry, PermissionAnswer(pending_id=request.pending_id, cancelled=True))
        told = {"pending_id": request.pending_id, "session_id": request.session_id}
        return frames.made("permission_cancelled", told)[1]


def _listed(request: PermissionRequest) -> PermissionRequest | None:
    for shorter in ({}, {"action_details": None}, {"action_details": None, "title": request.title[:1024]}):
        candidate = request.model_copy(update=shorter)
        if len(candidate.to_wire()) <= MAX_LISTED:
            return candidate
    return None
