import asyncio
import logging
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.control_plane import ControlPlane
from tests.integration.watching.conftest import Start
from tests.support.api import AdminClient, path
from tests.support.manifests import agent_manifest, pod_manifest
from tests.support.wait import eventually

from tenure.operator import watching as module
from tenure.operator.cache import ObjectKey

RBAC = "/apis/rbac.authorization.k8s.io/v1"


def kopf_runs() -> bool:
    return any(thread.name == "kopf" for thread in threading.enumerate())


async def account(api: AdminClient, plane: ControlPlane, namespace: str, folder: Path) -> str:
    """A kubeconfig of a ServiceAccount that may do nothing yet."""
    await api.create(path("serviceaccounts", namespace), {"metadata": {"name": "watcher"}})
    url = path("serviceaccounts", namespace, "watcher", "token")
    request: dict[str, Any] = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = (await api.create(url, request))["status"]["token"]
    source = plane.kubeconfig_for(f"watcher-{uuid.uuid4().hex[:8]}", {"token": token})
    return str(source)


async def grant(api: AdminClient, namespace: str) -> None:
    """What the generated Role allows of watching, in one namespace."""
    verbs = ["get", "list", "watch"]
    rules = [
        {"apiGroups": ["tenure.dev"], "resources": ["agentprocesses"], "verbs": verbs},
        {"apiGroups": [""], "resources": ["pods"], "verbs": verbs},
    ]
    named = {"metadata": {"name": "watcher"}}
    await api.create(f"{RBAC}/namespaces/{namespace}/roles", {**named, "rules": rules})
    binding = {
        **named,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "watcher"},
        "subjects": [{"kind": "ServiceAccount", "name": "watcher", "namespace": namespace}],
    }
    await api.create(f"{RBAC}/namespaces/{namespace}/rolebindings", binding)


async def test_a_role_in_one_namespace_is_enough_and_nothing_is_ever_forbidden(
    api: AdminClient,
    control_plane_with_crds: ControlPlane,
    namespace: str,
    watches: Start,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    await api.create(path("agentprocesses", namespace), agent_manifest("critic"))
    kubeconfig = await account(api, control_plane_with_crds, namespace, tmp_path)
    await grant(api, namespace)
    async with watches(namespace, kubeconfig=kubeconfig) as running:
        assert running.cache.agent_process(ObjectKey(namespace, "critic"))
        assert running.watching.starts == 1
    assert "orbidden" not in caplog.text
    assert "orbidden" not in caplog.text


async def test_watches_that_a_missing_permission_ended_begin_again_when_it_is_given(
    api: AdminClient, control_plane_with_crds: ControlPlane, namespace: str, watches: Start, tmp_path: Path
) -> None:
    await api.create(path("agentprocesses", namespace), agent_manifest("critic"))
    kubeconfig = await account(api, control_plane_with_crds, namespace, tmp_path)
    async with watches(namespace, kubeconfig=kubeconfig, synced=False) as running:
        await eventually(lambda: running.watching.starts >= 2, within=30, what="kopf was started again")
        assert not running.sweep.synced.is_set()
        await grant(api, namespace)
        await eventually(lambda: running.cache.agent_process(ObjectKey(namespace, "critic")), within=30)
        await eventually(running.sweep.synced.is_set, within=30)


async def test_what_was_deleted_while_nobody_watched_is_swept_after_the_new_list(
    api: AdminClient, namespace: str, watches: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new list shows what exists and says nothing of what does not: without the sweep these were ghosts."""
    made = await api.create(path("agentprocesses", namespace), agent_manifest("critic"))
    pod = await api.create(path("pods", namespace), pod_manifest("critic-1", owner=made))
    await api.create(path("agentprocesses", namespace), agent_manifest("planner"))
    key = ObjectKey(namespace, "critic")
    async with watches(namespace) as running:
        assert running.cache.agent_process(key)
        monkeypatch.setattr(module, "FIRST_PAUSE", 2.0)
        monkeypatch.setattr(module, "SILENCE_LIMIT", 0.0)
        await eventually(lambda: not kopf_runs(), within=10, every=0.01)
        monkeypatch.undo()
        await api.delete(path("pods", namespace, "critic-1"), grace=0)
        await api.delete(path("agentprocesses", namespace, "critic"))
        await eventually(lambda: running.watching.starts > 1, within=10)
        await eventually(
            lambda: running.cache.agent_process(key) is None, within=15, what="the ghost is gone"
        )
        uid = pod["metadata"]["uid"]
        await eventually(lambda: (view := running.cache.pod(uid)) and view.departed, within=5)
        await eventually(lambda: running.sweep.dropped == 2, within=5)
        assert running.cache.agent_process(ObjectKey(namespace, "planner"))
        await api.create(path("agentprocesses", namespace), agent_manifest("late"))
        await eventually(lambda: running.cache.agent_process(ObjectKey(namespace, "late")), within=5)


async def test_a_start_among_a_thousand_objects_is_quick(
    api: AdminClient, namespace: str, watches: Start
) -> None:
    """The limit is generous for a shared machine; how it grows is the bench's business (P-5)."""
    many = asyncio.Semaphore(20)

    async def create(number: int) -> None:
        async with many:
            made = await api.create(path("agentprocesses", namespace), agent_manifest(f"a{number}"))
            await api.create(path("pods", namespace), pod_manifest(f"a{number}-1", owner=made))

    async def delete(number: int) -> None:
        async with many:
            await api.delete(path("pods", namespace, f"a{number}-1"), grace=0)
            await api.delete(path("agentprocesses", namespace, f"a{number}"))

    await asyncio.gather(*(create(number) for number in range(500)))
    began = time.monotonic()
    async with watches() as running:
        assert time.monotonic() - began < 10
        mine = [key for key in running.cache.process_keys() if key.namespace == namespace]
        assert len(mine) == 500
        assert all(len(running.cache.pods_of(key)) == 1 for key in mine)
        assert running.sweep.read == 0, "everything came by the watches"
        await asyncio.gather(*(delete(number) for number in range(500)))
        await eventually(
            lambda: not [key for key in running.cache.process_keys() if key.namespace == namespace], within=20
        )
