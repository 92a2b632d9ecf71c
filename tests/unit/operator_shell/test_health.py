"""The three pages, over real HTTP."""

import aiohttp
import pytest

from tenure.operator.health import LOOP_SILENCE_LIMIT, WATCH_SILENCE_LIMIT, Health, LoopBeat, WatchAges, serve
from tenure.telemetry.metrics import CONTENT_TYPE, Metrics, WatchedResource


class HandClock:
    """A monotonic clock that a test turns."""

    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


async def page(port: int, path: str) -> tuple[int, str, str]:
    """Status, content type and text."""
    url = f"http://127.0.0.1:{port}{path}"
    async with aiohttp.ClientSession(trust_env=False) as session, session.get(url) as got:
        return got.status, got.headers["Content-Type"], await got.text()


async def test_the_pages_say_what_they_are_asked_for() -> None:
    ready = False
    metrics = Metrics()
    async with serve(0, Health(ready=lambda: ready), metrics.render) as port:
        assert (await page(port, "/healthz"))[0::2] == (200, "ok")
        assert (await page(port, "/readyz"))[0] == 503
        ready = True
        assert (await page(port, "/readyz"))[0] == 200
        status, kind, text = await page(port, "/metrics")
        assert (status, kind) == (200, CONTENT_TYPE)
        assert "tenure_adoptions_total" in text
        assert (await page(port, "/"))[0] == 404


async def test_a_silent_watch_is_unhealthy_and_named_and_an_event_heals_it() -> None:
    clock = HandClock()
    watches = WatchAges(monotonic=clock)
    health = Health(ready=lambda: True, watch_ages=watches.ages)
    watches.started([WatchedResource.AGENT_PROCESSES, WatchedResource.PODS])
    clock.at += WATCH_SILENCE_LIMIT + 1
    watches.seen(WatchedResource.PODS)
    assert health.problems() == ["the watch of agentprocesses has been silent for 181 s"]
    async with serve(0, health, lambda: b"") as port:
        assert (await page(port, "/healthz"))[0] == 500
        watches.seen(WatchedResource.AGENT_PROCESSES)
        assert (await page(port, "/healthz"))[0] == 200


@pytest.mark.parametrize("ended", [True, False])
def test_nobody_is_unhealthy_for_watches_that_are_not_his(ended: bool) -> None:
    clock = HandClock()
    watches = WatchAges(monotonic=clock)
    leading = True
    health = Health(ready=lambda: True, watch_ages=watches.ages, leading=lambda: leading)
    assert health.problems() == []
    watches.started()
    clock.at += 10 * WATCH_SILENCE_LIMIT
    assert len(health.problems()) == len(WatchedResource)
    if ended:
        watches.ended()
        watches.seen(WatchedResource.PODS)
        assert watches.age(WatchedResource.PODS) == 0
    else:
        # The API server is down: the Lease is lost by now.
        leading = False
    assert health.problems() == []


def test_a_stuck_loop_is_unhealthy_and_named() -> None:
    clock = HandClock()
    beat = LoopBeat(monotonic=clock)
    health = Health(ready=lambda: True, loops={"main": beat.age})
    assert health.problems() == []
    clock.at += LOOP_SILENCE_LIMIT + 1
    assert health.problems() == ["the main loop has not moved for 16 s"]


async def test_a_port_in_use_is_an_error_of_the_system() -> None:
    async with serve(0, Health(ready=lambda: True), lambda: b"") as port:
        with pytest.raises(OSError, match="address already in use"):
            async with serve(port, Health(ready=lambda: True), lambda: b""):
                pass
