"""Reads and writes of agents' objects: preconditions hold, refusals come with the server's own words."""

import asyncio
import uuid

import pytest
from tests.support.api import AdminClient, Object, path
from tests.support.wait import eventually

from tenure.cluster.agents import KubernetesAgentCluster
from tenure.cluster.calls import AGENT_PROCESSES, PODS
from tenure.cluster.client import KubernetesClient
from tenure.cluster.errors import (
    AlreadyExists,
    Conflict,
    NamespaceTerminating,
    NotFound,
    Refused,
    Unavailable,
)

OTHER_UID = "00000000-0000-4000-8000-000000000000"


def pod(name: str = "a-1", **spec: object) -> Object:
    container = {"name": "agent", "image": "none.example/agent", "resources": {"requests": {"cpu": 1}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"tenure.dev/role": "agent"}},
        "spec": {"restartPolicy": "Never", "containers": [container], **spec},
    }


def agent_process(name: str = "a") -> Object:
    template = {"spec": {"containers": [{"name": "agent", "image": "none.example/agent"}]}}
    return {
        "apiVersion": "tenure.dev/v1alpha1",
        "kind": "AgentProcess",
        "metadata": {"name": name},
        "spec": {"template": template},
    }


async def bind(api: AdminClient, namespace: str, name: str) -> None:
    """Give the pod a node, so that a deletion has a grace: the kubelet that would end it does not exist."""
    target = {"apiVersion": "v1", "kind": "Node", "name": "nowhere"}
    await api.create(path("pods", namespace, name, "binding"), {"metadata": {"name": name}, "target": target})


async def test_what_does_not_exist_reads_as_none(cluster: KubernetesAgentCluster, namespace: str) -> None:
    assert await cluster.get_pod(namespace, "nobody") is None
    assert await cluster.get_agent_process(namespace, "nobody") is None
    assert await cluster.get_pod("no-such-namespace", "nobody") is None


async def test_a_template_travels_as_its_author_wrote_it(
    cluster: KubernetesAgentCluster, namespace: str
) -> None:
    created = await cluster.create_pod(namespace, pod())
    read = await cluster.get_pod(namespace, "a-1")
    assert read is not None
    assert read["metadata"]["uid"] == created["metadata"]["uid"]
    assert read["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "1"}


async def test_a_name_in_use_is_told_apart_from_other_conflicts(
    cluster: KubernetesAgentCluster, namespace: str
) -> None:
    await cluster.create_pod(namespace, pod())
    with pytest.raises(AlreadyExists):
        await cluster.create_pod(namespace, pod())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (pod(nodeNmae="x"), 'unknown field "spec.nodeNmae"'),
        (pod(restartPolicy="Sometimes"), "spec.restartPolicy"),
        (pod(name="Not_A_Name"), "RFC 1123"),
    ],
)
async def test_a_refused_pod_comes_with_the_servers_sentence(
    cluster: KubernetesAgentCluster, namespace: str, body: Object, words: str
) -> None:
    with pytest.raises(Refused) as refused:
        await cluster.create_pod(namespace, body)
    assert words in refused.value.message
    assert not isinstance(refused.value, NamespaceTerminating)


async def test_a_quota_is_a_refusal(
    api: AdminClient, cluster: KubernetesAgentCluster, namespace: str
) -> None:
    await api.create(
        path("resourcequotas", namespace), {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "0"}}}
    )

    async def refused() -> bool:
        name = f"a-{uuid.uuid4().hex[:6]}"
        try:
            await cluster.create_pod(namespace, pod(name))
        except Refused as error:
            return "exceeded quota" in error.message
        return False

    await eventually(refused, within=15, what="the quota is enforced")


async def test_nothing_is_created_in_a_namespace_that_ends_or_is_missing(
    api: AdminClient, cluster: KubernetesAgentCluster, namespace: str
) -> None:
    with pytest.raises(NotFound):
        await cluster.create_pod("no-such-namespace", pod())
    # A finalizer keeps the namespace in its end for as long as we look.
    await api.create(
        path("configmaps", namespace), {"metadata": {"name": "holds", "finalizers": ["tenure.test/holds"]}}
    )
    await api.delete(path("namespaces", None, namespace))
    try:
        with pytest.raises(NamespaceTerminating):
            await cluster.create_pod(namespace, pod())
    finally:
        await api.patch(path("configmaps", namespace, "holds"), {"metadata": {"finalizers": None}})


