"""What happened in a namespace, in the API server's own order; and what must never happen in any of them."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import ClassVar

import aiohttp

from tests.support.api import AdminClient, ApiError, Object, path


@dataclass(frozen=True)
class Seen:
    """One watch event; ``at`` is monotonic."""

    plural: str
    kind: str
    item: Object
    at: float


@dataclass
class NamespaceHistory:
    """Watches the resources of one kind of ours, and pods, of one namespace. ``offences`` are sentences about broken
    promises.

    A subclass says which kind, and may judge more in ``take`` and ``take_pod``.
    """

    plural: ClassVar[str]
    conditions: ClassVar[set[str]]
    """All that a status of the kind has, from its first one on."""
    child: ClassVar[str]
    """Where status names the pod or instance with its ordinal."""
    kubernetes_finalizers: ClassVar[set[str]] = {"foregroundDeletion", "orphan"}
    """What Kubernetes itself sets while it deletes."""
    beside: ClassVar[tuple[str, ...]] = ()
    """What else is watched; ``take`` gets it."""

    api: AdminClient
    namespace: str
    seen: list[Seen] = field(default_factory=list)
    resources: dict[str, Object] = field(default_factory=dict)
    """By name, those that exist."""
    pods: dict[str, Object] = field(default_factory=dict)
    """By UID, those that exist."""
    offences: list[str] = field(default_factory=list)

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            for plural in (self.plural, "pods", *self.beside):
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
                        self.take(plural, "ADDED", item)
                    if plural == "pods":
                        # What was deleted while nobody looked gives no event.
                        for uid in self.pods.keys() - present:
                            self.take(plural, "DELETED", self.pods[uid])
                async for kind, item in self.api.watch(url, resourceVersion=version, timeoutSeconds="300"):
                    version = item["metadata"]["resourceVersion"]
                    self.take(plural, kind, item)
            except (ApiError, aiohttp.ClientError, OSError):
                version = ""
                await asyncio.sleep(0.1)

    def take(self, plural: str, kind: str, item: Object) -> None:
        """One event."""
        self.seen.append(Seen(plural, kind, item, time.monotonic()))
        meta = item["metadata"]
        if plural == "pods":
            self.take_pod(kind, item)
        elif kind == "DELETED":
            self.resources.pop(meta["name"], None)
        else:
            self._judge(self.resources.get(meta["name"]), item)
            self.resources[meta["name"]] = item
        strange = set(meta.get("finalizers") or ()) - self.kubernetes_finalizers
        if strange:
            self.offences.append(f"{plural}/{meta['name']} has finalizers {sorted(strange)}")
        if any("kopf" in key for key in meta.get("annotations") or ()):
            self.offences.append(f"{plural}/{meta['name']} has an annotation of kopf's")

    def take_pod(self, kind: str, item: Object) -> None:
        """One event of a pod."""
        if kind == "DELETED":
            self.pods.pop(item["metadata"]["uid"], None)
        else:
            self.pods[item["metadata"]["uid"]] = item

    def _judge(self, before: Object | None, after: Object) -> None:
        name, conditions = after["metadata"]["name"], _conditions(after)
        if conditions and conditions != self.conditions:
            self.offences.append(f"{name}: conditions are {sorted(conditions)}")
        if before is None or before["metadata"]["uid"] != after["metadata"]["uid"]:
            return
        lost = _conditions(before) - conditions
        if lost:
            self.offences.append(f"{name}: conditions disappeared: {sorted(lost)}")
        if self._ordinal(after) < self._ordinal(before):
            self.offences.append(
                f"{name}: the ordinal went from {self._ordinal(before)} to {self._ordinal(after)}"
            )

    def _ordinal(self, item: Object) -> int:
        return int((item.get("status", {}).get(self.child) or {}).get("ordinal") or 0)

    def versions(self, name: str) -> list[Object]:
        """Every version of a resource that was seen."""
        items = [s.item for s in self.seen if s.plural == self.plural]
        return [item for item in items if item["metadata"]["name"] == name]


def condition(item: Object, kind: str) -> Object:
    """One condition; ``LookupError`` when it is not there yet."""
    found = [c for c in item.get("status", {}).get("conditions") or () if c["type"] == kind]
    if not found:
        raise LookupError(f"no condition {kind}")
    return dict(found[0])


def _conditions(item: Object) -> set[str]:
    return {c["type"] for c in item.get("status", {}).get("conditions") or ()}
