"""``/metrics``, ``/healthz`` and ``/readyz``.

Healthy means that a restart would not help: a silent watch or a stuck loop is cured by one, a database or an
API server that is down is not.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager

from aiohttp import web

from tenure.telemetry.metrics import CONTENT_TYPE, WatchedResource

WATCH_SILENCE_LIMIT = 180.0
"""Seconds. Longer than kopf's own limit for a silent stream (70 s) and a reconnect after it."""
LOOP_SILENCE_LIMIT = 15.0
"""Seconds without a beat after which an event loop counts as stuck."""


class WatchAges:
    """When each watch last showed an event, a bookmark or a fresh list. Safe to call from other threads."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._seen: dict[WatchedResource, float] = {}

    def started(self, resources: Iterable[WatchedResource] = WatchedResource) -> None:
        """The watches of these are being opened: their ages begin now."""
        now = self._monotonic()
        self._seen = dict.fromkeys(resources, now)

    def ended(self) -> None:
        """Nothing is watched any more: there is no age to judge."""
        self._seen = {}

    def seen(self, resource: WatchedResource) -> None:
        """A watch showed something. Ignored when nothing is watched."""
        if resource in self._seen:
            self._seen[resource] = self._monotonic()

    def age(self, resource: WatchedResource) -> float:
        """Seconds since then; 0 when nothing is watched."""
        at = self._seen.get(resource)
        return 0.0 if at is None else self._monotonic() - at

    def ages(self) -> Mapping[WatchedResource, float]:
        """The age of each watch, 0 where nothing is watched."""
        return {resource: self.age(resource) for resource in WatchedResource}


class LoopBeat:
    """A pulse of an event loop, to be read from elsewhere."""

    def __init__(self, *, every: float = 1.0, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._every = every
        self._monotonic = monotonic
        self._at = monotonic()

    def age(self) -> float:
        """Seconds since the last beat."""
        return self._monotonic() - self._at

    async def run(self) -> None:
        """Beat in the running loop until cancelled."""
        while True:
            self._at = self._monotonic()
            await asyncio.sleep(self._every)


class Health:
    """The two verdicts, made from callables so that nothing here knows what it judges."""

    def __init__(
        self,
        *,
        ready: Callable[[], bool],
        watch_ages: Callable[[], Mapping[WatchedResource, float]] = dict,
        loops: Mapping[str, Callable[[], float]] | None = None,
        leading: Callable[[], bool] = lambda: True,
    ) -> None:
        """``ready``: holds the Lease, or could read it lately. ``loops``: seconds since each loop's last
        beat.

        Watches are judged only while ``leading``: when the API server is down the Lease is lost, and with it
        the watches, so its outage never makes the operator unhealthy.
        """
        self._ready = ready
        self._watch_ages = watch_ages
        self._loops = loops or {}
        self._leading = leading

    def problems(self) -> list[str]:
        """Sentences; empty when healthy."""
        found = [
            f"the {name} loop has not moved for {age():.0f} s"
            for name, age in self._loops.items()
            if age() > LOOP_SILENCE_LIMIT
        ]
        if self._leading():
            found += [
                f"the watch of {resource} has been silent for {age:.0f} s"
                for resource, age in self._watch_ages().items()
                if age > WATCH_SILENCE_LIMIT
            ]
        return found

    def ready(self) -> bool:
        """Whether this replica holds the Lease or stands by for it."""
        return self._ready()


@asynccontextmanager
async def serve(port: int, health: Health, metrics: Callable[[], bytes]) -> AsyncIterator[int]:
    """Serve on all addresses while inside; yields the port (of use when ``port`` is 0). Raises
    ``OSError``."""
    app = web.Application()
    pages = _Pages(health, metrics)
    app.router.add_get("/metrics", pages.metrics)
    app.router.add_get("/healthz", pages.healthz)
    app.router.add_get("/readyz", pages.readyz)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, None, port)
        await site.start()
        # With port 0 each address family has a port of its own: tell the one of IPv4.
        yield next(int(a[1]) for a in sorted(runner.addresses, key=len))
    finally:
        await runner.cleanup()


class _Pages:
    """The three pages as aiohttp handlers."""

    def __init__(self, health: Health, render: Callable[[], bytes]) -> None:
        self._health = health
        self._render = render

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._render(), headers={"Content-Type": CONTENT_TYPE})

    async def healthz(self, request: web.Request) -> web.Response:
        problems = self._health.problems()
        return web.Response(text="\n".join(problems) or "ok", status=500 if problems else 200)

    async def readyz(self, request: web.Request) -> web.Response:
        ready = self._health.ready()
        return web.Response(text="ok" if ready else "the Lease cannot be read", status=200 if ready else 503)
