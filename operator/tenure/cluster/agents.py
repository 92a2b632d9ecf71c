"""Agents' objects in the API server: the reads and writes that passes ask for."""

import contextlib
import socket
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime

from tenure.cluster.calls import AGENT_PROCESS_STATUS, AGENT_PROCESSES, EVENTS, PODS, Resource, Verb
from tenure.cluster.client import JSON_PATCH, MERGE_PATCH, KubernetesClient
from tenure.cluster.errors import Conflict, NotFound
from tenure.cluster.ports import Json
from tenure.model.redaction import one_line

REPORTING_CONTROLLER = "tenure.dev/operator"
_NOTE_BYTES = 1024
"""The API server refuses a longer note (``events.k8s.io/v1`` validation)."""


class KubernetesAgentCluster:
    """``tenure.cluster.ports.AgentCluster`` over the real API server."""

    def __init__(self, client: KubernetesClient, *, instance: str | None = None) -> None:
        self._client = client
        self._instance = (instance or socket.gethostname())[:128]

    async def get_agent_process(self, namespace: str, name: str) -> Json | None:
        """A live GET; None on 404."""
        return await self._get(AGENT_PROCESSES, namespace, name)

    async def get_pod(self, namespace: str, name: str) -> Json | None:
        """A live GET; None on 404."""
        return await self._get(PODS, namespace, name)

    async def create_pod(self, namespace: str, body: Json) -> Json:
        """Create, unknown and duplicate fields refused with the server's own sentence."""
        return await self._client.request(
            Verb.CREATE, PODS, namespace=namespace, body=body, query=[("fieldValidation", "Strict")]
        )

    async def delete_pod(
        self, namespace: str, name: str, *, uid: str, grace_seconds: int | None
    ) -> Json | None:
        """DELETE with a UID precondition; None when the pod is gone at once or already.

        ``Conflict`` when another pod has the name.
        """
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        try:
            answer = await self._client.request(
                Verb.DELETE, PODS, namespace=namespace, name=name, body=options
            )
        except NotFound:
            return None
        meta = answer.get("metadata") or {}
        if answer.get("kind") == "Pod" and meta.get("deletionGracePeriodSeconds") != 0:
            return answer
        # Grace 0 or a bare Status: the server may or may not have it still, so ask.
        pod = await self.get_pod(namespace, name)
        return pod if pod is not None and pod["metadata"].get("uid") == uid else None

    async def annotate_pod(
        self, namespace: str, name: str, *, uid: str, annotations: Mapping[str, str | None]
    ) -> Json:
        """Merge annotations (None removes one); ``Conflict`` when another pod has the name."""
        # A merge patch with another UID is refused, since a UID never changes.
        patch: Json = {"metadata": {"uid": uid, "annotations": dict(annotations)}}
        return await self._client.request(
            Verb.PATCH, PODS, namespace=namespace, name=name, body=patch, content_type=MERGE_PATCH
        )

    async def patch_agent_process_status(
        self, namespace: str, name: str, *, uid: str, resource_version: str, status: Json
    ) -> Json:
        """Replace ``status`` as a whole; ``Conflict`` when the object is not the one that was read."""
        return await self._replace_status(
            AGENT_PROCESS_STATUS, namespace, name, uid=uid, resource_version=resource_version, status=status
        )

    async def create_event(
        self, regarding: Mapping[str, str], *, reason: str, note: str, warning: bool, action: str
    ) -> None:
        """Record an Event about an object. An object or namespace that is gone has nobody to tell: no
        error."""
        body = event_body(
            regarding, reason=reason, note=note, warning=warning, action=action, instance=self._instance
        )
        with contextlib.suppress(NotFound, Conflict):
            await self._client.request(Verb.CREATE, EVENTS, namespace=regarding["namespace"], body=body)

    async def _replace_status(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str,
        resource_version: str,
        status: Json,
    ) -> Json:
        # A merge patch of /status ignores a wrong UID; the tests of a JSON patch are honoured.
        patch: list[Json] = [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "test", "path": "/metadata/resourceVersion", "value": resource_version},
            {"op": "add", "path": "/status", "value": status},
        ]
        return await self._client.request(
            Verb.PATCH, resource, namespace=namespace, name=name, body=patch, content_type=JSON_PATCH
        )

    async def _get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        try:
            return await self._client.request(Verb.GET, resource, namespace=namespace, name=name)
        except NotFound:
            return None


def event_body(
    regarding: Mapping[str, str], *, reason: str, note: str, warning: bool, action: str, instance: str
) -> Json:
    """An ``events.k8s.io/v1`` Event, within the API's limits; ``note`` is redacted and cut."""
    text = one_line(note, _NOTE_BYTES).encode()[:_NOTE_BYTES].decode(errors="ignore")
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {
            "name": f"{regarding['name'][:200].rstrip('-.')}.{uuid.uuid4().hex[:16]}",
            "namespace": regarding["namespace"],
        },
        "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "reportingController": REPORTING_CONTROLLER,
        "reportingInstance": instance,
        "action": (action or reason)[:128],
        "reason": reason[:128],
        "type": "Warning" if warning else "Normal",
        "regarding": {
            key: regarding[key]
            for key in ("apiVersion", "kind", "namespace", "name", "uid")
            if regarding.get(key)
        },
        "note": text,
    }
