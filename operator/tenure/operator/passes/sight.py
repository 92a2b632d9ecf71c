"""Observe: gather one frozen snapshot of an AgentProcess, asking live where the cache's silence is no evidence."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from tenure.cluster.ports import AgentCluster
from tenure.model.ids import template_hash
from tenure.model.pods import PodView
from tenure.model.reasons import LivenessMode, StopOrigin
from tenure.model.resources import AgentProcess, parse_agent_process
from tenure.model.status import InstanceStatus, Status
from tenure.operator.cache import ObjectCache, ObjectKey
from tenure.operator.clock import Clock
from tenure.operator.tables import UNREADABLE_ROW
from tenure.plan.instances import end_recorded, own_pods, with_instance
from tenure.plan.observation import Memory, NoTable, Observation, Rows, RowsReading, Unreadable
from tenure.plan.render import DATABASE_ANNOTATION
from tenure.storage.errors import DatabaseUnavailable
from tenure.storage.snapshot import LivenessSnapshot, RowLookup


class TableReader(Protocol):
    """What a pass needs of one database."""

    def track(self, key: ObjectKey, lookup: RowLookup) -> None:
        """From now on include this agent in the readings; wakes it after the first."""

    def untrack(self, key: ObjectKey) -> None:
        """No longer."""

    def reading(self, key: ObjectKey) -> Rows | Unreadable | None:
        """The latest; None when there has been none yet since ``track``."""

    async def lookup(self, lookup: RowLookup) -> LivenessSnapshot:
        """One live read of one agent's rows. Raises ``DatabaseUnavailable``."""

    async def request_agent_stop(self, instance_id: str) -> bool:
        """Mark the row. Raises ``DatabaseUnavailable``."""


class Tables(Protocol):
    """The operator's named databases."""

    def allowed(self, namespace: str) -> tuple[str, ...]:
        """The names that agents of this namespace may use."""

    def of(self, database: str) -> TableReader:
        """One that is allowed. Raises ``LookupError`` otherwise."""

    def forget(self, key: ObjectKey, *, but: str | None = None) -> None:
        """Track this agent nowhere any more, or in this one database only."""


@dataclass(slots=True)
class Recollection:
    """What the pass remembers of one key between looks; see ``tenure.plan.observation.Memory``."""

    uid: str = ""
    memory: Memory = field(default_factory=Memory)
    unsettled: bool = True
    """A create by an earlier operator, or of ours without an answer, may still be on its way."""


@dataclass(slots=True)
class Sight:
    """An observation, with what acting on it needs beside the plan."""

    raw: Mapping[str, Any]
    """The object as observed, or as the pass's own last write left it."""
    status: Status
    """The status in ``raw``."""
    observation: Observation
    table: TableReader | None


@dataclass(frozen=True, slots=True)
class NotYet:
    """The first reading of this agent's row is under way; to judge without it would be a guess."""


@dataclass(frozen=True, slots=True)
class Hosted:
    """The agent is an instance in a ControlServer (``spec.session``): its life is not this pass's business."""


