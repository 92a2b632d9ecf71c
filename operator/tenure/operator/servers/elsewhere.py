"""Servers' pods that no pass over their ControlServer sees, and that rows may name all the same: of an object of the
same installation that was deleted, while its pod still ends or was orphaned; or without the label by which pods are
watched.

A row lives as long as its pod, and absence from a cache is no evidence: so the namespace is listed, live and whole,
when a row names a server that nobody has seen.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from tenure.cluster.calls import PODS, Resource
from tenure.cluster.client import Listing
from tenure.cluster.errors import ApiError
from tenure.cluster.server_ports import ServerCluster
from tenure.model.pods import mapping, mappings
from tenure.operator.servers.cache import ServerCache
from tenure.operator.servers.pods import read_server_pod
from tenure.operator.servers.ports import ServerKey
from tenure.plan.adoption.liveness import PodLife
from tenure.plan.adoption.state import PodPhase
from tenure.plan.servers.names import VACANCY_ANNOTATION

log = structlog.stdlib.get_logger(__name__)


class Lister(Protocol):
    """``tenure.cluster.client.KubernetesClient``."""

    async def list_objects(self, resource: Resource, namespace: str | None, label_selector: str) -> Listing:
        """All objects of a kind. Raises ``ApiError``."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Looks for them."""

    lister: Lister
    cluster: ServerCluster
    cache: ServerCache

    async def look(
        self, key: ServerKey, installation_id: str, seen: Collection[str], names: Collection[str]
    ) -> Mapping[str, PodLife] | None:
        """By UID, how it is with every pod that is not among ``seen`` (UIDs), and that is named (``names``) or may be a
        server of this installation. None: the API server does not say."""
        try:
            listing = await self.lister.list_objects(PODS, key.namespace, "")
            found: dict[str, PodLife] = {}
            for item in listing.items:
                meta = item["metadata"]
                uid = str(meta.get("uid", ""))
                if uid not in seen and (uid in names or self._may_be(meta, installation_id)):
                    found[uid] = await self._life(key.namespace, str(meta.get("name", "")), uid)
        except ApiError as error:
            log.warning("pods of servers could not be looked for", server=str(key), error=str(error))
            return None
        return found

    def _may_be(self, meta: Mapping[str, Any], installation_id: str) -> bool:
        """Whether it was made as a server's, and not for another ControlServer that is there."""
        if VACANCY_ANNOTATION not in mapping(meta, "annotations"):
            return False
        owner = next((o for o in mappings(meta, "ownerReferences") if o.get("controller") is True), {})
        return self.cache.installation_of(str(owner.get("uid", ""))) in (None, installation_id)

    async def _life(self, namespace: str, name: str, uid: str) -> PodLife:
        raw = await self.cluster.get_pod(namespace, name)
        if raw is None or raw["metadata"]["uid"] != uid:
            return PodLife.ABSENT
        return PodLife.ENDED if read_server_pod(raw).phase is PodPhase.ENDED else PodLife.RUNNING
