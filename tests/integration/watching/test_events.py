import threading
import time

import pytest
from tests.integration.watching.conftest import Start
from tests.support.api import AdminClient, path
from tests.support.manifests import agent_manifest, pod_manifest
from tests.support.wait import eventually

from tenure.operator.cache import ObjectKey
from tenure.telemetry.metrics import WatchedResource


async def test_what_exists_at_the_start_is_known_once_synced_and_what_comes_later_soon_after(
    api: AdminClient, namespace: str, watches: Start
) -> None:
    early = await api.create(path("agentprocesses", namespace), agent_manifest("early"))
    await api.create(path("pods", namespace), pod_manifest("early-1", owner=early))
    async with watches() as running:
        key = ObjectKey(namespace, "early")
        assert running.cache.agent_process_uid(key) == early["metadata"]["uid"]
        assert [view.name for view in running.cache.pods_of(key)] == ["early-1"]

        late = await api.create(path("agentprocesses", namespace), agent_manifest("late"))
        later = ObjectKey(namespace, "late")
        await eventually(lambda: running.cache.agent_process(later), within=10, every=0.005)
        await api.create(path("pods", namespace), pod_manifest("late-1", owner=late))
        await eventually(lambda: running.cache.pods_of(later), within=10, every=0.005)
        assert later in running.woken


async def test_a_change_and_a_deletion_arrive(api: AdminClient, namespace: str, watches: Start) -> None:
    made = await api.create(path("agentprocesses", namespace), agent_manifest("critic"))
    await api.create(path("pods", namespace), pod_manifest("critic-1", owner=made))
    key = ObjectKey(namespace, "critic")
    async with watches(namespace) as running:
        url = path("agentprocesses", namespace, "critic")
        await api.patch(url, {"spec": {"desiredState": "StopRequested"}})

        def stopping() -> bool:
            raw = running.cache.agent_process(key)
            return raw is not None and raw["spec"]["desiredState"] == "StopRequested"

        await eventually(stopping, within=10)
        await api.delete(path("pods", namespace, "critic-1"), grace=0)
        await eventually(lambda: running.cache.pods_of(key)[0].departed, within=10)
        await api.delete(url)
        await eventually(lambda: running.cache.agent_process(key) is None, within=10)


async def test_a_pod_without_our_label_is_never_sent(
    api: AdminClient, namespace: str, watches: Start
) -> None:
    made = await api.create(path("agentprocesses", namespace), agent_manifest("critic"))
    stranger = pod_manifest("stranger", owner=made)
    stranger["metadata"]["labels"] = {}
    await api.create(path("pods", namespace), stranger)
    await api.create(path("pods", namespace), pod_manifest("ours", owner=made))
    async with watches() as running:
        assert [view.name for view in running.cache.pods_of(ObjectKey(namespace, "critic"))] == ["ours"]


@pytest.mark.accept("L-19")
async def test_watching_sets_no_finalizer_and_no_annotation(
    api: AdminClient, namespace: str, watches: Start
) -> None:
    made = await api.create(path("agentprocesses", namespace), agent_manifest("critic"))
    pod = await api.create(path("pods", namespace), pod_manifest("critic-1", owner=made))
    async with watches() as running:
        url = path("agentprocesses", namespace, "critic")
        await api.patch(url, {"metadata": {"labels": {"touched": "yes"}}})
        key = ObjectKey(namespace, "critic")

        def seen() -> bool:
            raw = running.cache.agent_process(key)
            return raw is not None and "labels" in raw["metadata"]

        await eventually(seen, within=10)
    now = await api.get(url)
    assert "finalizers" not in now["metadata"]
    assert "annotations" not in now["metadata"]
    pod_now = await api.get(path("pods", namespace, "critic-1"))
    assert pod_now["metadata"]["resourceVersion"] == pod["metadata"]["resourceVersion"], "nobody wrote it"


async def test_stopping_ends_the_thread_quickly_and_leaves_nothing(namespace: str, watches: Start) -> None:
    async with watches(namespace) as running:
        assert any(thread.name == "kopf" for thread in threading.enumerate())
        assert running.ages.age(WatchedResource.PODS) < 30
        began = time.monotonic()
    assert time.monotonic() - began < 10
    assert not any(thread.name == "kopf" for thread in threading.enumerate())
