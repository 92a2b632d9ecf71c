"""One namespace with everything real in it but the node, and the words in which the tests speak of it."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
from tests.cluster.control_plane import ControlPlane
from tests.integration.agents.history import History, condition
from tests.support.api import AdminClient, Object, path
from tests.support.kubelet import Kubelet
from tests.support.operator import RunningOperator, database, running_operator
from tests.support.postgres import PostgresServer
from tests.support.wait import eventually

PROGRAMS = Path(__file__).parent / "programs"
SECRET = "agent-database"
EPOCH_YEAR = 1970

OBEDIENT = "trap 'exit 0' TERM; while :; do sleep 60 & wait $!; done"
"""A plain agent: no library, no table; ends at once when told to."""
DEAF = "trap '' TERM; while :; do sleep 0.2; done"
"""One that ignores SIGTERM."""
CRASHES_WHEN_TOLD = "trap 'exit 3' USR1; trap 'exit 0' TERM; while :; do sleep 60 & wait $!; done"
"""One that ends with 3 at SIGUSR1. A script counts as started when it minds SIGTERM, so that trap is its last."""
QUEUE = """
CREATE TABLE tasks (id serial PRIMARY KEY, agent text NOT NULL, kind text NOT NULL DEFAULT 'review',
    released boolean NOT NULL DEFAULT false, claimed_by text);
CREATE TABLE journal (id serial PRIMARY KEY, task integer NOT NULL, instance text NOT NULL, what text NOT NULL);
"""


def shell(script: str) -> list[str]:
    """The command of an agent that is a shell script."""
    return ["sh", "-c", script]


def worker() -> list[str]:
    """The command of the agent with a queue, on Tenure's library."""
    return [sys.executable, str(PROGRAMS / "worker.py")]


