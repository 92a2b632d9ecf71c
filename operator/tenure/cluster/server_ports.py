"""What passes over control servers ask of the cluster: one narrow interface, so that a test can stop between any two
writes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tenure.cluster.calls import Companion
from tenure.cluster.ports import Json
from tenure.model.masked import Masked


@dataclass(frozen=True, slots=True)
class SecretObject:
    """One Secret as it was read. Its values are shown nowhere."""

    name: str
    uid: str
    resource_version: str
    owner_uid: str
    """UID of its controlling owner; empty: it has none, and so is not ours."""
    data: Mapping[str, Masked] = field(repr=False)


@dataclass(frozen=True, slots=True)
class NewSecret:
    """A Secret to be written: ``owner`` is one owner reference, ``data`` whole."""

    name: str
    labels: Mapping[str, str]
    owner: Mapping[str, str | bool]
    data: Mapping[str, Masked] = field(repr=False)


class ServerCluster(Protocol):
    """Reads and writes of control servers' objects. Every call has a time limit and raises only
    ``tenure.cluster.errors``. No Secret is ever listed or watched: each is read by its name."""

    async def get_control_server(self, namespace: str, name: str) -> Json | None:
        """A live GET; None on 404."""

    async def patch_control_server_status(
        self, namespace: str, name: str, *, uid: str, resource_version: str, status: Json
    ) -> Json:
        """Replace ``status`` as a whole, if UID and resource version are still these (else ``Conflict``)."""

    async def get_agent_process(self, namespace: str, name: str) -> Json | None:
        """A live GET; None on 404."""

    async def get_pod(self, namespace: str, name: str) -> Json | None:
        """A live GET; None on 404."""

    async def create_pod(self, namespace: str, body: Json) -> Json:
        """Create with ``fieldValidation=Strict``. Returns the server's object."""

    async def delete_pod(
        self, namespace: str, name: str, *, uid: str, grace_seconds: int | None
    ) -> Json | None:
        """DELETE with a UID precondition; the pod as the server has it now, or None when it is gone."""

    async def annotate_pod(
        self, namespace: str, name: str, *, uid: str, annotations: Mapping[str, str | None]
    ) -> Json:
        """Merge annotations (None removes one), with a UID precondition."""

    async def set_pod_condition(
        self, namespace: str, name: str, *, uid: str, resource_version: str, condition: Json
    ) -> Json:
        """Set one condition ({type, status, reason, message, lastTransitionTime}) of a pod's status; ``Conflict``
        when the pod is not the one that was read."""

    async def get_secret(self, namespace: str, name: str) -> SecretObject | None:
        """A live GET; None on 404. Values that are no text are left out."""

    async def create_secret(self, namespace: str, secret: NewSecret) -> SecretObject:
        """Create; ``AlreadyExists`` when there is one of this name, whosever it is."""

    async def replace_secret(
        self, namespace: str, secret: NewSecret, *, uid: str, resource_version: str
    ) -> SecretObject:
        """Write the whole Secret if it is still the one that was read (else ``Conflict``, or ``NotFound``)."""

    async def delete_secret(self, namespace: str, name: str, *, uid: str) -> None:
        """DELETE with a UID precondition; gone already is success. ``Conflict``: another one has the name."""

    async def ensure(self, kind: Companion, namespace: str, body: Json) -> bool:
        """Create a companion, or bring one of ours (controller owner UID) to this ``spec``; True when something was
        written. ``Conflict`` means that somebody else's has the name, and nothing else; ``Unavailable``: it is
        being deleted, or keeps changing."""

    async def remove(self, kind: Companion, namespace: str, name: str, *, owner_uid: str) -> None:
        """Delete a companion if it is ours; absent or somebody else's: nothing happens."""

    async def create_event(
        self, regarding: Mapping[str, str], *, reason: str, note: str, warning: bool, action: str
    ) -> None:
        """An ``events.k8s.io/v1`` Event about an object. Best effort."""
