"""The real operator with nothing but the rights that the chart gives it, judged by the API server's audit log."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest
from tests.cluster.control_plane import ControlPlane
from tests.integration.chart.helm import NAMESPACE, RELEASE, Helm, Object, pod_templates
from tests.integration.chart.test_lifecycle import agent
from tests.integration.servers.world import GATE
from tests.support.api import AdminClient, path
from tests.support.cluster import kubectl
from tests.support.kubelet import Kubelet
from tests.support.operator import OperatorProcess, database, operator_process
from tests.support.server_manifests import server_manifest
from tests.support.volumes import require_mounts
from tests.support.wait import eventually

Permission = tuple[str, str, str]
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
"""``tenure`` is on it, as in the image."""

DATABASES: Object = {"default": {"existingSecret": "database", "store": True}}
UNSHOWN: set[Permission] = {
    # Not needed for sure, as no server hosts an agent here and nobody changes what is ours. They are tried in
    # tests/integration/cluster/test_rbac.py.
    *(("policy", "poddisruptionbudgets", verb) for verb in ("get", "create", "update", "delete")),
    ("networking.k8s.io", "networkpolicies", "update"),
    # Never asked for: the API server asks whether they might be, before it takes a pod or a Secret with such an owner.
    ("tenure.dev", "agentprocesses/finalizers", "update"),
    ("tenure.dev", "controlservers/finalizers", "update"),
}
IN_A_POD = {"HOME", "TENURE_DATABASES_DIR", "TENURE_HTTP_PORT", "TENURE_LEASE_NAMESPACE"}


@asynccontextmanager
async def operator_of(
    release: list[Object], plane: ControlPlane, folder: Path, url: str
) -> AsyncIterator[OperatorProcess]:
    """The operator as the release would start it: the chart's settings, its ServiceAccount's token."""
    token = kubectl(plane, "create", "token", RELEASE, "-n", NAMESPACE).strip()
    (container,) = pod_templates(release)["Deployment/tenure-operator"]["spec"]["containers"]
    settings = {variable["name"]: variable["value"] for variable in container["env"] if "value" in variable}
    environment = {name: value for name, value in settings.items() if name not in IN_A_POD} | {
        "KUBECONFIG": str(plane.kubeconfig_for(f"{folder.name}.kubeconfig", {"token": token})),
        "TENURE_LEASE_NAMESPACE": NAMESPACE,
        "POD_NAMESPACE": NAMESPACE,
    }
    async with operator_process(
        plane, folder, databases=[database(url)], environment=environment
    ) as operator:
        yield operator


def migrate(url: str) -> None:
    command = [
        sys.executable,
        "-c",
        "from tenure.cli.main import app; app()",
        "migrate",
        f"--database-url={url}",
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


async def heartbeat_with_task(url: str, pod: Object) -> None:
    """The row of an agent that has just claimed a task."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(
            "INSERT INTO cks_agent_liveness (instance_id, process_kind, hostname, pid, liveness_interval_s,"
            " started_at, last_heartbeat_at, current_task_id) VALUES ($1, 'a', $2, 1, 30, now(), now(), 7)",
            pod["metadata"]["uid"],
            pod["metadata"]["name"],
        )
    finally:
        await connection.close()


def requests(audit_log: Path) -> list[Object]:
    """What the operator asked the API server for."""
    return [json.loads(line) for line in audit_log.read_text().splitlines()] if audit_log.exists() else []


def used(audit: list[Object]) -> set[Permission]:
    found = set()
    for entry in audit:
        target = entry.get("objectRef")
        if target is None:
            continue
        resource = "/".join(filter(None, [target["resource"], target.get("subresource", "")]))
        found.add((target.get("apiGroup", ""), resource, entry["verb"]))
    return found


