"""Agents whose control server is gone for good: its ControlServer was deleted, its installation with it, and its pod.

As long as an installation has a ControlServer, recovery and upkeep of that one judge its rows. Without one nobody does:
the rows would stay live, guard their sessions, and leave their AgentProcesses Unknown for ever. Everything is read from
the API server at this moment; what it does not answer is not known, and what is not known is left as it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from tenure.cluster.errors import ApiError
from tenure.cluster.server_ports import ServerCluster
from tenure.storage.errors import DatabaseUnavailable
from tenure.storage.records import ControlServerRecord, Executor, Records, Repaired

SERVER_POD_KEY = "server_pod"
"""Where a hosted row's metadata holds the name of the pod whose UID is its ``container_identity``."""

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Pod:
    name: str
    uid: str


class Losses:
    """Finds rows whose agent cannot live any more, and repairs them. Asks the API server by names, never a cache."""

    def __init__(self, cluster: ServerCluster) -> None:
        self._cluster = cluster

    async def lost(self, namespace: str, records: Records, row: Executor) -> bool:
        """Whether the server of this row's agent is gone for good. False also when that cannot be found out."""
        try:
            record = await records.servers.get(row.installation_id)
            return record is not None and await self._lost(namespace, record, row)
        except (ApiError, DatabaseUnavailable) as error:
            log.info("a session's server may be gone", session=row.session_id, error=type(error).__name__)
            return False

    async def bury(self, namespace: str, records: Records, installation_id: str) -> tuple[str, ...]:
        """Repair every live row of the installation whose server is gone for good, hosted for a resource or not: it is
        stopped, its open turn abandoned, its session waits for input. The sessions that were repaired. May be repeated.
        Raises ``ApiError`` and ``StorageError``."""
        record = await records.servers.get(installation_id)
        if record is None:
            return ()
        buried: list[Repaired] = []
        for row in await records.inventory.live(installation_id):
            # Each by a look of its own: a ControlServer may be made for the installation at any moment.
            if await self._lost(namespace, record, row):
                buried += await records.inventory.repair((row,), even_unstopped=True)
        sessions = tuple(each.session_id for each in buried)
        if sessions:
            log.warning("agents have ended with their control server, which was deleted", sessions=sessions)
        return sessions

    async def _lost(self, namespace: str, record: ControlServerRecord, row: Executor) -> bool:
        pod = _pod_of(row, record)
        if pod is None:
            return False
        owner = await self._cluster.get_control_server(namespace, record.name)
        if owner is not None and _installation(owner) == record.installation_id:
            return False
        # After the object, which makes its pods: one that is gone now has no successor of the same UID.
        found = await self._cluster.get_pod(namespace, pod.name)
        return found is None or found["metadata"]["uid"] != pod.uid


def _pod_of(row: Executor, record: ControlServerRecord) -> _Pod | None:
    """The pod in which the row's agent was started; None when its name is not known."""
    name = row.metadata.get(SERVER_POD_KEY) if row.agent_process_uid is not None else None
    if isinstance(name, str) and name and row.container_identity:
        return _Pod(name, row.container_identity)
    if not record.pod_uid or not record.credential_secret:
        return None
    if row.container_identity not in (record.pod_uid, record.server_identity):
        return None
    # A server's Secret is called like its pod.
    return _Pod(record.credential_secret, record.pod_uid)


def _installation(server: Mapping[str, Any]) -> str:
    """As ``ControlServer.effective_installation_id``, of an object that need not be understood in whole."""
    spec = server.get("spec") or {}
    return str(spec.get("installationID") or server["metadata"]["uid"])
