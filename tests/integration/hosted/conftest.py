"""Worlds for agents hosted by control servers."""

import pytest
from tests.integration.hosted.hosting import Hosting
from tests.integration.servers.conftest import (
    api,
    control_plane,
    control_plane_with_crds,
    folder,
    frail_world,
    kubelet,
    make_world,
    own_postgres,
    postgres_server,
    world,
)
from tests.integration.servers.world import World

__all__ = [
    "api",
    "control_plane",
    "control_plane_with_crds",
    "folder",
    "frail_world",
    "kubelet",
    "make_world",
    "own_postgres",
    "postgres_server",
    "world",
]


@pytest.fixture
def hosting(world: World) -> Hosting:
    """The world, in words of hosted agents."""
    return Hosting(world)