def granted(release: list[Object]) -> set[Permission]:
    return {
        (group, resource, verb)
        for item in release
        if item["kind"] in {"Role", "ClusterRole"} and item["metadata"]["name"].startswith("tenure-operator")
        for rule in item["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.accept("K-10")
@pytest.mark.parametrize("namespaced", [True, False], ids=["namespaced", "cluster-wide"])
async def test_the_lives_of_an_agent_and_a_server_need_every_right_of_the_chart_and_no_other(
    helm: Helm,
    control_plane: ControlPlane,
    system_namespace: str,
    api: AdminClient,
    namespace: str,
    audit_log: Path,
    database_url: str,
    tmp_path: Path,
    namespaced: bool,
) -> None:
    require_mounts()
    values: Object = {"databases": DATABASES, "watchNamespaces": [namespace] if namespaced else []}
    release = helm.render(values)
    seen = len(requests(audit_log))
    # As the hooks do: before the operator for a database that is there, after it for the trial one.
    if namespaced:
        await asyncio.to_thread(migrate, database_url)
    with helm.installed(values):
        await _leave_the_work_to_the_test(control_plane, api)
        node = Kubelet(api, environment={"PATH": PATH, "HOME": "/", "LANG": "C.UTF-8"})
        async with node, operator_of(release, control_plane, tmp_path, database_url) as operator:
            if not namespaced:
                await asyncio.to_thread(migrate, database_url)
            try:
                async with asyncio.TaskGroup() as lives:
                    lives.create_task(_live_and_stop(api, namespace, database_url))
                    lives.create_task(_serve_and_end(api, namespace))
            except ExceptionGroup:
                print(operator.log())
                raise
            assert await operator.terminate() == 0
    audit = requests(audit_log)[seen:]
    refused = [f"{entry['verb']} {entry['requestURI']}" for entry in audit if _code(entry) == 403]
    assert not refused
    assert used(audit) | UNSHOWN == granted(release)
    if namespaced:
        assert {entry["objectRef"]["namespace"] for entry in audit if "objectRef" in entry} == {namespace}
        assert not {item["kind"] for item in release} & {"ClusterRole", "ClusterRoleBinding"}


async def _serve_and_end(api: AdminClient, namespace: str) -> None:
    """A control server that is made, adopted for its backend and handed over to it, then to the next, and deleted."""
    servers, pods = path("controlservers", namespace), path("pods", namespace)
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    spec: Object = {
        "agentSurvival": "Enabled",
        "backend": {"selector": {"matchLabels": {"app": "backend"}}},
        "storage": {"volumeClaimTemplate": {"spec": claim}},
    }
    await api.create(servers, server_manifest(**spec))
    backend: Object = {
        "metadata": {"labels": {"app": "backend", "tenure.dev/role": "backend"}},
        "spec": {
            "automountServiceAccountToken": False,
            "readinessGates": [{"conditionType": GATE}],
            "containers": [{"name": "backend", "image": "backend:1", "command": ["sleep", "600"]}],
        },
    }
    for name in ("backend-1", "backend-2"):
        await api.create(pods, backend | {"metadata": backend["metadata"] | {"name": name}})

        async def ready(url: str = f"{pods}/{name}") -> bool:
            conditions = (await api.get(url))["status"].get("conditions") or []
            return {"Ready": "True"}.items() <= {c["type"]: c["status"] for c in conditions}.items()

        await eventually(ready, within=60, what=f"{name} is told that recovery is over")
        assert await api.find(path("secrets", namespace, "main-handover")) is not None
        await api.delete(f"{pods}/{name}", grace=0)
    await api.delete(f"{servers}/main")

    async def gone() -> bool:
        return not await api.list(pods, labelSelector="tenure.dev/role=server")

    await eventually(gone, within=60, what="the deleted server's pod to end")


async def _leave_the_work_to_the_test(plane: ControlPlane, api: AdminClient) -> None:
    """The stand-in node must not start the release's own operators."""
    kubectl(plane, "scale", "deployment/tenure-operator", "--replicas=0", "-n", NAMESPACE)

    async def none() -> bool:
        return not await api.list(path("pods", NAMESPACE))

    await eventually(none, within=30, what="no pod of the release")


def _code(entry: Object) -> int:
    return int(entry.get("responseStatus", {}).get("code", 0))


async def _live_and_stop(api: AdminClient, namespace: str, url: str) -> None:
    """An agent that starts, is busy, is asked to stop, stops, is started again, and is deleted as it runs."""
    agents, pods = path("agentprocesses", namespace), path("pods", namespace)
    container = {"name": "agent", "image": "agent:1", "command": ["sleep", "600"]}
    template = {"spec": {"containers": [container]}}
    await api.create(agents, agent("a", template=template, liveness={"mode": "Table"}))

    async def running() -> Object | None:
        found = await api.list(pods, labelSelector="tenure.dev/role=agent")
        return next((item for item in found if item["status"]["phase"] == "Running"), None)

    pod = await eventually(running, within=30, what="a running pod")
    assert pod is not None
    await heartbeat_with_task(url, pod)

    async def spared() -> bool:
        item = await api.get(f"{pods}/{pod['metadata']['name']}")
        return "cluster-autoscaler.kubernetes.io/safe-to-evict" in item["metadata"].get("annotations", {})

    await eventually(spared, within=30, what="the busy pod to be spared by autoscalers")
    await api.patch(f"{agents}/a", {"spec": {"desiredState": "StopRequested"}})

    async def stopped() -> bool:
        return bool((await api.get(f"{agents}/a")).get("status", {}).get("phase") == "Stopped")

    await eventually(stopped, within=30, what="the agent to be stopped")
    events = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"

    async def told() -> bool:
        return any(item["reason"] == "Stopped" for item in await api.list(events))

    await eventually(told, within=10, what="an Event that says so")
    await api.patch(f"{agents}/a", {"spec": {"desiredState": "Running"}})
    await eventually(running, within=30, what="a second pod")
    await api.delete(f"{agents}/a")

    async def gone() -> bool:
        return not await api.list(pods, labelSelector="tenure.dev/role=agent")

    await eventually(gone, within=30, what="the deleted agent's pod to end")
