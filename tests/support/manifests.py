"""Manifests that a real API server accepts."""

from typing import Any

from tenure.model.pods import AGENT_ROLE, ROLE_LABEL

Object = dict[str, Any]


def agent_manifest(name: str, **spec: Any) -> Object:
    """A small AgentProcess with a template of one container."""
    container = {"name": "agent", "image": "example.invalid/agent:1"}
    return {
        "apiVersion": "tenure.dev/v1alpha1",
        "kind": "AgentProcess",
        "metadata": {"name": name},
        "spec": {"template": {"spec": {"containers": [container]}}, **spec},
    }


def pod_manifest(name: str, *, owner: Object, containers: int = 1) -> Object:
    """A pod as the operator might have made it for ``owner``, an AgentProcess read from the API server."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {ROLE_LABEL: AGENT_ROLE},
            "ownerReferences": [
                {
                    "apiVersion": owner["apiVersion"],
                    "kind": owner["kind"],
                    "name": owner["metadata"]["name"],
                    "uid": owner["metadata"]["uid"],
                    "controller": True,
                }
            ],
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "containers": [
                {"name": f"c{number}" if number else "agent", "image": "example.invalid/agent:1"}
                for number in range(containers)
            ],
        },
    }
