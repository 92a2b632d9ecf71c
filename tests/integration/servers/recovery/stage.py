"""A control server with sessions that a backend has left, and recoveries of them, without Kubernetes."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import asyncpg
from tests.integration.ownership.site import Site
from tests.support.agents import read_journal, scripted_command
from tests.support.records import a_launch
from tests.support.server_manifests import stored_server
from tests.support.wait import eventually

from tenure.model.control_server import parse_control_server
from tenure.model.masked import Masked
from tenure.model.records import SurvivalEffective
from tenure.operator.events import EventRecorder
from tenure.operator.servers.executions import ExecutionStore
from tenure.operator.servers.ports import OwnedServer, Recovering, ServerKey
from tenure.operator.servers.recovery import Recovery
from tenure.operator.servers.telling import Telling
from tenure.ownership.client import ControlClient
from tenure.ownership.endpoint import ReadBudget
from tenure.plan.adoption.gates import Deadline
from tenure.plan.adoption.state import Recovery as Stage_
from tenure.protocol.frames import Action
from tenure.protocol.messages import CreateRequest
from tenure.storage.records import Executor, Records, ServerFacts, Turn
from tenure.telemetry.metrics import Metrics

KEY = ServerKey("team", "main")
INSTALLATION = "installation-1"
POD = "pod-1"
OLD, NEW = "backend-1/c1", "backend-2/c1"
WITHIN = 30.0
KEYS = {"PROVIDER_KEY": "canary-3f1c", "TENURE_RUN_ID": "run-7"}


class Notes:
    """Takes Events as an API server would."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    async def create_event(self, regarding: Mapping[str, str], **told: Any) -> None:
        assert regarding["kind"] == "ControlServer"
        self.events.append((str(told["reason"]), told["note"]))


@dataclass
class Operator:
    """One life of the operator: what it knows of recoveries is gone with it."""

    stage: "Stage"
    incarnation: str = NEW
    deadline: Deadline = Deadline.RUNNING
    store: ExecutionStore = field(default_factory=ExecutionStore)
    metrics: Metrics = field(default_factory=Metrics)
    notes: Notes = field(default_factory=Notes)

    def __post_init__(self) -> None:
        self.events = EventRecorder(self.notes)  # type: ignore[arg-type]
        self.telling = Telling(self.metrics, self.events, self.store)
        self.recovery = Recovery(self.telling, self.store)

    def recovering(self, **facts: Any) -> Recovering:
        stage = self.stage
        whole: dict[str, Any] = {
            "key": KEY,
            "resource": stage.resource,
            "installation_id": INSTALLATION,
            "incarnation": self.incarnation,
            "about": POD,
            "records": stage.records,
            "server": replace(stage.server, incarnation=self.incarnation),
            "budget": stage.budget,
            "deadline": lambda: self.deadline,
            "present": frozenset({POD}),
        }
        return Recovering(**{**whole, **facts})

    async def recover(self, **facts: Any) -> Stage_:
        """Steps 3, 7 and 8, as passes do them."""
        recovering = self.recovering(**facts)
        servers = self.stage.records.servers
        await servers.begin_recovery(INSTALLATION, adopted_by=self.incarnation)
        assert await self.recovery.take_guards(recovering)
        stage = await self.recovery.enumerate(recovering)
        if stage is Stage_.ENUMERATED:
            await self.recovery.decide(recovering)
        await self.conclude(recovering)
        return stage

    async def conclude(self, recovering: Recovering) -> None:
        await self.recovery.publish(recovering)
        await self.recovery.reconcile(recovering)
        await self.stage.records.servers.set_recovered(
            INSTALLATION, self.incarnation, adopted_by=self.incarnation
        )
        self.recovery.finished(recovering)

    @property
    def tracked(self) -> set[str]:
        return set(self.store.sessions(KEY, self.incarnation, self.stage.server.identity))

    def count(self, name: str, **labels: str) -> float:
        """A counter's value."""
        found = self.metrics.registry.get_sample_value(name, labels)
        assert found is not None, f"{name} {labels} is not there from the start"
        return found

    async def told(self, reason: str = "") -> list[str]:
        """Notes of the Events so far."""
        sender = asyncio.create_task(self.events.run())
        await self.events.flushed()
        sender.cancel()
        await asyncio.wait([sender])
        return [note for why, note in self.notes.events if reason in ("", why)]

    async def aclose(self) -> None:
        await self.recovery.aclose()


