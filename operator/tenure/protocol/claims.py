"""Claim arithmetic: who renews, when a server is unowned, and how often an owner has to renew.

Instants are seconds of the server's monotonic clock; periods are milliseconds where they are on the wire and
seconds where they are compared with instants.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

DEFAULT_UNOWNED_MS = 600_000
FLOOR_MS = 60_000


class Renewal(StrEnum):
    """The three operations that renew a claim. A replayed rotation is one; nothing else is."""

    HANDSHAKE = "handshake"
    CLAIM = "claim"
    ROTATION = "rotation"


@dataclass(frozen=True, slots=True)
class Claim:
    """When the server was last claimed, and for how long that holds."""

    period: float
    renewed_at: float


def started(period_ms: int, now: float) -> Claim:
    """The claim of a server that starts: one that is never handshaken counts from here."""
    return Claim(period_ms / 1000, now)


def renewed(claim: Claim, by: Renewal, now: float) -> Claim:
    """The claim after a renewal at ``now``. ``by`` says what renews: outcomes carry it, and most carry none."""
    assert isinstance(by, Renewal)
    return replace(claim, renewed_at=max(now, claim.renewed_at))


def left(claim: Claim, now: float) -> float:
    """Seconds until the claim expires; 0 when it has."""
    return max(0.0, claim.period - (now - claim.renewed_at))


def expired(claim: Claim, now: float) -> bool:
    """Whether the unowned period has passed since the last renewal: at its very end it has."""
    return now - claim.renewed_at >= claim.period


class PeriodReason(StrEnum):
    """Why an unowned period was changed."""

    IDLE_TIMEOUT = "not_shorter_than_idle_timeout"
    FLOOR = "below_floor"


@dataclass(frozen=True, slots=True)
class PeriodChange:
    """One rule that changed the period, in the order in which they were applied."""

    reason: PeriodReason
    before_ms: int
    after_ms: int


@dataclass(frozen=True, slots=True)
class UnownedPeriod:
    """The period that the server keeps to and advertises, and how it came about."""

    ms: int
    changes: tuple[PeriodChange, ...] = ()


def effective_period(idle_timeout_ms: int, asked_ms: int = DEFAULT_UNOWNED_MS) -> UnownedPeriod:
    """The unowned period of a server that was asked for ``asked_ms``.

    With idle reaping on (``idle_timeout_ms`` above 0), a period that is not shorter than the idle timeout
    becomes half of it: instances must not be reaped for idleness, one by one, before the server knows that
    nobody owns it. The floor of one minute comes last and wins, even if the period is then longer than the
    idle timeout. Raises ``ValueError`` for a negative timeout or a period below 1.
    """
    if idle_timeout_ms < 0 or asked_ms < 1:
        raise ValueError("the idle timeout is 0 or more, the unowned period 1 or more, in milliseconds")
    ms, changes = asked_ms, []
    if 0 < idle_timeout_ms <= ms:
        changes.append(PeriodChange(PeriodReason.IDLE_TIMEOUT, ms, idle_timeout_ms // 2))
        ms = idle_timeout_ms // 2
    if ms < FLOOR_MS:
        changes.append(PeriodChange(PeriodReason.FLOOR, ms, FLOOR_MS))
        ms = FLOOR_MS
    return UnownedPeriod(ms, tuple(changes))


def renewal_interval(period_ms: int) -> float:
    """Seconds from the start of one renewal to the start of the next: a quarter of the *server's own* period.

    After two that failed a third one starts at three quarters, with the last quarter for itself.
    """
    return period_ms / 4000


def renewal_timeout(period_ms: int) -> float:
    """Seconds after which one renewal is given up: half an interval, so that it never delays the next."""
    return renewal_interval(period_ms) / 2


def next_renewal(started_at: float, period_ms: int) -> float:
    """When to renew again after a renewal that began at ``started_at``, whether it succeeded or not.

    It is counted from the beginning: counted from the end, slow failures would add up past the period.
    """
    return started_at + renewal_interval(period_ms)
