"""The operator as a program: settings, logs, the three pages, the Lease; and the scope, as long as the Lease
is held."""

import asyncio
import gc
import importlib
import logging
import signal
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog

from tenure import __version__
from tenure.cluster.client import KubernetesClient
from tenure.cluster.ports import AgentCluster
from tenure.cluster.server_ports import ServerCluster
from tenure.cluster.servers import KubernetesServerCluster
from tenure.model.errors import InvalidSettings, TenureError
from tenure.model.settings import DatabaseConfig, OperatorSettings, load_databases, load_settings
from tenure.operator.clock import Clock
from tenure.operator.context import OperatorContext
from tenure.operator.deadman import end_process
from tenure.operator.events import EventRecorder
from tenure.operator.health import Health, LoopBeat, WatchAges, serve
from tenure.operator.leader import Leadership, unique_identity
from tenure.operator.servers.keeper import Keeper
from tenure.operator.servers.sight import OwnProcess
from tenure.telemetry import logs
from tenure.telemetry.metrics import Metrics, WatchedResource

log = structlog.stdlib.get_logger(__name__)

Scope = Callable[[OperatorContext], Awaitable[None]]

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
_FLUSH_LIMIT = 1.0

EXIT_FAILED = 1
EXIT_SETTINGS = 2


async def _the_scope(context: OperatorContext) -> None:
    from tenure.operator.scope import run_scope

    await run_scope(context)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a test may replace."""

    connect: Callable[[], Awaitable[KubernetesClient]] = KubernetesClient.connect
    wrap_cluster: Callable[[AgentCluster], AgentCluster] = lambda cluster: cluster
    wrap_servers: Callable[[ServerCluster], ServerCluster] = lambda cluster: cluster
    scope: Scope = _the_scope
    clock: Clock = field(default_factory=Clock)
    overrun: Callable[[], object] = end_process
    """What happens when work outlives the Lease: the end of the process, which may be that of the tests."""
    on_port: Callable[[int], None] = lambda port: None
    """Hears the port of the three pages."""


def main(parts: Parts | None = None) -> int:
    """Run until SIGTERM or SIGINT; the exit code: 0, 1 when it cannot run, 2 for wrong settings.

    A signal releases the Lease and stops no agent. Problems are written to the log, a sentence each.
    """
    logs.configure("INFO")
    try:
        settings = load_settings()
        databases = load_databases(settings.databases_dir)
    except InvalidSettings as error:
        for problem in error.problems:
            log.error(problem)
        return EXIT_SETTINGS
    logs.configure(settings.log_level)
    logging.captureWarnings(True)
    # Now and not under the Lease: the import takes a second or two on a busy machine, and nothing renews meanwhile.
    importlib.import_module("tenure.operator.scope")
    _collect_seldom()
    try:
        return asyncio.run(_until_signal(settings, databases, parts or Parts()))
    except (TenureError, OSError) as error:
        log.error("the operator cannot run", error=str(error))
    except Exception:
        # Through the log, where secrets are masked, and not to standard error.
        log.exception("the operator failed")
    return EXIT_FAILED


def _collect_seldom() -> None:
    """A list of thousands is a million containers and no garbage among them: with Python's own thresholds the collector
    takes two thirds of the time in which such a list is decoded. What the imports made is never garbage at all."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


async def _until_signal(
    settings: OperatorSettings, databases: tuple[DatabaseConfig, ...], parts: Parts
) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await operate(settings, databases, parts, stop)
    return 0


