"""The Secret of a server in use, after somebody has deleted it, or written into it what is none.

This process renews for the server with what it has in memory, and only with that: the next operator could not. So the
Secret is written again.
"""

import structlog

from tenure.cluster.errors import AlreadyExists, Conflict, NotFound
from tenure.cluster.server_ports import NewSecret
from tenure.operator.servers.attempts import Memory
from tenure.operator.servers.ports import OwnedServer
from tenure.operator.servers.secrets import Custody
from tenure.operator.servers.sight import SeenPod, Sight
from tenure.operator.servers.tools import Tools
from tenure.plan.adoption.state import NoSecret
from tenure.plan.servers import names
from tenure.storage.records import ControlServerRecord

PATIENCE = 5.0
"""Seconds for which a Secret is left missing: somebody may be about to put it back."""

log = structlog.stdlib.get_logger(__name__)


async def restore_secret(tools: Tools, sight: Sight, memory: Memory) -> float:
    """Write it, where what this process has is what the record tells of: the seconds until the next look. Raises
    ``ApiError``."""
    now = tools.clock.monotonic()
    held, record = tools.keeper.held(sight.key), sight.record
    seen = sight.pods.get(held.pod_uid) if held is not None else None
    if held is None or record is None or seen is None or not _may(held, record, seen):
        memory.secret_missed_at = None
        return PATIENCE
    if memory.secret_missed_at is None:
        memory.secret_missed_at = now
    left = memory.secret_missed_at + PATIENCE - now
    if left > 0:
        return left
    new = NewSecret(
        held.pod_name,
        names.secret_labels(sight.resource),
        names.pod_owner(seen.facts.name, seen.facts.uid),
        _custody(held, record).to_data(),
    )
    try:
        if seen.secret is None:
            await tools.cluster.create_secret(sight.key.namespace, new)
        else:
            found = seen.secret
            await tools.cluster.replace_secret(
                sight.key.namespace, new, uid=found.uid, resource_version=found.resource_version
            )
    except (AlreadyExists, Conflict, NotFound):
        # Somebody else is at it: see what comes of that.
        return PATIENCE
    log.warning(
        "the Secret of a server was lost, and is written again", server=str(sight.key), pod=held.pod_name
    )
    memory.secret_missed_at = None
    return 0.05


def _may(held: OwnedServer, record: ControlServerRecord, seen: SeenPod) -> bool:
    on_record = (record.server_identity, record.pod_uid, record.adopted_by, record.rotation_id or 0)
    ours = (held.identity, held.pod_uid, held.incarnation, held.rotation_id)
    return on_record == ours and not seen.facts.terminating and seen.plan.secret is not NoSecret.UNREAD


def _custody(held: OwnedServer, record: ControlServerRecord) -> Custody:
    return Custody(
        identity=held.identity,
        credential=held.credential,
        rotation_id=held.rotation_id,
        adopted_by=held.incarnation,
        certificate=held.endpoint.certificate,
        home_dir=held.home_dir,
        port=held.endpoint.port,
        capabilities=record.capabilities,
        unowned_period_ms=record.unowned_period_ms or 0,
        diagnostic_output=record.diagnostic_output or "",
    )
