"""One pass on real parts (cache, plan, actor, ledger) over an API server in memory, with clocks set by hand.

Watch events arrive when a test says so: ``bench.show`` and ``bench.hide``. That is what these tests are about.
"""

import copy
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from tests.support.builders import NOW, raw_process, wire

from tenure.cluster.errors import AlreadyExists, Conflict, NotFound
from tenure.operator.cache import ObjectCache, ObjectKey
from tenure.operator.clock import Clock
from tenure.operator.events import EventRecorder
from tenure.operator.passes.agents import AgentPass
from tenure.operator.passes.ledger import StopWriter, Store
from tenure.operator.tables import TableWatch
from tenure.storage.errors import DatabaseUnavailable
from tenure.storage.snapshot import LivenessSnapshot, RowLookup
from tenure.telemetry.metrics import Metrics

Json = dict[str, Any]
CRITIC = ObjectKey("agents", "critic")


class ApiServer:
    """``AgentCluster`` in memory: versions, UIDs, preconditions, graceful deletion."""

    def __init__(self) -> None:
        self.processes: dict[tuple[str, str], Json] = {}
        self.pods: dict[tuple[str, str], Json] = {}
        self.calls: list[str] = []
        self.events: list[str] = []
        self._version = 100

    def stamp(self, raw: Json) -> Json:
        self._version += 1
        raw["metadata"]["resourceVersion"] = str(self._version)
        return raw

    @property
    def writes(self) -> list[str]:
        return [call for call in self.calls if not call.startswith("get")]

    def pod(self, name: str, namespace: str = "agents") -> Json:
        return self.pods[namespace, name]

    async def get_agent_process(self, namespace: str, name: str) -> Json | None:
        self.calls.append(f"get agent {name}")
        return copy.deepcopy(self.processes.get((namespace, name)))

    async def get_pod(self, namespace: str, name: str) -> Json | None:
        self.calls.append(f"get pod {name}")
        return copy.deepcopy(self.pods.get((namespace, name)))

    async def create_pod(self, namespace: str, body: Json) -> Json:
        name = body["metadata"]["name"]
        if (namespace, name) in self.pods:
            raise AlreadyExists(409, "AlreadyExists", "there is one")
        self.calls.append(f"create {name}")
        raw = copy.deepcopy(body)
        raw["metadata"] |= {"uid": f"uid-of-{name}", "creationTimestamp": wire(NOW)}
        raw["status"] = {"phase": "Pending"}
        self.pods[namespace, name] = self.stamp(raw)
        return copy.deepcopy(raw)

    async def delete_pod(
        self, namespace: str, name: str, *, uid: str, grace_seconds: int | None
    ) -> Json | None:
        self.calls.append(f"delete {name}")
        raw = self.pods.get((namespace, name))
        if raw is None:
            return None
        if raw["metadata"]["uid"] != uid:
            raise Conflict(409, "Conflict", "another UID")
        if raw["status"]["phase"] in ("Succeeded", "Failed") or not raw["spec"].get("nodeName"):
            del self.pods[namespace, name]
            return None
        grace = raw["spec"]["terminationGracePeriodSeconds"] if grace_seconds is None else grace_seconds
        raw["metadata"] |= {
            "deletionTimestamp": wire(NOW + timedelta(seconds=grace)),
            "deletionGracePeriodSeconds": grace,
        }
        return copy.deepcopy(self.stamp(raw))

    async def annotate_pod(
        self, namespace: str, name: str, *, uid: str, annotations: Mapping[str, str | None]
    ) -> Json:
        self.calls.append(f"annotate {name}")
        raw = self.pods[namespace, name]
        for key, value in annotations.items():
            raw["metadata"]["annotations"].pop(key, None)
            if value is not None:
                raw["metadata"]["annotations"][key] = value
        return copy.deepcopy(self.stamp(raw))

    async def patch_agent_process_status(
        self, namespace: str, name: str, *, uid: str, resource_version: str, status: Json
    ) -> Json:
        raw = self.processes.get((namespace, name))
        if raw is None:
            raise NotFound(404, "NotFound", "gone")
        if (raw["metadata"]["uid"], raw["metadata"]["resourceVersion"]) != (uid, resource_version):
            raise Conflict(409, "Conflict", "not the one that was read")
        self.calls.append(f"status {name}")
        raw["status"] = copy.deepcopy(status)
        return copy.deepcopy(self.stamp(raw))

    async def create_event(
        self, regarding: Mapping[str, str], *, reason: str, note: str, warning: bool, action: str
    ) -> None:
        self.events.append(reason)


class Rows:
    """A database in memory, read by a real ``TableWatch`` when a test says so."""

    name = "default"

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.unreadable: tuple[str, ...] = ()
        self.now = NOW
        self.down = False
        self.marked: list[str] = []
        self.lookups: list[RowLookup] = []

    async def snapshot(self, lookups: Any) -> LivenessSnapshot:
        if self.down:
            raise DatabaseUnavailable(self.name, "not reachable")
        self.lookups = list(lookups)
        ids = {i for each in lookups for i in each.instance_ids}
        names = {(each.process_kind, each.hostname) for each in lookups if each.hostname}
        found = [r for r in self.rows if r.instance_id in ids or (r.process_kind, r.hostname) in names]
        return LivenessSnapshot(self.now, tuple(found), self.unreadable)

    async def lookup(self, lookup: RowLookup) -> LivenessSnapshot:
        return await self.snapshot([lookup])

    async def request_agent_stop(self, instance_id: str) -> bool:
        self.marked.append(instance_id)
        return True

    def listener(self, on_change: Any) -> Any:
        raise NotImplementedError


