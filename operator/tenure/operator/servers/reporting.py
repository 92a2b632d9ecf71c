"""The status of a ControlServer: written when it differs, and what is told because of it."""

from collections.abc import Mapping
from typing import Any

import structlog

from tenure.cluster.errors import NotFound, Refused
from tenure.model.control_server import KIND, parse_server_status
from tenure.model.errors import InvalidResource, UnreadableObject
from tenure.model.server_status import ServerStatus
from tenure.operator.events import EventRecorder, regarding
from tenure.operator.servers.attempts import Memory
from tenure.operator.servers.ports import ServerKey
from tenure.operator.servers.secrets import url_of
from tenure.operator.servers.sight import SeenPod, Sight
from tenure.operator.servers.telling import stopped_itself
from tenure.operator.servers.tools import Tools
from tenure.plan.adoption.state import PodPhase
from tenure.plan.adoption.steps import Step
from tenure.plan.servers.conditions import stalled_by_spec
from tenure.plan.servers.events import announcements, end_of_server, ended_server
from tenure.plan.servers.facts import Facts, PodMention
from tenure.plan.servers.status import differs, status_of
from tenure.storage.errors import StorageError

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
        return Facts(
            resource=sight.resource,
            state=sight.state,
            step=step,
            now=self._tools.clock.now(),
            pod=_mention(pod),
            failed=_mention(_failed_before(sight, pod)),
            ordinal=memory.top_ordinal,
            endpoint=url_of(address, port) if address and port else "",
            backend_pod=sight.backend.name if sight.backend is not None else "",
            overlap=sight.backends.overlap,
            verdict=memory.verdict,
            report=self._tools.recoverer.report(sight.key),
            said=memory.said,
            outdated=pod is not None and pod.plan.outdated,
            silent=self._tools.keeper.silent(sight.key),
            refused=memory.refused,
            namespace_terminating=memory.namespace_terminating,
            foreign=memory.foreign,
            rival=memory.rival,
        )

    async def write(self, sight: Sight, step: Step, memory: Memory) -> None:
        """Write the status if it differs. Raises ``ApiError``."""
        before, after = sight.resource.status, status_of(self.facts(sight, step, memory))
        if differs(before, after):
            await self._patch(sight.key, sight.raw, before, after)
        record = sight.state.record
        unconfirmed = record is not None and record.rotation_id > 0 and not record.rotation_confirmed
        self._tools.hooks.stands(sight.key, after.phase, unconfirmed=unconfirmed)

    async def tell_end(self, sight: Sight, step: Step, memory: Memory) -> Mapping[str, Any] | None:
        """Say that the server on record has ended: once for each, and before anything follows from it, for then the
        record names it no more. The status that says so keeps the next operator from telling it again.

        The object as it was written; None when there was nothing to be told. Raises ``ApiError``.
        """
        facts = self.facts(sight, step, memory)
        if not facts.server_gone:
            return None
        before, after = sight.resource.status, status_of(facts)
        if ended_server(after) in (None, ended_server(before)):
            return None
        hosted = await _hosted(sight)
        try:
            written = await self._patch(sight.key, sight.raw, before, after)
        except Refused as error:
            # Whoever may not write it down does what is to be done nevertheless.
            log.warning("a server's end was not told", server=str(sight.key), error=str(error))
            return None
        pod = facts.server_pod
        if written is not None and not (pod is not None and stopped_itself(pod.exit_code, pod.message)):
            told = end_of_server(pod, hosted)
            about = regarding(KIND, sight.key.namespace, sight.key.name, sight.uid)
            self._events.emit(about, told.reason, told.note, warning=told.warning)
        return written

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
    ) -> Mapping[str, Any] | None:
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
            return None  # its deletion wakes the key
        self._tools.cache.put_control_server(written, wake=False)
        about = regarding(KIND, key.namespace, key.name, meta["uid"])
        for told in announcements(before, after):
            self._events.emit(about, told.reason, told.note, warning=told.warning)
        return written


async def _hosted(sight: Sight) -> int | None:
    """Sessions that have an agent on the server on record, by their rows; None: nobody knows."""
    if sight.records is None or sight.record is None:
        return None
    names = {sight.record.pod_uid, sight.record.server_identity}
    try:
        rows = await sight.records.inventory.live(sight.installation_id)
    except StorageError:
        return None
    return sum(row.container_identity in names and not row.passthrough for row in rows)


def _mention(pod: SeenPod | None) -> PodMention | None:
    if pod is None:
        return None
    facts, ended = pod.facts, pod.plan.phase is PodPhase.ENDED
    return PodMention(
        name=facts.name,
        uid=facts.uid,
        reason=facts.reason,
        detail=facts.detail,
        exit_code=facts.exit_code,
        message=facts.message,
        ended=ended,
    )


def _failed_before(sight: Sight, current: SeenPod | None) -> SeenPod | None:
    """The latest pod but ``current`` that was made for the present vacancy and has ended."""
    record = sight.state.record
    if record is None or not record.vacant:
        return None
    ended = (p for p in sight.pods.values() if p.plan.phase is PodPhase.ENDED and p is not current)
    made = (p for p in ended if p.facts.vacancy == record.vacancy and p.facts.uid != record.pod_uid)
    return max(made, key=lambda p: p.ordinal, default=None)


def _pod_in_use(sight: Sight) -> SeenPod | None:
    """The pod of the server on record; while there is none, the newest one that is being made."""
    recorded = sight.pod_on_record()
    if recorded is not None:
        return recorded
    record = sight.state.record
    abandoned = record.pod_uid if record is not None else None
    making = [p for p in sight.pods.values() if p.facts.uid != abandoned and not p.facts.terminating]
    return max(making, key=lambda p: p.ordinal, default=None)
