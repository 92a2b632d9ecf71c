"""A world in which everything takes its time: ``TENURE_JITTER=1 .venv/bin/pytest tests/integration/...``.

On a quiet machine whoever is nearest is first, always, and a test may pass because of that. With jitter, what the
operator is told and what it asks is late by chance: events of each watch (in their order), answers of the API server,
of the database and of control servers, what the stand-in of the kubelet sees and says; and inside of a control server
its answers, the frames of its streams, how its agents begin, speak and end. Whatever fails then is a race, of the
product or of its test, that a loaded machine finds sooner or later. The variable's value is a seed; with it and the
name of a test the same delays are drawn again.
"""

import asyncio
import contextlib
import functools
import random
import sys
import weakref
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from aiohttp import ClientWebSocketResponse

from tenure.cluster.client import KubernetesClient
from tenure.control.acp.process import Child
from tenure.control.acp.transport import AgentTransport
from tenure.control.app import App
from tenure.operator.watching import Watching
from tenure.ownership.transport import Lane
from tenure.storage.pool import BoundedPool
from tests.support.api import AdminClient
from tests.support.kubelet import Kubelet

ENOUGH = 4.0
"""Seconds by which all frames, lines and ends of a test are late together: some tests have thousands of them."""
_chance = random.Random()
_spent: defaultdict[str, float] = defaultdict(float)


def begin(seed: str, test: str) -> None:
    """The chances of one test."""
    _chance.seed(f"{seed} {test}")
    _spent.clear()


def delay() -> float:
    """Seconds: most often none, sometimes as long as a machine needs that does something else just then."""
    what = _chance.random()
    if what < 0.6:
        return 0.0
    return _chance.uniform(0.001, 0.05) if what < 0.85 else _chance.uniform(0.1, 0.5)


def rationed(what: str) -> float:
    """The same for what there may be any number of."""
    late = delay() if _spent[what] < ENOUGH else 0.0
    _spent[what] += late
    return late


def install() -> None:
    """From now on, in this process."""
    calls = ((KubernetesClient, "request"), (Lane, "exchange"), (BoundedPool, "run"), (Kubelet, "_write"))
    for owner, name in (*calls, (App, "__call__")):
        setattr(owner, name, _late_call(getattr(owner, name)))
    watch: Any = AdminClient.watch
    setattr(AdminClient, "watch", _late_events(watch))  # noqa: B010 - mypy forbids the plain form
    setattr(Watching, "_take", _late_take(Watching._take))  # noqa: B010
    _install_in_control_servers()


def _install_in_control_servers() -> None:
    # Not what a server sends: it has 0.15 seconds for the last of it.
    streams = ((ClientWebSocketResponse, "receive"), (ClientWebSocketResponse, "send_str"))
    for owner, name in (*streams, (AgentTransport, "_read_line")):
        setattr(owner, name, _late_in_line(name, getattr(owner, name)))
    setattr(Child, "_ended", _late_end(Child._ended))  # noqa: B010
    start: Any = Child.start
    setattr(Child, "start", classmethod(_late_start(start.__func__)))  # noqa: B010


def _late_in_line(what: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """What goes into one object, or comes out of it, keeps its order; who is cancelled meanwhile has lost nothing."""
    lines: weakref.WeakKeyDictionary[Any, asyncio.Lock] = weakref.WeakKeyDictionary()

    @functools.wraps(call)
    async def late(owner: Any, *arguments: Any, **options: Any) -> Any:
        async with lines.setdefault(owner, asyncio.Lock()):
            if pause := rationed(what):
                await asyncio.sleep(pause)
            return await call(owner, *arguments, **options)

    return late


def _late_end(ended: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(ended)
    def late(child: Child, status: Any) -> None:
        asyncio.get_running_loop().call_later(rationed("_ended"), ended, child, status)

    return late


def _late_start(start: Callable[..., Child]) -> Callable[..., Child]:
    """A program of ours does not run yet when it is started. Of others it is told at once when they are not there."""
    sleeps = "import os, sys, time; time.sleep(float(sys.argv[1])); os.execv(sys.argv[2], sys.argv[2:])"

    @functools.wraps(start)
    def late(kind: type[Child], argv: Sequence[str], *arguments: Any, **options: Any) -> Child:
        if argv[0] == sys.executable and (pause := rationed("start")):
            argv = (sys.executable, "-I", "-S", "-c", sleeps, str(pause), *argv)
        return start(kind, argv, *arguments, **options)

    return late


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
