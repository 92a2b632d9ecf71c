"""The pass over one hosted AgentProcess: observe, plan, act, look again; then tell."""

from collections.abc import Mapping

import structlog

from tenure.model.errors import UnreadableObject
from tenure.model.reasons import EventReason, Phase
from tenure.model.resources import KIND, AgentProcess
from tenure.model.status import Status
from tenure.operator.cache import ObjectCache, ObjectKey
from tenure.operator.events import EventRecorder, regarding
from tenure.operator.hosted.deeds import Actor, Done
from tenure.operator.hosted.departed import Departed
from tenure.operator.hosted.sight import Observer, Recollection, Sight
from tenure.operator.passes.misread import Complaint
from tenure.plan.actions import Announcement
from tenure.plan.hosted.actions import Verdict, WriteStatus
from tenure.plan.hosted.announcements import announcements
from tenure.plan.hosted.planning import plan_hosted
from tenure.telemetry.metrics import Metrics

LOOKS = 16
LATER = 2.0
"""Seconds until something that could not be done is tried again."""

log = structlog.stdlib.get_logger(__name__)


class HostedPass:
    """``await hosted(key)``: one pass; the answer is the seconds until the next is due, or None."""

    def __init__(
        self,
        *,
        observer: Observer,
        actor: Actor,
        departed: Departed,
        complaint: Complaint,
        cache: ObjectCache,
        events: EventRecorder,
        metrics: Metrics,
    ) -> None:
        self._observer = observer
        self._actor = actor
        self._departed = departed
        self._complaint = complaint
        self._cache = cache
        self._events = events
        self._metrics = metrics
        self._kept: dict[ObjectKey, Recollection] = {}
        self._phases: dict[ObjectKey, Phase] = {}

    def knows(self, key: ObjectKey) -> bool:
        """Whether an object of this name was hosted when it was last seen."""
        return key in self._kept

    async def __call__(self, key: ObjectKey) -> float | None:
        """One pass. Raises ``ApiError`` and ``StorageError``: the queue backs off."""
        kept = self._recollect(key)
        wake_in: float | None = None
        for _ in range(LOOKS):
            try:
                sight = await self._observer.look(key, kept.memory)
            except UnreadableObject as error:
                if (raw := self._cache.agent_process(key)) is not None:
                    await self._complaint.file(raw, error)
                return None
            if sight is None:
                return await self._gone(key, kept)
            kept.session, kept.server = sight.session.session_id, sight.server_key
            verdict = plan_hosted(sight.observation)
            kept.memory, wake_in = verdict.memory, verdict.wake_in
            again, later = await self._carry_out(verdict, sight, kept)
            self._refused(verdict, sight, kept)
            if verdict.status.phase is not None:
                self._phases[key] = verdict.status.phase
            if later:
                return min(LATER, wake_in or LATER)
            if not again:
                return wake_in
        log.warning("a pass did not come to rest", namespace=key.namespace, name=key.name)
        return LATER

    def phases(self) -> Mapping[Phase, int]:
        """How many resources are in each phase, for the gauge."""
        counts = dict.fromkeys(Phase, 0)
        for phase in self._phases.values():
            counts[phase] += 1
        return counts

    def forget(self, key: ObjectKey) -> None:
        """It is hosted no more."""
        self._kept.pop(key, None)
        self._phases.pop(key, None)

    def _recollect(self, key: ObjectKey) -> Recollection:
        uid = self._cache.agent_process_uid(key)
        kept = self._kept.get(key)
        if kept is None or (uid and kept.uid != uid):
            kept = self._kept[key] = Recollection(uid=uid)
        return kept

    async def _carry_out(self, verdict: Verdict, sight: Sight, kept: Recollection) -> tuple[bool, bool]:
        """Whether to look again at once, and whether something is to be tried again later. The order counts: what
        follows a write must not happen before it is durable."""
        again = False
        for action in verdict.actions:
            before = sight.resource.status
            done = await self._actor.do(action, sight, kept)
            if done is Done.LATER:
                return False, True
            if isinstance(action, WriteStatus):
                self._tell(sight.resource, before, action.status)
            again = again or done is Done.CHANGED
        return again, False

    async def _gone(self, key: ObjectKey, kept: Recollection) -> float | None:
        """What is left of it: an agent that drains. A pass over its server would find it, too."""
        wait = None
        if kept.server is not None:
            wait = await self._departed.sweep(kept.server, kept.session)
        if wait is None:
            self.forget(key)
        return wait

    # Telling

    def _refused(self, verdict: Verdict, sight: Sight, kept: Recollection) -> None:
        """Once for each refusal of one launch. "In use" is no failure of recovery: neither counted nor told."""
        refusal = verdict.refused.refusal if verdict.refused is not None else None
        if refusal is not None and refusal is not kept.told:
            self._metrics.launch_refused(refusal)
            note = f"session {sight.session.session_id} is not launched: {refusal.value}"
            final = verdict.refused is not None and not verdict.refused.retryable
            self._events.emit(_regarding(sight.resource), EventReason.LAUNCH_REFUSED, note, warning=final)
        kept.told = refusal

    def _tell(self, resource: AgentProcess, before: Status, after: Status) -> None:
        for told in announcements(before, after):
            self._count(told)
            self._events.emit(_regarding(resource), told.reason, told.note, warning=told.warning)

    def _count(self, told: Announcement) -> None:
        if told.reason is EventReason.STOP_REQUESTED and told.origin is not None:
            self._metrics.stop_requested(told.origin)
        if told.reason in (EventReason.STOPPED, EventReason.STOP_FORCED) and told.origin is not None:
            self._metrics.stopped(told.graceful, told.drain_seconds)


def _regarding(resource: AgentProcess) -> dict[str, str]:
    return regarding(KIND, resource.namespace, resource.name, resource.uid)
