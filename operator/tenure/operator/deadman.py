"""The last resort against two drivers: a thread that ends the process when work outlives the Lease.

A loop that is stuck cannot notice that it is; a thread can.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn, Self

EXIT_CODE = 70
_CHECK = 0.5


def end_process() -> NoReturn:
    """End at once, without cleaning up: cleaning up would be work, and the time for work is over."""
    sys.stderr.write("tenure: work went on until the Lease ran out; ending the process at once\n")
    sys.stderr.flush()
    os._exit(EXIT_CODE)


class Deadman:
    """Calls ``overrun`` when the time of ``extend`` passes before the ``with`` block ends. Times are
    monotonic."""

    def __init__(
        self,
        overrun: Callable[[], object] = end_process,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._overrun = overrun
        self._monotonic = monotonic
        self._limit = float("inf")
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="deadman", daemon=True)

    def extend(self, limit: float) -> None:
        """The block may go on until ``limit``."""
        self._limit = limit

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(max(0.0, min(_CHECK, self._limit - self._monotonic()))):
            if self._monotonic() >= self._limit:
                self._overrun()
                return
