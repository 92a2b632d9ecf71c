"""What passes ask of the cluster: one narrow interface, so that a test can wrap it and stop between any two
writes."""

from collections.abc import Mapping
from typing import Any, Protocol

Json = dict[str, Any]


class AgentCluster(Protocol):
    """Reads and writes of agents' objects. Every call has a time limit and raises only
    ``tenure.cluster.errors``."""

    async def get_agent_process(self, namespace: str, name: str) -> Json | None:
        """A live GET; None on 404."""

    async def get_pod(self, namespace: str, name: str) -> Json | None:
        """A live GET; None on 404."""

    async def create_pod(self, namespace: str, body: Json) -> Json:
        """Create with ``fieldValidation=Strict``; the template travels verbatim. Returns the server's
        object."""

    async def delete_pod(
        self, namespace: str, name: str, *, uid: str, grace_seconds: int | None
    ) -> Json | None:
        """DELETE with a UID precondition; None as grace means the pod's own.

        Returns the pod as the server has it now (terminating), or None when it is gone at once or already.
        """

    async def annotate_pod(
        self, namespace: str, name: str, *, uid: str, annotations: Mapping[str, str | None]
    ) -> Json:
        """Merge annotations (None removes one), with a UID precondition."""

    async def patch_agent_process_status(
        self, namespace: str, name: str, *, uid: str, resource_version: str, status: Json
    ) -> Json:
        """Replace ``status`` as a whole, if UID and resource version are still these (else ``Conflict``)."""

    async def create_event(
        self, regarding: Mapping[str, str], *, reason: str, note: str, warning: bool, action: str
    ) -> None:
        """An ``events.k8s.io/v1`` Event about an object ({kind, namespace, name, uid, apiVersion}). Best
        effort."""
