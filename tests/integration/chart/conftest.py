"""A control plane of the chart's own: releases bring policies and definitions that would meet other tests' objects."""

import pytest
import yaml
from tests.cluster.control_plane import ControlPlane
from tests.integration.chart.helm import NAMESPACE, Helm
from tests.support.cluster import api, control_plane, namespace

__all__ = ["api", "control_plane", "namespace"]


@pytest.fixture(scope="session")
def offline_helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """Helm without a cluster: renders and judges values."""
    return Helm(tmp_path_factory.mktemp("helm-offline"))


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory, control_plane: ControlPlane) -> Helm:
    """Helm on the control plane, as its admin."""
    return Helm(tmp_path_factory.mktemp("helm"), control_plane)


@pytest.fixture(scope="session")
def system_namespace(control_plane: ControlPlane) -> str:
    """The namespace of the release, which enforces the restricted profile as a careful admin's would."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}
    control_plane.kubectl("apply", "--server-side", "-f-", stdin=yaml.safe_dump(manifest))
    return NAMESPACE
