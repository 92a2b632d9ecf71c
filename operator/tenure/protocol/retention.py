"""The events of one instance that nobody has taken yet: bounded, in order, never dropped.

At the limit production *pauses*, whatever the kind of event, attached or not, and goes on when somebody takes
events. Stopping the instance releases whoever waits. Tenure's server produces no event that is exempt.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Generic, TypeVar

DEFAULT_LIMIT = 100
MIN_LIMIT = 1
MAX_LIMIT = 10_000
DEFAULT_MAX_BYTES = 64 * 1024 * 1024
"""An event may be as long as a frame: a limit on their number alone would be none on memory."""
ANNOUNCE_SECONDS = 5.0

E = TypeVar("E")


class Offer(StrEnum):
    """What became of an event that was offered."""

    TAKEN = "taken"
    PAUSE = "pause"
    """The buffer is full, by number or by bytes: wait, and offer the same event again."""
    RELEASED = "released"
    """The instance is being stopped: do not wait, the event is of no use to anybody."""


@dataclass(frozen=True, slots=True)
class Retention(Generic[E]):
    """``waiting`` is in order of production; ``sizes`` are the bytes of each, ``held`` their sum.

    ``max_bytes`` pauses like ``limit`` does, once it is reached: at least one event is always taken, however
    long it is.
    """

    limit: int = DEFAULT_LIMIT
    waiting: tuple[E, ...] = ()
    stopped: bool = False
    max_bytes: int = DEFAULT_MAX_BYTES
    sizes: tuple[int, ...] = ()
    held: int = 0

    def __post_init__(self) -> None:
        check_limit(self.limit)

    @property
    def full(self) -> bool:
        """Whether production pauses."""
        return len(self.waiting) >= self.limit or self.held >= self.max_bytes


def check_limit(limit: int) -> int:
    """The limit, or ``ValueError`` with a sentence: a server given another one refuses to start."""
    if not MIN_LIMIT <= limit <= MAX_LIMIT:
        raise ValueError(f"the retention limit is from {MIN_LIMIT} to {MAX_LIMIT:,} events for each instance")
    return limit


def offer(state: Retention[E], event: E, size: int = 0) -> tuple[Retention[E], Offer]:
    """Keep an event of ``size`` bytes, or say why not. Only ``TAKEN`` changes the state."""
    if state.stopped:
        return state, Offer.RELEASED
    if state.full:
        return state, Offer.PAUSE
    return _kept(state, event, size), Offer.TAKEN


def delivered(state: Retention[E], count: int = 1) -> Retention[E]:
    """Forget the first ``count`` events: they were written to the stream, or acknowledged by a reader that
    does so. What a broken stream did not take stays, for the next one. Raises ``ValueError`` for more than
    there are."""
    if not 0 <= count <= len(state.waiting):
        raise ValueError("no more can be delivered than waits")
    sizes = state.sizes
    held = state.held - sum(sizes[:count])
    # Written out, here and below: ``replace`` costs more than everything else that an event costs here.
    return Retention(state.limit, state.waiting[count:], state.stopped, state.max_bytes, sizes[count:], held)


def stopped(state: Retention[E], *last: tuple[E, int]) -> Retention[E]:
    """The instance stops: every offer from now on is released at once. ``last`` are the events, with their
    sizes, that were paused or tell the stop: nobody waits for their place any more, and an attached reader
    still gets them."""
    for event, size in last:
        state = _kept(state, event, size)
    return replace(state, stopped=True)


def _kept(state: Retention[E], event: E, size: int) -> Retention[E]:
    waiting, sizes = (*state.waiting, event), (*state.sizes, size)
    return Retention(state.limit, waiting, state.stopped, state.max_bytes, sizes, state.held + size)


@dataclass(frozen=True, slots=True)
class Announcement:
    """How long a permission request may still wait to be announced into a full buffer.

    The bound of five seconds runs only while the instance is attached: ``since`` is None while it does not.
    """

    left: float
    since: float | None


def announce(now: float, *, attached: bool, bound: float = ANNOUNCE_SECONDS) -> Announcement:
    """An announcement that begins to wait."""
    return Announcement(bound, now if attached else None)


def attached(waiting: Announcement, now: float) -> Announcement:
    """The instance is attached: the bound runs on with what is left of it."""
    return waiting if waiting.since is not None else replace(waiting, since=now)


def detached(waiting: Announcement, now: float) -> Announcement:
    """The instance is detached: the bound stands still."""
    return waiting if waiting.since is None else Announcement(seconds_left(waiting, now) or 0.0, None)


def seconds_left(waiting: Announcement, now: float) -> float | None:
    """How long to wait still; 0 when the bound is over; None while detached: without limit."""
    return None if waiting.since is None else max(0.0, waiting.left - (now - waiting.since))
