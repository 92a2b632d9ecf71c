"""Reads and writes of control servers' objects: whoever is not who was read is left alone, and no value is told."""

import base64
import traceback
from collections.abc import Mapping

import pytest
import pytest_asyncio
from tests.support.api import AdminClient, Object, path
from tests.support.server_manifests import server_manifest, stored_server

from tenure.cluster.calls import Companion
from tenure.cluster.client import KubernetesClient
from tenure.cluster.errors import AlreadyExists, ApiError, Conflict, NotFound, Refused
from tenure.cluster.server_ports import NewSecret
from tenure.cluster.servers import KubernetesServerCluster
from tenure.model.control_server import ControlServer, parse_control_server
from tenure.model.masked import Masked
from tenure.plan.servers.policies import OperatorPods, disruption_budget, network_policy, volume_claim

OTHER = "00000000-0000-4000-8000-000000000000"
CANARY = "canary-2b7e"
ROLLED = "tenure.dev/recovered"


@pytest_asyncio.fixture
async def owner(api: AdminClient, namespace: str) -> str:
    """The UID of a ControlServer that is there: what an absent one owns is collected at once."""
    uid: str = (await api.create(path("controlservers", namespace), server_manifest()))["metadata"]["uid"]
    return uid


@pytest.fixture
def cluster(client: KubernetesClient) -> KubernetesServerCluster:
    """The adapter under test, as admin."""
    return KubernetesServerCluster(client, instance="the-test")


def secret(owner: str, name: str = "server", **data: str) -> NewSecret:
    reference: dict[str, str | bool] = {
        "apiVersion": "tenure.dev/v1alpha1",
        "kind": "ControlServer",
        "name": "main",
        "uid": owner,
        "controller": True,
    }
    labels = {"tenure.dev/control-server": "main"}
    return NewSecret(name, labels, reference, {key: Masked(value) for key, value in data.items()})


def revealed(data: Mapping[str, Masked]) -> dict[str, str]:
    return {key: value.reveal() for key, value in data.items()}


def pod(name: str = "backend-1") -> Object:
    container = {"name": "backend", "image": "none.example/backend"}
    gates = [{"conditionType": ROLLED}]
    return {
        "metadata": {"name": name},
        "spec": {"containers": [container], "readinessGates": gates, "schedulerName": "nobody"},
    }


def condition(status: str, reason: str = "Recovered") -> Object:
    return {
        "type": ROLLED,
        "status": status,
        "reason": reason,
        "message": "m",
        "lastTransitionTime": "2026-11-30T12:00:00Z",
    }


def server(namespace: str, uid: str, **fields: object) -> ControlServer:
    return parse_control_server(stored_server(namespace=namespace, uid=uid, **fields))


CLAIM = {
    "volumeClaimTemplate": {
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    }
}


async def test_what_does_not_exist_reads_as_none(cluster: KubernetesServerCluster, namespace: str) -> None:
    assert await cluster.get_secret(namespace, "nobody") is None
    assert await cluster.get_control_server(namespace, "nobody") is None
    assert await cluster.get_secret("no-such-namespace", "nobody") is None


async def test_a_secret_is_read_as_it_was_written(
    api: AdminClient, cluster: KubernetesServerCluster, namespace: str, owner: str
) -> None:
    written = await cluster.create_secret(namespace, secret(owner, credential="ä\n" + CANARY, empty=""))
    read = await cluster.get_secret(namespace, "server")
    assert read == written
    assert read is not None
    assert revealed(read.data) == {"credential": "ä\n" + CANARY, "empty": ""}
    stored = await api.get(path("secrets", namespace, "server"))
    assert (read.uid, read.resource_version) == (
        stored["metadata"]["uid"],
        stored["metadata"]["resourceVersion"],
    )
    assert read.owner_uid == owner
    assert stored["metadata"]["labels"] == {"tenure.dev/control-server": "main"}
    assert CANARY not in repr(read)
    assert CANARY not in repr(secret(owner, credential=CANARY))


async def test_a_name_that_is_taken_is_never_written_to_by_a_create(
    api: AdminClient, cluster: KubernetesServerCluster, namespace: str, owner: str
) -> None:
    planted = {"metadata": {"name": "server"}, "data": {"credential": base64.b64encode(b"theirs").decode()}}
    before = await api.create(path("secrets", namespace), planted)
    with pytest.raises(AlreadyExists):
        await cluster.create_secret(namespace, secret(owner, credential=CANARY))
    assert await api.get(path("secrets", namespace, "server")) == before
    found = await cluster.get_secret(namespace, "server")
    assert found is not None
    assert found.owner_uid == ""


