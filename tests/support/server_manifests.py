"""ControlServer manifests for tests: plain JSON, as a user or the API server would write it."""

from typing import Any

from tests.support.agent_manifests import Manifest


def server_manifest(name: str = "main", **spec: Any) -> Manifest:
    """The least ControlServer with the given fields of ``spec`` (wire names) on top."""
    return {
        "apiVersion": "tenure.dev/v1alpha1",
        "kind": "ControlServer",
        "metadata": {"name": name},
        "spec": dict(spec),
    }


def stored_server(name: str = "main", namespace: str = "team", uid: str = "5e12", **spec: Any) -> Manifest:
    """The same as it comes from the API server."""
    raw = server_manifest(name, **spec)
    raw["metadata"] |= {"namespace": namespace, "uid": uid, "generation": 1, "resourceVersion": "7"}
    return raw
