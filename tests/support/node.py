"""What the kubelet stand-in knows of its node and pods, and says of them."""

import asyncio
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.api import AdminClient, Object
from tests.support.containers import Container, in_namespaces, now, resolve_environment
from tests.support.volumes import PodVolumes, mount_script, mounts_possible

NODE = "stand-in"
LISTEN_VARIABLE = "TENURE_SERVER_HOST"
"""Pods share their ports here: a control server that would listen everywhere is told its pod's address."""
MESSAGE_VARIABLE = "TENURE_SERVER_TERMINATION_MESSAGE_FILE"
"""They share /dev, too: a control server leaves its last words in a file of its container's own."""
_NODE_INFO = (
    "architecture",
    "bootID",
    "containerRuntimeVersion",
    "kernelVersion",
    "kubeProxyVersion",
    "machineID",
    "osImage",
    "systemUUID",
)


def _every_address() -> Iterator[str]:
    # The second number is this process's, so that two test runs at a time do not meet on a port.
    for number in itertools.count():
        yield f"127.{32 + os.getpid() % 200}.{number // 250 % 250}.{number % 250 + 1}"


ADDRESSES = _every_address()


@dataclass
class Pod:
    """One pod that this node runs; ``task`` leads it from binding to removal."""

    uid: str
    namespace: str
    name: str
    latest: Object
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    gone: bool = False
    task: "asyncio.Task[None] | None" = None
    containers: list[Container] = field(default_factory=list)
    address: str = ""
    volumes: PodVolumes | None = None
    conditions: list[Object] = field(default_factory=list)
    told: object = None


def node_status() -> Object:
    """A node with room for everything."""
    capacity = {"cpu": "1000", "memory": "4000Gi", "pods": "100000", "ephemeral-storage": "4000Gi"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "the stand-in runs"}
    return {
        "capacity": capacity,
        "allocatable": capacity,
        "conditions": [{**ready, "lastHeartbeatTime": now(), "lastTransitionTime": now()}],
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "nodeInfo": {
            **dict.fromkeys(_NODE_INFO, ""),
            "kubeletVersion": "v1.36.3",
            "operatingSystem": "linux",
        },
    }


def pod_conditions(
    pod: Object, containers: Sequence[Container], phase: str, before: Sequence[Object]
) -> list[Object]:
    """The conditions that a kubelet owns; readiness gates' own are somebody else's, and Ready waits for them.

    ``before``: what was said last; a transition's time stays until there is another.
    """
    running = phase == "Running" and all(not container.ended for container in containers)
    reason = "PodCompleted" if phase == "Succeeded" else "ContainersNotReady"
    missing = _missing_gates(pod)
    conditions = [
        {"type": "Initialized", "status": "True"},
        {"type": "PodReadyToStartContainers", "status": "True"},
        _condition("ContainersReady", running, reason, ""),
        _condition("Ready", False, reason, "")
        if not running
        else _condition("Ready", not missing, "ReadinessGatesNotReady", "; ".join(missing)),
    ]
    times = {(each["type"], each["status"]): each["lastTransitionTime"] for each in before}
    return [
        {**each, "lastTransitionTime": times.get((each["type"], each["status"])) or now()}
        for each in conditions
    ]


def _condition(kind: str, holds: bool, reason: str, message: str) -> Object:
    # Null takes a former reason away: the patch merges.
    why = {"reason": None, "message": None} if holds else {"reason": reason, "message": message}
    return {"type": kind, "status": "True" if holds else "False", **why}


def _missing_gates(pod: Object) -> list[str]:
    found = {each["type"]: each["status"] for each in pod.get("status", {}).get("conditions") or []}
    gates = [gate["conditionType"] for gate in pod["spec"].get("readinessGates") or []]
    return [
        f'the status of pod readiness gate "{gate}" is not "True", but {found.get(gate, "absent")}'
        for gate in gates
        if found.get(gate) != "True"
    ]


async def start_container(
    client: AdminClient,
    pod: Pod,
    container: Container,
    image: Mapping[str, str],
    folder: Path,
    prefix: Sequence[str],
) -> None:
    """Start a container's process with what its pod gives it. ``image``: the variables that its image would have;
    ``prefix``: the words that give it a host name of its own.

    Raises ``StartRefused`` for a Secret or claim that is not there.
    """
    assert pod.volumes is not None
    await pod.volumes.prepare()
    given = await resolve_environment(client, pod.latest, container.spec, pod.address)
    environment = {
        **image,
        "HOSTNAME": pod.name,
        LISTEN_VARIABLE: pod.address,
        MESSAGE_VARIABLE: str(container.message_file),
        **given,
    }
    mounts = pod.volumes.mounts(container.spec)
    if mounts and not mounts_possible():
        container.finish(128, "failed to start: no mount namespace, see require_mounts()")
        return
    if mounts:
        working = container.spec.get("workingDir", "/")
        prefix = in_namespaces(mount_script(mounts, pod.volumes.ground(), folder, working))
    await container.start(environment, folder, [*prefix, pod.name] if prefix else [])
