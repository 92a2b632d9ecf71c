"""Servers that have stopped themselves, because nobody claimed them: each is told of once, whoever leads when, and
wherever it stood: on record, or left alone by an adoption that was refused.
"""

import structlog

from tenure.cluster.errors import Refused
from tenure.operator.servers.sight import SeenPod, Sight
from tenure.operator.servers.telling import stopped_itself
from tenure.operator.servers.tools import Tools
from tenure.plan.adoption.state import PodPhase
from tenure.plan.servers.events import ended_server

TOLD_ANNOTATION = "tenure.dev/unowned-shutdown"
"""On the pod of such a server, once it was told of. It stays as long as the pod, whose last words people may read."""

log = structlog.stdlib.get_logger(__name__)


async def tell_of_shutdowns(tools: Tools, sight: Sight) -> None:
    """Mark their pods, then tell. Raises ``ApiError``: nothing was told then."""
    for seen in sight.pods.values():
        facts = seen.facts
        if seen.plan.phase is not PodPhase.ENDED or TOLD_ANNOTATION in facts.annotations:
            continue
        if not stopped_itself(facts.exit_code, facts.message):
            continue
        told = _said_in_status(sight, seen)
        try:
            written = await tools.cluster.annotate_pod(
                sight.key.namespace, facts.name, uid=facts.uid, annotations={TOLD_ANNOTATION: "told"}
            )
        except Refused as error:
            # Whoever may not write it down tells it nevertheless, if only once himself.
            log.warning("a server's shutdown was not marked", server=str(sight.key), error=str(error))
        else:
            tools.cache.put_pod(written)
        if not told:
            tools.hooks.server_ended(sight.resource, facts.uid, facts.exit_code, facts.message)


def _said_in_status(sight: Sight, seen: SeenPod) -> bool:
    """Whether it is the server on record, of which the status says so already."""
    if seen is not sight.pod_on_record() or sight.record is None:
        return False
    return ended_server(sight.resource.status) == sight.record.server_identity
