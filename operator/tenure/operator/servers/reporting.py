"""The status of a ControlServer: written when it differs, and what is told because of it."""

from collections.abc import Mapping
from typing import Any

import structlog

from tenure.cluster.errors import NotFound
from tenure.model.control_server import KIND, parse_server_status
from tenure.model.errors import InvalidResource, UnreadableObject
from tenure.model.server_status import ServerStatus
from tenure.operator.events import EventRecorder, regarding
from tenure.operator.servers.attempts import Memory
from tenure.operator.servers.ports import ServerKey
from tenure.operator.servers.secrets import url_of
from tenure.operator.servers.sight import SeenPod, Sight
from tenure.operator.servers.tools import Tools
from tenure.plan.adoption.steps import Step
from tenure.plan.servers.conditions import stalled_by_spec
from tenure.plan.servers.events import announcements
from tenure.plan.servers.facts import Facts, PodMention
from tenure.plan.servers.outdated import outdated
from tenure.plan.servers.status import differs, status_of

log = structlog.stdlib.get_logger(__name__)


class Reporter:
    """Says in the status what a pass has seen and decided."""

    def __init__(self, tools: Tools, events: EventRecorder) -> None:
        self._tools = tools
        self._events = events

    def facts(self, sight: Sight, step: Step, memory: Memory) -> Facts:
        """What the status is made of."""
        pod = _pod_in_use(sight)
        address = pod.facts.address if pod is not None else ""
        port = pod.custody.port if pod is not None and pod.custody is not None else 0
        image = self._tools.rendering.image
        return Facts(
            resource=sight.resource,
            state=sight.state,
            step=step,
            now=self._tools.clock.now(),
            pod=PodMention(pod.facts.name, pod.facts.uid, pod.facts.reason) if pod is not None else None,
            ordinal=memory.top_ordinal,
            endpoint=url_of(address, port) if address and port else "",
            backend_pod=sight.backend.name if sight.backend is not None else "",
            overlap=sight.backends.overlap,
            verdict=memory.verdict,
            report=self._tools.recoverer.report(sight.key),
            said=memory.said,
            outdated=pod is not None and outdated(sight.resource, image, pod.facts.annotations),
            silent=self._tools.keeper.silent(sight.key),
            refused=memory.refused,
            namespace_terminating=memory.namespace_terminating,
            foreign=memory.foreign or _installation(sight, memory.rival),
        )

    async def write(self, sight: Sight, step: Step, memory: Memory) -> None:
        """Write the status if it differs. Raises ``ApiError``."""
        before, after = sight.resource.status, status_of(self.facts(sight, step, memory))
        if differs(before, after):
            await self._patch(sight.key, sight.raw, before, after)
        record = sight.state.record
        unconfirmed = record is not None and record.rotation_id > 0 and not record.rotation_confirmed
        self._tools.hooks.stands(sight.key, after.phase, unconfirmed=unconfirmed)

    async def complain(self, key: ServerKey, raw: Mapping[str, Any], error: InvalidResource) -> None:
        """Say in the condition Stalled what is not understood; every other fact stays. Raises ``ApiError``."""
        log.warning("left alone", server=str(key), error=str(error))
        try:
            before = parse_server_status(raw)
        except UnreadableObject:
            # Written by a newer operator, or by hand: to write over it would be to lose what it says.
            return
        generation = raw["metadata"].get("generation", 0)
        after = stalled_by_spec(before, generation, str(error), self._tools.clock.now())
        if differs(before, after):
            await self._patch(key, raw, before, after)

    async def _patch(
        self, key: ServerKey, raw: Mapping[str, Any], before: ServerStatus, after: ServerStatus
    ) -> None:
        meta = raw["metadata"]
        try:
            written = await self._tools.cluster.patch_control_server_status(
                key.namespace,
                key.name,
                uid=meta["uid"],
                resource_version=meta["resourceVersion"],
                status=after.to_wire(),
            )
        except NotFound:
            return  # its deletion wakes the key
        self._tools.cache.put_control_server(written, wake=False)
        about = regarding(KIND, key.namespace, key.name, meta["uid"])
        for told in announcements(before, after):
            self._events.emit(about, told.reason, told.note, warning=told.warning)


def _installation(sight: Sight, rival: str) -> str:
    return f"installation {sight.installation_id} (of ControlServer {rival})" if rival else ""


def _pod_in_use(sight: Sight) -> SeenPod | None:
    """The pod of the server on record; while there is none, the newest one that is being made."""
    recorded = sight.pod_on_record()
    if recorded is not None:
        return recorded
    record = sight.state.record
    abandoned = record.pod_uid if record is not None else None
    making = [p for p in sight.pods.values() if p.facts.uid != abandoned and not p.facts.terminating]
    return max(making, key=lambda p: p.ordinal, default=None)
