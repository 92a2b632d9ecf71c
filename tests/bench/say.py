"""Progress on stderr, so that stdout is the table alone."""

import sys
import time

_BEGAN = time.monotonic()


def say(line: str) -> None:
    """One progress line, with the seconds since the start."""
    print(f"bench {time.monotonic() - _BEGAN:6.1f} s: {line}", file=sys.stderr, flush=True)
