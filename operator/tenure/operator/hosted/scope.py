"""The part of a leading operator that looks after hosted agents."""

from collections.abc import Callable, Mapping
from typing import Any

from tenure.cluster.ports import AgentCluster
from tenure.cluster.server_ports import ServerCluster
from tenure.model.control_server import parse_control_server
from tenure.model.errors import InvalidResource
from tenure.operator.cache import ObjectCache, ObjectKey
from tenure.operator.clock import Clock
from tenure.operator.events import EventRecorder
from tenure.operator.hosted.clients import Clients
from tenure.operator.hosted.deeds import Actor
from tenure.operator.hosted.departed import Departed, Place
from tenure.operator.hosted.drivers import Drivers
from tenure.operator.hosted.losses import Losses
from tenure.operator.hosted.pass_ import HostedPass
from tenure.operator.hosted.sight import Observer
from tenure.operator.passes.misread import Complaint
from tenure.operator.servers.orphans import gone_by
from tenure.operator.servers.ports import OwnedServer, ServerKey
from tenure.storage.records import Records
from tenure.telemetry.metrics import Metrics


class Hosting:
    """``control_server``: the object as last seen; ``records_of``: the records of a namespace; ``held``: the server of
    a ControlServer that is ours now. All of them answer None where ControlServers are not looked after."""

    def __init__(
        self,
        *,
        cluster: AgentCluster,
        servers: ServerCluster,
        cache: ObjectCache,
        control_server: Callable[[ServerKey], Mapping[str, Any] | None],
        records_of: Callable[[str], Records | None],
        held: Callable[[ServerKey], OwnedServer | None],
        events: EventRecorder,
        metrics: Metrics,
        clock: Clock,
        wake: Callable[[ObjectKey], None],
    ) -> None:
        self._cache = cache
        self._clients = Clients(held)
        self._drivers = Drivers(self._clients)

        def place(key: ServerKey) -> Place | None:
            raw, records = control_server(key), records_of(key.namespace)
            if raw is None or records is None:
                return None
            try:
                return Place(key, parse_control_server(raw), records)
            except InvalidResource:
                return None

        losses = Losses(servers)
        self.departed = Departed(gone_by(servers), self._clients, self._drivers, losses, place, records_of)
        self.hosted = HostedPass(
            observer=Observer(cache, control_server, records_of, self._clients, losses, clock),
            actor=Actor(cluster, servers, cache, self._drivers, losses, wake),
            departed=self.departed,
            complaint=Complaint(cluster, cache, clock),
            cache=cache,
            events=events,
            metrics=metrics,
        )

    def concerns(self, key: ObjectKey) -> bool:
        """Whether the object of this name is hosted, or was when it was last seen and is gone."""
        raw = self._cache.agent_process(key)
        if raw is None:
            return self.hosted.knows(key)
        hosted = (raw.get("spec") or {}).get("session") is not None
        if not hosted:
            self.hosted.forget(key)
        return hosted

    async def aclose(self) -> None:
        """Leave every agent to itself: it goes on, and whoever looks after it next finds everything."""
        await self._drivers.aclose()
        await self._clients.aclose()
