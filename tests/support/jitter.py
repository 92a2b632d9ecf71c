"""A world in which everything takes its time: ``TENURE_JITTER=1 .venv/bin/pytest tests/integration/...``.

On a quiet machine whoever is nearest is first, always, and a test may pass because of that. With jitter, what the
operator is told and what it asks is late by chance: events of each watch (in their order), answers of the API server,
of the database and of control servers, what the stand-in of the kubelet sees and says. Whatever fails then is a race,
of the product or of its test, that a loaded machine finds sooner or later. The variable's value is a seed; with it and
the name of a test the same delays are drawn again.
"""

import asyncio
import contextlib
import functools
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from tenure.cluster.client import KubernetesClient
from tenure.operator.watching import Watching
from tenure.ownership.transport import Lane
from tenure.storage.pool import BoundedPool
from tests.support.api import AdminClient
from tests.support.kubelet import Kubelet

VARIABLE = "TENURE_JITTER"
_chance = random.Random()


def begin(seed: str, test: str) -> None:
    """The chances of one test."""
    _chance.seed(f"{seed} {test}")


def delay() -> float:
    """Seconds: most often none, sometimes as long as a machine needs that does something else just then."""
    what = _chance.random()
    if what < 0.6:
        return 0.0
    return _chance.uniform(0.001, 0.05) if what < 0.85 else _chance.uniform(0.1, 0.5)


def install() -> None:
    """From now on, in this process."""
    calls = ((KubernetesClient, "request"), (Lane, "exchange"), (BoundedPool, "run"), (Kubelet, "_write"))
    for owner, name in calls:
        setattr(owner, name, _late_call(getattr(owner, name)))
    watch: Any = AdminClient.watch
    setattr(AdminClient, "watch", _late_events(watch))  # noqa: B010 - mypy forbids the plain form
    setattr(Watching, "_take", _late_take(Watching._take))  # noqa: B010


def _late_call(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(call)
    async def late(*arguments: Any, **options: Any) -> Any:
        await asyncio.sleep(delay())
        answer = await call(*arguments, **options)
        await asyncio.sleep(delay())
        return answer

    return late


def _late_events(watch: Callable[..., AsyncGenerator[Any]]) -> Callable[..., AsyncIterator[Any]]:
    @functools.wraps(watch)
    async def late(*arguments: Any, **options: Any) -> AsyncIterator[Any]:
        async with contextlib.aclosing(watch(*arguments, **options)) as events:
            async for event in events:
                await asyncio.sleep(delay())
                yield event

    return late


def _late_take(take: Callable[..., None]) -> Callable[..., None]:
    """Each watch keeps its order; between two of them there is none."""
    due: dict[tuple[int, Any], float] = {}

    @functools.wraps(take)
    def late(watching: Watching, resource: Any, gone: bool, raw: Mapping[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        before = due.get((id(watching), resource), 0.0)
        at = max(before + 1e-6, loop.time() + delay())
        due[id(watching), resource] = at
        loop.call_at(at, take, watching, resource, gone, raw)

    return late