@pytest.mark.accept("K-9")
async def test_a_planted_secret_of_bytes_is_foreign_and_no_outage(
    api: AdminClient, cluster: KubernetesServerCluster, namespace: str
) -> None:
    data = {"credential": base64.b64encode(b"\xff\xfe").decode(), "port": base64.b64encode(b"1").decode()}
    await api.create(path("secrets", namespace), {"metadata": {"name": "server"}, "data": data})
    found = await cluster.get_secret(namespace, "server")
    assert found is not None
    assert found.owner_uid == ""
    assert revealed(found.data) == {"port": "1"}


@pytest.mark.accept("K-9")
async def test_an_owner_that_does_not_control_is_none(
    api: AdminClient, cluster: KubernetesServerCluster, namespace: str, owner: str
) -> None:
    reference = {"apiVersion": "tenure.dev/v1alpha1", "kind": "ControlServer", "name": "main", "uid": owner}
    planted = {"metadata": {"name": "server", "ownerReferences": [reference]}}
    await api.create(path("secrets", namespace), planted)
    found = await cluster.get_secret(namespace, "server")
    assert found is not None
    assert found.owner_uid == ""


async def test_of_two_writers_that_read_the_same_secret_one_wins(
    cluster: KubernetesServerCluster, namespace: str, owner: str
) -> None:
    read = await cluster.create_secret(namespace, secret(owner, credential="one", gone="x"))
    won = await cluster.replace_secret(
        namespace, secret(owner, credential="two"), uid=read.uid, resource_version=read.resource_version
    )
    assert revealed(won.data) == {"credential": "two"}
    with pytest.raises(Conflict):
        await cluster.replace_secret(
            namespace, secret(owner, credential="three"), uid=read.uid, resource_version=read.resource_version
        )
    left = await cluster.get_secret(namespace, "server")
    assert left == won


@pytest.mark.accept("K-9")
async def test_a_secret_that_took_the_name_of_another_is_neither_written_nor_deleted(
    api: AdminClient, cluster: KubernetesServerCluster, namespace: str, owner: str
) -> None:
    read = await cluster.create_secret(namespace, secret(owner, credential="one"))
    await api.delete(path("secrets", namespace, "server"))
    with pytest.raises(NotFound):
        await cluster.replace_secret(
            namespace, secret(owner, credential="two"), uid=read.uid, resource_version=read.resource_version
        )
    assert await cluster.get_secret(namespace, "server") is None, "a replace made it again"
    await cluster.delete_secret(namespace, "server", uid=read.uid)
    planted = await api.create(path("secrets", namespace), {"metadata": {"name": "server"}})
    with pytest.raises(Conflict):
        await cluster.replace_secret(
            namespace, secret(owner, credential="two"), uid=read.uid, resource_version=read.resource_version
        )
    with pytest.raises(Conflict):
        # Even with the present version: the UID is another's.
        version = planted["metadata"]["resourceVersion"]
        await cluster.replace_secret(
            namespace, secret(owner, credential="two"), uid=read.uid, resource_version=version
        )
    with pytest.raises(Conflict):
        await cluster.delete_secret(namespace, "server", uid=read.uid)
    assert await api.get(path("secrets", namespace, "server")) == planted


@pytest.mark.accept("K-9")
async def test_no_refusal_tells_a_value(cluster: KubernetesServerCluster, namespace: str, owner: str) -> None:
    await cluster.create_secret(namespace, secret(owner, credential=CANARY))
    read = await cluster.get_secret(namespace, "server")
    assert read is not None
    stale = {"uid": read.uid, "resource_version": "1"}
    attempts = (
        lambda: cluster.create_secret(namespace, secret(owner, credential=CANARY)),
        # The server quotes a key that it refuses.
        lambda: cluster.create_secret(namespace, secret(owner, "other", **{f"no key {CANARY}": CANARY})),
        lambda: cluster.create_secret(namespace, secret(owner, f"No_Name_{CANARY}", credential=CANARY)),
        lambda: cluster.create_secret("no-such-namespace", secret(owner, credential=CANARY)),
        lambda: cluster.replace_secret(namespace, secret(owner, **{f"no key {CANARY}": CANARY}), **stale),
        lambda: cluster.replace_secret(namespace, secret(owner, credential=CANARY), **stale),
    )
    for attempt in attempts:
        with pytest.raises(ApiError) as refused:
            await attempt()
        told = "".join(traceback.format_exception(refused.value, chain=True))
        assert CANARY not in told, refused.value
        assert base64.b64encode(CANARY.encode()).decode()[:12] not in told
        assert refused.value.__context__ is None


