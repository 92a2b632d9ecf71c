"""Fixtures around a real API server. A conftest makes them its own: ``from tests.support.cluster import
api, control_plane, namespace``."""

import asyncio
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from tests.cluster.control_plane import ControlPlane, remove, start_for_tests
from tests.support.api import AdminClient, ApiError, Object, path
from tests.support.wait import eventually

CRDS = Path(__file__).resolve().parents[2] / "crds"


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """etcd, API server and controller-manager for the whole session; no node, no root."""
    plane = start_for_tests()
    try:
        yield plane
    finally:
        remove(plane)


@pytest.fixture(scope="session")
def control_plane_with_crds(control_plane: ControlPlane) -> ControlPlane:
    """The control plane with the project's CRDs served, and known to the garbage collector."""
    apply_crds(control_plane)
    control_plane.learn_kinds()
    return control_plane


@pytest_asyncio.fixture
async def api(control_plane: ControlPlane) -> AsyncIterator[AdminClient]:
    """An admin client in the test's own event loop."""
    async with admin(control_plane) as client:
        yield client


@pytest_asyncio.fixture
async def namespace(api: AdminClient) -> AsyncIterator[str]:
    """A new namespace in which pods can be created; emptied and deleted afterwards, without waiting for
    its end."""
    name = await new_namespace(api)
    yield name
    await delete_namespace(api, name)


def admin(plane: ControlPlane) -> AdminClient:
    """A client with all rights, to be entered with ``async with``."""
    return AdminClient(plane.server, plane.authority, plane.token)


def kubectl(plane: ControlPlane, *arguments: str, stdin: str | None = None) -> str:
    """kubectl's output; an ``AssertionError`` with kubectl's own sentence when it refuses."""
    try:
        return plane.kubectl(*arguments, stdin=stdin)
    except subprocess.CalledProcessError as error:
        raise AssertionError(f"kubectl {' '.join(arguments)}: {error.stderr.strip()}") from error


def apply(plane: ControlPlane, *manifests: Object | str | Path, namespace: str | None = None) -> str:
    """``kubectl apply --server-side`` of objects, YAML texts or files; returns kubectl's lines."""
    texts = [_text(manifest) for manifest in manifests]
    scope = [] if namespace is None else ["--namespace", namespace]
    return kubectl(plane, "apply", "--server-side", *scope, "--filename=-", stdin="\n---\n".join(texts))


def apply_crds(plane: ControlPlane, folder: Path = CRDS) -> None:
    """Apply every CRD in ``folder`` and return when the API server serves them."""
    files = sorted(folder.glob("*.yaml"))
    assert files, f"no CRD in {folder}: make generate"
    apply(plane, *files)
    established = ("--for=condition=Established", "--timeout=30s", "customresourcedefinitions", "--all")
    kinds = [yaml.safe_load(file.read_text())["metadata"]["name"] for file in files]
    limit = time.monotonic() + 60
    while True:
        try:
            kubectl(plane, "wait", *established)
            # Established is no promise: the first list may still meet "storage is (re)initializing".
            kubectl(plane, "get", ",".join(kinds), "--all-namespaces")
            return
        except AssertionError:
            # kubectl refuses to wait for a definition so new that its conditions are null.
            if time.monotonic() > limit:
                raise
            time.sleep(0.1)


async def new_namespace(api: AdminClient, *, labels: dict[str, str] | None = None, prefix: str = "t") -> str:
    """Create a namespace and wait for its ``default`` ServiceAccount: before it, no pod can be created."""
    name = f"{prefix}-{uuid.uuid4().hex[:8]}"
    await api.create(path("namespaces"), {"metadata": {"name": name, "labels": labels or {}}})
    url = path("serviceaccounts", name, "default")
    await eventually(lambda: api.find(url), within=30, what=f"the default ServiceAccount of {name}")
    return name


async def delete_namespace(api: AdminClient, name: str) -> None:
    """Resources first, then pods without grace, then the namespace: in the other order it re-checks late."""
    for plural, grace in (("agentprocesses", None), ("controlservers", None), ("pods", 0)):
        try:
            items = await api.list(path(plural, name))
        except ApiError as error:
            if error.status != 404:
                raise
            continue
        await asyncio.gather(
            *(_gone(api, path(plural, name, item["metadata"]["name"]), grace) for item in items)
        )
    await _gone(api, path("namespaces", None, name), None)


async def _gone(api: AdminClient, url: str, grace: int | None) -> None:
    try:
        await api.delete(url, grace=grace)
    except ApiError as error:
        if error.status != 404:
            raise


def _text(manifest: Object | str | Path) -> str:
    if isinstance(manifest, Path):
        return manifest.read_text()
    return manifest if isinstance(manifest, str) else yaml.safe_dump(manifest)
