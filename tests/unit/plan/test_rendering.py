"""The pod of one instance."""

from copy import deepcopy
from typing import Any

import pytest
from tests.support.builders import process, raw_process, template

from tenure.model.ids import template_hash
from tenure.model.resources import parse_agent_process
from tenure.plan.render import render_pod


def rendered(ordinal: int = 3, **spec: Any) -> dict[str, Any]:
    """The pod of a resource with this spec."""
    resource = process(**spec)
    return render_pod(resource, ordinal, template_hash(resource.spec.template))


def environment(pod: dict[str, Any]) -> dict[str, Any]:
    """The agent's environment by name."""
    return {entry["name"]: entry for entry in pod["spec"]["containers"][0]["env"]}


def test_one_pod_is_one_lifetime_of_one_process() -> None:
    pod = rendered(drain={"gracePeriodSeconds": 45})
    assert pod["spec"]["restartPolicy"] == "Never"
    assert pod["spec"]["terminationGracePeriodSeconds"] == 45
    assert "livenessProbe" not in pod["spec"]["containers"][0]


def test_a_pod_belongs_to_its_object_and_carries_the_role() -> None:
    pod = rendered()
    assert pod["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "tenure.dev/v1alpha1",
            "kind": "AgentProcess",
            "name": "critic",
            "uid": "uid-of-critic",
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    assert pod["metadata"]["labels"]["tenure.dev/role"] == "agent"
    assert "finalizers" not in pod["metadata"]


def test_no_service_account_token_is_mounted_unless_the_template_says_so() -> None:
    assert rendered()["spec"]["automountServiceAccountToken"] is False
    asked = template()
    asked["spec"]["automountServiceAccountToken"] = True
    assert rendered(template=asked)["spec"]["automountServiceAccountToken"] is True


def test_the_agent_is_told_its_own_uid_its_kind_and_its_interval() -> None:
    env = environment(rendered(process_kind="fork_resolution", liveness={"intervalSeconds": 5}))
    assert env["TENURE_INSTANCE_ID"]["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.uid"}}
    assert env["TENURE_PROCESS_KIND"]["value"] == "fork_resolution"
    assert env["TENURE_LIVENESS_INTERVAL"]["value"] == "5"
    assert "TENURE_DATABASE_URL" not in env
    assert environment(rendered())["TENURE_PROCESS_KIND"]["value"] == "critic"


def test_credentials_are_a_reference_and_never_a_value() -> None:
    env = environment(rendered(liveness={"credentialsSecretRef": {"name": "db", "key": "url"}}))
    assert env["TENURE_DATABASE_URL"] == {
        "name": "TENURE_DATABASE_URL",
        "valueFrom": {"secretKeyRef": {"name": "db", "key": "url"}},
    }


def test_the_authors_environment_stays_but_for_the_operators_names() -> None:
    own = template()
    own["spec"]["containers"][0]["env"] = [
        {"name": "TENURE_INSTANCE_ID", "value": "mine"},
        {"name": "MODEL", "value": "large"},
    ]
    env = rendered(template=own)["spec"]["containers"][0]["env"]
    assert [e["name"] for e in env].count("TENURE_INSTANCE_ID") == 1
    assert env[-1] == {"name": "MODEL", "value": "large"}


def test_the_template_travels_verbatim_and_is_not_changed() -> None:
    own = template(labels={"team": "a", "tenure.dev/role": "other"}, annotations={"note": "x"})
    own["spec"] |= {"somethingNew": {"of": ["a", "later"]}, "nodeSelector": {"disk": "ssd"}}
    before = deepcopy(own)
    pod = rendered(template=own)
    assert own == before
    assert pod["spec"]["somethingNew"] == {"of": ["a", "later"]}
    assert pod["spec"]["nodeSelector"] == {"disk": "ssd"}
    assert pod["metadata"]["labels"]["team"] == "a"
    assert pod["metadata"]["labels"]["tenure.dev/role"] == "agent"
    assert pod["metadata"]["annotations"]["note"] == "x"


def test_what_the_operator_adds_is_not_part_of_the_hash() -> None:
    resource = process()
    other = process(drain={"gracePeriodSeconds": 5}, liveness={"intervalSeconds": 7}, restart_token="x")
    assert template_hash(resource.spec.template) == template_hash(other.spec.template)


@pytest.mark.parametrize("name", ["a", "a.b.c", "x" * 63, "abc." * 15 + "abc"])
def test_a_pods_name_is_a_host_name_that_no_kubelet_cuts(name: str) -> None:
    resource = parse_agent_process(raw_process(name))
    pod = render_pod(resource, 10**13 - 1, "h")
    found = pod["metadata"]["name"]
    assert len(found) <= 63
    assert "." not in found
    assert found.startswith(name.replace(".", "-")[:30])


def test_a_refused_environment_of_the_template_does_not_break_the_rendering() -> None:
    own = template()
    own["spec"]["containers"][0]["env"] = None
    assert "TENURE_INSTANCE_ID" in environment(rendered(template=own))
