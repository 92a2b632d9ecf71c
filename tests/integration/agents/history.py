"""What happened to AgentProcesses and their pods, and what must never happen to any of them."""

from dataclasses import dataclass, field
from typing import Any

from tests.support.api import Object
from tests.support.history import NamespaceHistory, Seen, condition

__all__ = ["CONDITIONS", "History", "condition", "ended", "owner_of"]

CONDITIONS = {"Ready", "Alive", "Draining", "Stopped", "Stalled"}


@dataclass
class History(NamespaceHistory):
    """Of AgentProcesses."""

    plural = "agentprocesses"
    conditions = CONDITIONS
    child = "instance"

    pods_seen: set[str] = field(default_factory=set)
    """The UIDs of all pods that ever existed."""

    def take_pod(self, kind: str, item: Object) -> None:
        """Never two pods of one agent."""
        super().take_pod(kind, item)
        self.pods_seen.add(item["metadata"]["uid"])
        for name in {owner_of(pod) for pod in self.pods.values()} - {""}:
            living = [
                pod["metadata"]["name"]
                for pod in self.pods.values()
                if owner_of(pod) == name and not ended(pod)
            ]
            if len(living) > 1:
                self.offences.append(f"two pods of {name} at once: {sorted(living)}")

    # Reading

    def phases(self, name: str) -> list[str]:
        """The phases that status showed, in order, repetitions left out."""
        found: list[str] = []
        for item in self.versions(name):
            phase = item.get("status", {}).get("phase")
            if phase and (not found or found[-1] != phase):
                found.append(phase)
        return found

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
