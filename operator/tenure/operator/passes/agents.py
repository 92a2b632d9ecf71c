"""The pass over one AgentProcess: observe, plan, act, status; then tell. The only place where anything happens."""

from collections.abc import Callable, Mapping

import structlog

from tenure.cluster.errors import Refused
from tenure.cluster.ports import AgentCluster
from tenure.model.errors import UnreadableObject
from tenure.model.reasons import EventReason, Phase
from tenure.model.resources import KIND
from tenure.model.status import Status
from tenure.operator.cache import ObjectCache, ObjectKey
from tenure.operator.clock import Clock
from tenure.operator.events import EventRecorder, regarding
from tenure.operator.passes.deeds import Actor, Done
from tenure.operator.passes.gone import Undertaker
from tenure.operator.passes.ledger import RETRY, StopWriter
from tenure.operator.passes.misread import Complaint
from tenure.operator.passes.sight import Hosted, NotYet, Observer, Recollection, Sight, Tables
from tenure.plan.actions import Action, Announcement, DeletePod, MarkRow, WriteStatus
from tenure.plan.agent_process import plan_agent_process
from tenure.plan.announcements import announcements
from tenure.plan.instances import end_recorded
from tenure.telemetry.metrics import Metrics

LOOKS = 8
"""Looks of one pass: more than any chain of steps has (record an end, raise an ordinal, clear up, create, record)."""
READING_AWAITED = 5.0
"""Seconds after which to look again when the first reading of a row does not come."""

log = structlog.stdlib.get_logger("tenure.pass")


class AgentPass:
    """``await agent_pass(key)``: one pass; the answer is the seconds until the next is due, or None."""

    def __init__(
        self,
        *,
        cluster: AgentCluster,
        cache: ObjectCache,
        tables: Tables,
        ledger: StopWriter,
        events: EventRecorder,
        metrics: Metrics,
        clock: Clock | None = None,
        inherited: Callable[[ObjectKey], bool] = lambda key: True,
    ) -> None:
        clock = clock or Clock()
        self._cache = cache
        self._tables = tables
        self._ledger = ledger
        self._observer = Observer(cluster, cache, tables, clock, ledger.due)
        self._actor = Actor(cluster, cache, ledger)
        self._complaint = Complaint(cluster, cache, clock)
        self._undertaker = Undertaker(cluster, cache, tables, ledger, clock)
        self._events = events
        self._metrics = metrics
        self._inherited = inherited
        self._kept: dict[ObjectKey, Recollection] = {}
        self._phases: dict[ObjectKey, Phase] = {}

    async def __call__(self, key: ObjectKey) -> float | None:
        """One pass. Raises ``ApiError`` for what has to be tried again; the queue backs off."""
        kept = self._recollect(key)
        wake_in: float | None = None
        status = Status()
        for _ in range(LOOKS):
            try:
                sight = await self._observer.look(key, kept.memory)
            except UnreadableObject as error:
                # Whoever does not understand an object does not act upon it; a change of it wakes the key.
                if (raw := self._cache.agent_process(key)) is not None:
                    await self._complaint.file(raw, error)
                return None
            if sight is None:
                return await self._gone(key, kept.uid)
            if isinstance(sight, Hosted):
                # It has no pod of its own; what is remembered is of an agent of this name that had one.
                self._tables.forget(key)
                self._phases.pop(key, None)
                return None
            if isinstance(sight, NotYet):
                return READING_AWAITED
            verdict, status = plan_agent_process(sight.observation), sight.status
            kept.memory, wake_in = verdict.memory, verdict.plan.wake_in
            if not await self._carry_out(verdict.plan.actions, sight, kept):
                self._settle(key, sight)
                break
        else:
            log.warning("a pass did not come to rest", namespace=key.namespace, name=key.name)
            wake_in = 1.0
        return self._with_ledger(wake_in, status)

    def _with_ledger(self, wake_in: float | None, status: Status) -> float | None:
        """A stop that is not in the ledger yet brings the key back, whatever else happens to it."""
        if not self._ledger.configured or not any(stop.owed for stop in status.stops):
            return wake_in
        return RETRY if wake_in is None else min(wake_in, RETRY)

    def _recollect(self, key: ObjectKey) -> Recollection:
        """What is remembered of this very object; another one of its name begins anew."""
        uid = self._cache.agent_process_uid(key)
        kept = self._kept.get(key)
        if kept is None or (uid and kept.uid != uid):
            kept = Recollection(uid=uid, unsettled=kept is None and self._inherited(key))
            self._kept[key] = kept
        return kept

    async def _carry_out(self, actions: tuple[Action, ...], sight: Sight, kept: Recollection) -> bool:
        """Whether to look again. The order counts: what follows a write must not happen before it is durable."""
        again = False
        written: list[WriteStatus] = []
        refused: Refused | None = None
        try:
            for action in actions:
                if refused is not None and not isinstance(action, MarkRow):
                    continue
                try:
                    done = await self._actor.do(action, sight, kept)
                except Refused as refusal:
                    if not isinstance(action, DeletePod):
                        raise
                    # A policy keeps the pod; its agent can still be asked through the row.
                    refused = refusal
                    continue
                if done is Done.STALE:
                    return True
                if isinstance(action, WriteStatus):
                    written.append(action)
                again = again or done is Done.CHANGED
        finally:
            # Last, whatever became of the rest: a stop goes to the pod before it goes to a log.
            for status in written:
                self._tell(sight, status)
        if refused is not None:
            raise refused
        return again

    async def _gone(self, key: ObjectKey, uid: str) -> float | None:
        wait = await self._undertaker.bury(key, uid)
        if wait is None:
            self._kept.pop(key, None)
            self._phases.pop(key, None)
            self._tables.forget(key)
        return wait

    def _tell(self, sight: Sight, written: WriteStatus) -> None:
        resource = sight.observation.resource
        about = regarding(KIND, resource.namespace, resource.name, resource.uid)
        for told in announcements(resource.status, written.status):
            self._count(told)
            self._events.emit(about, told.reason, told.note, warning=told.warning)

    def _count(self, told: Announcement) -> None:
        if told.reason is EventReason.STOP_REQUESTED and told.origin is not None:
            self._metrics.stop_requested(told.origin)
        if told.reason in (EventReason.STOPPED, EventReason.STOP_FORCED) and told.origin is not None:
            self._metrics.stopped(told.graceful, told.drain_seconds)

    def _settle(self, key: ObjectKey, sight: Sight) -> None:
        """The pass has come to rest: what is durable now need not be remembered."""
        if sight.status.phase is not None:
            self._phases[key] = sight.status.phase
        instance = sight.status.instance
        unrecorded = instance.id if instance is not None and not end_recorded(sight.status) else None
        for pod in sight.observation.pods:
            if pod.departed and pod.uid != unrecorded:
                self._cache.forget_pod(pod.uid)

    def phases(self) -> Mapping[Phase, int]:
        """How many resources are in each phase, for the gauge."""
        counts = dict.fromkeys(Phase, 0)
        for phase in self._phases.values():
            counts[phase] += 1
        return counts