async def operate(
    settings: OperatorSettings, databases: tuple[DatabaseConfig, ...], parts: Parts, stop: asyncio.Event
) -> None:
    """Serve, campaign and work until ``stop``. Raises ``NoCluster``, and ``OSError`` for a port in use."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(await parts.connect())
        # Connections of its own: a renewal must not queue behind a hundred passes.
        lease_client = await stack.enter_async_context(await parts.connect())
        metrics, watches = Metrics(), WatchAges(monotonic=parts.clock.monotonic)
        keeper = Keeper(metrics.claimed)
        stack.push_async_callback(keeper.aclose)
        for resource in WatchedResource:
            metrics.watch_age(resource, partial(watches.age, resource))
        leadership = Leadership(
            lease_client,
            namespaces=settings.namespaces or (settings.lease_namespace,),
            name=settings.lease_name,
            identity=unique_identity(settings.pod_name),
            seconds=settings.lease_seconds,
            on_change=metrics.leader,
            # Somebody else may lead by now, and own what was ours.
            on_look=keeper.release_all,
            overrun=parts.overrun,
        )
        client.fence = lambda: leadership.leading
        adapter = KubernetesServerCluster(client, instance=settings.pod_name)
        cluster = parts.wrap_cluster(adapter)
        context = OperatorContext(
            settings=settings,
            metrics=metrics,
            cluster=cluster,
            servers=parts.wrap_servers(adapter),
            keeper=keeper,
            own=_own_process(settings, parts.clock),
            client=client,
            databases=databases,
            events=EventRecorder(cluster),
            watches=watches,
            clock=parts.clock,
            leading=lambda: leadership.leading,
        )
        beat = LoopBeat()
        health = Health(
            ready=lambda: leadership.readable,
            leading=lambda: leadership.leading,
            watch_ages=watches.ages,
            loops={"main": beat.age},
        )
        parts.on_port(await stack.enter_async_context(serve(settings.http_port, health, metrics.render)))
        _greet(settings, databases)
        await _until(stop, beat.run(), _lead_on(leadership, partial(_work, parts.scope, context, leadership)))
    log.info("stopped; agents go on")


def _own_process(settings: OperatorSettings, clock: Clock) -> OwnProcess:
    """This process as a backend. A container that is started again is another process, so its id need not be known;
    outside of a cluster there is no pod either."""
    process = uuid.uuid4().hex
    return OwnProcess(settings.pod_uid or f"process-{process}", process, clock.now())


def _greet(settings: OperatorSettings, databases: tuple[DatabaseConfig, ...]) -> None:
    log.info(
        "starting",
        version=__version__,
        namespaces=list(settings.namespaces) or "all",
        databases=[database.name for database in databases],
        lease=f"{settings.lease_name}, {settings.lease_seconds} s",
    )


async def _until(stop: asyncio.Event, *forever: Awaitable[None]) -> None:
    """Run all until ``stop``; then cancel them and wait for their end. An error of one of them ends all."""
    stopping = asyncio.ensure_future(stop.wait())
    tasks = [asyncio.ensure_future(each) for each in forever]
    try:
        await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (stopping, *tasks):
            task.cancel()
        await asyncio.wait([stopping, *tasks])
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error


async def _lead_on(leadership: Leadership, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    while True:
        try:
            await leadership.lead(work)
        except Exception:
            log.exception("leading failed; campaigning again")
            await asyncio.sleep(_FIRST_PAUSE)


async def _work(scope: Scope, context: OperatorContext, leadership: Leadership) -> None:
    """The scope and the sender of Events, while the Lease is held."""
    sender = asyncio.create_task(context.events.run(), name="events")
    try:
        await _supervise(scope, context)
    finally:
        if leadership.lost.is_set():
            context.keeper.without_lease()
        else:
            context.keeper.release_all()
            with suppress(TimeoutError):
                async with asyncio.timeout(_FLUSH_LIMIT):
                    await context.events.flushed()
        sender.cancel()
        await asyncio.wait([sender])


async def _supervise(scope: Scope, context: OperatorContext) -> None:
    """The scope never ends by itself; when it does, it is begun again, later and later."""
    pause = _FIRST_PAUSE
    while True:
        began = context.clock.monotonic()
        try:
            await scope(context)
            log.error("the scope ended by itself and begins again", pause=pause)
        except Exception:
            log.exception("the scope failed and begins again", pause=pause)
        if context.clock.monotonic() - began > 10 * _LONGEST_PAUSE:
            pause = _FIRST_PAUSE
        await asyncio.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
