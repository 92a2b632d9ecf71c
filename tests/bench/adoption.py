"""P-8: from the first contact with a server that survived its backend until every session is published.

The operator's own parts do it, without Kubernetes: the server's Secret is kept in memory, its record and sessions in a
real PostgreSQL. The floor sends the very same requests, in the same order and as many at a time, and stores nothing.
"""

import shlex
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp

from tenure.cluster.server_ports import NewSecret, SecretObject
from tenure.model.masked import Masked
from tenure.model.records import SurvivalEffective
from tenure.operator.servers.adopting import Adoption, Target
from tenure.operator.servers.deciding import AT_ONCE
from tenure.operator.servers.secrets import Custody
from tenure.ownership.endpoint import ReadBudget
from tenure.ownership.transport import Answer, Lane
from tenure.plan.adoption.gates import Deadline, FollowUp, Verdict
from tenure.plan.adoption.state import Recovery as Progress
from tenure.protocol.frames import Action
from tenure.protocol.messages import CreateRequest, RotateAnswer
from tenure.storage.migrations import migrate_schema
from tests.bench.machine import in_ms, median
from tests.bench.report import Figure
from tests.bench.stage import side_by_side
from tests.integration.ownership.site import Site, endpoint_of
from tests.integration.servers.recovery.stage import INSTALLATION, KEY, OLD, POD, Operator, Stage, staged
from tests.support.control import running_server
from tests.support.postgres import running_postgres

SURVIVORS = (1, 20, 100, 500)
ROUNDS = 5
BUDGET = ReadBudget(timeout=10.0, retries=2)
CALM = 32
"""Sessions that are begun at a time."""

# Hundreds of them do not fill the machine: no interpreter, and asleep until somebody writes to it.
AGENT = r"""
while read -r line; do
  number=${line#*\"id\":}
  number=${number%%[,\}]*}
  case $line in
    *session/new*) result='{"sessionId":"provider-1"}' ;;
    *) result='{"protocolVersion":1,"agentCapabilities":{}}' ;;
  esac
  printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$number" "$result"
done
"""


async def adoption(scale: float) -> list[Figure]:
    """Adoptions of ever more survivors by the operator, each beside its floor."""
    took: dict[int, tuple[float, float, int]] = {}
    with tempfile.TemporaryDirectory(prefix="tenure-bench-") as folder, running_postgres() as postgres:
        for number in SURVIVORS:
            survivors = max(1, round(number * scale))
            if survivors not in took:
                url = await postgres.fresh_database(f"adoption{survivors}")
                await migrate_schema(Masked(url))
                took[survivors] = await _measured(url, Path(folder), survivors)
    return [*(_figure(survivors, *found) for survivors, found in took.items()), *_linear(took)]


def _figure(survivors: int, ours: float, floor: float, requests: int) -> Figure:
    within = f", within {5 * survivors / 100:g} s" if survivors >= 100 else ""
    return Figure(
        id="P-8",
        what=f"adoption of {survivors} surviving instance(s), first contact to published",
        target=f"at most 2{within}",
        measured=in_ms(ours),
        floor=f"{in_ms(floor)} ({requests} requests, {AT_ONCE} at once)",
        ratio=ours / floor,
        met=ours <= 2 * floor and (survivors < 100 or ours <= 5 * survivors / 100),
    )


def _linear(took: Mapping[int, tuple[float, float, int]]) -> Iterator[Figure]:
    if len(took) < 3:
        return
    *_, middle, most = took
    each = {survivors: took[survivors][0] / survivors for survivors in (middle, most)}
    yield Figure(
        id="P-8",
        what=f"one survivor of {most}, as against one of {middle}",
        target="linear: at most 1.3",
        measured=in_ms(each[most]),
        floor=in_ms(each[middle]),
        ratio=each[most] / each[middle],
        met=each[most] <= 1.3 * each[middle],
    )


async def _measured(url: str, folder: Path, survivors: int) -> tuple[float, float, int]:
    """Medians of the operator's adoption and of the floor, by turns; and how many requests one takes."""
    ours, floors, requests = [], [], 0
    async with _survived(url, folder, survivors) as scene:
        for number in range(ROUNDS):
            took, sent = await scene.adopt(f"backend-{number}/new")
            ours.append(took)
            floors.append(await scene.replay(sent))
            requests = len(sent)
    return median(ours), median(floors), requests


@dataclass(frozen=True, slots=True)
class Sent:
    """One request. ``carries``: with the credential."""

    method: str
    path: str
    body: bytes | None
    carries: bool


