"""What stands beside a server's pod: who may reach it, what keeps drains away from it, where its files are.

Each is written out as the API server stores it, defaults included, so that what is there can be compared with it.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from tenure.model.control_server import ControlServer
from tenure.model.pods import ROLE_LABEL
from tenure.plan.servers.bootstrap import PORT
from tenure.plan.servers.names import (
    BACKEND_ROLE,
    ORDINAL_LABEL,
    SERVER_LABEL,
    SERVER_ROLE,
    budget_name,
    claim_labels,
    claim_name,
    labels,
    owner,
    policy_name,
    without_reserved,
)

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class OperatorPods:
    """The operator's own pods, as a NetworkPolicy names them."""

    namespace: str
    labels: Mapping[str, str]
    """Not empty: these, and no others of the namespace, are let in."""


def disruption_budget(server: ControlServer, ordinal: int) -> Json:
    """The PodDisruptionBudget that keeps drains away from the pod number ``ordinal`` while it hosts instances."""
    # A whole minAvailable: the only form that works for pods of a controller that cannot be scaled.
    selector = {**_selector(server), ORDINAL_LABEL: str(ordinal)}
    spec = {"minAvailable": 1, "selector": {"matchLabels": selector}}
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(server, budget_name(server)),
        "spec": spec,
    }


def network_policy(server: ControlServer, operator: OperatorPods | None) -> Json:
    """The NetworkPolicy of the server's pods: the operator and the backend come in, at one port, and nobody else.

    ``operator`` None: it runs outside of the cluster, where no label says who it is. Then it is not named here, so
    either something else lets it in, or no policy should be written. Raises ``ValueError`` for an operator without
    labels: every pod of its namespace would be let in.
    """
    peers: list[Json] = []
    if operator is not None:
        if not operator.labels:
            raise ValueError("the operator's pods are named by their labels")
        namespace = {"kubernetes.io/metadata.name": operator.namespace}
        peers.append(
            {
                "namespaceSelector": {"matchLabels": namespace},
                "podSelector": {"matchLabels": dict(operator.labels)},
            }
        )
    backend = server.spec.backend
    if backend is not None:
        peers.append({"podSelector": _backend_pods(backend.selector.to_wire())})
    rule = {"from": peers, "ports": [{"port": PORT, "protocol": "TCP"}]}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(server, policy_name(server)),
        "spec": {
            "podSelector": {"matchLabels": _selector(server)},
            "policyTypes": ["Ingress"],
            # A rule with an empty "from" lets everybody in; no rule lets nobody in.
            **({"ingress": [rule]} if peers else {}),
        },
    }


def volume_claim(server: ControlServer) -> Json | None:
    """The claim for the server's volume, or None when it has none. No owner: it outlives pod and object."""
    template = server.spec.storage.volume_claim_template
    if template is None:
        return None
    given = template.metadata
    metadata: Json = {
        "name": claim_name(server),
        "namespace": server.namespace,
        "labels": {**without_reserved(given.labels if given else None), **claim_labels(server)},
    }
    if annotations := without_reserved(given.annotations if given else None):
        metadata["annotations"] = annotations
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata,
        "spec": deepcopy(template.spec),
    }


def _selector(server: ControlServer) -> dict[str, str]:
    return {ROLE_LABEL: SERVER_ROLE, SERVER_LABEL: server.name}


def _metadata(server: ControlServer, name: str) -> Json:
    return {
        "name": name,
        "namespace": server.namespace,
        "labels": labels(server),
        "ownerReferences": [owner(server)],
    }


def _backend_pods(selector: Json) -> Json:
    """The backend's selector and its role. As an expression: a label of the selector cannot take its place."""
    role = {"key": ROLE_LABEL, "operator": "In", "values": [BACKEND_ROLE]}
    # An empty list is not stored: with one, what is there would never be what is wanted.
    given = [{k: v for k, v in e.items() if v != []} for e in selector.get("matchExpressions", [])]
    return {**selector, "matchExpressions": [*given, role]}
