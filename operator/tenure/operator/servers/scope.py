"""The part of a leading operator that looks after ControlServers."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import structlog

from tenure.cluster.calls import CONTROL_SERVERS
from tenure.cluster.errors import ApiError, NotFound, Refused
from tenure.operator.context import OperatorContext
from tenure.operator.queue import WorkQueue
from tenure.operator.servers.attempts import Attempts
from tenure.operator.servers.background import Background
from tenure.operator.servers.cache import ServerCache
from tenure.operator.servers.deeds import Deeds
from tenure.operator.servers.elsewhere import Elsewhere, Lister
from tenure.operator.servers.executions import ExecutionStore
from tenure.operator.servers.orphans import Tend, gone_by
from tenure.operator.servers.pass_ import ServerPass
from tenure.operator.servers.ports import ServerKey
from tenure.operator.servers.recovery import Recovery
from tenure.operator.servers.rendering import Rendering
from tenure.operator.servers.reporting import Reporter
from tenure.operator.servers.sight import Observer
from tenure.operator.servers.telling import Telling
from tenure.operator.servers.tools import Tools
from tenure.plan.servers.policies import OperatorPods
from tenure.storage.database import Database
from tenure.storage.records import Records

LOOK_SECONDS = 30.0
"""How often a cluster without the definition is asked again whether it has it by now."""

log = structlog.stdlib.get_logger(__name__)


async def known(lister: Lister, namespaces: Iterable[str]) -> str:
    """Why ControlServers cannot be looked after here, in a sentence; empty when they can. Raises ``ApiError`` when
    there is no answer."""
    for namespace in tuple(namespaces) or (None,):
        try:
            await lister.list_objects(CONTROL_SERVERS, namespace, "")
        except NotFound:
            return "the cluster has no CustomResourceDefinition of ControlServers"
        except Refused as error:
            return f"this operator may not list ControlServers: {error.message}"
    return ""


async def until_known(lister: Lister, namespaces: Iterable[str]) -> None:
    """Return when they can be looked after."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        try:
            if not await known(lister, namespaces):
                return
        except ApiError:
            continue


async def until_unknown(lister: Lister, namespaces: Iterable[str]) -> None:
    """Return when they cannot be looked after any more: the definition was deleted, or a permission taken back. A watch
    on what is not there would hold up all others. Two looks agree, for a permission may be on its way back."""
    agreeing = 0
    while agreeing < 2:
        await asyncio.sleep(LOOK_SECONDS)
        try:
            agreeing = agreeing + 1 if await known(lister, namespaces) else 0
        except ApiError:
            continue


class Servers:
    """Cache, queue and pass of ControlServers, for one scope."""

    def __init__(
        self,
        context: OperatorContext,
        databases: list[Database],
        measure: Callable[[Any], Any],
        report: Callable[[Any, Exception, float], None],
    ) -> None:
        self._context = context
        self._store = next((d for d in databases if d.store), None)
        self._records: dict[str, Records] = {}
        self.cache = ServerCache(clock=context.clock.monotonic)
        self._background = Background(lambda key, name, error: self._pass.ended(key, name, error))
        executions = ExecutionStore()
        hooks = Telling(context.metrics, context.events, executions)
        recoverer = self._recovery = Recovery(hooks, executions, gone_by(context.servers))
        attempts = Attempts(recoverer.forget)
        tools = Tools(
            cluster=context.servers,
            cache=self.cache,
            background=self._background,
            keeper=context.keeper,
            recoverer=recoverer,
            hooks=hooks,
            clock=context.clock,
            rendering=Rendering(context.settings.server_image, _own_pods(context)),
            elsewhere=Elsewhere(context.client, context.servers, self.cache),
        )
        observer = Observer(
            context.servers,
            self.cache,
            self.records_of,
            context.own,
            context.settings.server_image,
            context.clock,
            context.leading,
        )
        self._pass = ServerPass(
            observer=observer,
            tools=tools,
            deeds=Deeds(tools),
            attempts=attempts,
            reporter=Reporter(tools, context.events),
            wake=lambda key: self.queue.wake(key),
            wake_after=lambda key, seconds: self.queue.wake_after(key, seconds),
        )
        self.queue: WorkQueue[ServerKey] = WorkQueue(measure(self._pass), on_error=report)
        self.cache.on_change = self.queue.wake

    def look_after(self, tend: Tend) -> None:
        """Who takes the events of an agent at work whose AgentProcess is gone."""
        self._recovery.tend = tend

    def records_of(self, namespace: str) -> Records | None:
        """The records of a namespace; None: there is no durable store for it."""
        if self._store is None or not self._store.allows(namespace):
            return None
        if namespace not in self._records:
            self._records[namespace] = self._store.records(namespace)
        return self._records[namespace]

    async def run(self) -> None:
        """Run passes until cancelled; the cache holds everything by now."""
        keeper = self._context.keeper
        keeper.on_end, keeper.on_change = self._pass.claim_ended, self.queue.wake
        everything = self.cache.keys()
        for key in everything:
            self.queue.wake(key)
        try:
            await self.queue.run()
        finally:
            await self._background.aclose()
            await self._recovery.aclose()


def _own_pods(context: OperatorContext) -> OperatorPods | None:
    settings = context.settings
    if not settings.pod_labels or not settings.pod_namespace:
        return None
    return OperatorPods(settings.pod_namespace, settings.pod_labels)
