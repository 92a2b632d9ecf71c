"""One namespace with a control server, its backend and its agents, everything real but the node; and the words in which
the tests speak of it."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
from tests.cluster.control_plane import ControlPlane
from tests.integration.servers.canaries import PLANTED, Canaries
from tests.integration.servers.evidence import Evidence
from tests.integration.servers.history import History, condition, container_of, incarnation, ready
from tests.support.api import AdminClient, Object, path
from tests.support.kubelet import Kubelet
from tests.support.operator import (
    OperatorProcess,
    RunningOperator,
    database,
    operator_process,
    running_operator,
)
from tests.support.postgres import PostgresServer
from tests.support.wait import eventually

PROGRAMS = Path(__file__).parent / "programs"
DATABASE_SECRET = "backend-database"
NAME = "main"
INSTALLATION = "main"
GATE = "tenure.dev/recovered"
DEPLOYMENTS = "/apis/apps/v1/namespaces/{}/deployments"
WITHIN = 40.0
"""Seconds for anything that the operator has to do first: this machine may be busy."""


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
    evidence: Evidence
    canaries: Canaries
    operators: list[RunningOperator] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)
    """Of operators in processes of their own."""
    texts: list[tuple[str, str]] = field(default_factory=list)
    """More places that a secret must not be in: a name and what stood there."""
    _connection: Any = None
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    # The operator

    @asynccontextmanager
    async def operator(self, **options: Any) -> AsyncIterator[RunningOperator]:
        """The real operator, in this process, on this namespace. Its metrics are searched for secrets, too."""
        options.setdefault("databases", [database(self.url)])
        options.setdefault("namespaces", [self.namespace])
        async with running_operator(self.plane, **options) as operator:
            try:
                yield operator
            finally:
                pages = [context.metrics.render().decode() for context in operator.contexts]
                self.texts += [("the metrics page", page) for page in pages]

    def operator_process(self, **options: Any) -> AbstractAsyncContextManager[OperatorProcess]:
        """The same in a process of its own."""
        options.setdefault("databases", [database(self.url)])
        options.setdefault("namespaces", [self.namespace])
        folder = self.evidence.folder / "operators"
        self.logs.append(folder)
        return operator_process(self.plane, folder, **options)

    # The ControlServer

    def manifest(
        self,
        name: str = NAME,
        *,
        floor_seconds: int = 0,
        capabilities: str = "",
        stubborn: bool = False,
        **spec: Any,
    ) -> Object:
        """A ControlServer with survival and the backend of ``deploy``; ``spec`` on top, whole fields.

        ``floor_seconds``: the server's program is one whose floor of the unowned period is so low; give it a
        short ``idleTimeoutSeconds``, of which the period then is half. ``capabilities``: it advertises these, as a
        server of another version does. ``stubborn``: it answers a shutdown with 500.
        """
        env: list[Object] = [
            {"name": "TENURE_SERVER_WORKSPACE_ROOTS", "value": str(self.evidence.workspaces)},
            {"name": "STAND_IN_ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        ]
        if floor_seconds:
            env.append({"name": "STAND_IN_FLOOR_MS", "value": str(1000 * floor_seconds)})
        if capabilities:
            env.append({"name": "STAND_IN_CAPABILITIES", "value": capabilities})
        if stubborn:
            env.append({"name": "STAND_IN_STUBBORN", "value": "1"})
        fields: Object = {
            "agentSurvival": "Enabled",
            "installationID": INSTALLATION,
            "backend": {"selector": {"matchLabels": {"app": "backend"}}, "container": "backend"},
            "server": {
                "image": "example.invalid/server:1",
                "template": {"spec": {"containers": [{"name": "server", "env": env}]}},
            },
            **spec,
        }
        return {
            "apiVersion": "tenure.dev/v1alpha1",
            "kind": "ControlServer",
            "metadata": {"name": name},
            "spec": fields,
        }

    async def create(self, name: str = NAME, **spec: Any) -> Object:
        """Create a ControlServer; see ``manifest``."""
        return await self.api.create(path("controlservers", self.namespace), self.manifest(name, **spec))

    async def change(self, name: str = NAME, **spec: Any) -> Object:
        """Merge fields into its spec."""
        return await self.api.patch(path("controlservers", self.namespace, name), {"spec": spec})

    def status(self, name: str = NAME) -> Object:
        """The status as last seen."""
        found: Object = self.history.resources[name].get("status", {})
        return found

    async def until(
        self, probe: Callable[[Object], Any], *, name: str = NAME, within: float = WITHIN, what: str = ""
    ) -> Object:
        """The status as soon as ``probe(status)`` is true."""

        def look() -> Object | None:
            status = self.status(name)
            return status if probe(status) else None

        try:
            return await eventually(look, within=within, every=0.02, what=what)
        except AssertionError as error:
            raise AssertionError(
                f"{error}; status {self.history.resources.get(name, {}).get('status')}"
            ) from None

    async def condition(
        self, kind: str, status: str, reason: str = "", *, name: str = NAME, within: float = WITHIN
    ) -> Object:
        """The condition as soon as it has this status (and reason)."""

        def look() -> Object | None:
            found = condition(self.history.resources[name], kind)
            return found if found["status"] == status and reason in ("", found["reason"]) else None

        try:
            return await eventually(look, within=within, every=0.02, what=f"{kind}={status} {reason}")
        except AssertionError as error:
            raise AssertionError(
                f"{error}; status {self.history.resources.get(name, {}).get('status')}"
            ) from None

    # Pods of the server

    def server_pods(self) -> list[Object]:
        """Those that exist, oldest first."""
        return self.history.of_role("server")

    async def server_pod(self, *, other_than: Sequence[str] = (), within: float = WITHIN) -> Object:
        """A running pod of a server whose UID is none of these."""

        def look() -> Object | None:
            for pod in self.server_pods():
                if pod["metadata"]["uid"] not in other_than and "running" in container_of(pod).get(
                    "state", {}
                ):
                    return pod
            return None

        return await eventually(look, within=within, what="a control server's pod runs")

    # The backend

    def backend_template(self, *, gate: bool = True, revision: str = "1", **pod_spec: Any) -> Object:
        """The pod template of a backend."""
        environment: Object = {
            "ORDERS": str(self.evidence.orders),
            "JOURNAL": str(self.evidence.backend_journal),
            "INSTALLATION": INSTALLATION,
            "HANDOVER_SECRET": f"{NAME}-handover",
            "KUBECONFIG": str(self.plane.kubeconfig),
            "REVISION": revision,
        }
        env: list[Object] = [{"name": key, "value": value} for key, value in environment.items()]
        for key, field_path in (("POD_UID", "metadata.uid"), ("NAMESPACE", "metadata.namespace")):
            env.append({"name": key, "valueFrom": {"fieldRef": {"fieldPath": field_path}}})
        reference = {"name": DATABASE_SECRET, "key": "url"}
        env.append({"name": "DATABASE_URL", "valueFrom": {"secretKeyRef": reference}})
        container: Object = {
            "name": "backend",
            "image": "example.invalid/backend:1",
            "command": [sys.executable, str(PROGRAMS / "backend.py")],
            "env": env,
        }
        return {
            "metadata": {"labels": {"app": "backend", "tenure.dev/role": "backend"}},
            "spec": {
                "terminationGracePeriodSeconds": 10,
                "automountServiceAccountToken": False,
                **({"readinessGates": [{"conditionType": GATE}]} if gate else {}),
                "containers": [container],
                **pod_spec,
            },
        }

    async def deploy(self, *, replicas: int = 1, **template: Any) -> None:
        """A Deployment of the backend: surge 1, unavailable 0, as one rolls out that must never be away."""
        body: Object = {
            "metadata": {"name": "backend"},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"app": "backend"}},
                "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
                "template": self.backend_template(**template),
            },
        }
        await self.api.create(DEPLOYMENTS.format(self.namespace), body)

    async def roll_out(self, revision: str) -> None:
        """Change the Deployment's template, as a new version does, and wait until the rollout is over."""
        url = f"{DEPLOYMENTS.format(self.namespace)}/backend"
        template = self.backend_template(revision=revision)
        changed = await self.api.patch(url, {"spec": {"template": template}})
        generation = changed["metadata"]["generation"]

        async def over() -> bool:
            status: Object = (await self.api.get(url))["status"]
            counts = {status.get(kind) for kind in ("updatedReplicas", "readyReplicas", "replicas")}
            return bool(status.get("observedGeneration", 0) >= generation and counts == {1})

        await eventually(over, within=2 * WITHIN, every=0.2, what="the rollout is over")

    async def scale(self, replicas: int) -> None:
        """How many backends there are."""
        url = f"{DEPLOYMENTS.format(self.namespace)}/backend"
        await self.api.patch(url, {"spec": {"replicas": replicas}})

    async def alone(self, name: str = "alone", **template: Any) -> Object:
        """A pod of a backend without a Deployment, which nobody replaces."""
        body = self.backend_template(**template)
        body["metadata"]["name"] = name
        return await self.api.create(path("pods", self.namespace), body)

    def backends(self) -> list[Object]:
        """Pods of backends that exist, oldest first."""
        return self.history.of_role("backend")

    async def backend(
        self, *, other_than: Sequence[str] = (), recovered: bool = True, within: float = WITHIN
    ) -> Object:
        """The pod of a running backend whose incarnation is none of these; ``recovered``: that is recovered for."""

        async def look() -> Object | None:
            by = (await self.record())["recovered_by"] if recovered else None
            for pod in reversed(self.backends()):
                life = incarnation(pod)
                running = "running" in container_of(pod).get("state", {})
                if life in other_than or not running or "deletionTimestamp" in pod["metadata"]:
                    continue
                if not recovered or by == life:
                    return pod
            return None

        try:
            return await eventually(
                look, within=within, what=f"another backend than {other_than} is recovered"
            )
        except AssertionError as error:
            raise AssertionError(
                f"{error}; status {self.history.resources.get(NAME, {}).get('status')}"
            ) from None

    async def attached(self, pod: Object, *, sessions: Sequence[str] = (), within: float = WITHIN) -> None:
        """Wait until this incarnation's process has its server, and has found these sessions there."""
        pid = self.kubelet.container(self.namespace, pod["metadata"]["name"]).pid

        def look() -> bool:
            found = self.evidence.backend("found", pid=pid)
            return bool(found) and set(sessions) <= set(found[-1]["sessions"])

        await eventually(look, within=within, what=f"{pod['metadata']['name']} has found {sessions}")

    def kill_backend(self, pod: Object) -> str:
        """SIGKILL for its main container, which the node starts again in place; the incarnation that ended."""
        life = incarnation(pod)
        self.kubelet.kill(self.namespace, pod["metadata"]["name"])
        return life

    async def delete_pod(self, pod: Object, grace: int | None = None) -> str:
        """Delete a pod; the incarnation that ends."""
        life = incarnation(pod)
        url = path("pods", self.namespace, pod["metadata"]["name"])
        await self.api.delete(url, grace=grace, uid=pod["metadata"]["uid"])
        return life

    async def evict(self, pod: Object) -> str:
        """Ask the Eviction API, as a drain does."""
        life = incarnation(pod)
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod["metadata"]["name"], "namespace": self.namespace},
        }
        await self.api.create(path("pods", self.namespace, pod["metadata"]["name"], "eviction"), body)
        return life

    def kill_server(self, pod: Object, number: int = signal.SIGKILL) -> None:
        """A signal for the control server in its pod, as the out-of-memory killer sends one."""
        self.kubelet.kill(self.namespace, pod["metadata"]["name"], number=number)

    # The whole stage

    async def set_up(self, *sessions: str, **spec: Any) -> Object:
        """A ControlServer, its Deployment, and these sessions launched; the backend's pod. The operator runs."""
        await self.create(**spec)
        await self.deploy()
        pod = await self.backend()
        for session in sessions:
            await self.launched(session)
        return pod

    async def launched(self, session: str, *options: str, number: int = 1, **more: Any) -> int:
        """Launch a session with a planted secret in its agent's environment; the agent's process id."""
        secret = {"MODEL_API_KEY": f"{PLANTED}-{session}"}
        self.evidence.launch(session, *options, env=secret, number=number, **more)
        before = len(self.evidence.backend("launched", session=session))
        await eventually(
            lambda: (
                len(self.evidence.backend("launched", session=session)) > before
                or (self.evidence.orders / session / f"launch-{number}.done").exists()
            ),
            within=WITHIN,
            what=f"{session} is launched; backends say {self.evidence.backend()[-4:]}",
        )
        return self.evidence.pids(session)[-1]

    async def working(self, session: str, script: str = "wait gate\nsay done") -> str:
        """Give a prompt that is in flight until ``open_gate``; its note."""
        note = self.evidence.prompt(session, script)
        await self.evidence.began(note, within=WITHIN)
        return note

    def open_gate(self, session: str, gate: str = "gate") -> None:
        """Let the agent go on that waits for this file in its workspace."""
        (self.evidence.workspaces / session / gate).touch()

    # The database

    async def sql(self, statement: str, *values: object) -> list[Object]:
        """Run one statement in this world's database, on a connection that is kept."""
        async with self._one_at_a_time:
            try:
                return await self._fetch(statement, *values)
            except (asyncpg.InterfaceError, asyncpg.PostgresConnectionError, OSError):
                await self.leave()
                return await self._fetch(statement, *values)

    async def _fetch(self, statement: str, *values: object) -> list[Object]:
        if self._connection is None:
            self._connection = await asyncpg.connect(self.url, timeout=10, command_timeout=20)
        return [dict(row) for row in await self._connection.fetch(statement, *values)]

    async def leave(self) -> None:
        """Close that connection."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def turns(self, session: str) -> list[str]:
        """States of the session's turns, oldest first."""
        rows = await self.sql("SELECT state FROM tenure.turns WHERE session_id = $1 ORDER BY id", session)
        return [row["state"] for row in rows]

    async def session(self, session: str) -> Object:
        """The rows of the session and its task and inventory, as one."""
        found = await self.sql(
            """SELECT s.state, s.interrupted_at, t.state AS task, t.interrupted_at AS task_interrupted_at,
                e.status, e.agent_execution_id, e.resume_token, e.worktree_id, e.container_identity, e.unstopped_by
            FROM tenure.sessions s JOIN tenure.tasks t ON t.namespace = s.namespace AND t.id = s.task_id
            LEFT JOIN tenure.executors_running e ON e.namespace = s.namespace AND e.session_id = s.id
            WHERE s.id = $1""",
            session,
        )
        return found[0]

    async def record(self) -> Object:
        """The control server's row."""
        found = await self.sql(
            "SELECT * FROM tenure.control_servers WHERE installation_id = $1", INSTALLATION
        )
        if not found:
            raise LookupError("no record yet")
        return found[0]

    # Looking around

    async def events(self, reason: str = "") -> list[Object]:
        """The Events about ControlServers, oldest first; all, or those with this reason."""
        items = await self.api.list(f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events")
        about = [e for e in items if e.get("regarding", {}).get("kind") == "ControlServer"]
        about = [e for e in about if reason in ("", e["reason"])]
        return sorted(about, key=lambda each: each.get("eventTime") or "")

    async def told(self, *reasons: str, within: float = WITHIN) -> None:
        """Wait until each of these is among the Events."""

        async def look() -> bool:
            return set(reasons) <= {event["reason"] for event in await self.events()}

        await eventually(look, within=within, what=f"Events {reasons}")

    async def offences(self) -> list[str]:
        """Everything that must not have happened in this world, and did."""
        turns = await self.sql("SELECT id, session_id, state FROM tenure.turns")
        audit = await self.sql("SELECT turn, before, after FROM audit")
        return [*self.history.offences, *self.evidence.judge(turns, audit), *await self.leaks()]

    async def leaks(self) -> list[str]:
        """Places where a secret was found: logs, events, status, annotations, rows."""
        scan = self.canaries
        found = scan.found_in_files(self.kubelet.folder.glob(f"{self.namespace}_*.log"))
        found += scan.found_in_files(self.kubelet.folder.glob("**/servers/*/*"))
        found += scan.found_in_files(file for log in self.logs for file in log.glob("*.log"))
        for place, text in self.texts:
            found += scan.found_in(place, text)
        objects = (seen.item for seen in self.history.seen)
        found += scan.found_in_objects("an object", objects)
        for events in (f"/api/v1/namespaces/{self.namespace}/events",):
            found += scan.found_in_objects("an Event", await self.api.list(events))
        for table in ("control_servers", "executors_running", "sessions", "turns", "tasks"):
            found += scan.found_in_objects(
                f"a row of {table}", await self.sql(f"SELECT * FROM tenure.{table}")
            )
        return sorted(set(found))


def metric(operator: RunningOperator, name: str, **labels: str) -> float:
    """A sample of the operator's."""
    return operator.metric(name, **labels)


async def all_of(*waits: Any) -> list[Any]:
    """Wait for several at once; the first failure is the test's."""
    return list(await asyncio.gather(*waits))


def environment(folder: Path) -> dict[str, str]:
    """What every container of the stand-in has: ``tenure`` is on its path, as in the image.

    That program is the real one, but listens on its pod's own address (pods here share their ports), and is as
    ``World.manifest`` says in its variables.
    """
    program = folder / "bin" / "tenure"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(
        f"#!{sys.executable}\n"
        "import os, sys\n"
        "if 'STAND_IN_ADDRESS' in os.environ:\n"
        "    os.environ['TENURE_SERVER_HOST'] = os.environ['STAND_IN_ADDRESS']\n"
        "if 'STAND_IN_FLOOR_MS' in os.environ:\n"
        "    from tenure.protocol import claims\n"
        "    claims.FLOOR_MS = int(os.environ['STAND_IN_FLOOR_MS'])\n"
        "if 'STAND_IN_CAPABILITIES' in os.environ:\n"
        "    from tenure.protocol import capabilities\n"
        "    capabilities.ADVERTISED = frozenset(os.environ['STAND_IN_CAPABILITIES'].split(','))\n"
        "if 'STAND_IN_STUBBORN' in os.environ and 'control-server' in sys.argv:\n"
        "    from aiohttp import web\n"
        "    from tenure.control.routes import Routes\n"
        "    async def refuse(self, call):\n"
        "        return web.json_response({'error': 'not now'}, status=500)\n"
        "    Routes.shutdown = refuse\n"
        "if 'STAND_IN_PROGRAM' in os.environ and 'control-server' in sys.argv:\n"
        "    import runpy\n"
        "    runpy.run_path(os.environ['STAND_IN_PROGRAM'])\n"
        "from tenure.cli.main import app\n"
        "app()\n"
    )
    program.chmod(0o755)
    return {
        "PATH": f"{program.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "LANG": "C.UTF-8",
    }


__all__ = [
    "GATE",
    "INSTALLATION",
    "NAME",
    "WITHIN",
    "World",
    "all_of",
    "environment",
    "incarnation",
    "metric",
    "ready",
]
