"""An operator that may not see ControlServers (an older Role, or no definition) looks after agents as ever."""

from types import SimpleNamespace
from typing import cast

import pytest
from tests.cluster.control_plane import ControlPlane
from tests.integration.servers.world import WITHIN, World
from tests.support.api import Object, path
from tests.support.cluster import apply
from tests.support.operator import running_operator
from tests.support.wait import eventually

from tenure.cluster.calls import CALLS
from tenure.operator.rbac import rules
from tenure.operator.servers import scope

LEASE = "limited"
GROUP = "rbac.authorization.k8s.io"


def role(world: World, *, servers: bool) -> None:
    """The operator's Role, with or without what ControlServers need."""
    calls = [call for call in CALLS if servers or not call.resource.plural.startswith("controlserver")]
    body: Object = {
        "apiVersion": f"{GROUP}/v1",
        "kind": "Role",
        "metadata": {"name": LEASE},
        "rules": rules(calls, LEASE),
    }
    apply(world.plane, body, namespace=world.namespace)


def limited(world: World) -> ControlPlane:
    """The control plane as a ServiceAccount with that Role sees it."""
    named: Object = {"metadata": {"name": LEASE}}
    binding = {
        **named,
        "apiVersion": f"{GROUP}/v1",
        "kind": "RoleBinding",
        "roleRef": {"apiGroup": GROUP, "kind": "Role", "name": LEASE},
        "subjects": [{"kind": "ServiceAccount", "name": LEASE, "namespace": world.namespace}],
    }
    apply(
        world.plane,
        {**named, "apiVersion": "v1", "kind": "ServiceAccount"},
        binding,
        namespace=world.namespace,
    )
    token = world.plane.kubectl("create", "token", LEASE, "--namespace", world.namespace).strip()
    kubeconfig = world.plane.kubeconfig_for(f"limited-{world.namespace}", {"token": token})
    return cast("ControlPlane", SimpleNamespace(kubeconfig=kubeconfig))


async def test_agents_are_looked_after_and_servers_too_as_soon_as_it_may(
    world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scope, "LOOK_SECONDS", 0.5)
    role(world, servers=False)
    plane = limited(world)
    agent: Object = {
        "apiVersion": "tenure.dev/v1alpha1",
        "kind": "AgentProcess",
        "metadata": {"name": "critic"},
        "spec": {
            "liveness": {"mode": "Pod"},
            "template": {
                "spec": {
                    "containers": [{"name": "agent", "image": "a:1", "command": ["sleep", "600"]}],
                }
            },
        },
    }
    async with running_operator(plane, namespaces=[world.namespace], lease_name=LEASE):
        await world.api.create(path("agentprocesses", world.namespace), agent)

        async def runs() -> bool:
            found = await world.api.get(path("agentprocesses", world.namespace, "critic"))
            return bool(found.get("status", {}).get("phase") == "Running")

        await eventually(runs, within=WITHIN, what="the agent runs")
        seen = ""

        async def noticed() -> bool:
            nonlocal seen
            seen += capfd.readouterr().out
            return "ControlServers are not looked after" in seen

        await eventually(noticed, within=WITHIN, what="the permission is missed")
        await world.create()
        role(world, servers=True)
        await world.condition("Stalled", "True", "NoDurableStore")
        seen = ""
        capfd.readouterr()
        role(world, servers=False)
        await eventually(noticed, within=WITHIN, what="the permission is missed again")
