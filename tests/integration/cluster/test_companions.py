"""What stands beside a control server's pod: ours is made and corrected, somebody else's left alone."""

import time
from typing import Any

import pytest
from tests.support.api import AdminClient, Object, path
from tests.support.server_manifests import stored_server

from tenure.cluster.calls import Companion, Resource, Verb
from tenure.cluster.client import KubernetesClient
from tenure.cluster.errors import Conflict, Refused, Unavailable
from tenure.cluster.servers import KubernetesServerCluster
from tenure.model.control_server import ControlServer, parse_control_server
from tenure.plan.servers.policies import OperatorPods, disruption_budget, network_policy, volume_claim

OTHER = "00000000-0000-4000-8000-000000000000"


def server(namespace: str, uid: str, **fields: object) -> ControlServer:
    return parse_control_server(stored_server(namespace=namespace, uid=uid, **fields))


CLAIM = {
    "volumeClaimTemplate": {
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    }
}


def companions(made_for: ControlServer) -> list[tuple[Companion, Object]]:
    claim = volume_claim(made_for)
    assert claim is not None
    operator = OperatorPods("tenure-system", {"app": "operator"})
    return [
        (Companion.CLAIM, claim),
        (Companion.DISRUPTION_BUDGET, disruption_budget(made_for, 1)),
        (Companion.NETWORK_POLICY, network_policy(made_for, operator)),
    ]


async def test_companions_are_made_once_and_left_alone_while_they_are_as_wanted(
    servers: KubernetesServerCluster, namespace: str, owner: str
) -> None:
    wanted = companions(server(namespace, owner, storage=CLAIM))
    assert [await servers.ensure(kind, namespace, body) for kind, body in wanted] == [True] * 3
    assert [await servers.ensure(kind, namespace, body) for kind, body in wanted] == [False] * 3


async def test_what_somebody_changed_is_brought_back_and_a_claim_is_not(
    api: AdminClient, servers: KubernetesServerCluster, namespace: str, owner: str
) -> None:
    wanted = dict(companions(server(namespace, owner, storage=CLAIM)))
    for kind, body in wanted.items():
        await servers.ensure(kind, namespace, body)
    budget, policy = wanted[Companion.DISRUPTION_BUDGET], wanted[Companion.NETWORK_POLICY]
    urls = {
        Companion.DISRUPTION_BUDGET: f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/",
        Companion.NETWORK_POLICY: f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies/",
    }
    await api.patch(
        urls[Companion.DISRUPTION_BUDGET] + budget["metadata"]["name"], {"spec": {"minAvailable": 0}}
    )
    await api.patch(urls[Companion.NETWORK_POLICY] + policy["metadata"]["name"], {"spec": {"ingress": [{}]}})
    for kind, url in urls.items():
        body = wanted[kind]
        assert await servers.ensure(kind, namespace, body)
        assert (await api.get(url + body["metadata"]["name"]))["spec"] == body["spec"]
    other = server(
        namespace, owner, storage={"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteMany"]}}}
    )
    assert not await servers.ensure(Companion.CLAIM, namespace, dict(companions(other))[Companion.CLAIM])


@pytest.mark.accept("K-9")
async def test_what_is_somebody_elses_is_neither_changed_nor_removed(
    api: AdminClient, servers: KubernetesServerCluster, namespace: str, owner: str
) -> None:
    ours = companions(server(namespace, owner, storage=CLAIM))
    for kind, body in ours:
        meta = {key: value for key, value in body["metadata"].items() if key != "ownerReferences"}
        foreign = {**body, "metadata": {**meta, "labels": {"tenure.dev/control-server": "main"}}}
        url = f"{kind.value.root}/namespaces/{namespace}/{kind.value.plural}"
        before = await api.create(url, foreign)
        with pytest.raises(Conflict):
            await servers.ensure(kind, namespace, {**body, "spec": {**body["spec"], "selector": {}}})
        await servers.remove(kind, namespace, meta["name"], owner_uid=owner)
        after = await api.get(f"{url}/{meta['name']}")
        assert (after["metadata"]["uid"], after["spec"]) == (before["metadata"]["uid"], before["spec"])