@dataclass
class Stage:
    """``site`` is owned by this test; its sessions were launched in the incarnation ``OLD``."""

    site: Site
    records: Records
    database_url: str
    directory: Path
    server: OwnedServer
    client: ControlClient
    budget: ReadBudget = field(default_factory=lambda: ReadBudget(timeout=5.0, retries=1))
    spec: dict[str, Any] = field(default_factory=dict)
    _operators: list[Operator] = field(default_factory=list)
    _name: str = field(default_factory=lambda: secrets.token_hex(3))

    @property
    def resource(self) -> Any:
        profile = {"name": "coder", "command": ["agent", "--now"], "continueArgs": ["--go-on"]}
        return parse_control_server(
            stored_server(
                "main", "team", "uid-1", agentProfiles=[profile], agentSurvival="Enabled", **self.spec
            )
        )

    def operator(self, incarnation: str = NEW) -> Operator:
        made = Operator(self, incarnation)
        self._operators.append(made)
        return made

    async def recovered(self, **facts: Any) -> Operator:
        """A new operator that has recovered everything."""
        operator = self.operator()
        await operator.recover(**facts)
        return operator

    @property
    def journal(self) -> Path:
        return self.directory / f"journal-{self._name}"

    def pids(self) -> set[int]:
        """Of all agents that were ever started here."""
        return {entry["pid"] for entry in read_journal(self.journal, "started")}

    async def row(self, session: str = "s-1", **values: Any) -> Executor:
        """A session whose launch is on record."""
        launch: dict[str, Any] = {
            "agent_execution_id": f"i-{session}",
            "installation_id": INSTALLATION,
            "created_by": OLD,
            "container_identity": POD,
            "task_environment_id": f"environment-of-{session}",
        }
        return await self.records.executions.launch(a_launch(session, **{**launch, **values}))

    async def instance(self, instance: str, session: str = "", *, start: bool = True) -> str:
        """An instance of the server, without a record, its agent ready for a prompt."""
        workspace = self.site.workspaces / self._name / instance
        if self.site.double is None:
            workspace.mkdir(parents=True, exist_ok=True)
        request = CreateRequest(
            id=instance,
            # The double is told afterwards: it lets no two be of one session, either.
            session_id=session if self.site.double is None else f"of-{instance}",
            task_id="t-1",
            workspace_path=str(workspace),
            agent_command=scripted_command(self.journal),
            env={name: Masked(value) for name, value in KEYS.items()},
            workspace_source_roots=(str(workspace),),
            auto_start=start,
        )
        await self.client.create(request)
        if self.site.double is not None:
            self.site.double.instances[instance].info |= {"session_id": session, "provider_session_id": "p-1"}
        elif start:
            async with self.attached(instance) as stream:
                await stream.send(Action.INITIALIZE, timeout=WITHIN)
                await stream.send(Action.SESSION_NEW, timeout=WITHIN)
        return instance

    async def session(self, session: str = "s-1", instance: str = "", **values: Any) -> str:
        """A launched session with its agent; the instance's id. ``instance``: another one than on record."""
        row = await self.row(session, **values)
        return await self.instance(instance or row.agent_execution_id, session)

    @contextlib.asynccontextmanager
    async def attached(self, instance: str) -> AsyncIterator[Any]:
        stream = await self.client.stream(instance)
        try:
            yield stream
        finally:
            await stream.aclose()

    async def prompted(self, session: str = "s-1", text: str = "wait gate", *, bind: bool = True) -> Turn:
        """A turn that is open on record and given to the agent; its backend has gone since."""
        instance = f"i-{session}"
        turn = await self.records.turns.open(session, instance, server_identity=self.server.identity)
        async with self.attached(instance) as stream:
            answer = await stream.send(Action.PROMPT, {"text": text, "turn_key": turn.key}, timeout=WITHIN)
        if bind:
            await self.records.turns.bind(turn.id, self.server.identity, int(answer["turn_id"]))
        return turn

    async def retained(self, instance: str = "i-s-1") -> None:
        """Wait until the server retains how the turn ended."""
        await eventually(lambda: self.client.outcome(instance), within=WITHIN, what="a retained outcome")

    async def alive(self) -> set[str]:
        """Ids of the instances that the server has."""
        return {instance.id for instance in await self.client.instances()}

    async def row_of(self, session: str = "s-1") -> Executor:
        found = await self.records.inventory.of_session(session)
        assert found is not None
        return found

    async def state(self, session: str = "s-1") -> tuple[str, str, str, list[str], bool]:
        """Row, session, task, turns (oldest first), and whether it was stamped interrupted."""
        row, found = await self.row_of(session), await self.records.sessions.get(session)
        assert found is not None
        turns = [turn.state.value for turn in reversed(await self.records.turns.of_session(session))]
        interrupted = found.interrupted_at is not None
        return row.status.value, found.state.value, found.task_state.value, turns, interrupted

    async def everything(self) -> list[Any]:
        """All that is durable about sessions, but for times that only say when somebody looked."""
        connection = await asyncpg.connect(self.database_url, timeout=10)
        try:
            found = []
            for table, key in (
                ("executors_running", "id"),
                ("sessions", "id"),
                ("turns", "id"),
                ("tasks", "id"),
            ):
                sql = f"SELECT to_jsonb(t) - '{{updated_at,last_seen_at}}'::text[] FROM tenure.{table} t ORDER BY {key}"
                found.append([row[0] for row in await connection.fetch(sql)])
            return found
        finally:
            await connection.close()

    async def execute(self, sql: str) -> None:
        """Change rows as nobody of ours would."""
        connection = await asyncpg.connect(self.database_url, timeout=10)
        try:
            await connection.execute(sql)
        finally:
            await connection.close()

    async def aclose(self) -> None:
        for operator in self._operators:
            await operator.aclose()
        await self.client.aclose()
        await self.records.aclose()


@contextlib.asynccontextmanager
async def staged(site: Site, credential: Masked | None, url: str, directory: Path) -> AsyncIterator[Stage]:
    """Own the server (``credential`` None: by its nonce), with a record that the new incarnation has adopted."""
    client = site.client(credential)
    if credential is None:
        credential = await client.handshake(site.nonce)
    server = OwnedServer(
        object_uid="uid-1",
        pod_uid=POD,
        pod_name="main-1",
        incarnation=NEW,
        identity=site.identity,
        endpoint=site.endpoint,
        home_dir=site.home_dir,
        credential=credential,
    )
    records = Records(Masked(url), namespace="team")
    await records.servers.ensure(INSTALLATION, "main")
    facts = ServerFacts(site.identity, site.endpoint.url, POD, "main-1", ("agent-survival.v1",), 600_000, 1)
    await records.servers.record(
        INSTALLATION, facts, adopted_by=None, incarnation=OLD, survival=SurvivalEffective.ENABLED
    )
    await records.servers.set_adopted(INSTALLATION, adopted_by=OLD, incarnation=NEW)
    stage = Stage(site, records, url, directory, server, client)
    try:
        yield stage
    finally:
        await stage.aclose()
