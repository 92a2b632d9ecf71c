"""The adapter under test against a real API server; the admin client beside it shares no code with it."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.cluster.control_plane import ControlPlane
from tests.support.cluster import api, control_plane, control_plane_with_crds, namespace

from tenure.cluster.agents import KubernetesAgentCluster
from tenure.cluster.client import KubernetesClient

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
