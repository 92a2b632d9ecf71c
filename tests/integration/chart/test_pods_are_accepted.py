"""Whether the chart's pods are taken where the restricted profile is enforced, by the API server's own judgement."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from tests.cluster.control_plane import ControlPlane
from tests.integration.chart.helm import NAMESPACE, Helm, Object, pod_templates
from tests.support.api import AdminClient, path
from tests.support.cluster import kubectl
from tests.support.server_manifests import stored_server
from tests.support.wait import eventually

from tenure.model.control_server import ControlServer, parse_control_server
from tenure.plan.servers.pod import render_server_pod
from tenure.plan.servers.policies import OperatorPods, disruption_budget, network_policy, volume_claim

UID = "6f1c0c6e-0000-4000-8000-000000000001"
VALUES: Object = {"trialPostgresql": {"enabled": True}}


@pytest.fixture(autouse=True)
def _release(helm: Helm, system_namespace: str) -> Iterator[None]:
    with helm.installed(VALUES):
        yield


@pytest.mark.accept("K-10")
async def test_the_controllers_make_the_operators_pods_in_a_restricted_namespace(api: AdminClient) -> None:
    async def made() -> dict[str, int]:
        counts: dict[str, int] = {}
        for pod in await api.list(path("pods", NAMESPACE)):
            part = pod["metadata"]["labels"]["app.kubernetes.io/component"]
            counts[part] = counts.get(part, 0) + 1
        return counts

    async def complete() -> bool:
        return await made() == {"operator": 2, "trial-postgresql": 1}

    await eventually(complete, within=20, what="two operators and the trial database")


@pytest.mark.accept("K-10")
def test_every_pod_of_the_chart_is_taken_in_a_restricted_namespace(
    helm: Helm, control_plane: ControlPlane
) -> None:
    templates = pod_templates(helm.render(VALUES))
    assert set(templates) == {
        "Deployment/tenure-operator",
        "Deployment/tenure-trial-postgresql",
        "Job/tenure-migrate",
        "Pod/tenure-test",
    }
    for name, template in templates.items():
        labels = template["metadata"]["labels"]
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "try", "labels": labels},
            "spec": template["spec"],
        }
        answer = kubectl(
            control_plane,
            *("create", "--dry-run=server", "--validate=strict", "-n", NAMESPACE, "-f-", "-ojson"),
            stdin=yaml.safe_dump(body),
        )
        assert json.loads(answer)["kind"] == "Pod", name


def test_the_profile_is_really_enforced(helm: Helm, control_plane: ControlPlane) -> None:
    template = pod_templates(helm.render(VALUES))["Deployment/tenure-operator"]
    template["spec"]["securityContext"]["runAsNonRoot"] = False
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "try"}, "spec": template["spec"]}
    with pytest.raises(AssertionError, match="runAsNonRoot"):
        kubectl(
            control_plane, "create", "--dry-run=server", "-n", NAMESPACE, "-f-", stdin=yaml.safe_dump(body)
        )


def _server(**fields: Any) -> ControlServer:
    return parse_control_server(stored_server(namespace=NAMESPACE, uid=UID, **fields))


SERVERS: list[tuple[str, Object]] = [
    ("as it comes", {}),
    ("with a volume", {"storage": {"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteOnce"]}}}}),
    (
        "with a template of its author's",
        {
            "server": {
                "template": {
                    "spec": {"containers": [{"name": "server", "env": [{"name": "A", "value": "b"}]}]}
                }
            }
        },
    ),
]


@pytest.mark.accept("K-10")
@pytest.mark.parametrize("fields", [each[1] for each in SERVERS], ids=[each[0] for each in SERVERS])
def test_a_control_servers_pod_is_taken_in_a_restricted_namespace(
    control_plane: ControlPlane, fields: Object
) -> None:
    pod = render_server_pod(_server(**fields), ordinal=1, vacancy="", default_image="tenure:1")
    answer = kubectl(
        control_plane,
        *("create", "--dry-run=server", "--validate=strict", "-n", NAMESPACE, "-f-", "-ojson"),
        stdin=yaml.safe_dump(pod),
    )
    made = json.loads(answer)
    assert made["metadata"]["name"] == pod["metadata"]["name"]
    assert not [volume for volume in made["spec"]["volumes"] if "projected" in volume], "a token was mounted"


@pytest.mark.accept("K-10")
def test_what_stands_beside_a_servers_pod_is_valid_and_stored_as_it_was_written(
    control_plane: ControlPlane,
) -> None:
    server = _server(
        backend={"selector": {"matchLabels": {"app": "backend"}}},
        storage={
            "volumeClaimTemplate": {
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
            }
        },
    )
    operator = OperatorPods(NAMESPACE, {"app.kubernetes.io/name": "tenure"})
    claim = volume_claim(server)
    assert claim is not None
    for body in (disruption_budget(server, 1), network_policy(server, operator), claim):
        answer = kubectl(
            control_plane,
            *("create", "--dry-run=server", "--validate=strict", "-n", NAMESPACE, "-f-", "-ojson"),
            stdin=yaml.safe_dump(body),
        )
        made = json.loads(answer)
        if body is not claim:
            assert made["spec"] == body["spec"], "each pass would write it again"


async def test_the_disruption_budget_covers_the_operators(api: AdminClient) -> None:
    url = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets/tenure-operator"

    async def counted() -> bool:
        budget = await api.get(url)
        return bool(budget.get("status", {}).get("expectedPods") == 2)

    await eventually(counted, within=20, what="the budget to count two pods")
