"""The hand-over through the API server, as the one ServiceAccount that may read that one Secret and nothing else."""

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.cluster.control_plane import ControlPlane
from tests.support.api import AdminClient, path
from tests.support.cluster import api, apply, control_plane, namespace
from tests.support.wait import eventually

from tenure.backend import HandOver, HandOverSecret, RetryableError, UnreadableHandOver
from tenure.model.masked import Masked
from tenure.protocol.handover import to_data

__all__ = ["api", "control_plane", "namespace"]

NAME = "main-handover"
RBAC = "rbac.authorization.k8s.io"


def a_handover(rotation_id: int, **changes: str) -> dict[str, str]:
    handover = HandOver(
        endpoint="https://10.0.0.7:8443",
        credential=Masked("ab" * 32),
        server_identity="server-a",
        home_dir="/home/installation-1",
        rotation_id=rotation_id,
        backend_pod_uid="pod-1",
    )
    return {**to_data(handover), **changes}


def a_secret(data: dict[str, str]) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": NAME}, "stringData": data}


@pytest.fixture
async def source(
    control_plane: ControlPlane, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[HandOverSecret]:
    """As a ServiceAccount with the Role that the documentation gives."""
    role = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "Role",
        "metadata": {"name": "backend"},
        "rules": [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": [NAME], "verbs": ["get"]}],
    }
    binding = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "backend"},
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "backend"},
        "subjects": [{"kind": "ServiceAccount", "name": "backend", "namespace": namespace}],
    }
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "backend"}}
    apply(control_plane, account, role, binding, namespace=namespace)
    token = control_plane.kubectl("create", "token", "backend", "--namespace", namespace).strip()
    config = control_plane.kubeconfig_for(f"backend-{namespace}", {"token": token})
    monkeypatch.setenv("KUBECONFIG", str(config))
    made = HandOverSecret(NAME, namespace, pod_uid="pod-1", interval=0.05)

    async def allowed() -> bool:
        try:
            return await made.current() is None
        except RetryableError:
            return False

    await eventually(allowed, within=20, what="the role is in force")
    yield made
    await made.aclose()


async def test_a_hand_over_is_read_when_it_is_there_is_ours_and_is_newer(
    control_plane: ControlPlane, namespace: str, source: HandOverSecret
) -> None:
    waiting = asyncio.create_task(source.wait_newer(None))
    for unfit in (a_handover(1, **{"backend-pod-uid": "pod-0"}), dict.fromkeys(a_handover(1), "")):
        apply(control_plane, a_secret(unfit), namespace=namespace)
        assert await source.current() is None
    assert not waiting.done()
    apply(control_plane, a_secret(a_handover(3)), namespace=namespace)
    async with asyncio.timeout(20):
        found = await waiting
    assert to_data(found) == a_handover(3)
    waiting = asyncio.create_task(source.wait_newer(found))
    apply(control_plane, a_secret(a_handover(2)), namespace=namespace)
    assert await source.current() is not None
    apply(control_plane, a_secret(a_handover(4)), namespace=namespace)
    async with asyncio.timeout(20):
        assert (await waiting).rotation_id == 4


async def test_what_is_no_hand_over_is_refused_without_its_content(
    control_plane: ControlPlane, api: AdminClient, namespace: str, source: HandOverSecret, tmp_path: Path
) -> None:
    secret = "nobody-may-see-this"
    apply(control_plane, a_secret(a_handover(1, credential=secret)), namespace=namespace)
    with pytest.raises(UnreadableHandOver) as unreadable:
        await source.current()
    assert secret not in str(unreadable.value)
    binary = base64.b64encode(b"\xff\xfe nobody-may-see-this").decode()
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": NAME}, "data": {"credential": binary}}
    await api.delete(path("secrets", namespace, NAME))
    await api.create(path("secrets", namespace), body)
    with pytest.raises(RetryableError) as no_text:
        await source.current()
    shown = f"{no_text.value!r} {no_text.value.__cause__!r} {no_text.value.__context__!r}"
    assert "nobody" not in shown
    assert "xff" not in shown


async def test_without_permission_it_is_retryable(
    control_plane: ControlPlane, namespace: str, source: HandOverSecret
) -> None:
    another = HandOverSecret("another-secret", namespace, pod_uid="pod-1")
    try:
        with pytest.raises(RetryableError, match="another-secret"):
            await another.current()
    finally:
        await another.aclose()
