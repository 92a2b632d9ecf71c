"""Writing the status of an AgentProcess, whoever looks after it."""

from collections.abc import Mapping
from typing import Any

from tenure.cluster.errors import Conflict, NotFound, Refused
from tenure.cluster.ports import AgentCluster, Json
from tenure.model.status import Status
from tenure.operator.cache import ObjectCache


async def write_status(
    cluster: AgentCluster, cache: ObjectCache, observed: Mapping[str, Any], status: Status
) -> Json | None:
    """The object as written; None when it is not as it was observed any more: look again. The cache has it either way.

    Raises ``ApiError``; ``Conflict`` and ``Refused`` only when the object is as observed, so that it is the status
    itself which is refused.
    """
    meta = observed["metadata"]
    try:
        written = await cluster.patch_agent_process_status(
            meta["namespace"],
            meta["name"],
            uid=meta["uid"],
            resource_version=meta["resourceVersion"],
            status=status.to_wire(),
        )
    except NotFound:
        cache.drop_agent_process(observed, wake=False)
        return None
    except (Conflict, Refused):
        if await _changed(cluster, cache, observed):
            return None
        raise
    cache.put_agent_process(written, wake=False)
    return written


async def _changed(cluster: AgentCluster, cache: ObjectCache, observed: Mapping[str, Any]) -> bool:
    """Take in the object as it is now; whether it differs from what was observed."""
    meta = observed["metadata"]
    found = await cluster.get_agent_process(meta["namespace"], meta["name"])
    if found is None:
        cache.drop_agent_process(observed, wake=False)
        return True
    cache.put_agent_process(found, wake=False)
    return bool(found["metadata"]["resourceVersion"] != meta["resourceVersion"])
