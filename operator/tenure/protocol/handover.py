"""What the owner of a control server hands to the backend that drives it: eight short texts, in a Secret or a
directory.

The operator writes them and the backend library reads them; both use the mapping of this module.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from tenure.model.errors import TenureError
from tenure.model.masked import Masked
from tenure.protocol.proof import usable
from tenure.protocol.wire import MAX_ID


class Key(StrEnum):
    """Keys of the Secret's ``data``, and names of the files of a mounted one."""

    ENDPOINT = "endpoint"
    SERVER_NAME = "server-name"
    CERTIFICATE = "certificate"
    CREDENTIAL = "credential"
    SERVER_IDENTITY = "server-identity"
    HOME_DIR = "home-dir"
    BACKEND_POD_UID = "backend-pod-uid"
    ROTATION_ID = "rotation-id"


REQUIRED = (Key.ENDPOINT, Key.CREDENTIAL, Key.SERVER_IDENTITY, Key.HOME_DIR, Key.ROTATION_ID)
"""Without these it is no hand-over. Plain HTTP on loopback has neither a server name nor a certificate, and
without Kubernetes there is no pod."""


class UnreadableHandOver(TenureError):
    """A hand-over that is there and is none. The text names keys and never their content."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """How to reach one control server, and the credential that is its newest one at the moment.

    ``endpoint`` is a URL; ``server_name`` and ``certificate`` (PEM) are empty for plain HTTP on loopback.
    ``rotation_id`` is 0 for the credential of the handshake.
    """

    endpoint: str
    credential: Masked
    server_identity: str
    home_dir: str
    rotation_id: int
    server_name: str = ""
    certificate: str = ""
    backend_pod_uid: str = ""

    def supersedes(self, other: "HandOver | None") -> bool:
        """Whether it is of another server than ``other``, or of a later rotation of the same one."""
        return (
            other is None
            or self.server_identity != other.server_identity
            or self.rotation_id > other.rotation_id
        )


def to_data(handover: HandOver) -> dict[str, str]:
    """The texts to store, by key, **the credential revealed**: for a Secret's ``stringData`` or for files."""
    return {
        Key.ENDPOINT.value: handover.endpoint,
        Key.SERVER_NAME.value: handover.server_name,
        Key.CERTIFICATE.value: handover.certificate,
        Key.CREDENTIAL.value: handover.credential.reveal(),
        Key.SERVER_IDENTITY.value: handover.server_identity,
        Key.HOME_DIR.value: handover.home_dir,
        Key.BACKEND_POD_UID.value: handover.backend_pod_uid,
        Key.ROTATION_ID.value: str(handover.rotation_id),
    }


def from_data(data: Mapping[str, str]) -> HandOver | None:
    """The hand-over that is stored as ``data``. One trailing line break of each text is not part of it, other
    keys are ignored, and all empty means that there is none at present: None.

    Raises ``UnreadableHandOver``.
    """
    texts = {key: _line(data.get(key, "")) for key in Key}
    if not any(texts.values()):
        return None
    missing = [key.value for key in REQUIRED if not texts[key]]
    if missing:
        raise UnreadableHandOver(f"the hand-over has no {' and no '.join(missing)}")
    credential = Masked(texts[Key.CREDENTIAL])
    if not usable(credential):
        raise UnreadableHandOver("the hand-over's credential is not 64 hexadecimal digits")
    # Its own digits and length first: int() takes other scripts' digits, and quotes what it refuses.
    if not re.fullmatch(r"[0-9]{1,19}", texts[Key.ROTATION_ID]) or int(texts[Key.ROTATION_ID]) > MAX_ID:
        raise UnreadableHandOver("the hand-over's rotation-id is no number")
    return HandOver(
        endpoint=texts[Key.ENDPOINT],
        credential=credential,
        server_identity=texts[Key.SERVER_IDENTITY],
        home_dir=texts[Key.HOME_DIR],
        rotation_id=int(texts[Key.ROTATION_ID]),
        server_name=texts[Key.SERVER_NAME],
        certificate=texts[Key.CERTIFICATE],
        backend_pod_uid=texts[Key.BACKEND_POD_UID],
    )


def _line(text: str) -> str:
    return text.removesuffix("\n").removesuffix("\r")
