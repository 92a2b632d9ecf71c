"""What an owner stores about the server that it owns, and where: enough to go on after a crash at any point."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tenure.model.errors import TenureError
from tenure.model.masked import Masked
from tenure.ownership.endpoint import Endpoint


@dataclass(frozen=True, slots=True)
class Holding:
    """One control server and how it is owned.

    ``credential`` is the newest one that is known, None when it cannot be read. ``rotation_id`` is the rotation
    that issued it, 0 for the handshake; unless ``confirmed``, the server still has to be told that it is
    stored. ``adopted_by`` is the incarnation whose adoption stored it. ``version`` is the store's own, for
    compare-and-set: what ``load`` returned, or ``store`` after it.
    """

    server_identity: str
    home_dir: str
    endpoint: Endpoint
    credential: Masked | None
    rotation_id: int = 0
    confirmed: bool = True
    adopted_by: str = ""
    version: str = ""


class StoreFailed(TenureError):
    """Nothing is known to be stored. Trying the same again is harmless."""


class StoreConflict(StoreFailed):
    """Somebody else has stored since: what they stored stands, and ours is not stored."""


class CredentialStore(Protocol):
    """Where a holding lives. Whoever adopts has to be alone: by a Lease, or a lock of the store."""

    async def load(self) -> Holding | None:
        """What is stored, or None when nothing ever was. Raises ``StoreFailed``."""

    async def store(self, holding: Holding) -> Holding:
        """Store it in place of the one with ``holding.version``, and return it with its new version.

        Durable when this returns. Storing again what is stored, under the version that it replaced, is no
        conflict: an answer may have been lost. Raises ``StoreConflict`` and ``StoreFailed``.
        """


def same_content(one: Holding, other: Holding) -> bool:
    """Whether two holdings say the same, versions apart."""
    return _content(one) == _content(other)


def _content(holding: Holding) -> Mapping[str, object]:
    names = (
        "server_identity",
        "home_dir",
        "endpoint",
        "credential",
        "rotation_id",
        "confirmed",
        "adopted_by",
    )
    return {name: getattr(holding, name) for name in names}
