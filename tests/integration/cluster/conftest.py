"""The adapter under test against a real API server; the admin client beside it shares no code with it."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.cluster.control_plane import ControlPlane
from tests.support.api import AdminClient, path
from tests.support.cluster import api, control_plane, control_plane_with_crds, namespace
from tests.support.server_manifests import server_manifest

from tenure.cluster.agents import KubernetesAgentCluster
from tenure.cluster.client import KubernetesClient
from tenure.cluster.servers import KubernetesServerCluster

__all__ = ["api", "client", "cluster", "control_plane", "control_plane_with_crds", "namespace", "plane"]


@pytest.fixture(autouse=True)
def plane(control_plane_with_crds: ControlPlane) -> ControlPlane:
    """Every test here meets the CRDs."""
    return control_plane_with_crds


@pytest_asyncio.fixture
async def client(plane: ControlPlane) -> AsyncIterator[KubernetesClient]:
    """The client under test, as admin."""
    async with await KubernetesClient.connect({"KUBECONFIG": str(plane.kubeconfig)}) as client:
        yield client


@pytest.fixture
def cluster(client: KubernetesClient) -> KubernetesAgentCluster:
    """The adapter under test, as admin."""
    return KubernetesAgentCluster(client, instance="the-test")


@pytest.fixture
def servers(client: KubernetesClient) -> KubernetesServerCluster:
    """The adapter for control servers, as admin."""
    return KubernetesServerCluster(client, instance="the-test")


@pytest_asyncio.fixture
async def owner(api: AdminClient, namespace: str) -> str:
    """The UID of a ControlServer that is there: what an absent one owns is collected at once."""
    uid: str = (await api.create(path("controlservers", namespace), server_manifest()))["metadata"]["uid"]
    return uid
