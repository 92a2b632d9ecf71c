"""The Secret of one server: everything that its owner needs to go on after a crash, with the database down too.

It is named from the server's pod and owned by it. What is not whole is no Secret to go by.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

from tenure.cluster.server_ports import SecretObject
from tenure.model.masked import Masked
from tenure.ownership.endpoint import Endpoint
from tenure.plan.adoption.state import HandOver, NoSecret, ServerSecret
from tenure.plan.servers.names import server_name
from tenure.protocol import handover
from tenure.protocol.proof import usable

_NUMBER = re.compile(r"[0-9]{1,18}")


class Key(StrEnum):
    """Keys of the Secret's data."""

    CREDENTIAL = "credential"
    ROTATION_ID = "rotation-id"
    CERTIFICATE = "certificate"
    SERVER_IDENTITY = "server-identity"
    ADOPTED_BY = "adopted-by"
    HOME_DIR = "home-dir"
    PORT = "port"
    CAPABILITIES = "capabilities"
    UNOWNED_PERIOD = "unowned-period-ms"
    DIAGNOSTIC_OUTPUT = "diagnostic-output"


@dataclass(frozen=True, slots=True)
class Custody:
    """What the Secret of one server says. ``credential`` may be unusable; the rest is there."""

    identity: str
    credential: Masked
    rotation_id: int
    adopted_by: str
    certificate: str
    home_dir: str
    port: int
    capabilities: tuple[str, ...] = ()
    unowned_period_ms: int = 0
    """0: not known."""
    diagnostic_output: str = ""

    @property
    def server_name(self) -> str:
        """The name in the certificate: addresses are unknown when it is made."""
        return server_name(self.identity)

    def endpoint(self, address: str) -> Endpoint:
        """Where the server is, its pod having this address. Raises ``ValueError``."""
        return Endpoint(url_of(address, self.port), self.server_name, self.certificate)

    def to_data(self) -> dict[str, Masked]:
        """As it is stored."""
        texts = {
            Key.ROTATION_ID: str(self.rotation_id),
            Key.CERTIFICATE: self.certificate,
            Key.SERVER_IDENTITY: self.identity,
            Key.ADOPTED_BY: self.adopted_by,
            Key.HOME_DIR: self.home_dir,
            Key.PORT: str(self.port),
            Key.CAPABILITIES: ",".join(self.capabilities),
            Key.UNOWNED_PERIOD: str(self.unowned_period_ms),
            Key.DIAGNOSTIC_OUTPUT: self.diagnostic_output,
        }
        data = {key.value: Masked(text) for key, text in texts.items()}
        return {**data, Key.CREDENTIAL.value: self.credential}

    def rotated(self, credential: Masked, rotation_id: int, adopted_by: str) -> "Custody":
        """After a rotation, for another incarnation."""
        return replace(self, credential=credential, rotation_id=rotation_id, adopted_by=adopted_by)

    def seen(self) -> ServerSecret | NoSecret:
        """As plans take it."""
        if not usable(self.credential):
            return NoSecret.UNAVAILABLE
        return ServerSecret(self.identity, self.credential, self.rotation_id, self.adopted_by)


def endpoint_of(custody: Custody, address: str) -> Endpoint | None:
    """Where the server is; None: the Secret holds no certificate by which it could be known."""
    try:
        return custody.endpoint(address)
    except ValueError:
        return None


@lru_cache(maxsize=1024)
def certifies(certificate: str, server_name: str) -> bool:
    """Whether a server can be known by this certificate. Without that its credential is of no use to anybody."""
    try:
        Endpoint("https://localhost", server_name, certificate)
    except ValueError:
        return False
    return True


def url_of(address: str, port: int) -> str:
    """The URL of a server at this address."""
    return f"https://{f'[{address}]' if ':' in address else address}:{port}"


def read_custody(data: Mapping[str, Masked]) -> Custody | None:
    """What a Secret's data says, or None when something is missing that nothing can be done without."""
    texts = {key: _line(data.get(key.value)) for key in Key}
    needed = (Key.ROTATION_ID, Key.CERTIFICATE, Key.SERVER_IDENTITY, Key.HOME_DIR, Key.PORT)
    if not all(texts[key] for key in needed):
        return None
    numbers = (texts[Key.ROTATION_ID], texts[Key.PORT])
    if not all(_NUMBER.fullmatch(number) for number in numbers):
        return None
    period = texts[Key.UNOWNED_PERIOD]
    return Custody(
        identity=texts[Key.SERVER_IDENTITY],
        credential=Masked(texts[Key.CREDENTIAL]),
        rotation_id=int(texts[Key.ROTATION_ID]),
        adopted_by=texts[Key.ADOPTED_BY],
        certificate=data[Key.CERTIFICATE.value].reveal(),
        home_dir=texts[Key.HOME_DIR],
        port=int(texts[Key.PORT]),
        capabilities=tuple(filter(None, texts[Key.CAPABILITIES].split(","))),
        unowned_period_ms=int(period) if _NUMBER.fullmatch(period) else 0,
        diagnostic_output=texts[Key.DIAGNOSTIC_OUTPUT],
    )


def read_hand_over(secret: SecretObject | None) -> HandOver | None:
    """What the hand-over Secret says, as plans take it. One that cannot be read is one that says nothing true."""
    if secret is None:
        return None
    try:
        found = handover.from_data({key: value.reveal() for key, value in secret.data.items()})
    except handover.UnreadableHandOver:
        return HandOver("", 0, "")
    return (
        None if found is None else HandOver(found.server_identity, found.rotation_id, found.backend_pod_uid)
    )


def _line(value: Masked | None) -> str:
    return "" if value is None else value.reveal().removesuffix("\n").removesuffix("\r")
