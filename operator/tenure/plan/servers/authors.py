"""What an author's template says, where the CRD does not say of what shape it is.

Whatever is of no shape that a pod can have is carried on, so that the API server refuses it in its own words.
"""

from collections.abc import Mapping
from typing import Any

from tenure.model.server_template import SERVER_CONTAINER

_KUBERNETES = frozenset({"secret", "configMap", "projected", "downwardAPI"})
"""Volumes that hold files of Kubernetes, and no work."""


def entries(value: object) -> list[Any]:
    """The entries of a list."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def field(entry: object, name: str) -> Any:
    """A field of an entry; None when there is none."""
    return entry.get(name) if isinstance(entry, Mapping) else None


def fields(value: object) -> dict[str, Any]:
    """The fields of an object."""
    return dict(value) if isinstance(value, Mapping) else {}


def server_container(pod: Mapping[str, Any]) -> dict[str, Any]:
    """What the template says of the control server's own container."""
    named = (c for c in entries(pod.get("containers")) if field(c, "name") == SERVER_CONTAINER)
    return fields(next(named, None))


def mounted_for_work(pod: Mapping[str, Any]) -> list[str]:
    """Where the server's container has volumes of the author's that may hold workspaces. A part of a volume may be a
    file, and is none of them."""
    volumes = {field(v, "name"): fields(v) for v in entries(pod.get("volumes"))}
    found = []
    for mount in entries(server_container(pod).get("volumeMounts")):
        path, volume = field(mount, "mountPath"), volumes.get(field(mount, "name"))
        if not volume or _KUBERNETES.intersection(volume) or field(mount, "subPath"):
            continue
        if isinstance(path, str) and path.startswith("/") and not field(mount, "subPathExpr"):
            found.append(path)
    return found
