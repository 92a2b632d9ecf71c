"""Reads and writes of control servers' objects: whoever is not who was read is left alone, and no value is told."""

import base64
import traceback
from collections.abc import Mapping

import pytest
from tests.support.api import AdminClient, Object, path
from tests.support.server_manifests import server_manifest

from tenure.cluster.errors import AlreadyExists, ApiError, Conflict, NotFound
from tenure.cluster.server_ports import NewSecret
from tenure.cluster.servers import KubernetesServerCluster
from tenure.model.masked import Masked

OTHER = "00000000-0000-4000-8000-000000000000"
CANARY = "canary-2b7e"
ROLLED = "tenure.dev/recovered"


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


async def test_what_does_not_exist_reads_as_none(servers: KubernetesServerCluster, namespace: str) -> None:
    assert await servers.get_secret(namespace, "nobody") is None
    assert await servers.get_control_server(namespace, "nobody") is None
    assert await servers.get_secret("no-such-namespace", "nobody") is None


async def test_a_secret_is_read_as_it_was_written(
    api: AdminClient, servers: KubernetesServerCluster, namespace: str, owner: str
) -> None:
    written = await servers.create_secret(namespace, secret(owner, credential="ä\n" + CANARY, empty=""))
    read = await servers.get_secret(namespace, "server")
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
    api: AdminClient, servers: KubernetesServerCluster, namespace: str, owner: str
) -> None:
    planted = {"metadata": {"name": "server"}, "data": {"credential": base64.b64encode(b"theirs").decode()}}
    before = await api.create(path("secrets", namespace), planted)
    with pytest.raises(AlreadyExists):
        await servers.create_secret(namespace, secret(owner, credential=CANARY))
    assert await api.get(path("secrets", namespace, "server")) == before
    found = await servers.get_secret(namespace, "server")
    assert found is not None
    assert found.owner_uid == ""


@pytest.mark.accept("K-9")
async def test_a_planted_secret_of_bytes_is_foreign_and_no_outage(
    api: AdminClient, servers: KubernetesServerCluster, namespace: str
) -> None:
    data = {"credential": base64.b64encode(b"\xff\xfe").decode(), "port": base64.b64encode(b"1").decode()}
    await api.create(path("secrets", namespace), {"metadata": {"name": "server"}, "data": data})
    found = await servers.get_secret(namespace, "server")
    assert found is not None
    assert found.owner_uid == ""
    assert revealed(found.data) == {"port": "1"}


@pytest.mark.accept("K-9")
async def test_an_owner_that_does_not_control_is_none(
    api: AdminClient, servers: KubernetesServerCluster, namespace: str, owner: str
) -> None:
    reference = {"apiVersion": "tenure.dev/v1alpha1", "kind": "ControlServer", "name": "main", "uid": owner}
    planted = {"metadata": {"name": "server", "ownerReferences": [reference]}}
    await api.create(path("secrets", namespace), planted)
    found = await servers.get_secret(namespace, "server")
    assert found is not None
    assert found.owner_uid == ""


async def test_of_two_writers_that_read_the_same_secret_one_wins(
    servers: KubernetesServerCluster, namespace: str, owner: str
) -> None:
    read = await servers.create_secret(namespace, secret(owner, credential="one", gone="x"))
    won = await servers.replace_secret(
        namespace, secret(owner, credential="two"), uid=read.uid, resource_version=read.resource_version
    )
    assert revealed(won.data) == {"credential": "two"}
    with pytest.raises(Conflict):
        await servers.replace_secret(
            namespace, secret(owner, credential="three"), uid=read.uid, resource_version=read.resource_version
        )
    left = await servers.get_secret(namespace, "server")
    assert left == won


@pytest.mark.accept("K-9")
async def test_a_secret_that_took_the_name_of_another_is_neither_written_nor_deleted(
    api: AdminClient, servers: KubernetesServerCluster, namespace: str, owner: str
) -> None:
    read = await servers.create_secret(namespace, secret(owner, credential="one"))
    await api.delete(path("secrets", namespace, "server"))
    with pytest.raises(NotFound):
        await servers.replace_secret(
            namespace, secret(owner, credential="two"), uid=read.uid, resource_version=read.resource_version
        )
    assert await servers.get_secret(namespace, "server") is None, "a replace made it again"
    await servers.delete_secret(namespace, "server", uid=read.uid)
    planted = await api.create(path("secrets", namespace), {"metadata": {"name": "server"}})
    with pytest.raises(Conflict):
        await servers.replace_secret(
            namespace, secret(owner, credential="two"), uid=read.uid, resource_version=read.resource_version
        )
    with pytest.raises(Conflict):
        # Even with the present version: the UID is another's.
        version = planted["metadata"]["resourceVersion"]
        await servers.replace_secret(
            namespace, secret(owner, credential="two"), uid=read.uid, resource_version=version
        )
    with pytest.raises(Conflict):
        await servers.delete_secret(namespace, "server", uid=read.uid)
    assert await api.get(path("secrets", namespace, "server")) == planted


