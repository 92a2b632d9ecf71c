"""The roles that ``tenure rbac`` prints are enough for every call, and hold no call that is never made."""

import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import yaml
from tests.cluster.control_plane import ControlPlane
from tests.support.api import AdminClient, path
from tests.support.cluster import apply
from tests.support.manifests import agent_manifest
from tests.support.server_manifests import server_manifest
from tests.support.wait import eventually

from tenure.cluster.agents import KubernetesAgentCluster
from tenure.cluster.calls import (
    AGENT_PROCESSES,
    CALLS,
    CONTROL_SERVERS,
    PODS,
    Companion,
    Resource,
    Verb,
)
from tenure.cluster.client import KubernetesClient
from tenure.cluster.errors import ApiError
from tenure.cluster.lease import LeaseSlot, Standing
from tenure.cluster.server_ports import NewSecret
from tenure.cluster.servers import KubernetesServerCluster
from tenure.model.control_server import parse_control_server
from tenure.model.masked import Masked
from tenure.model.resources import parse_agent_process
from tenure.plan.render import render_pod
from tenure.plan.servers.names import owner
from tenure.plan.servers.policies import OperatorPods, disruption_budget, network_policy, volume_claim

_CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
_SELECTOR = {Companion.NETWORK_POLICY: "podSelector", Companion.DISRUPTION_BUDGET: "selector"}
RBAC = "rbac.authorization.k8s.io"


class RecordingClient(KubernetesClient):
    """Notes each call; the calls themselves are real."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.made: set[tuple[Resource, Verb]] = set()

    async def request(self, verb: Verb, resource: Resource, **named: Any) -> dict[str, Any]:
        self.made.add((resource, verb))
        return await super().request(verb, resource, **named)


def printed_roles(*options: str) -> list[dict[str, Any]]:
    """What the command prints, read as YAML."""
    command = [sys.executable, "-c", "from tenure.cli.main import app; app()", "rbac", *options]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    return list(yaml.safe_load_all(text))


@pytest_asyncio.fixture
async def limited(plane: ControlPlane, api: AdminClient, namespace: str) -> AsyncIterator[RecordingClient]:
    """A client as a ServiceAccount that has the namespaced Role and nothing else."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "operator"}}
    (role,) = printed_roles("--namespaced")
    binding = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "operator"},
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": role["metadata"]["name"]},
        "subjects": [{"kind": "ServiceAccount", "name": "operator", "namespace": namespace}],
    }
    apply(plane, account, role, binding, namespace=namespace)
    token = plane.kubectl("create", "token", "operator", "--namespace", namespace).strip()
    config = plane.kubeconfig_for(f"limited-{namespace}", {"token": token})
    async with await RecordingClient.connect({"KUBECONFIG": str(config)}) as client:

        async def allowed() -> bool:
            try:
                await client.list_objects(PODS, namespace)
            except ApiError as error:
                assert error.status == 403
                return False
            return True

        await eventually(allowed, within=15, what="the role is in force")
        client.made.clear()
        yield client


async def exercise(client: KubernetesClient, api: AdminClient, namespace: str) -> None:
    """Everything that the adapter can do, once."""
    cluster = KubernetesAgentCluster(client)
    for resource in (AGENT_PROCESSES, CONTROL_SERVERS, PODS):
        await client.list_objects(resource, namespace)
    made = (await api.create(path("agentprocesses", namespace), agent_manifest("a")))["metadata"]
    assert await cluster.get_agent_process(namespace, "a") is not None
    await cluster.patch_agent_process_status(
        namespace,
        "a",
        uid=made["uid"],
        resource_version=made["resourceVersion"],
        status={"phase": "Pending"},
    )
    resource = parse_agent_process(await api.get(path("agentprocesses", namespace, "a")))
    pod = (await cluster.create_pod(namespace, render_pod(resource, 1, "hash")))["metadata"]
    assert await cluster.get_pod(namespace, pod["name"]) is not None
    await cluster.annotate_pod(namespace, pod["name"], uid=pod["uid"], annotations={"x/y": "z"})
    await cluster.delete_pod(namespace, pod["name"], uid=pod["uid"], grace_seconds=0)
    regarding = {
        "apiVersion": "tenure.dev/v1alpha1",
        "kind": "AgentProcess",
        "namespace": namespace,
        "name": "a",
        "uid": made["uid"],
    }
    await cluster.create_event(regarding, reason="Started", note="n", warning=False, action="Start")
    await exercise_servers(client, api, namespace)
    lease = LeaseSlot(client, namespace=namespace, name="tenure-operator", identity="me", seconds=15)
    assert await lease.look(5) is Standing.FREE
    await lease.claim(5)
    await lease.renew(5)
    await lease.release(5)


