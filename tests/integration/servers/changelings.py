"""Make a control server into somebody else (``programs/changeling.py``), and see what that one is sent."""

import datetime
import json
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.integration.servers.world import PROGRAMS, World
from tests.support.api import Object, path

OTHER_CERTIFICATE: Mapping[str, Any] = {"certificate": {}}
"""The behaviour of somebody else's server at a recycled address."""


def variables(world: World) -> list[Object]:
    """What a server's container needs to be able to become another."""
    told = {
        "STAND_IN_PROGRAM": str(PROGRAMS / "changeling.py"),
        "CHANGELING": str(world.evidence.folder / "changelings"),
    }
    return [{"name": name, "value": value} for name, value in told.items()]


async def create(world: World, **spec: Any) -> None:
    """A ControlServer whose servers are changelings."""
    manifest = world.manifest(**spec)
    manifest["spec"]["server"]["template"]["spec"]["containers"][0]["env"] += variables(world)
    await world.api.create(path("controlservers", world.namespace), manifest)


@dataclass(frozen=True)
class Changeling:
    """One server's pod in its new part."""

    folder: Path
    credentials: frozenset[str]
    """That its Secret and the hand-over held when it was changed."""

    @property
    def received(self) -> list[dict[str, Any]]:
        """Every request, in order."""
        file = self.folder / "received"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def asked(self) -> list[str]:
        """``METHOD path`` of every request."""
        return [each["what"] for each in self.received]

    def saw(self, *credentials: str) -> bool:
        """Whether anything that carries a credential, or 8 digits of one, came here."""
        everything = json.dumps(self.received)
        pieces = (c[i : i + 8] for c in (*self.credentials, *credentials) for i in range(len(c) - 7))
        return "authorization" in everything.lower() or any(piece in everything for piece in pieces)


async def change(world: World, pod: Object, behaviour: Mapping[str, Any]) -> Changeling:
    """From now on the server in this pod is like that."""
    live = await world.api.get(path("pods", world.namespace, pod["metadata"]["name"]))
    folder = world.evidence.folder / "changelings" / live["status"]["podIP"]
    known = set()
    for item in await world.api.list(path("secrets", world.namespace)):
        known.add(b64decode((item.get("data") or {}).get("credential", "")).decode())
    changed = Changeling(folder, frozenset(known - {""}))
    assert changed.credentials
    if behaviour == OTHER_CERTIFICATE:
        (folder / "other.pem").write_text(_somebody_else())
    text = json.dumps({key: told for key, told in behaviour.items() if key != "certificate"})
    (folder / ".behaviour").write_text(text)
    (folder / ".behaviour").rename(folder / "behaviour.json")
    return changed


def _somebody_else() -> str:
    """A key and its certificate for any name."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "somebody-else")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8
    pem = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    return (pem + made.public_bytes(serialization.Encoding.PEM)).decode()