@pytest.mark.accept("K-9")
async def test_no_refusal_tells_a_value(servers: KubernetesServerCluster, namespace: str, owner: str) -> None:
    await servers.create_secret(namespace, secret(owner, credential=CANARY))
    read = await servers.get_secret(namespace, "server")
    assert read is not None
    stale = {"uid": read.uid, "resource_version": "1"}
    attempts = (
        lambda: servers.create_secret(namespace, secret(owner, credential=CANARY)),
        # The server quotes a key that it refuses.
        lambda: servers.create_secret(namespace, secret(owner, "other", **{f"no key {CANARY}": CANARY})),
        lambda: servers.create_secret(namespace, secret(owner, f"No_Name_{CANARY}", credential=CANARY)),
        lambda: servers.create_secret("no-such-namespace", secret(owner, credential=CANARY)),
        lambda: servers.replace_secret(namespace, secret(owner, **{f"no key {CANARY}": CANARY}), **stale),
        lambda: servers.replace_secret(namespace, secret(owner, credential=CANARY), **stale),
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
    api: AdminClient, servers: KubernetesServerCluster, namespace: str
) -> None:
    made = await api.create(path("pods", namespace), pod())
    uid, version = made["metadata"]["uid"], made["metadata"]["resourceVersion"]
    first = await servers.set_pod_condition(
        namespace, "backend-1", uid=uid, resource_version=version, condition=condition("False", "Waiting")
    )
    for wrong in (
        {"uid": OTHER, "resource_version": first["metadata"]["resourceVersion"]},
        {"uid": uid, "resource_version": version},
    ):
        with pytest.raises(Conflict):
            await servers.set_pod_condition(namespace, "backend-1", condition=condition("True"), **wrong)
    with pytest.raises(Conflict):
        await servers.set_pod_condition(
            namespace, "nobody", uid=uid, resource_version=version, condition=condition("True")
        )
    left = await api.get(path("pods", namespace, "backend-1"))
    (found,) = [each for each in left["status"]["conditions"] if each["type"] == ROLLED]
    assert (found["status"], found["reason"]) == ("False", "Waiting")


async def test_a_condition_leaves_those_of_the_kubelet_and_is_replaced_by_its_type(
    api: AdminClient, servers: KubernetesServerCluster, namespace: str
) -> None:
    made = await api.create(path("pods", namespace), pod())
    ready = {"type": "ContainersReady", "status": "True"}
    made = await api.patch(
        path("pods", namespace, "backend-1", "status"), {"status": {"conditions": [ready]}}, "strategic"
    )
    for status in ("False", "True"):
        meta = made["metadata"]
        made = await servers.set_pod_condition(
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
    api: AdminClient, servers: KubernetesServerCluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await api.create(path("pods", namespace), pod())
    look = servers.get_pod

    async def look_and_be_late(where: str, name: str) -> Object | None:
        found = await look(where, name)
        await api.patch(path("pods", namespace, name), {"metadata": {"annotations": {"a": "b"}}})
        return found

    monkeypatch.setattr(servers, "get_pod", look_and_be_late)
    meta = made["metadata"]
    with pytest.raises(Conflict):
        await servers.set_pod_condition(
            namespace,
            "backend-1",
            uid=meta["uid"],
            resource_version=meta["resourceVersion"],
            condition=condition("True"),
        )


@pytest.mark.accept("K-9")
async def test_status_is_not_written_to_another_or_a_changed_server(
    api: AdminClient, servers: KubernetesServerCluster, namespace: str
) -> None:
    made = await api.create(path("controlservers", namespace), server_manifest("other"))
    uid, version = made["metadata"]["uid"], made["metadata"]["resourceVersion"]
    status = {"observedGeneration": 1, "installationID": uid}
    with pytest.raises(Conflict):
        await servers.patch_control_server_status(
            namespace, "other", uid=OTHER, resource_version=version, status=status
        )
    first = await servers.patch_control_server_status(
        namespace, "other", uid=uid, resource_version=version, status=status
    )
    assert first["status"] == status
    with pytest.raises(Conflict):
        await servers.patch_control_server_status(
            namespace, "other", uid=uid, resource_version=version, status={"observedGeneration": 2}
        )
    left = await servers.get_control_server(namespace, "other")
    assert left is not None
    assert left["status"] == status
