"""The real API server, with the CRDs served."""

import pytest
from tests.cluster.control_plane import ControlPlane
from tests.support.cluster import api, control_plane, control_plane_with_crds, namespace

__all__ = ["api", "control_plane", "control_plane_with_crds", "namespace", "plane"]


@pytest.fixture(autouse=True)
def plane(control_plane_with_crds: ControlPlane) -> ControlPlane:
    """Every test here meets the CRDs."""
    return control_plane_with_crds
