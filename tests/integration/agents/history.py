"""What happened in a namespace, in the API server's own order; and what must never happen in any of them."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from tests.support.api import AdminClient, ApiError, Object, path

CONDITIONS = {"Ready", "Alive", "Draining", "Stopped", "Stalled"}
_FOREIGN_FINALIZERS = {"foregroundDeletion", "orphan"}
"""What Kubernetes itself sets while it deletes."""


@dataclass(frozen=True)
class Seen:
    """One watch event; ``at`` is monotonic."""

    plural: str
    kind: str
    item: Object
    at: float


@dataclass
class History:
    """Watches AgentProcesses and pods of one namespace. ``offences`` are sentences about broken promises."""

    api: AdminClient
    namespace: str
    seen: list[Seen] = field(default_factory=list)
    processes: dict[str, Object] = field(default_factory=dict)
    pods: dict[str, Object] = field(default_factory=dict)
    offences: list[str] = field(default_factory=list)

    async def run(self) -> None:
        """Watch both until cancelled."""
        async with asyncio.TaskGroup() as group:
            for plural in ("agentprocesses", "pods"):
                group.create_task(self._watch(plural), name=f"history {plural}")

    async def _watch(self, plural: str) -> None:
        url = path(plural, self.namespace)
        version = ""
        while True:
            try:
                if not version:
                    listed = await self.api.get(url)
                    version = listed["metadata"]["resourceVersion"]
                    for item in listed["items"]:
                        self._take(plural, "ADDED", item)
                async for kind, item in self.api.watch(url, resourceVersion=version, timeoutSeconds="300"):
                    version = item["metadata"]["resourceVersion"]
                    self._take(plural, kind, item)
            except (ApiError, aiohttp.ClientError, OSError):
                version = ""
                await asyncio.sleep(0.1)

    def _take(self, plural: str, kind: str, item: Object) -> None:
        self.seen.append(Seen(plural, kind, item, time.monotonic()))
        meta = item["metadata"]
        if plural == "pods":
            self._take_pod(kind, item)
        elif kind == "DELETED":
            self.processes.pop(meta["name"], None)
        else:
            self._judge_status(self.processes.get(meta["name"]), item)
            self.processes[meta["name"]] = item
        finalizers = set(meta.get("finalizers") or ()) - _FOREIGN_FINALIZERS
        if finalizers:
            self.offences.append(f"{plural}/{meta['name']} has finalizers {sorted(finalizers)}")
        if any("kopf" in key for key in meta.get("annotations") or ()):
            self.offences.append(f"{plural}/{meta['name']} has an annotation of kopf's")

    def _take_pod(self, kind: str, item: Object) -> None:
        uid = item["metadata"]["uid"]
        if kind == "DELETED":
            self.pods.pop(uid, None)
        else:
            self.pods[uid] = item
        for name in {owner_of(pod) for pod in self.pods.values()} - {""}:
            living = [
                pod["metadata"]["name"]
                for pod in self.pods.values()
                if owner_of(pod) == name and not ended(pod)
            ]
            if len(living) > 1:
                self.offences.append(f"two pods of {name} at once: {sorted(living)}")

    def _judge_status(self, before: Object | None, after: Object) -> None:
        name = after["metadata"]["name"]
        if before is None or before["metadata"]["uid"] != after["metadata"]["uid"]:
            return
        lost = _conditions(before) - _conditions(after)
        if lost:
            self.offences.append(f"{name}: conditions disappeared: {sorted(lost)}")
        if _conditions(after) and _conditions(after) != CONDITIONS:
            self.offences.append(f"{name}: conditions are {sorted(_conditions(after))}")
        if _ordinal(after) < _ordinal(before):
            self.offences.append(f"{name}: the ordinal went from {_ordinal(before)} to {_ordinal(after)}")

    # Reading

    def phases(self, name: str) -> list[str]:
        """The phases that status showed, in order, repetitions left out."""
        found: list[str] = []
        for item in self.versions(name):
            phase = item.get("status", {}).get("phase")
            if phase and (not found or found[-1] != phase):
                found.append(phase)
        return found

    def versions(self, name: str) -> Iterator[Object]:
        """Every version of an AgentProcess that was seen."""
        for seen in self.seen:
            if seen.plural == "agentprocesses" and seen.item["metadata"]["name"] == name:
                yield seen.item

    def pods_of(self, name: str) -> list[Object]:
        """The pods that exist, oldest first by ordinal."""
        found = [pod for pod in self.pods.values() if owner_of(pod) == name]
        return sorted(found, key=lambda pod: int(pod["metadata"]["name"].rsplit("-", 1)[1]))

    def pod_names(self, name: str) -> list[str]:
        """The names of all pods that ever existed, in order of appearance."""
        names = [
            s.item["metadata"]["name"] for s in self.seen if s.plural == "pods" and owner_of(s.item) == name
        ]
        return list(dict.fromkeys(names))

    def first(self, plural: str, probe: Any) -> Seen | None:
        """The first event whose object satisfies ``probe``."""
        return next((s for s in self.seen if s.plural == plural and probe(s.item)), None)


def owner_of(pod: Object) -> str:
    """The name of the AgentProcess that controls a pod, or an empty string."""
    owners = pod["metadata"].get("ownerReferences") or []
    return next((o["name"] for o in owners if o["kind"] == "AgentProcess" and o.get("controller")), "")


def ended(pod: Object) -> bool:
    """Whether all its containers have ended."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def condition(item: Object, kind: str) -> Object:
    """One condition; ``LookupError`` when it is not there yet."""
    found = [c for c in item.get("status", {}).get("conditions") or () if c["type"] == kind]
    if not found:
        raise LookupError(f"no condition {kind}")
    return dict(found[0])


def _conditions(item: Object) -> set[str]:
    return {c["type"] for c in item.get("status", {}).get("conditions") or ()}


def _ordinal(item: Object) -> int:
    return int(item.get("status", {}).get("instance", {}).get("ordinal") or 0)
