"""The cache against the truth: a periodic list (metadata only) of everything watched.

A watch that had to begin anew tells nothing of what was deleted in between, so the cache keeps ghosts; the
sweep removes them. What the list shows and no event brought within a few seconds is read one by one. The
first complete sweep is also how the operator knows that the cache holds everything: only then may passes run.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from tenure.cluster.calls import AGENT_PROCESSES, CONTROL_SERVERS, PODS, Resource
from tenure.cluster.client import Listing
from tenure.cluster.errors import ApiError
from tenure.cluster.ports import AgentCluster, Json
from tenure.model.pods import ROLE_LABEL
from tenure.operator.cache import ObjectCache
from tenure.operator.servers.cache import ServerCache

log = logging.getLogger(__name__)

PERIOD = 300.0
SOON = 2.0
"""After a watch began anew; several that did so together cause one sweep."""
SETTLE = 5.0
"""How long an event may trail a list before the object is read by itself."""
RETRY = 5.0
READERS = 10
CHECK_SECONDS = 0.05


Get = Callable[[str, str], Awaitable[Json | None]]
"""Reads one object by namespace and name; None when there is none."""


class Lister(Protocol):
    """Lists metadata; ``tenure.cluster.client.KubernetesClient``."""

    async def list_objects(self, resource: Resource, namespace: str | None, label_selector: str) -> Listing:
        """All objects of a kind. Raises ``ApiError``."""


class Sweep:
    """Compares the cache with the API server until cancelled.

    ``namespaces`` empty means cluster-wide. ``synced`` is set when everything that existed at the start is in
    the cache. ``soon()`` asks for a sweep out of turn. Nothing is ever written. ``servers`` None: ControlServers
    are not looked for; else ``get_server`` reads one.
    """

    def __init__(
        self,
        cache: ObjectCache,
        lister: Lister,
        cluster: AgentCluster,
        *,
        namespaces: Iterable[str] = (),
        servers: ServerCache | None = None,
        get_server: Get | None = None,
        opened: asyncio.Event | None = None,
        period: float = PERIOD,
        settle: float = SETTLE,
        clock: Callable[[], float] = time.monotonic,
        dice: Callable[[], float] = random.random,
    ) -> None:
        self.synced = asyncio.Event()
        self.dropped = 0
        """Ghosts removed so far."""
        self.read = 0
        """Objects that no event had brought, so far."""
        self.last_success: float | None = None
        self._cache = cache
        self._servers = servers
        self._get_server = get_server
        self._lister = lister
        self._cluster = cluster
        self._namespaces: tuple[str | None, ...] = tuple(namespaces) or (None,)
        self._opened = opened
        self._period = period
        self._settle = settle
        self._clock = clock
        self._dice = dice
        self._wanted = asyncio.Event()

    def soon(self) -> None:
        """Sweep in a moment: a watch may have missed something."""
        self._wanted.set()

    async def run(self) -> None:
        """Sweep at once, then in every period, and soon after ``soon()``."""
        while True:
            done = await self._try()
            if done and not self.synced.is_set():
                log.info("the cache holds everything: %d objects", len(self._cache))
                self.synced.set()
            pause = self._period * (0.9 + 0.2 * self._dice()) if done else RETRY
            try:
                async with asyncio.timeout(pause):
                    await self._wanted.wait()
                await asyncio.sleep(SOON)
            except TimeoutError:
                pass
            self._wanted.clear()

    async def _try(self) -> bool:
        done = False
        try:
            await self.once()
            done = True
        except* ApiError as errors:
            log.warning("the cache could not be compared with the cluster: %s", _first(errors))
        return done

    async def once(self) -> None:
        """One sweep of everything. Raises a group of ``ApiError``; nothing is dropped of a kind that failed."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._sweep_agent_processes())
            group.create_task(self._sweep_pods())
            if self._servers is not None and self._get_server is not None:
                group.create_task(self._sweep_servers(self._servers, self._get_server))
        self.last_success = self._clock()

    async def _sweep_agent_processes(self) -> None:
        asked = self._clock()
        items = await self._list(AGENT_PROCESSES, "")
        present = {_uid(item) for item in items}
        self._count_dropped(self._cache.drop_missing_agent_processes(present, asked), "AgentProcesses")
        await self._settled(
            items,
            self._cache.knows_agent_process,
            self._cluster.get_agent_process,
            self._cache.put_agent_process,
        )

    async def _sweep_pods(self) -> None:
        asked = self._clock()
        items = await self._list(PODS, ROLE_LABEL)
        present = {_uid(item) for item in items}
        self._count_dropped(self._cache.drop_missing_pods(present, asked), "pods")
        servers = self._servers
        if servers is None:
            await self._settled(items, self._cache.knows_pod, self._cluster.get_pod, self._cache.put_pod)
            return
        servers.drop_missing_pods(present, asked)
        await self._settled(
            items,
            lambda raw: self._cache.knows_pod(raw) and servers.knows_pod(raw),
            self._cluster.get_pod,
            # Not "or": both are to have it.
            lambda raw: bool(self._cache.put_pod(raw) | servers.put_pod(raw)),
        )

    async def _sweep_servers(self, servers: ServerCache, get: Get) -> None:
        asked = self._clock()
        items = await self._list(CONTROL_SERVERS, "")
        present = {_uid(item) for item in items}
        self._count_dropped(servers.drop_missing_control_servers(present, asked), "ControlServers")
        await self._settled(items, servers.knows_control_server, get, servers.put_control_server)

    async def _list(self, resource: Resource, selector: str) -> list[Json]:
        items: list[Json] = []
        for namespace in self._namespaces:
            listing = await self._lister.list_objects(resource, namespace, selector)
            items.extend(listing.items)
        return items

    async def _settled(
        self,
        items: list[Json],
        known: Callable[[Json], bool],
        get: Get,
        put: Callable[[Json], bool],
    ) -> None:
        """Return when everything listed is in the cache: by its event, or else by a read of its own."""
        if self._opened is not None:
            await self._opened.wait()
        waiting = [item for item in items if not known(item)]
        limit = self._clock() + self._settle
        total = len(waiting)
        while waiting and self._clock() < limit:
            await asyncio.sleep(CHECK_SECONDS)
            waiting = [item for item in waiting if not known(item)]
            if len(waiting) < total:
                # Events keep coming: that is a watch that is busy, not one that missed something.
                total, limit = len(waiting), self._clock() + self._settle
        if not waiting:
            return
        log.warning("%d objects were missed by the watches and are read one by one", len(waiting))
        self.read += len(waiting)
        readers = asyncio.Semaphore(READERS)

        async def read(item: Json) -> None:
            async with readers:
                meta = item["metadata"]
                found = await get(str(meta.get("namespace")), str(meta.get("name")))
                if found is not None:
                    put(found)

        async with asyncio.TaskGroup() as group:
            for item in waiting:
                group.create_task(read(item))

    def _count_dropped(self, count: int, what: str) -> None:
        if count:
            log.warning("%d %s had gone without an event", count, what)
            self.dropped += count


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _uid(item: Json) -> str:
    return str(item.get("metadata", {}).get("uid", ""))
