"""The operator put together, in this process: what its scope is given, and what becomes of it."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from tests.cluster.control_plane import ControlPlane
from tests.support.api import AdminClient, path
from tests.support.wait import eventually

from tenure.cluster.client import KubernetesClient
from tenure.cluster.errors import Unavailable
from tenure.cluster.ports import AgentCluster
from tenure.model.reasons import EventReason
from tenure.model.settings import OperatorSettings, load_settings
from tenure.operator import main
from tenure.operator.context import OperatorContext
from tenure.operator.main import Parts, Scope, operate


class Witness:
    """A wrapper around the cluster adapter, as tests of crashes use it."""

    def __init__(self, real: AgentCluster) -> None:
        self.real = real
        self.events: list[str] = []

    async def create_event(self, regarding: Mapping[str, str], *, reason: str, **more: Any) -> None:
        self.events.append(reason)
        await self.real.create_event(regarding, reason=reason, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


@pytest.fixture
def settings(namespace: str, monkeypatch: pytest.MonkeyPatch) -> OperatorSettings:
    monkeypatch.setenv("TENURE_LEASE_NAMESPACE", namespace)
    monkeypatch.setenv("TENURE_HTTP_PORT", "0")
    monkeypatch.setenv("POD_NAME", "the-operator")
    return load_settings()


@asynccontextmanager
async def operating(
    plane: ControlPlane, settings: OperatorSettings, scope: Scope
) -> AsyncIterator[list[Witness]]:
    """An operator that works; stopped, and seen to end, on the way out."""
    witnesses: list[Witness] = []

    def wrap(real: AgentCluster) -> Any:
        witnesses.append(Witness(real))
        return witnesses[0]

    parts = Parts(
        connect=partial(KubernetesClient.connect, {"KUBECONFIG": str(plane.kubeconfig)}),
        wrap_cluster=wrap,
        scope=scope,
    )
    stop = asyncio.Event()
    task = asyncio.create_task(operate(settings, (), parts, stop))
    try:
        yield witnesses
    finally:
        stop.set()
        async with asyncio.timeout(20):
            await task


def regarding(namespace: str) -> dict[str, str]:
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "namespace": namespace,
        "name": namespace,
        "uid": "00000000-0000-4000-8000-000000000001",
    }


async def test_a_scope_gets_its_parts_and_its_last_event_is_sent_before_the_end(
    control_plane: ControlPlane, api: AdminClient, settings: OperatorSettings, namespace: str
) -> None:
    given: list[OperatorContext] = []

    async def scope(context: OperatorContext) -> None:
        given.append(context)
        try:
            await asyncio.sleep(float("inf"))
        finally:
            context.events.emit(regarding(namespace), EventReason.STOPPED, "the last word")

    async with operating(control_plane, settings, scope) as witnesses:
        await eventually(lambda: given, within=20, what="the scope runs")
        (context,) = given
        assert context.leading()
        assert context.settings is settings
        assert context.cluster is witnesses[0]
    assert witnesses[0].events == ["Stopped"]
    told = await api.list(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events")
    assert "the last word" in [event["note"] for event in told]
    assert not context.leading()
    with pytest.raises(Unavailable, match="does not hold the Lease"):
        await context.cluster.create_pod(namespace, {})
    lease = await api.get(path("leases", namespace, settings.lease_name))
    assert lease["spec"]["holderIdentity"] == ""


async def test_a_scope_that_fails_or_ends_is_begun_again_under_the_same_lease(
    control_plane: ControlPlane,
    api: AdminClient,
    settings: OperatorSettings,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(main, "_FIRST_PAUSE", 0.05)
    begun: list[int] = []

    async def scope(context: OperatorContext) -> None:
        begun.append(1)
        match len(begun):
            case 1:
                raise LookupError("a bug")
            case 2:
                return
            case _:
                await asyncio.sleep(float("inf"))

    async with operating(control_plane, settings, scope):
        await eventually(lambda: len(begun) == 3, within=20, what="begun again twice")
        lease = await api.get(path("leases", namespace, settings.lease_name))
        assert lease["spec"]["holderIdentity"].startswith("the-operator_")
        assert lease["spec"]["leaseTransitions"] == 0