@pytest.mark.accept("K-9")
async def test_a_claim_that_somebody_owns_is_not_ours_whatever_its_labels(
    api: AdminClient, servers: KubernetesServerCluster, namespace: str, owner: str
) -> None:
    claim = dict(companions(server(namespace, owner, storage=CLAIM)))[Companion.CLAIM]
    somebody = {"apiVersion": "v1", "kind": "ConfigMap", "name": "s", "controller": True}
    somebody["uid"] = (await api.create(path("configmaps", namespace), {"metadata": {"name": "s"}}))[
        "metadata"
    ]["uid"]
    owned = {**claim, "metadata": {**claim["metadata"], "ownerReferences": [somebody]}}
    await api.create(path("persistentvolumeclaims", namespace), owned)
    with pytest.raises(Conflict):
        await servers.ensure(Companion.CLAIM, namespace, claim)


async def test_a_budget_of_ours_is_removed_and_its_absence_is_no_error(
    api: AdminClient, servers: KubernetesServerCluster, namespace: str, owner: str
) -> None:
    budget = disruption_budget(server(namespace, owner), 1)
    name = budget["metadata"]["name"]
    await servers.ensure(Companion.DISRUPTION_BUDGET, namespace, budget)
    await servers.remove(Companion.DISRUPTION_BUDGET, namespace, name, owner_uid=OTHER)
    url = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/{name}"
    assert await api.find(url) is not None
    for _ in range(2):
        await servers.remove(Companion.DISRUPTION_BUDGET, namespace, name, owner_uid=owner)
        assert await api.find(url) is None


async def test_a_companion_that_the_server_refuses_comes_with_its_sentence(
    servers: KubernetesServerCluster, namespace: str, owner: str
) -> None:
    storage = {"volumeClaimTemplate": {"spec": {"accessModes": ["Sometimes"]}}}
    claim = volume_claim(server(namespace, owner, storage=storage))
    assert claim is not None
    with pytest.raises(Refused, match="accessModes"):
        await servers.ensure(Companion.CLAIM, namespace, claim)


async def test_a_change_between_look_and_write_is_no_foreigner(
    api: AdminClient, servers: KubernetesServerCluster, namespace: str, owner: str, client: KubernetesClient
) -> None:
    budget = disruption_budget(server(namespace, owner), 1)
    url = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    await servers.ensure(Companion.DISRUPTION_BUDGET, namespace, budget)
    await api.patch(f"{url}/{budget['metadata']['name']}", {"spec": {"minAvailable": 0}})
    request, late = client.request, iter((True, True))

    async def and_somebody_is_faster(verb: Verb, resource: Resource, **named: Any) -> Object:
        if verb is Verb.UPDATE and next(late, False):
            await api.patch(
                f"{url}/{named['name']}", {"metadata": {"annotations": {"at": str(time.monotonic_ns())}}}
            )
        return await request(verb, resource, **named)

    client.request = and_somebody_is_faster  # type: ignore[method-assign]
    assert await servers.ensure(Companion.DISRUPTION_BUDGET, namespace, budget)
    assert (await api.get(f"{url}/{budget['metadata']['name']}"))["spec"] == budget["spec"]


async def test_a_claim_that_is_being_deleted_is_not_there_for_a_new_pod(
    api: AdminClient, servers: KubernetesServerCluster, namespace: str, owner: str
) -> None:
    claim = dict(companions(server(namespace, owner, storage=CLAIM)))[Companion.CLAIM]
    url = path("persistentvolumeclaims", namespace)
    held = {**claim, "metadata": {**claim["metadata"], "finalizers": ["tenure.test/holds"]}}
    await api.create(url, held)
    await api.delete(f"{url}/{claim['metadata']['name']}")
    with pytest.raises(Unavailable, match="being deleted"):
        await servers.ensure(Companion.CLAIM, namespace, claim)
    await api.patch(f"{url}/{claim['metadata']['name']}", {"metadata": {"finalizers": None}})
    assert await servers.ensure(Companion.CLAIM, namespace, claim)