@dataclass
class World:
    """A namespace, its database, its node, and what happened so far."""

    plane: ControlPlane
    api: AdminClient
    kubelet: Kubelet
    namespace: str
    server: PostgresServer
    url: str
    history: History
    forgiven: list[str] = field(default_factory=list)
    """Parts of offences that a test expects."""
    _connection: Any = None
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    # The operator

    def operator(self, **options: Any) -> AbstractAsyncContextManager[RunningOperator]:
        """The real operator on this namespace, with this world's database as ``default`` and store."""
        options.setdefault("databases", [database(self.url)])
        options.setdefault("namespaces", [self.namespace])
        return running_operator(self.plane, **options)

    # Resources

    def manifest(self, name: str, command: Sequence[str] | None = None, **spec: Any) -> Object:
        """An AgentProcess that runs ``command`` (the worker by default); ``spec`` on top, whole fields."""
        container: Object = {
            "name": "agent",
            "image": "example.invalid/agent:1",
            "command": list(command or worker()),
            "env": [{"name": "AGENT_NAME", "value": name}],
        }
        fields: Object = {
            "drain": {"gracePeriodSeconds": 30},
            "backoff": {"initialSeconds": 1, "maxSeconds": 8},
            "liveness": self.liveness() if command is None else {"mode": "Pod"},
            "template": {"spec": {"containers": [container]}},
            **spec,
        }
        return {
            "apiVersion": "tenure.dev/v1alpha1",
            "kind": "AgentProcess",
            "metadata": {"name": name},
            "spec": fields,
        }

    def liveness(self, **fields: Any) -> Object:
        """``spec.liveness`` with this world's database, heartbeats once a second."""
        reference = {"name": SECRET, "key": "url"}
        return {"database": "default", "intervalSeconds": 1, "credentialsSecretRef": reference, **fields}

    async def create(self, name: str, command: Sequence[str] | None = None, **spec: Any) -> Object:
        """Create an AgentProcess; see ``manifest``."""
        body = self.manifest(name, command, **spec)
        return await self.api.create(path("agentprocesses", self.namespace), body)

    async def change(self, name: str, **spec: Any) -> Object:
        """Merge fields into ``spec``, as ``kubectl patch`` does."""
        return await self.api.patch(self.url_of(name), {"spec": spec})

    async def stop(self, name: str) -> None:
        """Ask for a stop through the resource."""
        await self.change(name, desiredState="StopRequested")

    async def start(self, name: str) -> None:
        """Take that back."""
        await self.change(name, desiredState="Running")

    async def delete(self, name: str, propagation: str = "Background") -> None:
        """Delete the AgentProcess."""
        await self.api.delete(self.url_of(name), propagation=propagation)

    def url_of(self, name: str) -> str:
        return path("agentprocesses", self.namespace, name)

    # Looking

    async def until(
        self, name: str, probe: Callable[[Object], Any], *, within: float = 15, what: str = ""
    ) -> Object:
        """The AgentProcess as soon as ``probe(status)`` is true, and the pod that its status names was seen.

        The two are watched apart, and nothing says which watch is ahead.
        """

        def look() -> Object | None:
            item = self.history.resources[name]
            status = item.get("status", {})
            pod = (status.get("instance") or {}).get("id")
            return item if probe(status) and (not pod or pod in self.history.pods_seen) else None

        try:
            return await eventually(look, within=within, every=0.02, what=what)
        except AssertionError as error:
            status = self.history.resources.get(name, {}).get("status")
            raise AssertionError(
                f"{name}: {error}; phases {self.history.phases(name)}; status {status}"
            ) from None

    async def phase(self, name: str, *phases: str, within: float = 15) -> Object:
        """The status as soon as it shows one of these phases."""
        item = await self.until(
            name, lambda s: s.get("phase") in phases, within=within, what=f"{name} is {' or '.join(phases)}"
        )
        status: Object = item["status"]
        return status

    async def condition(
        self, name: str, kind: str, status: str, reason: str = "", *, within: float = 15
    ) -> Object:
        """The condition as soon as it has this status (and reason)."""

        def fits(_: Object) -> bool:
            found = condition(self.history.resources[name], kind)
            return found["status"] == status and reason in ("", found["reason"])

        item = await self.until(name, fits, within=within, what=f"{name}: {kind}={status} {reason}")
        return condition(item, kind)

    def status(self, name: str) -> Object:
        """The status as last seen."""
        found: Object = self.history.resources[name].get("status", {})
        return found

    async def running(self, name: str, *, within: float = 20) -> str:
        """Wait for phase Running and, in mode Table, the row; returns the pod's UID."""
        status = await self.phase(name, "Running", within=within)
        uid: str = status["instance"]["id"]
        if self.history.resources[name]["spec"]["liveness"].get("mode", "Table") == "Table":
            await eventually(lambda: self.row(uid), within=within, what=f"the row of {name}")
        return uid

    async def running_without_row(self, name: str) -> str:
        """Wait for phase Running of an agent that reports to no table; the pod's UID."""
        uid: str = (await self.phase(name, "Running"))["instance"]["id"]
        return uid

    async def next_instance(
        self, name: str, former: str, *, phase: str = "Running", within: float = 20
    ) -> str:
        """Wait until another instance than ``former`` shows ``phase``, or is past it; its UID."""
        shown = ("Starting", "Running") if phase == "Starting" else (phase,)
        item = await self.until(
            name,
            lambda s: s.get("phase") in shown and s["instance"]["id"] != former,
            within=within,
            what=f"a successor of {former} is {phase}",
        )
        uid: str = item["status"]["instance"]["id"]
        return uid

    async def stopped(self, name: str, instance: str, *, within: float = 15) -> Object:
        """``status.stop`` once the end of this instance is recorded."""
        item = await self.until(
            name,
            lambda s: (s.get("stop") or {}).get("instance") == instance and s["stop"].get("finishedAt"),
            within=within,
            what=f"the end of {instance} is recorded",
        )
        stop: Object = item["status"]["stop"]
        return stop

    def pod_name(self, name: str) -> str:
        """The name of the current instance's pod."""
        found: str = self.status(name)["instance"]["podName"]
        return found

    async def pod_running(self, name: str, *, within: float = 15) -> Object:
        """The newest pod of an agent once the node says that it runs."""

        def look() -> Object | None:
            pods = self.history.pods_of(name)
            return pods[-1] if pods and pods[-1].get("status", {}).get("phase") == "Running" else None

        return await eventually(look, within=within, every=0.02, what=f"the pod of {name} runs")

    async def pod_gone(self, uid: str, *, within: float = 15) -> None:
        """Wait until the API server no longer has this pod."""
        await eventually(
            lambda: uid not in self.history.pods, within=within, every=0.02, what=f"pod {uid} is gone"
        )

    async def events(self, name: str) -> list[Object]:
        """The Events about an AgentProcess, oldest first."""
        items = await self.api.list(f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events")
        about = [e for e in items if e.get("regarding", {}).get("kind") == "AgentProcess"]
        return sorted((e for e in about if e["regarding"]["name"] == name), key=lambda e: e["eventTime"])

    async def told(self, name: str, *reasons: str, within: float = 10) -> list[Object]:
        """The Events about an AgentProcess once each of these reasons is among them, as often as it is named."""

        async def look() -> list[Object] | None:
            found = await self.events(name)
            return found if Counter(reasons) <= Counter(e["reason"] for e in found) else None

        return await eventually(look, within=within, what=f"Events {reasons} about {name}")

    # The database

    async def sql(self, statement: str, *values: object) -> list[Any]:
        """Run one statement in this world's database, on a connection that is kept."""
        async with self._one_at_a_time:
            try:
                return await self._fetch(statement, *values)
            except (asyncpg.InterfaceError, asyncpg.PostgresConnectionError, OSError):
                await self.leave()  # the server was away
                return await self._fetch(statement, *values)

    async def _fetch(self, statement: str, *values: object) -> list[Any]:
        if self._connection is None:
            self._connection = await asyncpg.connect(self.url, timeout=10, command_timeout=20)
        return list(await self._connection.fetch(statement, *values))

    async def leave(self) -> None:
        """Close that connection."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def row(self, instance: str) -> Any | None:
        """The liveness row with this id."""
        found = await self.sql("SELECT * FROM cks_agent_liveness WHERE instance_id = $1", instance)
        return found[0] if found else None

    async def mark(self, instance: str) -> None:
        """Ask for a stop as somebody with psql does."""
        done = await self.sql(
            "UPDATE cks_agent_liveness SET desired_state = 'stop_requested' WHERE instance_id = $1 RETURNING 1",
            instance,
        )
        assert done, f"no row {instance}"

    async def is_marked(self, instance: str) -> bool:
        """Whether a stop is asked for in the row."""
        row = await self.row(instance)
        return row is not None and row["desired_state"] == "stop_requested"

    async def drop_trigger(self) -> None:
        """Make this a database in which nobody may install the notify trigger."""
        sql = "SELECT tgname FROM pg_trigger WHERE tgrelid = 'cks_agent_liveness'::regclass AND NOT tgisinternal"
        triggers = [row["tgname"] for row in await self.sql(sql)]
        assert triggers, "the migration makes one"
        for trigger in triggers:
            await self.sql(f'DROP TRIGGER "{trigger}" ON cks_agent_liveness')

    async def listened_to(self) -> None:
        """Wait until the operator listens for what the notify trigger says."""
        sql = """SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle'
            AND application_name = 'tenure-operator-listen' AND query ILIKE 'listen%'"""
        await eventually(lambda: self.sql(sql), within=20, what="the operator listens")

    async def polled(self) -> None:
        """Return right after the operator has polled the table: it read, and had not for more than a second."""
        sql = """SELECT max(query_start) FROM pg_stat_activity
            WHERE datname = current_database() AND application_name = 'tenure-operator'"""
        last, since = None, time.monotonic()

        async def again() -> bool:
            nonlocal last, since
            ((at,),) = await self.sql(sql)
            if at == last:
                return False
            paused = time.monotonic() - since
            last, since = at, time.monotonic()
            return paused > 1.5

        await eventually(again, within=30, every=0.02, what="the operator reads the table")

    async def pause_for_rows(self, *names: str) -> None:
        """Wait until the operator has read once for each of these agents, which run.

        "Starting" alone does not say so: it is also the phase of a pod whose agent is not running yet.
        """
        for name in names:
            await self.until(
                name,
                lambda s: (
                    s.get("phase") == "Running"
                    or any("first heartbeat" in each["message"] for each in s.get("conditions", ()))
                ),
            )

    async def insert_row(self, instance: str, **columns: Any) -> None:
        """A row as an agent that this test does not run would have written it."""
        values: Object = {
            "instance_id": instance,
            "process_kind": "critic",
            "hostname": "elsewhere",
            "pid": 7,
            "liveness_interval_s": 1.0,
            **columns,
        }
        age = values.pop("age", 0.0)
        names = ", ".join(values)
        marks = ", ".join(f"${number}" for number in range(1, len(values) + 1))
        await self.sql(
            f"INSERT INTO cks_agent_liveness ({names}, started_at, last_heartbeat_at) "
            f"VALUES ({marks}, now(), now() - ${len(values) + 1} * interval '1 second')",
            *values.values(),
            float(age),
        )

    async def ledger(self, name: str) -> list[Any]:
        """The ledger's rows about an AgentProcess, oldest first."""
        return await self.sql(
            "SELECT * FROM tenure.agent_stops WHERE namespace = $1 AND name = $2 ORDER BY requested_at",
            self.namespace,
            name,
        )

    async def ended_in_ledger(self, name: str, within: float = 10) -> list[Any]:
        """The same as soon as there are some, and each tells of an end: a stop that begins is written down, too."""

        async def look() -> list[Any]:
            rows = await self.ledger(name)
            return rows if all(row["finished_at"] is not None for row in rows) else []

        rows: list[Any] = await eventually(look, within=within, what="the ledger tells of the end")
        return rows

    # The queue

    async def give(self, agent: str, *, released: bool = False) -> int:
        """A task for an agent's queue; it takes until ``release``."""
        found = await self.sql(
            "INSERT INTO tasks (agent, released) VALUES ($1, $2) RETURNING id", agent, released
        )
        return int(found[0]["id"])

    async def release(self, task: int) -> None:
        """Let the agent finish the task."""
        await self.sql("UPDATE tasks SET released = true WHERE id = $1", task)

    async def busy(self, agent: str) -> int:
        """Give a task and wait until the agent has it in hand; its number."""
        task = await self.give(agent)
        await eventually(lambda: self.journal(task), within=10, what=f"{agent} works on {task}")
        return task

    async def journal(self, task: int) -> list[str]:
        """What happened to a task: ``start``, ``finish``."""
        rows = await self.sql("SELECT what FROM journal WHERE task = $1 ORDER BY id", task)
        return [row["what"] for row in rows]

    async def assert_finished_once(self, *tasks: int) -> None:
        """Each task was begun once and finished once."""
        for task in tasks:
            done = await self.journal(task)
            assert done == ["start", "finish"], f"task {task}: {done}"


async def all_of(*waits: Any) -> list[Any]:
    """Wait for several at once; the first failure is the test's."""
    return list(await asyncio.gather(*waits))