class Observer:
    """Gathers observations for passes."""

    def __init__(
        self,
        cluster: AgentCluster,
        cache: ObjectCache,
        tables: Tables,
        clock: Clock,
        ledger_due: Callable[[], bool],
    ) -> None:
        self._cluster = cluster
        self._ledger_due = ledger_due
        self._cache = cache
        self._tables = tables
        self._clock = clock

    async def look(self, key: ObjectKey, memory: Memory) -> Sight | NotYet | Hosted | None:
        """One snapshot; None when the cache has no such object.

        Raises ``ApiError`` when a live read fails, ``InvalidResource`` for an object that is not understood.
        """
        raw = self._cache.agent_process(key)
        if raw is None:
            return None
        resource = parse_agent_process(raw)
        if resource.spec.session is not None:
            return Hosted()
        own = own_pods(resource, self._cache.pods_of(key))
        status = with_instance(resource, own, self._clock.now())
        vanished = await self._vanished(key, resource, status, own)
        pods = self._cache.pods_of(key)
        pod = _instance_pod(resource, status, pods)
        database = _database(resource, pod)
        table = self._table(resource, database)
        self._tables.forget(key, but=database)
        reading = self._reading(key, resource, status, pod, table, database)
        if reading is None:
            return NotYet()
        observation = Observation(
            resource=resource,
            template_hash=template_hash(resource.template),
            pods=pods,
            rows=reading,
            now=self._clock.now(),
            clock=self._clock.monotonic(),
            memory=memory,
            vanished=vanished,
            orphaning=_orphaning(raw),
            ledger=self._ledger_due(),
        )
        ended = vanished or (pod is not None and pod.ended)
        if ended and not end_recorded(status) and status.instance is not None:
            final = await self._final_rows(resource, status.instance, pod, table, reading)
            observation = replace(observation, final_rows=final)
        return Sight(raw, resource.status, observation, table)

    async def _vanished(
        self, key: ObjectKey, resource: AgentProcess, status: Status, own: tuple[PodView, ...]
    ) -> bool:
        instance = status.instance
        if instance is None or not instance.id or not instance.pod_name or end_recorded(status):
            return False
        known = next((pod for pod in own if pod.uid == instance.id), None)
        if known is not None and (known.seen_over or not known.departed):
            return False
        # Absence is no evidence: of a pod that lost its label the watch says, too, that it was deleted.
        found = await self._cluster.get_pod(key.namespace, instance.pod_name)
        if found is None or (found.get("metadata") or {}).get("uid") != instance.id:
            return known is None
        self._cache.found_pod(found, wake=False)
        return False

    def _table(self, resource: AgentProcess, database: str | None) -> TableReader | None:
        if database is None or database not in self._tables.allowed(resource.namespace):
            return None
        return self._tables.of(database)

    def _reading(
        self,
        key: ObjectKey,
        resource: AgentProcess,
        status: Status,
        pod: PodView | None,
        table: TableReader | None,
        database: str | None,
    ) -> RowsReading | None:
        if table is None:
            return NoTable(None if database is None else self._tables.allowed(resource.namespace))
        if pod is None or pod.ended or not pod.agent.started:
            # Who does not run has no row that could change.
            if pod is None or pod.ended:
                table.untrack(key)
            else:
                table.track(key, row_lookup(resource, status.instance, pod))
            known = table.reading(key)
            return known or Rows(now=self._clock.now(), taken_at=self._clock.monotonic())
        table.track(key, row_lookup(resource, status.instance, pod, anew=_silent(table.reading(key))))
        return table.reading(key)

    async def _final_rows(
        self,
        resource: AgentProcess,
        instance: InstanceStatus,
        pod: PodView | None,
        table: TableReader | None,
        reading: RowsReading,
    ) -> RowsReading:
        if table is None:
            return reading
        if pod is not None and pod.agent.exit_code == 0 and _settled(resource.status, instance):
            return reading
        wanted = row_lookup(resource, instance, pod)
        try:
            found = await table.lookup(wanted)
        except DatabaseUnavailable as error:
            return Unreadable(since=self._clock.monotonic(), reason=str(error))
        if not set(found.unreadable).isdisjoint(wanted.instance_ids):
            # It is there, and may hold a stop.
            return Unreadable(since=self._clock.monotonic(), reason=UNREADABLE_ROW)
        return Rows(now=found.now, taken_at=self._clock.monotonic(), rows=found.rows)


def row_lookup(
    resource: AgentProcess, instance: InstanceStatus | None, pod: PodView | None, *, anew: bool = False
) -> RowLookup:
    """How to find the row of an instance: by its pod's UID or its known row, and by name until it is known.

    ``anew``: the known row is silent. An agent that makes its own ids may have begun another in the same pod.
    """
    uid = pod.uid if pod is not None else (instance.id or "" if instance else "")
    name = pod.name if pod is not None else (instance.pod_name or "" if instance else "")
    row_id = instance.row_id if instance is not None and instance.id == uid else None
    ids = tuple(dict.fromkeys(i for i in (uid, row_id) if i))
    known = row_id is not None and not (anew and row_id != uid)
    return RowLookup(instance_ids=ids, hostname="" if known else name, process_kind=resource.process_kind)


def _silent(reading: RowsReading | None) -> bool:
    return isinstance(reading, Rows) and not any(row.alive(reading.now) for row in reading.rows)


def _settled(status: Status, instance: InstanceStatus) -> bool:
    stop = status.stop
    if stop is None or stop.instance != instance.id:
        return False
    return stop.origin not in (None, StopOrigin.DISRUPTION)


def _database(resource: AgentProcess, pod: PodView | None) -> str | None:
    """The database whose table counts; None in mode Pod.

    A living agent goes on heartbeating into the one that it was started with, whatever the spec says by now.
    """
    if pod is not None:
        return pod.annotations.get(DATABASE_ANNOTATION)
    liveness = resource.spec.liveness
    return None if liveness.mode is LivenessMode.POD else liveness.database


def _instance_pod(resource: AgentProcess, status: Status, pods: tuple[PodView, ...]) -> PodView | None:
    wanted = status.instance.id if status.instance is not None else None
    return next((pod for pod in own_pods(resource, pods) if pod.uid == wanted), None)


def _orphaning(raw: Mapping[str, Any]) -> bool:
    meta = raw.get("metadata") or {}
    return bool(meta.get("deletionTimestamp")) and "orphan" in (meta.get("finalizers") or ())
