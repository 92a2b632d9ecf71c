"""What happened to ControlServers and pods of a namespace, and every secret that was ever in one of its Secrets."""

import asyncio
import time
from base64 import b64decode
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from tests.integration.servers.canaries import Canaries
from tests.support.api import AdminClient, ApiError, Object, path

CONDITIONS = {
    "Ready",
    "Adopted",
    "Recovered",
    "SurvivalAvailable",
    "Stalled",
    "BackendOverlap",
    "OwnershipLost",
}
_FOREIGN_FINALIZERS = {"foregroundDeletion", "orphan", "kubernetes.io/pvc-protection"}


@dataclass(frozen=True)
class Seen:
    """One watch event; ``at`` is monotonic."""

    plural: str
    kind: str
    item: Object
    at: float


@dataclass
class History:
    """Watches one namespace. ``offences`` are sentences about broken promises."""

    api: AdminClient
    namespace: str
    canaries: Canaries
    seen: list[Seen] = field(default_factory=list)
    servers: dict[str, Object] = field(default_factory=dict)
    pods: dict[str, Object] = field(default_factory=dict)
    """By UID, those that exist."""
    offences: list[str] = field(default_factory=list)

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            for plural in ("controlservers", "pods", "secrets"):
                group.create_task(self._watch(plural), name=f"history {plural}")

    async def _watch(self, plural: str) -> None:
        url, version = path(plural, self.namespace), ""
        while True:
            try:
                if not version:
                    listed = await self.api.get(url)
                    version = listed["metadata"]["resourceVersion"]
                    present = {item["metadata"]["uid"] for item in listed["items"]}
                    for item in listed["items"]:
                        self._take(plural, "ADDED", item)
                    if plural == "pods":
                        # What was deleted while nobody looked gives no event.
                        for uid in self.pods.keys() - present:
                            self._take(plural, "DELETED", self.pods[uid])
                async for kind, item in self.api.watch(url, resourceVersion=version, timeoutSeconds="300"):
                    version = item["metadata"]["resourceVersion"]
                    self._take(plural, kind, item)
            except (ApiError, aiohttp.ClientError, OSError):
                version = ""
                await asyncio.sleep(0.1)

    def _take(self, plural: str, kind: str, item: Object) -> None:
        if plural == "secrets":
            self._learn(item)
            return
        self.seen.append(Seen(plural, kind, item, time.monotonic()))
        meta = item["metadata"]
        if plural == "pods":
            if kind == "DELETED":
                self.pods.pop(meta["uid"], None)
            else:
                self.pods[meta["uid"]] = item
        elif kind == "DELETED":
            self.servers.pop(meta["name"], None)
        else:
            self._judge(self.servers.get(meta["name"]), item)
            self.servers[meta["name"]] = item
        strange = set(meta.get("finalizers") or ()) - _FOREIGN_FINALIZERS
        if strange:
            self.offences.append(f"{plural}/{meta['name']} has finalizers {sorted(strange)}")
        if any("kopf" in key for key in meta.get("annotations") or ()):
            self.offences.append(f"{plural}/{meta['name']} has an annotation of kopf's")

    def _learn(self, secret: Object) -> None:
        for key, text in (secret.get("data") or {}).items():
            self.canaries.learn(key, b64decode(text).decode(errors="replace"))

    def _judge(self, before: Object | None, after: Object) -> None:
        name, conditions = after["metadata"]["name"], _conditions(after)
        if conditions and conditions != CONDITIONS:
            self.offences.append(f"{name}: conditions are {sorted(conditions)}")
        if before is None or before["metadata"]["uid"] != after["metadata"]["uid"]:
            return
        if _conditions(before) - conditions:
            self.offences.append(
                f"{name}: conditions disappeared: {sorted(_conditions(before) - conditions)}"
            )
        if _ordinal(after) < _ordinal(before):
            self.offences.append(f"{name}: the ordinal went from {_ordinal(before)} to {_ordinal(after)}")

    # Reading

    def of_role(self, role: str, *, everyone: bool = False) -> list[Object]:
        """Pods with this role, oldest first: those that exist, or all that ever did (as last seen)."""
        found = {s.item["metadata"]["uid"]: s.item for s in self.seen if s.plural == "pods"}
        chosen = found if everyone else self.pods
        pods = [
            pod for pod in chosen.values() if pod["metadata"].get("labels", {}).get("tenure.dev/role") == role
        ]
        return sorted(pods, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]))

    def statuses(self, name: str = "main") -> list[Object]:
        """Every status of a ControlServer that was seen."""
        items = [s.item for s in self.seen if s.plural == "controlservers"]
        return [item.get("status", {}) for item in items if item["metadata"]["name"] == name]


def condition(item: Object, kind: str) -> Object:
    """One condition; ``LookupError`` when it is not there yet."""
    found = [c for c in item.get("status", {}).get("conditions") or () if c["type"] == kind]
    if not found:
        raise LookupError(f"no condition {kind}")
    return dict(found[0])


def container_of(pod: Object) -> Object:
    """The status of the first container; empty while there is none."""
    found: list[Object] = pod.get("status", {}).get("containerStatuses") or [{}]
    return found[0]


def incarnation(pod: Object) -> str:
    """The lifetime of the pod's main container, as the operator names it."""
    return f"{pod['metadata']['uid']}/{container_of(pod).get('containerID', '')}"


def ready(pod: Object, kind: str = "Ready") -> bool:
    """Whether a condition of the pod is True."""
    conditions: list[Any] = pod.get("status", {}).get("conditions") or []
    return any(c["type"] == kind and c["status"] == "True" for c in conditions)


def _conditions(item: Object) -> set[str]:
    return {c["type"] for c in item.get("status", {}).get("conditions") or ()}


def _ordinal(item: Object) -> int:
    return int((item.get("status", {}).get("pod") or {}).get("ordinal") or 0)
