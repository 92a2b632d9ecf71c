"""Install, upgrade, uninstall: real helm against a real API server."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.cluster.control_plane import ControlPlane
from tests.integration.chart.helm import CHART, NAMESPACE, RELEASE, Helm, HelmRefused, Object
from tests.support.api import AdminClient, ApiError, path
from tests.support.cluster import kubectl
from tests.support.server_manifests import server_manifest

AGENTS = "agentprocesses.tenure.dev"
POD_MODE: Object = {
    "template": {"spec": {"containers": [{"name": "agent", "image": "agent:1"}]}},
    "liveness": {"mode": "Pod"},
}


@pytest.fixture(autouse=True)
def _no_release_left(helm: Helm, system_namespace: str) -> Iterator[None]:
    yield
    for release in json.loads(helm("list", "--all-namespaces", "--output=json")):
        helm.uninstall(release["name"], release["namespace"])


def agent(name: str, **spec: object) -> Object:
    return {
        "apiVersion": "tenure.dev/v1alpha1",
        "kind": "AgentProcess",
        "metadata": {"name": name},
        "spec": POD_MODE | spec,
    }


def older_chart(folder: Path, without: str) -> Path:
    """The chart as it was before a field of the definition came."""
    shutil.copytree(CHART, folder)
    template = folder / "templates" / "crds" / "agentprocess.yaml"
    first, *middle, last = template.read_text().splitlines()
    definition = yaml.safe_load("\n".join(middle))
    (version,) = definition["spec"]["versions"]
    del version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"][without]
    template.write_text("\n".join([first, yaml.safe_dump(definition), last]))
    return folder


async def test_a_fresh_cluster_serves_agents_after_the_install(
    helm: Helm, control_plane: ControlPlane, api: AdminClient, namespace: str
) -> None:
    for kind in (AGENTS, "controlservers.tenure.dev"):
        kubectl(control_plane, "delete", "customresourcedefinition", kind, "--ignore-not-found")
    notes = helm.install()
    assert "kubectl get agentprocesses -A -w" in notes
    created = await api.create(path("agentprocesses", namespace), agent("a"), fieldValidation="Strict")
    assert created["spec"]["desiredState"] == "Running"
    assert "kubectl explain controlserver.spec" in notes
    server = await api.create(path("controlservers", namespace), server_manifest(), fieldValidation="Strict")
    assert server["spec"]["agentSurvival"] == "Disabled"


async def test_an_upgrade_brings_a_new_field_and_touches_no_agent(
    helm: Helm, api: AdminClient, namespace: str, tmp_path: Path
) -> None:
    helm.install(chart=older_chart(tmp_path / "older", without="stuckTaskSeconds"))
    agents = path("agentprocesses", namespace)
    before = await api.create(agents, agent("a"), fieldValidation="Strict")
    with pytest.raises(ApiError, match="stuckTaskSeconds"):
        await api.create(agents, agent("b", stuckTaskSeconds=60), fieldValidation="Strict")

    helm.install()

    assert await api.get(path("agentprocesses", namespace, "a")) == before
    await api.create(agents, agent("b", stuckTaskSeconds=60), fieldValidation="Strict")


async def test_an_uninstall_leaves_the_definitions_every_agent_and_every_server(
    helm: Helm, api: AdminClient, namespace: str
) -> None:
    helm.install()
    before = await api.create(path("agentprocesses", namespace), agent("a"))
    server = await api.create(path("controlservers", namespace), server_manifest())
    helm.uninstall()

    assert await api.get(path("agentprocesses", namespace, "a")) == before
    assert await api.get(path("controlservers", namespace, "main")) == server
    for left in ("clusterroles", "clusterrolebindings"):
        names = [i["metadata"]["name"] for i in await api.list(f"/apis/rbac.authorization.k8s.io/v1/{left}")]
        assert not [name for name in names if "tenure" in name]
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    assert not [i for i in await api.list(policies) if "tenure" in i["metadata"]["name"]]

    helm.install()
    assert await api.get(path("agentprocesses", namespace, "a")) == before


def test_an_upgrade_keeps_the_password_of_the_trial_database(helm: Helm, control_plane: ControlPlane) -> None:
    def password() -> str:
        return kubectl(control_plane, "get", "secret", "tenure-trial-postgresql", "-n", NAMESPACE, "-ojson")

    values: Object = {"trialPostgresql": {"enabled": True}}
    helm.install(values)
    first = json.loads(password())["data"]
    helm.install(values | {"replicas": 1})
    assert json.loads(password())["data"] == first


def test_a_second_release_for_every_namespace_is_refused_by_name(helm: Helm, namespace: str) -> None:
    helm.install()
    with pytest.raises(HelmRefused, match="release tenure in namespace tenure-system already watches every"):
        helm.install({"crds": {"install": False}}, release="second", namespace=namespace)


def test_a_release_for_one_namespace_is_refused_beside_one_for_all(helm: Helm, namespace: str) -> None:
    helm.install()
    with pytest.raises(HelmRefused, match="already watches every namespace"):
        helm.install(
            {"crds": {"install": False}, "watchNamespaces": [namespace], "overlapCheck": True},
            release="second",
            namespace=namespace,
        )


def test_a_release_for_all_namespaces_is_refused_beside_one_for_a_single(helm: Helm, namespace: str) -> None:
    helm.install({"watchNamespaces": [namespace]})
    with pytest.raises(HelmRefused, match=f"release tenure .* already watches namespace {namespace}"):
        helm.install({"crds": {"install": False}}, release="second", namespace=namespace)


def test_two_releases_for_the_same_namespace_are_refused_even_without_a_look(
    helm: Helm, namespace: str
) -> None:
    helm.install({"watchNamespaces": [namespace]})
    for check in ("auto", False):
        with pytest.raises(HelmRefused, match=r"tenure-operator|already watches"):
            helm.install(
                {"crds": {"install": False}, "watchNamespaces": [namespace], "overlapCheck": check},
                release="second",
                namespace=namespace,
            )


def test_releases_for_different_namespaces_live_side_by_side(
    helm: Helm, control_plane: ControlPlane, namespace: str
) -> None:
    helm.install({"watchNamespaces": [namespace]})
    helm.install({"crds": {"install": False}, "watchNamespaces": ["default"]}, release="second")
    names = kubectl(control_plane, "get", "deployments", "-n", NAMESPACE, "-oname").split()
    assert names == ["deployment.apps/second-tenure-operator", "deployment.apps/tenure-operator"]


def test_an_upgrade_of_the_same_release_is_not_taken_for_a_neighbour(helm: Helm) -> None:
    helm.install()
    helm.install({"replicas": 3})
    assert (
        json.loads(helm("history", RELEASE, "--namespace", NAMESPACE, "--output=json"))[-1]["revision"] == 2
    )