@dataclass
class Scene:
    """A server whose sessions have nobody. Every adoption is by another incarnation of the backend."""

    stage: Stage
    survivors: int
    custody: Custody
    owner: str = OLD

    async def adopt(self, incarnation: str) -> tuple[float, list[Sent]]:
        """Adopt and recover; the seconds from the first contact to the published set, and what was sent for it."""
        stage = self.stage
        stage.budget = BUDGET
        operator = Operator(stage, incarnation)
        await stage.records.servers.begin_recovery(INSTALLATION, adopted_by=self.owner)
        assert await operator.recovery.take_guards(operator.recovering())
        attempt = self._attempt(incarnation)
        with _noted() as sent:
            began = time.perf_counter()
            verdict = await attempt.run()
            assert isinstance(verdict, Verdict)
            assert verdict.follow_up is FollowUp.OURS, verdict
            assert attempt.credential is not None
            stage.server = replace(stage.server, credential=attempt.credential)
            recovering = operator.recovering()
            assert await operator.recovery.enumerate(recovering) is Progress.ENUMERATED
            await operator.recovery.decide(recovering)
            await operator.recovery.publish(recovering)
            took = time.perf_counter() - began
        assert len(operator.tracked) == self.survivors
        await operator.recovery.reconcile(recovering)
        await stage.records.servers.set_recovered(INSTALLATION, incarnation, adopted_by=incarnation)
        await operator.aclose()
        self.owner = incarnation
        record = await stage.records.servers.get(INSTALLATION)
        assert record is not None
        assert record.rotation_id is not None
        await self._settle(attempt.credential, record.rotation_id)
        return took, sent

    async def replay(self, sent: Sequence[Sent]) -> float:
        """The same requests by a bare client; its seconds."""
        endpoint = self.stage.server.endpoint
        trusted = ssl.create_default_context(cadata=endpoint.certificate)
        trusted.check_hostname = False
        token, rotation = self.custody.credential, self.custody.rotation_id
        # One after the other, up to the enumeration.
        alone = next(number for number, request in enumerate(sent) if request.path.endswith("/instances")) + 1
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=trusted, limit=0), trust_env=False
        ) as session:

            async def once(request: Sent) -> bytes:
                headers = {"Authorization": f"Bearer {token.reveal()}"} if request.carries else {}
                url = endpoint.base + request.path
                async with session.request(request.method, url, data=request.body, headers=headers) as answer:
                    assert answer.status == 200, (request.path, answer.status)
                    return await answer.read()

            began = time.perf_counter()
            for request in sent[:alone]:
                answer = await once(request)
                if request.path.endswith("/rotate"):
                    rotated = RotateAnswer.model_validate_json(answer)
                    token, rotation = rotated.credential, rotated.rotation_id
            await side_by_side(AT_ONCE, sent[alone:], once)
            took = time.perf_counter() - began
        await self._settle(token, rotation)
        return took

    async def _settle(self, credential: Masked, rotation: int) -> None:
        """As an owner does when the new credential is durable."""
        self.stage.server = replace(self.stage.server, credential=credential)
        self.stage.client.use(credential)
        await self.stage.client.confirm(rotation)
        self.custody = self.custody.rotated(credential, rotation, self.owner)

    def _attempt(self, incarnation: str) -> Adoption:
        secret = SecretObject("main-1", "secret-1", "1", POD, self.custody.to_data())
        target = Target(
            namespace=KEY.namespace,
            installation_id=INSTALLATION,
            pod_uid=POD,
            pod_name="main-1",
            address="127.0.0.1",
            recorded_identity=self.custody.identity,
            adopted_by=self.owner,
            secret=secret,
            custody=self.custody,
            labels={},
            owner={},
        )
        return Adoption(
            cluster=_Secrets(),  # type: ignore[arg-type]
            records=self.stage.records,
            target=target,
            incarnation=incarnation,
            survival=SurvivalEffective.ENABLED,
            budget=BUDGET,
            deadline=lambda: Deadline.RUNNING,
        )


class _Secrets:
    """What an adoption needs of a cluster: one write."""

    async def replace_secret(
        self, namespace: str, secret: NewSecret, *, uid: str, resource_version: str
    ) -> SecretObject:
        return SecretObject(secret.name, uid, f"{resource_version}0", POD, secret.data)


@asynccontextmanager
async def _survived(url: str, folder: Path, survivors: int) -> AsyncIterator[Scene]:
    agent = folder / "agent.sh"
    agent.write_text(AGENT)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running_server(tls=True))
        site = Site(
            endpoint_of(server),
            server.identity,
            server.home_dir,
            server.nonce,
            server.workspaces,
            real=server,
        )
        stage = await stack.enter_async_context(staged(site, None, url, folder))
        command = f"/bin/sh {shlex.quote(str(agent))}"

        async def begin(number: int) -> None:
            session = f"s-{number}"
            row = await stage.row(session)
            workspace = server.workspace(session)
            request = CreateRequest(
                id=row.agent_execution_id,
                session_id=session,
                task_id=row.task_id,
                workspace_path=str(workspace),
                agent_command=command,
                env={"TENURE_RUN_ID": Masked(f"run-{number}")},
                workspace_source_roots=(str(workspace),),
                auto_start=True,
            )
            await stage.client.create(request)
            async with stage.attached(row.agent_execution_id) as stream:
                await stream.send(Action.INITIALIZE, timeout=60)
                await stream.send(Action.SESSION_NEW, timeout=60)

        await side_by_side(CALM, range(survivors), begin)
        endpoint = stage.server.endpoint
        custody = Custody(
            identity=server.identity,
            credential=stage.server.credential,
            rotation_id=0,
            adopted_by=OLD,
            certificate=endpoint.certificate,
            home_dir=server.home_dir,
            port=server.port,
        )
        record = await stage.records.servers.get(INSTALLATION)
        assert record is not None
        yield Scene(stage, survivors, custody, owner=record.adopted_by or OLD)


@contextmanager
def _noted() -> Iterator[list[Sent]]:
    """Note down every request that is sent meanwhile."""
    sent: list[Sent] = []
    real = Lane.exchange

    async def noting(self: Lane, method: str, url: str, **how: Any) -> Answer:
        sent.append(Sent(method, "/" + url.split("/", 3)[3], how["body"], how["bearer"] is not None))
        return await real(self, method, url, **how)

    Lane.exchange = noting  # type: ignore[method-assign]
    try:
        yield sent
    finally:
        Lane.exchange = real  # type: ignore[method-assign]