class OneTable:
    """``Tables`` with one database; none when ``rows`` is None."""

    def __init__(self, rows: Rows | None, watch: TableWatch | None) -> None:
        self.rows, self.watch = rows, watch

    def allowed(self, namespace: str) -> tuple[str, ...]:
        return ("default",) if self.rows is not None else ()

    def of(self, database: str) -> Any:
        return self

    def track(self, key: ObjectKey, lookup: RowLookup) -> None:
        assert self.watch is not None
        self.watch.track(key, lookup)

    def untrack(self, key: ObjectKey) -> None:
        assert self.watch is not None
        self.watch.untrack(key)

    def reading(self, key: ObjectKey) -> Any:
        assert self.watch is not None
        return self.watch.reading(key)

    async def lookup(self, lookup: RowLookup) -> LivenessSnapshot:
        assert self.rows is not None
        return await self.rows.lookup(lookup)

    async def request_agent_stop(self, instance_id: str) -> bool:
        assert self.rows is not None
        return await self.rows.request_agent_stop(instance_id)

    def forget(self, key: ObjectKey, *, but: str | None = None) -> None:
        if self.watch is not None and but != "default":
            self.watch.untrack(key)


class Bench:
    """An operator's pass over one agent called ``critic``."""

    def __init__(self, *, table: bool = False, store: Store | None = None, **spec: Any) -> None:
        self.api = ApiServer()
        self.clock = 5000.0
        self.now: datetime = NOW
        self.woken: list[ObjectKey] = []
        self.cache = ObjectCache(self.woken.append, clock=lambda: self.clock)
        self.rows = Rows() if table else None
        self.watch = (
            TableWatch(self.rows, wake=self.woken.append, clock=lambda: self.clock) if self.rows else None
        )
        clock = Clock(now=lambda: self.now, monotonic=lambda: self.clock)
        self.emitted = EventRecorder(self.api, monotonic=lambda: self.clock)
        self.ledger = StopWriter(store, clock=lambda: self.clock)
        self.agent_pass = AgentPass(
            cluster=self.api,
            cache=self.cache,
            tables=OneTable(self.rows, self.watch),
            ledger=self.ledger,
            events=self.emitted,
            metrics=Metrics(),
            clock=clock,
            inherited=lambda key: False,
        )
        if not table:
            spec = {"liveness": {"mode": "Pod"}, **spec}
        self.put_process(raw_process(**spec))

    # --- what people and clusters do

    def put_process(self, raw: Json) -> None:
        raw = self.api.stamp(raw)
        self.api.processes[raw["metadata"]["namespace"], raw["metadata"]["name"]] = raw
        self.cache.put_agent_process(copy.deepcopy(raw))

    def edit(self, **spec: Any) -> None:
        raw = self.process
        raw["spec"] |= spec
        raw["metadata"]["generation"] += 1
        self.put_process(raw)

    def edit_status(self, **status: Any) -> None:
        raw = self.process
        raw["status"] |= status
        self.put_process(raw)

    def runs(self, name: str) -> None:
        """The kubelet starts the agent, and the watch shows it."""
        self.runs_unseen(name)
        self.show(name)

    def runs_unseen(self, name: str) -> None:
        """The watch has yet to tell of it."""
        raw = self.api.pod(name)
        raw["spec"]["nodeName"] = "node-1"
        state = {"running": {"startedAt": wire(self.now)}}
        raw["status"] = {"phase": "Running", "containerStatuses": [{"name": "agent", "state": state}]}

    def ends(self, name: str, exit_code: int = 0) -> None:
        self.ends_unseen(name, exit_code)
        self.show(name)

    def ends_unseen(self, name: str, exit_code: int = 0) -> None:
        """The watch has yet to tell of it."""
        raw = self.api.pod(name)
        state = {
            "terminated": {
                "exitCode": exit_code,
                "startedAt": wire(self.now),
                "finishedAt": wire(self.now),
                "reason": "Completed" if exit_code == 0 else "Error",
            }
        }
        phase = "Succeeded" if exit_code == 0 else "Failed"
        raw["status"] = {"phase": phase, "containerStatuses": [{"name": "agent", "state": state}]}

    def show(self, name: str) -> None:
        self.cache.put_pod(copy.deepcopy(self.api.stamp(self.api.pod(name))))

    def leaves_the_selector(self, name: str) -> None:
        """Somebody takes the role label away: the watch says DELETED of a pod that goes on."""
        raw = self.api.stamp(self.api.pod(name))
        raw["metadata"]["labels"].pop("tenure.dev/role", None)
        self.cache.drop_pod(copy.deepcopy(raw))

    # --- what there is then

    @property
    def process(self) -> Json:
        return copy.deepcopy(self.api.processes["agents", "critic"])

    @property
    def status(self) -> Json:
        status: Json = self.process.get("status", {})
        return status

    @property
    def pods(self) -> list[str]:
        return sorted(name for _, name in self.api.pods)

    @property
    def living(self) -> list[str]:
        """Pods whose agent may be at work."""
        return sorted(
            name
            for (_, name), p in self.api.pods.items()
            if p["status"]["phase"] not in ("Succeeded", "Failed")
        )

    async def run(self) -> float | None:
        """One pass."""
        return await self.agent_pass(CRITIC)

    async def read(self) -> None:
        """The table is read for everybody."""
        assert self.watch is not None
        await self.watch._read(set(self.watch._tracked))

    async def started(self) -> str:
        """A first instance that runs; its pod's name."""
        await self.run()
        (name,) = self.pods
        self.runs(name)
        await self.run()
        if self.watch is not None:
            await self.read()
            await self.run()
        return name

    def later(self, seconds: float) -> None:
        self.clock += seconds
        self.now += timedelta(seconds=seconds)