async def test_a_running_pod_is_deleted_with_the_grace_asked_for(
    api: AdminClient, cluster: KubernetesAgentCluster, namespace: str
) -> None:
    created = await cluster.create_pod(namespace, pod(terminationGracePeriodSeconds=600))
    uid = created["metadata"]["uid"]
    await bind(api, namespace, "a-1")
    left = await cluster.delete_pod(namespace, "a-1", uid=uid, grace_seconds=None)
    assert left is not None
    assert left["metadata"]["deletionGracePeriodSeconds"] == 600
    left = await cluster.delete_pod(namespace, "a-1", uid=uid, grace_seconds=20)
    assert left is not None
    assert left["metadata"]["deletionGracePeriodSeconds"] == 20
    assert await cluster.delete_pod(namespace, "a-1", uid=uid, grace_seconds=0) is None


async def test_a_pod_that_never_ran_is_gone_at_once(cluster: KubernetesAgentCluster, namespace: str) -> None:
    created = await cluster.create_pod(namespace, pod(schedulerName="nobody"))
    uid = created["metadata"]["uid"]
    assert await cluster.delete_pod(namespace, "a-1", uid=uid, grace_seconds=600) is None
    assert await cluster.get_pod(namespace, "a-1") is None
    assert await cluster.delete_pod(namespace, "a-1", uid=uid, grace_seconds=600) is None


@pytest.mark.accept("K-9")
async def test_a_pod_with_another_uid_is_neither_deleted_nor_annotated(
    cluster: KubernetesAgentCluster, namespace: str
) -> None:
    await cluster.create_pod(namespace, pod())
    with pytest.raises(Conflict):
        await cluster.delete_pod(namespace, "a-1", uid=OTHER_UID, grace_seconds=0)
    with pytest.raises(Conflict):
        await cluster.annotate_pod(namespace, "a-1", uid=OTHER_UID, annotations={"a": "b"})
    left = await cluster.get_pod(namespace, "a-1")
    assert left is not None
    assert "deletionTimestamp" not in left["metadata"]
    assert "annotations" not in left["metadata"]


async def test_annotations_are_merged_and_removed(cluster: KubernetesAgentCluster, namespace: str) -> None:
    created = await cluster.create_pod(namespace, pod())
    uid = created["metadata"]["uid"]
    await cluster.annotate_pod(namespace, "a-1", uid=uid, annotations={"x/a": "1", "x/b": "2"})
    left = await cluster.annotate_pod(namespace, "a-1", uid=uid, annotations={"x/a": None, "x/c": "3"})
    assert left["metadata"]["annotations"] == {"x/b": "2", "x/c": "3"}
    with pytest.raises(NotFound):
        await cluster.annotate_pod(namespace, "nobody", uid=uid, annotations={"x/a": "1"})


async def test_status_is_replaced_as_a_whole(
    api: AdminClient, cluster: KubernetesAgentCluster, namespace: str
) -> None:
    made = await api.create(path("agentprocesses", namespace), agent_process())
    uid, version = made["metadata"]["uid"], made["metadata"]["resourceVersion"]
    first = await cluster.patch_agent_process_status(
        namespace, "a", uid=uid, resource_version=version, status={"phase": "Running", "restarts": 2}
    )
    assert first["status"] == {"phase": "Running", "restarts": 2}
    second = await cluster.patch_agent_process_status(
        namespace,
        "a",
        uid=uid,
        resource_version=first["metadata"]["resourceVersion"],
        status={"phase": "Stopped"},
    )
    assert second["status"] == {"phase": "Stopped"}
    assert second["spec"] == made["spec"]


