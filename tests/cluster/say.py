"""Progress and failures, in words for the person who waits."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


class CannotStart(RuntimeError):
    """The cluster cannot start here; the message is the one sentence that says what is missing."""


def say(line: str) -> None:
    """Print one progress line to stderr, so that stdout stays usable by scripts."""
    print(f"cluster: {line}", file=sys.stderr, flush=True)


@contextmanager
def step(what: str) -> Iterator[None]:
    """Announce ``what`` and, once done, how long it took."""
    say(f"{what} ...")
    began = time.monotonic()
    yield
    say(f"{what}: {time.monotonic() - began:.1f} s")