async def exercise_servers(client: KubernetesClient, api: AdminClient, namespace: str) -> None:
    """Everything that the adapter can do with control servers' objects, once."""
    cluster = KubernetesServerCluster(client)
    made = await api.create(path("controlservers", namespace), server_manifest())
    storage = {"volumeClaimTemplate": {"spec": _CLAIM}}
    server = parse_control_server(made | {"spec": {**made["spec"], "storage": storage}})
    assert await cluster.get_control_server(namespace, "main") is not None
    await cluster.patch_control_server_status(
        namespace,
        "main",
        uid=server.uid,
        resource_version=made["metadata"]["resourceVersion"],
        status={"observedGeneration": 1},
    )
    new = NewSecret("s", {}, owner(server), {"credential": Masked("c")})
    secret = await cluster.create_secret(namespace, new)
    assert await cluster.get_secret(namespace, "s") == secret
    secret = await cluster.replace_secret(
        namespace, new, uid=secret.uid, resource_version=secret.resource_version
    )
    await cluster.delete_secret(namespace, "s", uid=secret.uid)
    policy = network_policy(server, OperatorPods("tenure-system", {"app": "operator"}))
    budget = disruption_budget(server, 1)
    for kind, body in ((Companion.NETWORK_POLICY, policy), (Companion.DISRUPTION_BUDGET, budget)):
        assert await cluster.ensure(kind, namespace, body)
        changed = {**body, "spec": {**body["spec"], _SELECTOR[kind]: {"matchLabels": {"a": "b"}}}}
        assert await cluster.ensure(kind, namespace, changed)
    claim = volume_claim(server)
    assert claim is not None
    assert await cluster.ensure(Companion.CLAIM, namespace, claim)
    await cluster.remove(
        Companion.DISRUPTION_BUDGET, namespace, budget["metadata"]["name"], owner_uid=server.uid
    )
    backend = await api.create(
        path("pods", namespace),
        {"metadata": {"name": "b"}, "spec": {"containers": [{"name": "b", "image": "none.example/b"}]}},
    )
    await cluster.set_pod_condition(
        namespace,
        "b",
        uid=backend["metadata"]["uid"],
        resource_version=backend["metadata"]["resourceVersion"],
        condition={"type": "tenure.dev/recovered", "status": "True"},
    )


@pytest.mark.accept("K-10")
async def test_the_namespaced_role_allows_every_call_and_each_permission_is_used(
    limited: RecordingClient, api: AdminClient, namespace: str
) -> None:
    await exercise(limited, api, namespace)
    # Watches are kopf's, on resources that are listed here too.
    # What the API server only asks about, it would have refused some of these without.
    made = [call for call in CALLS if not call.watched and not call.judged]
    assert limited.made == {(call.resource, call.verb) for call in made}
    for call in (call for call in CALLS if call.watched):
        assert (call.resource, Verb.LIST) in limited.made


async def test_with_the_namespaced_role_other_namespaces_and_secrets_are_out_of_reach(
    plane: ControlPlane, limited: RecordingClient, namespace: str
) -> None:
    for where in ("default", None):
        with pytest.raises(ApiError) as refused:
            await limited.list_objects(PODS, where)
        assert refused.value.status == 403
    for question in (
        ["list", "secrets"],
        ["watch", "secrets"],
        ["patch", "secrets"],
        ["update", "pods", "--subresource=status"],
        ["delete", "persistentvolumeclaims"],
        ["update", "controlservers"],
        ["patch", "controlservers", "--subresource=finalizers"],
        ["update", "pods", "--subresource=finalizers"],
        ["delete", "controlservers"],
        ["create", "pods", "--subresource=exec"],
        ["delete", "agentprocesses"],
        ["delete", "leases/another"],
        ["get", "leases/another"],
    ):
        assert not can(plane, namespace, *question), question
    assert can(plane, namespace, "get", "leases/tenure-operator")


def can(plane: ControlPlane, namespace: str, *question: str) -> bool:
    """The API server's own answer for the ServiceAccount."""
    done = subprocess.run(
        [
            str(plane.program),
            "kubectl",
            f"--kubeconfig={plane.kubeconfig}",
            "auth",
            "can-i",
            *question,
            f"--namespace={namespace}",
            f"--as=system:serviceaccount:{namespace}:operator",
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() in ("yes", "no"), done.stderr
    return done.stdout.strip() == "yes"


async def test_the_credential_of_a_service_account_is_read_again_when_it_is_rotated(
    plane: ControlPlane, namespace: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    authority.write_bytes(plane.authority.read_bytes())
    token.write_text("long-expired")
    monkeypatch.setattr("tenure.cluster.connection.SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr("tenure.cluster.connection.SERVICE_CERT_FILENAME", str(authority))
    host, _, port = plane.server.removeprefix("https://").rpartition(":")
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    async with await KubernetesClient.connect(environ) as client:
        with pytest.raises(ApiError) as refused:
            await client.list_objects(PODS, namespace)
        assert refused.value.status == 401
        token.write_text(plane.token)
        await client.list_objects(PODS, namespace)
        facts = client.connection_facts()
        assert facts.token is not None
        assert facts.token.reveal() == plane.token
        assert plane.token not in repr(facts)