@pytest.mark.accept("K-9")
async def test_a_condition_is_set_on_the_pod_that_was_read_and_on_no_other(
    api: AdminClient, cluster: KubernetesServerCluster, namespace: str
) -> None:
    made = await api.create(path("pods", namespace), pod())
    uid, version = made["metadata"]["uid"], made["metadata"]["resourceVersion"]
    first = await cluster.set_pod_condition(
        namespace, "backend-1", uid=uid, resource_version=version, condition=condition("False", "Waiting")
    )
    for wrong in (
        {"uid": OTHER, "resource_version": first["metadata"]["resourceVersion"]},
        {"uid": uid, "resource_version": version},
    ):
        with pytest.raises(Conflict):
            await cluster.set_pod_condition(namespace, "backend-1", condition=condition("True"), **wrong)
    with pytest.raises(Conflict):
        await cluster.set_pod_condition(
            namespace, "nobody", uid=uid, resource_version=version, condition=condition("True")
        )
    left = await api.get(path("pods", namespace, "backend-1"))
    (found,) = [each for each in left["status"]["conditions"] if each["type"] == ROLLED]
    assert (found["status"], found["reason"]) == ("False", "Waiting")


async def test_a_condition_leaves_those_of_the_kubelet_and_is_replaced_by_its_type(
    api: AdminClient, cluster: KubernetesServerCluster, namespace: str
) -> None:
    made = await api.create(path("pods", namespace), pod())
    ready = {"type": "ContainersReady", "status": "True"}
    made = await api.patch(
        path("pods", namespace, "backend-1", "status"), {"status": {"conditions": [ready]}}, "strategic"
    )
    for status in ("False", "True"):
        meta = made["metadata"]
        made = await cluster.set_pod_condition(
            namespace,
            "backend-1",
            uid=meta["uid"],
            resource_version=meta["resourceVersion"],
            condition=condition(status),
        )
    found = {each["type"]: each["status"] for each in made["status"]["conditions"]}
    assert found == {"ContainersReady": "True", ROLLED: "True"}
    assert len(made["status"]["conditions"]) == 2


async def test_a_pod_that_changes_between_look_and_write_is_not_written(
    api: AdminClient, cluster: KubernetesServerCluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await api.create(path("pods", namespace), pod())
    look = cluster.get_pod

    async def look_and_be_late(where: str, name: str) -> Object | None:
        found = await look(where, name)
        await api.patch(path("pods", namespace, name), {"metadata": {"annotations": {"a": "b"}}})
        return found

    monkeypatch.setattr(cluster, "get_pod", look_and_be_late)
    meta = made["metadata"]
    with pytest.raises(Conflict):
        await cluster.set_pod_condition(
            namespace,
            "backend-1",
            uid=meta["uid"],
            resource_version=meta["resourceVersion"],
            condition=condition("True"),
        )


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
    cluster: KubernetesServerCluster, namespace: str, owner: str
) -> None:
    wanted = companions(server(namespace, owner, storage=CLAIM))
    assert [await cluster.ensure(kind, namespace, body) for kind, body in wanted] == [True] * 3
    assert [await cluster.ensure(kind, namespace, body) for kind, body in wanted] == [False] * 3


async def test_what_somebody_changed_is_brought_back_and_a_claim_is_not(
    api: AdminClient, cluster: KubernetesServerCluster, namespace: str, owner: str
) -> None:
    wanted = dict(companions(server(namespace, owner, storage=CLAIM)))
    for kind, body in wanted.items():
        await cluster.ensure(kind, namespace, body)
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
        assert await cluster.ensure(kind, namespace, body)
        assert (await api.get(url + body["metadata"]["name"]))["spec"] == body["spec"]
    other = server(
        namespace, owner, storage={"volumeClaimTemplate": {"spec": {"accessModes": ["ReadWriteMany"]}}}
    )
    assert not await cluster.ensure(Companion.CLAIM, namespace, dict(companions(other))[Companion.CLAIM])


