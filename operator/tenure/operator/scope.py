"""What an operator does while it holds the Lease: watch, sweep, read the tables, run passes. Ends when cancelled.

Everything starts empty with each win of the Lease: what counts is in the cluster and in the databases.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, TypeVar

import structlog

from tenure.cluster.errors import ApiError, Conflict
from tenure.model.errors import UnreadableObject
from tenure.model.settings import DatabaseConfig
from tenure.operator.cache import ObjectCache, ObjectKey
from tenure.operator.context import OperatorContext
from tenure.operator.databases import Gate, NamedTables, Table
from tenure.operator.hosted.pass_ import HostedPass
from tenure.operator.hosted.scope import Hosting
from tenure.operator.passes.agents import AgentPass
from tenure.operator.passes.ledger import StopWriter
from tenure.operator.queue import WorkQueue
from tenure.operator.servers.ports import ServerKey
from tenure.operator.servers.scope import Servers, known, until_known, until_unknown
from tenure.operator.sweep import Sweep
from tenure.operator.tables import TableWatch
from tenure.operator.watching import Watching
from tenure.storage.database import Database
from tenure.storage.errors import StorageError
from tenure.storage.records import RecordMoved
from tenure.telemetry.metrics import Metrics, PassError

GAUGE_SECONDS = 5.0
Key = TypeVar("Key")

log = structlog.stdlib.get_logger(__name__)


async def run_scope(context: OperatorContext) -> None:
    """Work until cancelled. An error of any part ends it; ``operator.main`` begins it again."""
    while True:
        why_not = await _why_not(context)
        if why_not:
            log.warning("ControlServers are not looked after", why=why_not)
        await _until_changed(context, with_servers=not why_not)


async def _why_not(context: OperatorContext) -> str:
    """Why ControlServers cannot be looked after, in a sentence; empty when they can."""
    while True:
        try:
            return await known(context.client, context.settings.namespaces)
        except ApiError as error:
            log.warning("the API server does not answer yet", error=str(error))
            await asyncio.sleep(1.0)


async def _until_changed(context: OperatorContext, *, with_servers: bool) -> None:
    """Work until ControlServers can be looked after, or cannot any more."""
    changed = until_unknown if with_servers else until_known
    work = asyncio.create_task(_work(context, with_servers=with_servers), name="scope at work")
    look = asyncio.create_task(changed(context.client, context.settings.namespaces), name="look for CRD")
    try:
        await asyncio.wait({work, look}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        look.cancel()
        if not work.done():
            work.cancel()
        await asyncio.wait({work, look})
    if not work.cancelled():
        work.result()


async def _work(context: OperatorContext, *, with_servers: bool) -> None:
    async with AsyncExitStack() as stack:
        cache = ObjectCache(clock=context.clock.monotonic)
        inherited: set[ObjectKey] = set()
        databases = [_database(config) for config in context.databases]
        for database in databases:
            stack.push_async_callback(database.aclose)
        named = NamedTables()
        agent_pass = AgentPass(
            cluster=context.cluster,
            cache=cache,
            tables=named,
            ledger=StopWriter(next((d for d in databases if d.store), None), clock=context.clock.monotonic),
            events=context.events,
            metrics=context.metrics,
            clock=context.clock,
            inherited=inherited.__contains__,
        )
        measure = partial(_measured, metrics=context.metrics)
        servers = Servers(context, databases, measure, _reporter(context.metrics)) if with_servers else None
        hosting = _hosting(context, cache, servers, wake=lambda key: queue.wake(key))
        stack.push_async_callback(hosting.aclose)

        async def agent(key: ObjectKey) -> float | None:
            if hosting.concerns(key):
                await agent_pass(
                    key
                )  # of an agent of this name that had a pod of its own it may have something left
                return await hosting.hosted(key)
            return await agent_pass(key)

        queue = WorkQueue(measure(agent), on_error=_reporter(context.metrics))
        cache.on_change = queue.wake
        for database in databases:
            named.add(_table(database, queue, context))
        watching = Watching(
            cache,
            context.client.connection_facts,
            namespaces=context.settings.namespaces,
            servers=servers.cache if servers is not None else None,
            watches=context.watches,
            on_relist=lambda: sweep.soon(),
            clock=context.clock.monotonic,
        )
        sweep = Sweep(
            cache,
            context.client,
            context.cluster,
            namespaces=context.settings.namespaces,
            servers=servers.cache if servers is not None else None,
            get_server=context.servers.get_control_server,
            opened=watching.opened,
            clock=context.clock.monotonic,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(watching.run(), name="watching")
            group.create_task(sweep.run(), name="sweep")
            for table in named.all():
                group.create_task(table.watch.run(), name=f"table {table.database.name}")
            group.create_task(_gauge((agent_pass, hosting.hosted), context.metrics), name="gauge")
            # Only when the cache holds everything may its silence about an object mean anything.
            await sweep.synced.wait()
            inherited.update(cache.keys())
            context.on_synced()
            group.create_task(queue.run(), name="passes")
            if servers is not None:
                group.create_task(servers.run(), name="passes over ControlServers")


def _hosting(
    context: OperatorContext, cache: ObjectCache, servers: Servers | None, wake: Callable[[ObjectKey], None]
) -> Hosting:
    hosting = Hosting(
        cluster=context.cluster,
        servers=context.servers,
        cache=cache,
        control_server=servers.cache.control_server if servers is not None else lambda key: None,
        records_of=servers.records_of if servers is not None else lambda namespace: None,
        held=context.keeper.held if servers is not None else lambda key: None,
        events=context.events,
        metrics=context.metrics,
        clock=context.clock,
        wake=wake,
    )
    if servers is not None:
        servers.look_after(hosting.departed.tend)
    return hosting


def _database(config: DatabaseConfig) -> Database:
    return Database(config.name, config.url, namespaces=config.namespaces, store=config.store)


def _table(database: Database, queue: WorkQueue[ObjectKey], context: OperatorContext) -> Table:
    watch = TableWatch(
        database,
        wake=queue.wake,
        poll_seconds=context.settings.poll_seconds,
        metrics=context.metrics,
        clock=context.clock.monotonic,
    )
    failed = context.metrics.database_failed
    return Table(database, watch, Gate(failed), Gate(failed))


def _measured(
    reconcile: Callable[[Key], Awaitable[float | None]], metrics: Metrics
) -> Callable[[Key], Coroutine[Any, Any, float | None]]:
    async def measured(key: Key) -> float | None:
        with metrics.reconcile():
            return await reconcile(key)

    return measured


def _reporter(metrics: Metrics) -> Callable[[ObjectKey | ServerKey, Exception, float], None]:
    def report(key: ObjectKey | ServerKey, error: Exception, delay: float) -> None:
        kind = _kind_of(error)
        metrics.reconcile_failed(kind)
        facts = {"namespace": key.namespace, "name": key.name, "again_in": round(delay, 1)}
        if kind is PassError.UNEXPECTED:
            log.error("a pass failed for a reason nobody foresaw", exc_info=error, **facts)
        else:
            log.warning("a pass failed and is tried again", error=str(error), **facts)

    return report


def _kind_of(error: Exception) -> PassError:
    match error:
        case Conflict() | RecordMoved():
            return PassError.CONFLICT
        case UnreadableObject():
            return PassError.UNREADABLE
        case ApiError():
            return PassError.API
        case StorageError():
            return PassError.DATABASE
        case _:
            return PassError.UNEXPECTED


async def _gauge(passes: tuple[AgentPass, HostedPass], metrics: Metrics) -> None:
    try:
        while True:
            own, hosted = (each.phases() for each in passes)
            metrics.agent_processes({phase: own[phase] + hosted[phase] for phase in own})
            await asyncio.sleep(GAUGE_SECONDS)
    finally:
        # Whoever does not lead knows nothing of any agent.
        metrics.agent_processes({})
