"""AgentProcess manifests for tests: plain JSON, as a user or the API server would write it."""

import copy
from typing import Any

Manifest = dict[str, Any]

CONTAINER: Manifest = {"name": "agent", "image": "agent:1"}


def manifest(name: str = "reviewer", **spec: Any) -> Manifest:
    """The least AgentProcess with the given fields of ``spec`` (wire names) on top."""
    template = {"spec": {"containers": [dict(CONTAINER)]}}
    return {
        "apiVersion": "tenure.dev/v1alpha1",
        "kind": "AgentProcess",
        "metadata": {"name": name},
        "spec": {"template": template, **spec},
    }


def hosted(name: str = "session-1", **session: Any) -> Manifest:
    """The least AgentProcess that is hosted by a ControlServer, with the given fields of ``spec.session`` on top."""
    raw = manifest(name)
    raw["spec"] = {
        "session": {
            "controlServerRef": {"name": "main"},
            "sessionID": "s-1",
            "taskID": "t-1",
            "agentProfile": "echo",
            "workspacePath": "/var/lib/tenure/work/s-1",
            **session,
        }
    }
    return raw


def stored(name: str = "reviewer", namespace: str = "team", uid: str = "0b6e", **spec: Any) -> Manifest:
    """The same as it comes from the API server."""
    raw = manifest(name, **spec)
    raw["metadata"] |= {"namespace": namespace, "uid": uid, "generation": 1, "resourceVersion": "7"}
    return raw


def changed(raw: Manifest, path: str, value: Any) -> Manifest:
    """A copy of ``raw`` with ``value`` at the dotted ``path``; ``...`` as value takes the field away."""
    *parents, last = path.split(".")
    copied = copy.deepcopy(raw)
    place = copied
    for part in parents:
        place = place.setdefault(part, {})
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return copied