@pytest.mark.accept("K-9")
async def test_what_is_somebody_elses_is_neither_changed_nor_removed(
    api: AdminClient, cluster: KubernetesServerCluster, namespace: str, owner: str
) -> None:
    ours = companions(server(namespace, owner, storage=CLAIM))
    for kind, body in ours:
        meta = {key: value for key, value in body["metadata"].items() if key != "ownerReferences"}
        foreign = {**body, "metadata": {**meta, "labels": {"tenure.dev/control-server": "main"}}}
        url = f"{kind.value.root}/namespaces/{namespace}/{kind.value.plural}"
        before = await api.create(url, foreign)
        with pytest.raises(Conflict):
            await cluster.ensure(kind, namespace, {**body, "spec": {**body["spec"], "selector": {}}})
        await cluster.remove(kind, namespace, meta["name"], owner_uid=owner)
        after = await api.get(f"{url}/{meta['name']}")
        assert (after["metadata"]["uid"], after["spec"]) == (before["metadata"]["uid"], before["spec"])


@pytest.mark.accept("K-9")
async def test_a_claim_that_somebody_owns_is_not_ours_whatever_its_labels(
    api: AdminClient, cluster: KubernetesServerCluster, namespace: str, owner: str
) -> None:
    claim = dict(companions(server(namespace, owner, storage=CLAIM)))[Companion.CLAIM]
    somebody = {"apiVersion": "v1", "kind": "ConfigMap", "name": "s", "controller": True}
    somebody["uid"] = (await api.create(path("configmaps", namespace), {"metadata": {"name": "s"}}))[
        "metadata"
    ]["uid"]
    owned = {**claim, "metadata": {**claim["metadata"], "ownerReferences": [somebody]}}
    await api.create(path("persistentvolumeclaims", namespace), owned)
    with pytest.raises(Conflict):
        await cluster.ensure(Companion.CLAIM, namespace, claim)


async def test_a_budget_of_ours_is_removed_and_its_absence_is_no_error(
    api: AdminClient, cluster: KubernetesServerCluster, namespace: str, owner: str
) -> None:
    budget = disruption_budget(server(namespace, owner), 1)
    name = budget["metadata"]["name"]
    await cluster.ensure(Companion.DISRUPTION_BUDGET, namespace, budget)
    await cluster.remove(Companion.DISRUPTION_BUDGET, namespace, name, owner_uid=OTHER)
    url = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/{name}"
    assert await api.find(url) is not None
    for _ in range(2):
        await cluster.remove(Companion.DISRUPTION_BUDGET, namespace, name, owner_uid=owner)
        assert await api.find(url) is None


async def test_a_companion_that_the_server_refuses_comes_with_its_sentence(
    cluster: KubernetesServerCluster, namespace: str, owner: str
) -> None:
    storage = {"volumeClaimTemplate": {"spec": {"accessModes": ["Sometimes"]}}}
    claim = volume_claim(server(namespace, owner, storage=storage))
    assert claim is not None
    with pytest.raises(Refused, match="accessModes"):
        await cluster.ensure(Companion.CLAIM, namespace, claim)


@pytest.mark.accept("K-9")
async def test_status_is_not_written_to_another_or_a_changed_server(
    api: AdminClient, cluster: KubernetesServerCluster, namespace: str
) -> None:
    made = await api.create(path("controlservers", namespace), server_manifest("other"))
    uid, version = made["metadata"]["uid"], made["metadata"]["resourceVersion"]
    status = {"observedGeneration": 1, "installationID": uid}
    with pytest.raises(Conflict):
        await cluster.patch_control_server_status(
            namespace, "other", uid=OTHER, resource_version=version, status=status
        )
    first = await cluster.patch_control_server_status(
        namespace, "other", uid=uid, resource_version=version, status=status
    )
    assert first["status"] == status
    with pytest.raises(Conflict):
        await cluster.patch_control_server_status(
            namespace, "other", uid=uid, resource_version=version, status={"observedGeneration": 2}
        )
    left = await cluster.get_control_server(namespace, "other")
    assert left is not None
    assert left["status"] == status
