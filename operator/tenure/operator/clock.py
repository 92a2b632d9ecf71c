"""The clocks of the operator, as one thing that tests can replace."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Clock:
    """``now()`` is the wall clock (aware, UTC), for times that are shown; ``monotonic()`` (seconds)
    decides."""

    now: Callable[[], datetime] = _utc_now
    monotonic: Callable[[], float] = time.monotonic
