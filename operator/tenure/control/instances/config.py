"""What hosting is told, and what it refuses."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from pydantic import JsonValue

from tenure.model.errors import TenureError
from tenure.protocol.retention import ANNOUNCE_SECONDS, DEFAULT_LIMIT, DEFAULT_MAX_BYTES, check_limit


class Status(StrEnum):
    """What an enumeration says of an instance. All but ``stopped`` are *live*: they keep their session."""

    STARTING = "starting"
    """Registered; its agent does not run yet."""
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    """Its agent ended by itself, and what it started is ended too. It stays readable, its outcome too, until it is
    deleted."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds; other than these only in tests."""

    ping: float = 10.0
    """From one ping on a stream to the next."""
    silence: float = 20.0
    """After this much silence a stream is over."""
    announce: float = ANNOUNCE_SECONDS
    """How long a permission request waits to be announced into a full buffer, while attached."""
    scan: float = 60.0
    """From one look for idle instances to the next."""
    close: float = 0.15
    """How long a stream is given to take the last events, and to close."""


@dataclass(frozen=True)
class HostingConfig:
    """How instances are hosted.

    ``roots`` are the permitted workspace roots, canonical: whatever is outside is refused. ``retention_limit``
    and ``retention_bytes`` are for each instance. ``idle_timeout`` is in seconds, 0 is off. ``stop_budget`` is
    the seconds from the order to stop to the end of agent and descendants: clients read for two. ``scrub``
    holds the names of variables that agents never inherit. ``brand`` is on every process of every agent. Raises
    ``ValueError`` for a retention limit out of range.
    """

    roots: tuple[Path, ...]
    retention_limit: int = DEFAULT_LIMIT
    idle_timeout: float = 3600.0
    stop_budget: float = 1.5
    scrub: frozenset[str] = frozenset()
    brand: str = ""
    retention_bytes: int = DEFAULT_MAX_BYTES
    timing: Timing = field(default_factory=Timing)

    def __post_init__(self) -> None:
        check_limit(self.retention_limit)


class CreateRefused(TenureError):
    """No instance is made. ``status`` is 400, 409 or 500; ``error`` is the answer's text: a sentence, or
    the code ``session_in_use``, ``id_in_use``, ``server_full`` or ``shutting_down`` of a 409."""

    def __init__(self, status: int, error: str) -> None:
        super().__init__(error)
        self.status = status
        self.error = error


class StopFailed(TenureError):
    """An agent that is still there after the stop budget. The instance stays, ``stopping``; try again."""


class ActionRefused(TenureError):
    """A request on a stream that is answered with an error. ``code`` and ``message`` hold nothing of the
    peer's; ``details`` may be the agent's own, for the stream and for no log."""

    def __init__(self, code: str, message: str, details: JsonValue = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details
