"""A resource that this operator does not understand: nothing is done to its agent, and its author is told."""

import structlog

from tenure.cluster.errors import Conflict, NotFound, Refused
from tenure.cluster.ports import AgentCluster, Json
from tenure.model.errors import UnreadableObject
from tenure.model.resources import parse_status
from tenure.operator.cache import ObjectCache
from tenure.operator.clock import Clock
from tenure.plan.conditions import stalled_by_spec

log = structlog.stdlib.get_logger("tenure.pass")


class Complaint:
    """Says in the condition Stalled what is not understood. Every other fact in the status stays."""

    def __init__(self, cluster: AgentCluster, cache: ObjectCache, clock: Clock) -> None:
        self._cluster = cluster
        self._cache = cache
        self._clock = clock

    async def file(self, raw: Json, error: UnreadableObject) -> None:
        """Once for each generation and each sentence. Raises ``ApiError`` when there is no answer."""
        meta = raw["metadata"]
        log.warning("left alone: %s", error, namespace=meta["namespace"], name=meta["name"])
        try:
            before = parse_status(raw)
        except UnreadableObject:
            # Written by a newer operator, or by hand: to write over it would be to lose what it says.
            return
        status = stalled_by_spec(before, meta.get("generation", 0), str(error), self._clock.now())
        if status == before:
            return
        try:
            written = await self._cluster.patch_agent_process_status(
                meta["namespace"],
                meta["name"],
                uid=meta["uid"],
                resource_version=meta["resourceVersion"],
                status=status.to_wire(),
            )
        except (NotFound, Conflict, Refused):
            return  # it has changed, and its change wakes the key
        self._cache.put_agent_process(written, wake=False)
