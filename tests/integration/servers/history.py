"""What happened to ControlServers and pods of a namespace, and every secret that was ever in one of its Secrets."""

from base64 import b64decode
from dataclasses import dataclass, field
from typing import Any

from tests.integration.servers.canaries import Canaries
from tests.support.api import Object
from tests.support.history import NamespaceHistory, condition

__all__ = ["History", "condition", "container_of", "incarnation", "ready"]


@dataclass
class History(NamespaceHistory):
    """Of ControlServers; ``canaries`` learns what is secret."""

    plural = "controlservers"
    conditions = {  # noqa: RUF012 - a constant of the class, as its base declares it
        "Ready",
        "Adopted",
        "Recovered",
        "SurvivalAvailable",
        "Stalled",
        "BackendOverlap",
        "OwnershipLost",
    }
    child = "pod"
    kubernetes_finalizers = NamespaceHistory.kubernetes_finalizers | {"kubernetes.io/pvc-protection"}
    beside = ("secrets",)

    canaries: Canaries = field(kw_only=True)

    def take(self, plural: str, kind: str, item: Object) -> None:
        """A Secret is learned and not kept."""
        if plural == "secrets":
            for key, text in (item.get("data") or {}).items():
                self.canaries.learn(key, b64decode(text).decode(errors="replace"))
            return
        super().take(plural, kind, item)

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
        return [item.get("status", {}) for item in self.versions(name)]


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
