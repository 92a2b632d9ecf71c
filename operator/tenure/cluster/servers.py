"""Control servers' objects in the API server: the reads and writes that passes ask for."""

import base64
import contextlib
from collections.abc import Mapping

from tenure.cluster.agents import KubernetesAgentCluster
from tenure.cluster.calls import (
    CONTROL_SERVER_STATUS,
    CONTROL_SERVERS,
    POD_STATUS,
    SECRETS,
    Companion,
    Resource,
    Verb,
)
from tenure.cluster.client import KubernetesClient
from tenure.cluster.errors import AlreadyExists, ApiError, Conflict, NotFound, Unavailable
from tenure.cluster.ports import Json
from tenure.cluster.server_ports import NewSecret, SecretObject
from tenure.model.masked import Masked

_TRIES = 4
_STRATEGIC = "application/strategic-merge-patch+json"


class KubernetesServerCluster(KubernetesAgentCluster):
    """``tenure.cluster.server_ports.ServerCluster`` over the real API server."""

    def __init__(self, client: KubernetesClient, *, instance: str | None = None) -> None:
        super().__init__(client, instance=instance)

    async def get_control_server(self, namespace: str, name: str) -> Json | None:
        """A live GET; None on 404."""
        return await self._get(CONTROL_SERVERS, namespace, name)

    async def patch_control_server_status(
        self, namespace: str, name: str, *, uid: str, resource_version: str, status: Json
    ) -> Json:
        """Replace ``status`` as a whole; ``Conflict`` when the object is not the one that was read."""
        return await self._replace_status(
            CONTROL_SERVER_STATUS, namespace, name, uid=uid, resource_version=resource_version, status=status
        )

    async def set_pod_condition(
        self, namespace: str, name: str, *, uid: str, resource_version: str, condition: Json
    ) -> Json:
        """Merge one condition by its type; ``Conflict`` when the pod is not the one that was read."""
        # A strategic merge patch merges conditions by type, and honours the resource version, not the UID.
        pod = await self.get_pod(namespace, name)
        meta = {} if pod is None else pod["metadata"]
        if meta.get("uid") != uid or meta.get("resourceVersion") != resource_version:
            raise Conflict(409, "Conflict", "the pod has changed since it was read")
        return await self._client.request(
            Verb.PATCH,
            POD_STATUS,
            namespace=namespace,
            name=name,
            body={
                "metadata": {"resourceVersion": resource_version},
                "status": {"conditions": [condition]},
            },
            content_type=_STRATEGIC,
        )

    async def get_secret(self, namespace: str, name: str) -> SecretObject | None:
        """A live GET; None on 404."""
        found = await self._get(SECRETS, namespace, name)
        return None if found is None else _secret(found)

    async def create_secret(self, namespace: str, secret: NewSecret) -> SecretObject:
        """Create; ``AlreadyExists`` when there is one of this name."""
        return _secret(
            await self._silent(Verb.CREATE, namespace=namespace, name=None, body=_manifest(secret, {}))
        )

    async def replace_secret(
        self, namespace: str, secret: NewSecret, *, uid: str, resource_version: str
    ) -> SecretObject:
        """PUT with UID and resource version."""
        body = _manifest(secret, {"uid": uid, "resourceVersion": resource_version})
        return _secret(await self._silent(Verb.UPDATE, namespace=namespace, name=secret.name, body=body))

    async def delete_secret(self, namespace: str, name: str, *, uid: str) -> None:
        """DELETE with a UID precondition."""
        options: Json = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        try:
            await self._client.request(Verb.DELETE, SECRETS, namespace=namespace, name=name, body=options)
        except NotFound:
            return

    async def ensure(self, kind: Companion, namespace: str, body: Json) -> bool:
        """Create, or bring ours to this spec. A claim's spec is never changed: the API does not let us."""
        for _ in range(_TRIES):
            found = await self._get(kind.value, namespace, body["metadata"]["name"])
            if found is not None:
                _refuse_foreign(found, body)
                if "deletionTimestamp" in found["metadata"]:
                    # A pod made now would wait for a claim that is gone: the next one is made when this one is.
                    raise Unavailable(409, "Terminating", "what stands beside the pod is being deleted")
                if kind is Companion.CLAIM or found.get("spec") == body.get("spec"):
                    return False
            try:
                await self._put(kind.value, namespace, found, body)
            except (AlreadyExists, Conflict, NotFound) as error:
                # A controller wrote its status in between, or it came or went: whose it is has to be seen again.
                if isinstance(error, NotFound) and found is None:
                    raise
                continue
            return True
        raise Unavailable(409, "Moving", "an object of ours keeps changing while it is corrected")

    async def _put(self, resource: Resource, namespace: str, found: Json | None, body: Json) -> None:
        if found is None:
            await self._client.request(
                Verb.CREATE, resource, namespace=namespace, body=body, query=[("fieldValidation", "Strict")]
            )
            return
        changed = {**found, "spec": body["spec"], "metadata": {**found["metadata"], **body["metadata"]}}
        changed.pop("status", None)
        name = body["metadata"]["name"]
        await self._client.request(Verb.UPDATE, resource, namespace=namespace, name=name, body=changed)

    async def remove(self, kind: Companion, namespace: str, name: str, *, owner_uid: str) -> None:
        """DELETE with a UID precondition, if it is ours."""
        found = await self._get(kind.value, namespace, name)
        if found is None or _owner_uid(found) != owner_uid:
            return
        options: Json = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": found["metadata"]["uid"]},
        }
        try:
            await self._client.request(Verb.DELETE, kind.value, namespace=namespace, name=name, body=options)
        except NotFound:
            return

    async def _silent(self, verb: Verb, *, namespace: str, name: str | None, body: Json) -> Json:
        """A write of a Secret: what the server says of it is not repeated, since it may quote a value."""
        refused: ApiError
        try:
            return await self._client.request(verb, SECRETS, namespace=namespace, name=name, body=body)
        except ApiError as error:
            refused = type(error)(error.status, error.reason, "the Secret was not written")
        raise refused


