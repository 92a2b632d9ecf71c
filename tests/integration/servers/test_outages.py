"""Claims are renewed with nobody else there: no API server, no Lease, no database."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.integration.servers.history import incarnation
from tests.integration.servers.test_ownership import handed_over, recovered, running
from tests.integration.servers.world import WITHIN, World
from tests.support.wait import eventually

pytestmark = pytest.mark.timeout(180)

PERIOD = 4
"""Seconds after which the server of these tests stops itself without a claim."""


@contextmanager
def silent_api(world: World) -> Iterator[None]:
    """The API server answers nobody, and its connections stay open."""
    program = world.plane.processes.running("kube-apiserver")
    assert program is not None
    pid = program.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def phase(world: World, uid: str) -> str:
    """The phase of this pod as the API server has it."""
    found = [p for p in world.server_pods() if p["metadata"]["uid"] == uid]
    return str(found[0]["status"].get("phase")) if found else "gone"


@pytest.mark.accept("O-003.2", "K-8")
async def test_claims_go_on_without_api_server_lease_and_database(frail_world: World) -> None:
    world = frail_world
    async with world.operator(lease_seconds=3) as operator:
        await world.create(floor_seconds=PERIOD, idleTimeoutSeconds=2 * PERIOD)
        await world.alone()
        backend = await running(world)
        before = await recovered(world, by=incarnation(backend))
        await handed_over(world, backend)
        keeper = operator.contexts[-1].keeper
        await eventually(lambda: len(keeper) == 1, within=WITHIN, what="claims are renewed")
        await world.leave()
        # It would claim as well: these claims are the operator's.
        world.kubelet.kill(world.namespace, backend["metadata"]["name"], number=signal.SIGSTOP)
        world.server.freeze()
        try:
            with silent_api(world):
                await asyncio.sleep(3 * PERIOD)  # nothing tells that nothing happens
                assert not operator.contexts[-1].leading(), "the Lease is lost"
                assert len(keeper) == 1
        finally:
            world.server.thaw()
            world.kubelet.kill(world.namespace, backend["metadata"]["name"], number=signal.SIGCONT)
        await eventually(operator.contexts[-1].leading, within=WITHIN, what="the Lease is won again")
        await asyncio.sleep(2 * PERIOD)
        assert phase(world, before["pod_uid"]) == "Running"
        after = await recovered(world, by=incarnation(backend))
        assert (after["server_identity"], after["rotation_id"]) == (before["server_identity"], None)
        await world.condition("Ready", "True")


@pytest.mark.accept("O-003.1")
async def test_a_server_without_a_backend_stops_itself_and_the_operator_says_so(world: World) -> None:
    async with world.operator() as operator:
        await world.create(floor_seconds=PERIOD, idleTimeoutSeconds=2 * PERIOD)
        pod = await world.alone()
        backend = await running(world)
        before = await recovered(world, by=incarnation(backend))
        await world.delete_pod(pod, grace=0)
        await eventually(
            lambda: phase(world, before["pod_uid"]) in ("Succeeded", "Failed"),
            within=WITHIN,
            what="the server has stopped itself",
        )
        await world.told("Detached", "UnownedShutdown")
        assert operator.metric("tenure_unowned_shutdowns_total") == 1
