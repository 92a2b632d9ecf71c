"""What the operator may do is what the table of calls lists."""

import pytest
from kubernetes.aio.client.configuration import Configuration

from tenure.cluster.calls import (
    AGENT_PROCESS_STATUS,
    AGENT_PROCESSES,
    CALLS,
    LEASES,
    PODS,
    Resource,
    UndeclaredCall,
    Verb,
)
from tenure.cluster.client import KubernetesClient
from tenure.cluster.errors import Unavailable
from tenure.operator.rbac import roles, rules

NOWHERE = Configuration(host="http://127.0.0.1:9", client_session_kwargs={"trust_env": False})


@pytest.mark.parametrize(
    ("verb", "resource"),
    [
        (Verb.DELETE, AGENT_PROCESSES),
        (Verb.UPDATE, AGENT_PROCESS_STATUS),
        (Verb.CREATE, Resource("", "v1", "pods", "exec")),
        (Verb.LIST, Resource("", "v1", "secrets")),
        (Verb.WATCH, Resource("", "v1", "secrets")),
        (Verb.LIST, Resource("", "v1", "nodes")),
    ],
)
async def test_a_call_that_is_not_listed_cannot_be_made(verb: Verb, resource: Resource) -> None:
    async with KubernetesClient(NOWHERE) as client:
        with pytest.raises(UndeclaredCall):
            await client.request(verb, resource, namespace="a", name="b")


async def test_no_write_but_to_the_lease_leaves_a_client_behind_its_fence() -> None:
    async with KubernetesClient(NOWHERE, fence=lambda: False) as client:
        for verb, resource in ((Verb.CREATE, PODS), (Verb.PATCH, PODS), (Verb.PATCH, AGENT_PROCESS_STATUS)):
            with pytest.raises(Unavailable, match="does not hold the Lease"):
                await client.request(verb, resource, namespace="a", name="b", body={})
        for verb, resource in ((Verb.GET, PODS), (Verb.UPDATE, LEASES)):
            with pytest.raises(Unavailable, match="the call failed"):
                await client.request(verb, resource, namespace="a", name="b", body={})


@pytest.mark.parametrize("namespaced", [True, False])
def test_the_roles_are_the_calls_and_nothing_else(namespaced: bool) -> None:
    granted = {
        (group, resource, verb)
        for role in roles(namespaced=namespaced)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == {(c.resource.group, c.resource.rbac_name, str(c.verb)) for c in CALLS}


@pytest.mark.accept("K-10")
def test_the_namespaced_role_is_no_cluster_role() -> None:
    assert [role["kind"] for role in roles(namespaced=True)] == ["Role"]
    assert [role["kind"] for role in roles(namespaced=False)] == ["ClusterRole", "Role"]


def test_no_rule_is_broad() -> None:
    for rule in rules(CALLS):
        assert "*" not in str(rule)
        assert "" not in rule["resources"]
        assert not {"pods/exec", "serviceaccounts/token", "nodes", "roles", "clusterroles"} & set(
            rule["resources"]
        )
        assert not {"escalate", "bind", "impersonate", "deletecollection"} & set(rule["verbs"])


@pytest.mark.accept("K-9")
def test_secrets_are_reached_one_by_one_and_by_name() -> None:
    (rule,) = [rule for rule in rules(CALLS) if "secrets" in rule["resources"]]
    assert set(rule["verbs"]) == {"get", "create", "update", "delete"}


def test_only_our_own_lease_may_be_read_and_renewed() -> None:
    on_leases = [rule for rule in rules(CALLS, "ours") if rule["resources"] == ["leases"]]
    assert [(rule["verbs"], rule.get("resourceNames")) for rule in on_leases] == [
        (["get", "update"], ["ours"]),
        (["create"], None),
    ]


@pytest.mark.parametrize(
    ("resource", "namespace", "name", "path"),
    [
        (PODS, None, None, "/api/v1/pods"),
        (PODS, "a", "b", "/api/v1/namespaces/{namespace}/pods/{name}"),
        (
            AGENT_PROCESS_STATUS,
            "a",
            "b",
            "/apis/tenure.dev/v1alpha1/namespaces/{namespace}/agentprocesses/{name}/status",
        ),
    ],
)
def test_a_path_is_that_of_the_api(
    resource: Resource, namespace: str | None, name: str | None, path: str
) -> None:
    assert resource.path(namespace, name) == path
