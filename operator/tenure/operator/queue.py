"""The one work queue: whatever happens wakes an object's key, and one pass per key does everything about it.

Wakes coalesce; a wake during a pass means one more pass after it. Passes of different keys run side by side,
up to a limit, first come first served. A pass that fails is tried again with a growing delay and disturbs no
other key.
"""

import asyncio
import heapq
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

log = logging.getLogger(__name__)

WORKERS = 50
FIRST_DELAY = 0.5
LONGEST_DELAY = 15.0
JITTER = 0.2
"""A delay after a failure is shortened by up to this share, so that keys that failed together do not return
together.
"""


class WorkQueue(Generic[Key]):
    """Runs ``reconcile(key)`` for every key that was woken.

    ``reconcile`` returns the seconds until it wants to see the key again, or None when only a wake shall
    bring it back. ``on_error(key, error, delay)`` is told of each failed pass and after how many seconds it
    will be repeated. ``clock`` is monotonic, in seconds; ``dice`` returns numbers from 0 to 1. All methods
    but ``wake_threadsafe`` belong to the loop in which ``run`` runs.
    """

    def __init__(
        self,
        reconcile: Callable[[Key], Awaitable[float | None]],
        *,
        workers: int = WORKERS,
        on_error: Callable[[Key, Exception, float], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        dice: Callable[[], float] = random.random,
    ) -> None:
        self._reconcile = reconcile
        self._workers = workers
        self._on_error = on_error
        self._clock = clock
        self._dice = dice
        self._ready: deque[Key] = deque()
        self._waiting: dict[Key, float] = {}
        """Keys in ``_ready``, and since when."""
        self._running: dict[Key, float] = {}
        self._again: set[Key] = set()
        self._failures: dict[Key, int] = {}
        self._deadlines: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._serial = 0
        self._news = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._passes: set[asyncio.Task[None]] = set()

    # --- waking

    def wake(self, key: Key) -> None:
        """Ask for a pass as soon as possible."""
        if key in self._running:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting[key] = self._clock()
            self._ready.append(key)
            self._news.set()

    def wake_after(self, key: Key, seconds: float) -> None:
        """Ask for a pass in so many seconds; of several such wishes the earliest wins."""
        due = self._clock() + max(seconds, 0.0)
        known = self._deadlines.get(key)
        if known is not None and known <= due:
            return
        self._deadlines[key] = due
        self._serial += 1
        heapq.heappush(self._heap, (due, self._serial, key))
        if len(self._heap) > 2 * len(self._deadlines) + 1000:
            self._rebuild_heap()
        if self._heap[0][2] == key:
            self._news.set()

    def wake_threadsafe(self, key: Key) -> None:
        """``wake`` from another thread. Before ``run`` has started and after it has ended nothing happens."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self.wake, key)

    def forget(self, key: Key) -> None:
        """Nothing is left of this key: drop its deadline and its count of failures."""
        self._deadlines.pop(key, None)
        self._failures.pop(key, None)

    # --- looking

    def stuck_for(self) -> float:
        """Seconds since the oldest pass under way began, or the longest wait for a free worker; 0 when
        idle.
        """
        since = min(self._running.values(), default=None)
        oldest = self._waiting.get(self._ready[0]) if self._ready else None
        starts = [moment for moment in (since, oldest) if moment is not None]
        return self._clock() - min(starts) if starts else 0.0

    def __len__(self) -> int:
        """Keys that wait for a pass or are in one."""
        return len(self._waiting) + len(self._running)

    # --- running

    async def run(self) -> None:
        """Run passes until cancelled; then every pass under way is cancelled too, and has ended when this
        returns.
        """
        self._loop = asyncio.get_running_loop()
        try:
            while True:
                self._news.clear()
                self._ready_due()
                self._start_passes()
                await self._wait_for_news()
        finally:
            self._loop = None
            await self._end_passes()

    async def _wait_for_news(self) -> None:
        due = self._next_deadline()
        if due is None:
            await self._news.wait()
            return
        try:
            async with asyncio.timeout(max(due - self._clock(), 0.0)):
                await self._news.wait()
        except TimeoutError:
            pass

    def _start_passes(self) -> None:
        while self._ready and len(self._running) < self._workers:
            key = self._ready.popleft()
            del self._waiting[key]
            # A pass looks at everything, so a deadline that was set before it is met by it.
            self._deadlines.pop(key, None)
            self._running[key] = self._clock()
            task = asyncio.create_task(self._pass(key), name=f"pass {key}")
            self._passes.add(task)
            task.add_done_callback(self._passes.discard)

    async def _pass(self, key: Key) -> None:
        wanted: float | None = None
        try:
            wanted = await self._reconcile(key)
            self._failures.pop(key, None)
        except Exception as error:  # noqa: BLE001 - one object's failure must not stop the others
            wanted = self._after_failure(key, error)
        finally:
            del self._running[key]
            self._news.set()
        if wanted is not None:
            self.wake_after(key, wanted)
        if key in self._again:
            self._again.discard(key)
            self.wake(key)

    def _after_failure(self, key: Key, error: Exception) -> float:
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        delay = min(FIRST_DELAY * 2.0 ** min(count, 20), LONGEST_DELAY)
        delay *= 1.0 - JITTER * self._dice()
        if self._on_error is not None:
            try:
                self._on_error(key, error, delay)
            except Exception:
                log.exception("the report of a failed pass failed")
        return delay

    async def _end_passes(self) -> None:
        passes = list(self._passes)
        for task in passes:
            task.cancel()
        unfinished = list(self._running)
        await asyncio.gather(*passes, return_exceptions=True)
        self._running.clear()
        self._again.clear()
        for key in unfinished:
            self.wake(key)  # should it run again, it begins where it was cut off

    # --- deadlines: one heap, one timer; entries that were overtaken are skipped when they surface

    def _next_deadline(self) -> float | None:
        while self._heap:
            due, _, key = self._heap[0]
            if self._deadlines.get(key) == due:
                return due
            heapq.heappop(self._heap)
        return None

    def _ready_due(self) -> None:
        now = self._clock()
        while (due := self._next_deadline()) is not None and due <= now:
            key = heapq.heappop(self._heap)[2]
            del self._deadlines[key]
            self.wake(key)

    def _rebuild_heap(self) -> None:
        self._serial = 0
        self._heap = []
        for key, due in self._deadlines.items():
            self._serial += 1
            self._heap.append((due, self._serial, key))
        heapq.heapify(self._heap)
