"""Somebody else who owns the control server and hands it over: what the operator is on Kubernetes."""

from dataclasses import dataclass
from pathlib import Path

from tests.support.control import RunningServer

from tenure.backend import HandOver, write_handover
from tenure.model.masked import Masked
from tenure.ownership.client import ControlClient
from tenure.ownership.endpoint import Endpoint


@dataclass
class Owner:
    """Owns ``server``; hands it over in ``directory``."""

    server: RunningServer
    directory: Path
    client: ControlClient
    credential: Masked
    rotation_id: int = 0
    pod_uid: str = ""

    @classmethod
    async def of(cls, server: RunningServer, directory: Path, *, pod_uid: str = "") -> "Owner":
        """By handshake."""
        client = ControlClient(
            Endpoint(server.url, server.server_name, server.certificate),
            credential=None,
            home_dir=server.home_dir,
            expected_identity=server.identity,
        )
        return cls(server, directory, client, await client.handshake(server.nonce), pod_uid=pod_uid)

    async def rotate(self, *, confirm: bool = True) -> None:
        """Replace the credential; what was handed over is of no use from now on."""
        answer = await self.client.rotate()
        self.client.use(answer.credential)
        self.credential, self.rotation_id = answer.credential, answer.rotation_id
        if confirm:
            await self.client.confirm(answer.rotation_id)

    def hand_over(self, *, pod_uid: str | None = None) -> None:
        """Write what is in force."""
        write_handover(
            self.directory,
            HandOver(
                endpoint=self.server.url,
                credential=self.credential,
                server_identity=self.server.identity,
                home_dir=self.server.home_dir,
                rotation_id=self.rotation_id,
                server_name=self.server.server_name,
                certificate=self.server.certificate,
                backend_pod_uid=self.pod_uid if pod_uid is None else pod_uid,
            ),
        )

    async def aclose(self) -> None:
        await self.client.aclose()
