"""The operator's shell, everything around its passes, against a real API server and as real processes."""

import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest
import pytest_asyncio
from tests.cluster.control_plane import ControlPlane
from tests.integration.operator_shell.processes import Fleet
from tests.support.cluster import api, control_plane, namespace

from tenure.cluster.client import KubernetesClient

__all__ = ["api", "client", "control_plane", "fleet", "freeze", "namespace"]


@pytest_asyncio.fixture
async def client(control_plane: ControlPlane) -> AsyncIterator[KubernetesClient]:
    """A client as admin."""
    async with await KubernetesClient.connect({"KUBECONFIG": str(control_plane.kubeconfig)}) as client:
        yield client


@pytest_asyncio.fixture
async def fleet(control_plane: ControlPlane) -> AsyncIterator[Fleet]:
    """Operators as processes of their own; all are ended with the test."""
    fleet = Fleet(control_plane)
    yield fleet
    await fleet.end()


@pytest.fixture
def freeze(control_plane: ControlPlane) -> Iterator[object]:
    """``with freeze():`` the API server answers nobody, and its connections stay open."""
    frozen: list[int] = []

    @contextmanager
    def frozen_server() -> Iterator[None]:
        program = control_plane.processes.running("kube-apiserver")
        assert program is not None
        os.kill(program.pid, signal.SIGSTOP)
        frozen.append(program.pid)
        try:
            yield
        finally:
            os.kill(program.pid, signal.SIGCONT)
            frozen.clear()

    yield frozen_server
    for pid in frozen:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
