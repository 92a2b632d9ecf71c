"""What is left of an AgentProcess that is gone: its pods, which drain.

Kubernetes deletes them by their owner reference, with the operator or without it. The operator adds what Kubernetes
cannot do: it asks through the row too, and writes the ledger.
"""

from tenure.cluster.errors import Conflict, NotFound
from tenure.cluster.ports import AgentCluster
from tenure.model.ids import ordinal_of
from tenure.model.pods import PodView, read_pod
from tenure.model.reasons import StopOrigin
from tenure.operator.cache import ObjectCache, ObjectKey
from tenure.operator.clock import Clock
from tenure.operator.passes.ledger import StopWriter
from tenure.operator.passes.sight import TableReader, Tables
from tenure.plan.ends import End, graceful, last_word_in
from tenure.plan.observation import NoTable, Rows, RowsReading, Unreadable
from tenure.plan.render import DATABASE_ANNOTATION, KIND_ANNOTATION
from tenure.plan.rows import judge_row
from tenure.storage.errors import DatabaseUnavailable
from tenure.storage.snapshot import RowLookup
from tenure.storage.stops import StopEntry

LOOK_AGAIN = 5.0


class Undertaker:
    """Sees the pods of a deleted object out."""

    def __init__(
        self,
        cluster: AgentCluster,
        cache: ObjectCache,
        tables: Tables,
        ledger: StopWriter,
        clock: Clock,
    ) -> None:
        self._cluster = cluster
        self._cache = cache
        self._tables = tables
        self._ledger = ledger
        self._clock = clock

    async def bury(self, key: ObjectKey, uid: str) -> float | None:
        """Seconds until the next look, or None when nothing is left.

        ``uid``: of the object that passes have seen under this name, or empty. The rows of its pods may be found by
        name; of any other pod by UID only, for anybody can make a pod of any name that claims any owner. Raises
        ``ApiError`` when the API server does not say whether the object is really gone.
        """
        pods = self._cache.pods_of(key)
        if not pods:
            return None
        found = await self._cluster.get_agent_process(key.namespace, key.name)
        if found is not None:
            self._cache.put_agent_process(found)
            return 0.0
        again = LOOK_AGAIN
        for pod in pods:
            trusted = uid == pod.owner_uid != "" and ordinal_of(pod.name, key.name, uid) is not None
            word = last_word_in(pod, self._clock.monotonic())
            if word > 0:
                again = min(again, word)
            elif pod.over:
                await self._record(key, pod, trusted)
            else:
                await self._drain(pod, trusted)
        return again if self._cache.pods_of(key) else None

    async def _drain(self, pod: PodView, trusted: bool) -> None:
        if not pod.terminating:
            if not await still_owned(self._cluster, self._cache, pod):
                return
            try:
                left = await self._cluster.delete_pod(
                    pod.namespace, pod.name, uid=pod.uid, grace_seconds=None
                )
            except (NotFound, Conflict):
                left = None
            if left is None:
                self._cache.drop_pod_uid(pod.uid)
            else:
                self._cache.put_pod(left)
        table = self._table(pod)
        if table is None:
            return
        row = judge_row(await self._rows(pod, table, trusted), pod, _kind(pod)).row
        if row is None or row.stop_requested or row.ended_gracefully:
            return
        try:
            await table.request_agent_stop(row.instance_id)
        except DatabaseUnavailable:
            return

    async def _record(self, key: ObjectKey, pod: PodView, trusted: bool) -> None:
        """Into the ledger, if its end belongs to the deletion; then nothing more is wanted of the pod."""
        if not self._ledger.configured or not _ended_by_deletion(pod):
            self._finish(pod)
            return
        table = self._table(pod)
        rows: RowsReading = NoTable() if table is None else await self._rows(pod, table, trusted)
        finished = pod.agent.finished_at or self._clock.now()
        entry = StopEntry(
            namespace=pod.namespace,
            pod_uid=pod.uid,
            name=key.name,
            instance_id=pod.uid,
            origin=StopOrigin.DELETION,
            requested_at=pod.terminating_since or finished,
            finished_at=finished,
            graceful=graceful(End(pod=pod, row=judge_row(rows, pod, _kind(pod)))),
            exit_code=pod.agent.exit_code,
            grace_seconds=pod.grace_seconds,
        )
        if await self._ledger.record(entry):
            self._finish(pod)

    def _finish(self, pod: PodView) -> None:
        if pod.departed:
            self._cache.forget_pod(pod.uid)

    def _table(self, pod: PodView) -> TableReader | None:
        name = pod.annotations.get(DATABASE_ANNOTATION, "")
        return self._tables.of(name) if name in self._tables.allowed(pod.namespace) else None

    async def _rows(self, pod: PodView, table: TableReader, trusted: bool) -> RowsReading:
        name = pod.name if trusted else ""
        lookup = RowLookup(instance_ids=(pod.uid,), hostname=name, process_kind=_kind(pod))
        try:
            found = await table.lookup(lookup)
        except DatabaseUnavailable as error:
            return Unreadable(since=self._clock.monotonic(), reason=str(error))
        return Rows(now=found.now, taken_at=self._clock.monotonic(), rows=found.rows)


async def still_owned(cluster: AgentCluster, cache: ObjectCache, pod: PodView, *, wake: bool = True) -> bool:
    """Whether a pod still claims the owner that has gone, by a live look, which the cache takes in.

    Left behind on purpose (``--cascade=orphan``), a pod is released before its owner goes; but our watch of pods may
    be behind that of their owners.
    """
    found = await cluster.get_pod(pod.namespace, pod.name)
    if found is None or found["metadata"].get("uid") != pod.uid:
        cache.drop_pod_uid(pod.uid, wake=wake)
        return False
    cache.found_pod(found, wake=wake)
    return read_pod(found).owner_uid == pod.owner_uid


def _kind(pod: PodView) -> str:
    return pod.annotations.get(KIND_ANNOTATION, "")


def _ended_by_deletion(pod: PodView) -> bool:
    finished, asked = pod.agent.finished_at, pod.terminating_since
    return asked is not None and (finished is None or finished >= asked.replace(microsecond=0))
