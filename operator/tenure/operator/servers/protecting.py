"""What stands beside a server in use: drains and autoscalers kept away while it hosts instances, the network policy as
the spec has it now, and an empty server of an older spec replaced."""

import structlog

from tenure.cluster.calls import Companion
from tenure.cluster.errors import Conflict, Refused
from tenure.operator.servers.sight import SeenPod, Sight
from tenure.operator.servers.tools import Tools, records_of
from tenure.plan.adoption.state import PodPhase
from tenure.plan.servers import names
from tenure.plan.servers.outdated import to_be_replaced
from tenure.plan.servers.pod import protection
from tenure.plan.servers.policies import disruption_budget

log = structlog.stdlib.get_logger(__name__)


async def protect(tools: Tools, sight: Sight) -> None:
    """Bring it all into line, right after an enumeration. Raises ``ApiError`` and ``StorageError``."""
    pod = sight.pod_on_record()
    if pod is None:
        return
    hosted = tools.recoverer.report(sight.key).hosted
    # After the enumeration: a launch writes its row before it asks the server for an instance.
    live = await records_of(sight).inventory.live(sight.installation_id)
    count = None if hosted is None else hosted + len(live)
    # As long as nobody knows, it may host something.
    hosting = count != 0
    for kind, body in tools.rendering.companions(sight.resource):
        if kind is not Companion.CLAIM:
            await _ensure(tools, sight, kind, body)
    if hosting:
        await _ensure(
            tools, sight, Companion.DISRUPTION_BUDGET, disruption_budget(sight.resource, pod.ordinal)
        )
    else:
        name = names.budget_name(sight.resource)
        await tools.cluster.remove(
            Companion.DISRUPTION_BUDGET, sight.key.namespace, name, owner_uid=sight.uid
        )
    await _spare(tools, sight, pod, hosting=hosting)
    await _clear_away(tools, sight, {row.container_identity for row in live})
    if to_be_replaced(outdated=pod.plan.outdated, hosted=count) and not pod.facts.terminating:
        log.info("an empty server of an older spec is replaced", server=str(sight.key), pod=pod.facts.name)
        left = await tools.cluster.delete_pod(
            sight.key.namespace, pod.facts.name, uid=pod.facts.uid, grace_seconds=None
        )
        if left is not None:
            tools.cache.put_pod(left)


async def _clear_away(tools: Tools, sight: Sight, named: set[str]) -> None:
    """Pods of servers that have ended, but for the latest, whose log somebody may want to read. Those that rows still
    name stay: by them rows are known to be dead."""
    ended = [p for p in sight.pods.values() if p.plan.phase is PodPhase.ENDED and not p.facts.terminating]
    for pod in sorted(ended, key=lambda p: p.ordinal)[:-1]:
        identity = pod.custody.identity if pod.custody is not None else ""
        if not named & {pod.facts.uid, identity}:
            await tools.cluster.delete_pod(
                sight.key.namespace, pod.facts.name, uid=pod.facts.uid, grace_seconds=None
            )


async def _ensure(tools: Tools, sight: Sight, kind: Companion, body: dict[str, object]) -> None:
    try:
        await tools.cluster.ensure(kind, sight.key.namespace, body)
    except (Conflict, Refused) as error:
        # Somebody else's object of that name: theirs it stays. The agents go on without it.
        log.warning("a companion was not written", server=str(sight.key), kind=kind.name, error=str(error))


async def _spare(tools: Tools, sight: Sight, pod: SeenPod, *, hosting: bool) -> None:
    changes = protection(sight.resource, pod.facts.annotations, hosting=hosting)
    if changes is None:
        return
    written = await tools.cluster.annotate_pod(
        sight.key.namespace, pod.facts.name, uid=pod.facts.uid, annotations=changes
    )
    tools.cache.put_pod(written)
