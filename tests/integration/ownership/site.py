"""One server, whatever its kind, as its client needs to know it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.agentctl import Agentctl
from tests.support.agents import scripted_command
from tests.support.control import RunningServer, running_server

from tenure.model.masked import Masked
from tenure.ownership.client import ControlClient
from tenure.ownership.endpoint import Endpoint, ReadBudget
from tenure.protocol.messages import CreateRequest

BUDGET = ReadBudget(timeout=5.0, retries=2)


@dataclass
class Site:
    """A running server that nobody owns yet."""

    endpoint: Endpoint
    identity: str
    home_dir: str
    nonce: Masked
    workspaces: Path
    double: Agentctl | None = None
    real: RunningServer | None = None

    def client(
        self,
        credential: Masked | None = None,
        *,
        identity: str | None = "",
        home_dir: str = "",
        budget: ReadBudget = BUDGET,
    ) -> ControlClient:
        """A client that expects this server."""
        return ControlClient(
            self.endpoint,
            credential=credential,
            home_dir=home_dir or self.home_dir,
            expected_identity=self.identity if identity == "" else identity,
            budget=budget,
        )

    async def owned(self) -> ControlClient:
        """A client that has shaken hands."""
        client = self.client()
        await client.handshake(self.nonce)
        return client

    def request(
        self, name: str = "i-1", session: str = "s-1", *, env: dict[str, str] | None = None
    ) -> CreateRequest:
        """A request for an instance, its agent started."""
        workspace = self.workspaces / name
        workspace.mkdir(parents=True, exist_ok=True)
        return CreateRequest(
            id=name,
            session_id=session,
            task_id="t-1",
            workspace_path=str(workspace),
            agent_command=scripted_command(),
            env={key: Masked(value) for key, value in (env or {}).items()},
            auto_start=True,
        )


@asynccontextmanager
async def agentctl() -> AsyncIterator[Site]:
    """The double."""
    async with Agentctl() as double:
        yield Site(
            Endpoint(double.url), double.identity, double.home_dir, Masked(double.nonce), Path("/tmp"), double
        )


@asynccontextmanager
async def tenure(*, tls: bool = False) -> AsyncIterator[Site]:
    """Tenure's own program, as a process."""
    async with running_server(tls=tls) as server:
        yield Site(
            endpoint_of(server),
            server.identity,
            server.home_dir,
            server.nonce,
            server.workspaces,
            real=server,
        )


def endpoint_of(server: RunningServer) -> Endpoint:
    """Where a running server is, its certificate pinned."""
    return Endpoint(server.url, server.server_name, server.certificate)