def _owner_uid(found: Mapping[str, object]) -> str:
    meta = found.get("metadata")
    references = meta.get("ownerReferences") if isinstance(meta, Mapping) else None
    for reference in references if isinstance(references, list) else []:
        if reference.get("controller"):
            return str(reference.get("uid", ""))
    return ""


def _refuse_foreign(found: Json, wanted: Json) -> None:
    # A claim outlives its server object, so it has no owner: it is ours by its labels.
    if _owner_uid(wanted):
        ours = _owner_uid(found) == _owner_uid(wanted)
    else:
        labels = found["metadata"].get("labels") or {}
        ours = not _owner_uid(found) and wanted["metadata"].get("labels", {}).items() <= labels.items()
    if not ours:
        raise Conflict(409, "Foreign", "an object of this name exists and is not this ControlServer's")


def _manifest(secret: NewSecret, meta: Json) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {
            "name": secret.name,
            "labels": dict(secret.labels),
            "ownerReferences": [dict(secret.owner)],
            **meta,
        },
        "data": {
            key: base64.b64encode(value.reveal().encode()).decode() for key, value in secret.data.items()
        },
    }


def _secret(found: Json) -> SecretObject:
    meta = found.get("metadata") or {}
    data: dict[str, Masked] = {}
    for key, value in (found.get("data") or {}).items():
        # Ours hold text only. What is none is left out, so that a planted Secret is seen to be foreign, and no more.
        with contextlib.suppress(AttributeError, TypeError, ValueError):
            data[str(key)] = Masked(base64.b64decode(value, validate=True).decode())
    return SecretObject(
        name=str(meta.get("name", "")),
        uid=str(meta.get("uid", "")),
        resource_version=str(meta.get("resourceVersion", "")),
        owner_uid=_owner_uid(found),
        data=data,
    )
