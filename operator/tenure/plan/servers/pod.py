"""The pod of a control server: what the operator renders, merged with what the author's template says.

What makes it a control server, and a safe one, is the operator's: command, identity, security context, volumes of ours.
Everything else of the template is carried as it is. Nothing in it is shared with the template.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from tenure.model.control_server import ControlServer
from tenure.model.server_template import NOT_OF_THE_SERVER, SERVER_CONTAINER
from tenure.plan.render import EVICTION_ANNOTATIONS, protected, protection_is_the_authors
from tenure.plan.servers.authors import entries, field, fields, server_container
from tenure.plan.servers.bootstrap import (
    BOOTSTRAP_DIR,
    CONFIG_PATH,
    MOUNTED_KEYS,
    PORT,
    TERMINATION_FILE,
    TMP,
    VOLUME_ROOT,
    grace_seconds,
    server_settings,
)
from tenure.plan.servers.names import (
    HASH_ANNOTATION,
    ORDINAL_LABEL,
    VACANCY_ANNOTATION,
    bootstrap_name,
    claim_name,
    labels,
    owner,
    pod_name,
    without_reserved,
)
from tenure.plan.servers.outdated import image_of, server_hash

Json = dict[str, Any]

USER = 10001
"""The user of the operator's own image. A template may name another one that is not root."""
HOME_VOLUME = "tenure-home"
"""An init container that fetches a workspace mounts this one."""
BOOTSTRAP_VOLUME = "tenure-bootstrap"
TMP_VOLUME = "tenure-tmp"
PORT_NAME = "control"

_AUTHORS = frozenset({"workspace_roots"})
"""Settings that a variable of the author's may change: workspaces may lie where no rule of ours finds them."""


def render_server_pod(server: ControlServer, *, ordinal: int, vacancy: str, default_image: str) -> Json:
    """The JSON of the server's pod number ``ordinal``. ``default_image`` is the operator's own."""
    template: Json = deepcopy(server.spec.server.template or {})
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    name = pod_name(server, ordinal)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": server.namespace,
            "labels": {
                **without_reserved(metadata.get("labels")),
                **labels(server),
                ORDINAL_LABEL: str(ordinal),
            },
            "annotations": {
                **without_reserved(metadata.get("annotations")),
                HASH_ANNOTATION: server_hash(server, default_image),
                VACANCY_ANNOTATION: vacancy,
            },
            "ownerReferences": [owner(server)],
        },
        "spec": _pod_spec(server, spec, name, image_of(server, default_image)),
    }


def protection(
    server: ControlServer, annotations: Mapping[str, str], *, hosting: bool
) -> dict[str, str | None] | None:
    """What is to change in a pod's annotations so that autoscalers spare it while it hosts instances: values to set,
    None to remove; or None when it is as it should be, or is the author's to say."""
    if protection_is_the_authors(server.spec.server.template or {}):
        return None
    if hosting:
        return None if protected(annotations) else dict(EVICTION_ANNOTATIONS)
    on = [name for name in EVICTION_ANNOTATIONS if name in annotations]
    return dict.fromkeys(on) if on else None


def _pod_spec(server: ControlServer, author: Json, name: str, image: str) -> Json:
    windows = _is_windows(author)
    ours: Json = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace_seconds(server),
        "automountServiceAccountToken": False,
        # A Service of an unlucky name would set our variables in every pod of its namespace.
        "enableServiceLinks": False,
        "securityContext": _pod_security(author.get("securityContext"), windows=windows),
        "containers": _containers(server, author, image, windows=windows),
        "volumes": [*_others(author.get("volumes"), "name", _volumes(server, name)), *_volumes(server, name)],
    }
    return {**author, **ours}


def _containers(server: ControlServer, author: Json, image: str, *, windows: bool) -> list[Json]:
    """The server first: the first container of a pod is the one that counts."""
    own = server_container(author)
    beside = [c for c in entries(author.get("containers")) if field(c, "name") != SERVER_CONTAINER]
    mounts = _mounts()
    ports = [{"name": PORT_NAME, "containerPort": PORT, "protocol": "TCP"}]
    for refused in NOT_OF_THE_SERVER:
        own.pop(refused, None)
    container = {
        **own,
        "name": SERVER_CONTAINER,
        "image": image,
        "command": ["tenure", "control-server", "--config", CONFIG_PATH],
        "ports": [*ports, *_others(_others(own.get("ports"), "name", ports), "containerPort", ports)],
        "securityContext": _container_security(own.get("securityContext"), windows=windows),
        "terminationMessagePath": TERMINATION_FILE,
        # What ends before it has anything to say in a file has said it on standard error.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [*mounts, *_others(own.get("volumeMounts"), "mountPath", mounts)],
    }
    env = _environment(server, own.get("env"))
    if env:
        container["env"] = env
    if server.spec.server.resources is not None:
        container["resources"] = deepcopy(server.spec.server.resources)
    return [container, *beside]


def _environment(server: ControlServer, author: object) -> list[Json]:
    """The author's variables, without those that would go before the settings file."""
    ours = {"config", *server_settings(server, "")} - _AUTHORS
    refused = {f"TENURE_SERVER_{name.upper()}" for name in ours}
    return [entry for entry in entries(author) if field(entry, "name") not in refused]


def _is_windows(author: Json) -> bool:
    return bool(field(author.get("os"), "name") == "windows")


def _pod_security(author: object, *, windows: bool) -> Json:
    if windows:
        # The API server refuses every other field there.
        return {**fields(author), "runAsNonRoot": True}
    defaults = {
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
    }
    return {
        **defaults,
        **fields(author),
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _container_security(author: object, *, windows: bool) -> Json:
    if windows:
        return {**fields(author), "runAsNonRoot": True}
    return {
        **fields(author),
        "runAsNonRoot": True,
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _volumes(server: ControlServer, name: str) -> list[Json]:
    storage = server.spec.storage
    if storage.volume_claim_template is not None:
        home: Json = {"persistentVolumeClaim": {"claimName": claim_name(server)}}
    else:
        home = {"emptyDir": deepcopy(storage.empty_dir) or {}}
    bootstrap = {
        "secretName": bootstrap_name(name),
        # It is deleted after the handshake, and a pod must not hang on what has gone.
        "optional": True,
        "defaultMode": 0o440,
        "items": [{"key": key, "path": key} for key in MOUNTED_KEYS],
    }
    return [
        {"name": BOOTSTRAP_VOLUME, "secret": bootstrap},
        {"name": HOME_VOLUME, **home},
        {"name": TMP_VOLUME, "emptyDir": {}},
    ]


def _mounts() -> list[Json]:
    return [
        {"name": BOOTSTRAP_VOLUME, "mountPath": BOOTSTRAP_DIR, "readOnly": True},
        {"name": HOME_VOLUME, "mountPath": VOLUME_ROOT},
        {"name": TMP_VOLUME, "mountPath": TMP},
    ]


def _others(author: object, key: str, ours: list[Json]) -> list[Json]:
    """The author's entries, without those whose ``key`` is one of ours."""
    taken = [entry[key] for entry in ours]
    return [entry for entry in entries(author) if field(entry, key) not in taken]
