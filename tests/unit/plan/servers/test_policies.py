"""Who may reach a server, what keeps drains away from it, and where its files are."""

from typing import Any

import pytest
from tests.support.server_manifests import stored_server

from tenure.model.control_server import ControlServer, parse_control_server
from tenure.plan.servers.pod import render_server_pod
from tenure.plan.servers.policies import OperatorPods, disruption_budget, network_policy, volume_claim

OPERATOR = OperatorPods("tenure-system", {"app.kubernetes.io/name": "tenure"})


def server(**spec: Any) -> ControlServer:
    """A ControlServer with this spec."""
    return parse_control_server(stored_server(**spec))


def labels_of_pod(resource: ControlServer, ordinal: int = 3) -> dict[str, str]:
    """The labels of its pod."""
    pod = render_server_pod(resource, ordinal=ordinal, vacancy="", default_image="tenure:1")
    found: dict[str, str] = pod["metadata"]["labels"]
    return found


def test_only_operator_and_backend_come_in_at_one_port() -> None:
    resource = server(backend={"selector": {"matchLabels": {"app": "shop"}}})
    spec = network_policy(resource, OPERATOR)["spec"]
    assert spec["policyTypes"] == ["Ingress"]
    assert spec["podSelector"]["matchLabels"].items() <= labels_of_pod(resource).items()
    (rule,) = spec["ingress"]
    assert rule["ports"] == [{"port": 8443, "protocol": "TCP"}]
    assert rule["from"] == [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "tenure-system"}},
            "podSelector": {"matchLabels": {"app.kubernetes.io/name": "tenure"}},
        },
        {
            "podSelector": {
                "matchLabels": {"app": "shop"},
                "matchExpressions": [{"key": "tenure.dev/role", "operator": "In", "values": ["backend"]}],
            }
        },
    ]


def test_a_selector_cannot_let_in_pods_of_another_role() -> None:
    tricky = server(
        backend={
            "selector": {
                "matchLabels": {"tenure.dev/role": "agent"},
                "matchExpressions": [{"key": "app", "operator": "Exists"}],
            }
        }
    )
    (rule,) = network_policy(tricky, OPERATOR)["spec"]["ingress"]
    selector = rule["from"][1]["podSelector"]
    assert {"key": "tenure.dev/role", "operator": "In", "values": ["backend"]} in selector["matchExpressions"]
    assert any(e["key"] == "app" and "values" not in e for e in selector["matchExpressions"])


def test_nobody_to_let_in_lets_nobody_in() -> None:
    assert "ingress" not in network_policy(server(), None)["spec"]
    with pytest.raises(ValueError, match="labels"):
        network_policy(server(), OperatorPods("tenure-system", {}))


def test_a_budget_is_about_one_pod_only() -> None:
    body = disruption_budget(server(), 3)
    assert body["spec"]["minAvailable"] == 1
    wanted = body["spec"]["selector"]["matchLabels"].items()
    assert wanted <= labels_of_pod(server(), 3).items()
    assert not wanted <= labels_of_pod(server(), 4).items()


def test_a_claim_outlives_its_object() -> None:
    assert volume_claim(server()) is None
    template = {
        "metadata": {"labels": {"tier": "gold", "tenure.dev/installation": "forged"}},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    claim = volume_claim(server(installationID="prod", storage={"volumeClaimTemplate": template}))
    assert claim is not None
    assert "ownerReferences" not in claim["metadata"]
    assert claim["metadata"]["labels"]["tier"] == "gold"
    assert claim["metadata"]["labels"]["tenure.dev/installation"] == "prod"
    assert claim["spec"] == template["spec"]