@pytest.mark.accept("K-9")
async def test_status_is_not_written_to_another_or_a_changed_object(
    api: AdminClient, cluster: KubernetesAgentCluster, namespace: str
) -> None:
    made = await api.create(path("agentprocesses", namespace), agent_process())
    uid, version = made["metadata"]["uid"], made["metadata"]["resourceVersion"]
    with pytest.raises(Conflict):
        await cluster.patch_agent_process_status(
            namespace, "a", uid=OTHER_UID, resource_version=version, status={"phase": "Running"}
        )
    await api.patch(path("agentprocesses", namespace, "a"), {"spec": {"restartToken": "again"}})
    with pytest.raises(Conflict):
        await cluster.patch_agent_process_status(
            namespace, "a", uid=uid, resource_version=version, status={"phase": "Running"}
        )
    left = await cluster.get_agent_process(namespace, "a")
    assert left is not None
    assert "status" not in left
    with pytest.raises(NotFound):
        await cluster.patch_agent_process_status(
            namespace, "nobody", uid=uid, resource_version=version, status={"phase": "Running"}
        )


async def test_a_status_that_the_schema_refuses_is_a_refusal_and_no_conflict(
    api: AdminClient, cluster: KubernetesAgentCluster, namespace: str
) -> None:
    made = await api.create(path("agentprocesses", namespace), agent_process())
    meta = made["metadata"]
    with pytest.raises(Refused):
        await cluster.patch_agent_process_status(
            namespace,
            "a",
            uid=meta["uid"],
            resource_version=meta["resourceVersion"],
            status={"phase": 5, "restarts": "many"},
        )


@pytest.mark.accept("M-2")
async def test_an_event_is_recorded_about_its_object(
    api: AdminClient, cluster: KubernetesAgentCluster, namespace: str
) -> None:
    made = await api.create(path("agentprocesses", namespace), agent_process())
    regarding = {
        "apiVersion": "tenure.dev/v1alpha1",
        "kind": "AgentProcess",
        "namespace": namespace,
        "name": "a",
        "uid": made["metadata"]["uid"],
    }
    note = "stop asked for: postgresql://a:hunter2@db/x " + "ä" * 2000
    await cluster.create_event(regarding, reason="StopRequested", note=note, warning=True, action="")
    events = await api.list(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")
    (event,) = [e for e in events if e["regarding"].get("uid") == regarding["uid"]]
    assert (event["reason"], event["type"]) == ("StopRequested", "Warning")
    assert event["reportingController"] == "tenure.dev/operator"
    assert event["reportingInstance"] == "the-test"
    assert "hunter2" not in event["note"]
    assert 900 < len(event["note"].encode()) <= 1024


async def test_an_event_about_a_vanished_namespace_is_nobodys_loss(cluster: KubernetesAgentCluster) -> None:
    regarding = {"apiVersion": "v1", "kind": "Pod", "namespace": "no-such-namespace", "name": "a", "uid": "u"}
    await cluster.create_event(regarding, reason="Stopped", note="n", warning=False, action="Stop")


async def test_a_list_goes_through_all_pages_and_brings_metadata_only(
    api: AdminClient, client: KubernetesClient, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.cluster.client.PAGE_SIZE", 3)
    names = {f"a-{number}" for number in range(8)}
    for name in names:
        await api.create(path("pods", namespace), pod(name, schedulerName="nobody"))
    other = pod("other", schedulerName="nobody")
    other["metadata"]["labels"] = {}
    await api.create(path("pods", namespace), other)
    listing = await client.list_objects(PODS, namespace, "tenure.dev/role")
    assert {item["metadata"]["name"] for item in listing.items} == names
    assert all(item.keys() == {"metadata"} for item in listing.items)
    assert all(item["metadata"]["uid"] and "managedFields" not in item["metadata"] for item in listing.items)
    assert listing.resource_version
    everywhere = await client.list_objects(PODS, None)
    assert names | {"other"} <= {item["metadata"]["name"] for item in everywhere.items}
    assert await client.list_objects(AGENT_PROCESSES, namespace) != listing


async def test_a_server_that_is_silent_costs_its_time_limit_and_no_more() -> None:
    from kubernetes.aio.client.configuration import Configuration

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        finally:
            writer.close()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    configuration = Configuration(host=f"http://127.0.0.1:{port}", client_session_kwargs={"trust_env": False})
    async with server, KubernetesClient(configuration, time_limit=0.3) as silent:
        began = asyncio.get_running_loop().time()
        with pytest.raises(Unavailable, match=r"no answer within 0\.3 s"):
            await KubernetesAgentCluster(silent).get_pod("a", "b")
        assert asyncio.get_running_loop().time() - began < 5
