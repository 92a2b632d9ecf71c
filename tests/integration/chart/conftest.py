"""A control plane of the chart's own: releases bring policies and definitions that would meet other tests'
objects. It keeps an audit log of what the release's ServiceAccount asks for."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.cluster.control_plane import ControlPlane, remove, start_for_tests
from tests.integration.chart.helm import NAMESPACE, RELEASE, Helm
from tests.support.cluster import api, namespace
from tests.support.postgres import database_url, postgres_server

__all__ = ["api", "database_url", "namespace", "postgres_server"]

OPERATOR = f"system:serviceaccount:{NAMESPACE}:{RELEASE}"


@pytest.fixture(scope="session")
def audit_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the API server writes a line for each request of the operator."""
    return tmp_path_factory.mktemp("audit") / "audit.log"


@pytest.fixture(scope="session")
def control_plane(audit_log: Path) -> Iterator[ControlPlane]:
    """etcd, API server and controller-manager."""
    policy = audit_log.with_name("policy.json")
    rules = [{"level": "Metadata", "users": [OPERATOR]}, {"level": "None"}]
    policy.write_text(json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}))
    arguments = (f"--audit-policy-file={policy}", f"--audit-log-path={audit_log}")
    plane = start_for_tests(api_arguments=arguments)
    try:
        yield plane
    finally:
        remove(plane)


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
