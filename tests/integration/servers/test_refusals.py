"""A server that was left and is not taken over: the reason, what becomes of it, and of its sessions."""

from base64 import b64encode
from typing import Any

import pytest
from tests.integration.servers.history import container_of, incarnation
from tests.integration.servers.world import WITHIN, World
from tests.support.api import Object, path
from tests.support.operator import RunningOperator
from tests.support.wait import eventually

pytestmark = pytest.mark.timeout(240)


async def left_alone(world: World, **spec: Any) -> tuple[Object, int]:
    """A server with a session at work and no backend; its pod, and the process id of the agent."""
    backend = await world.set_up("s-1", **spec)
    server = await world.server_pod()
    await world.working("s-1")
    await world.scale(0)
    await eventually(lambda: not world.backends(), within=WITHIN, what="no backend is left")
    await world.condition("Ready", "False", "NoBackend")
    assert backend["metadata"]["uid"]
    return server, world.evidence.living("s-1")[0]


async def next_server(world: World, server: Object) -> Object:
    """The next backend comes, and has another server; that one's pod."""
    await world.scale(1)
    await world.backend()
    fresh = await world.server_pod(other_than=[server["metadata"]["uid"]])
    assert (await world.record())["pod_uid"] == fresh["metadata"]["uid"]
    return fresh


def adoptions(operator: RunningOperator, outcome: str, reason: str) -> float:
    return operator.metric("tenure_adoptions_total", outcome=outcome, reason=reason)


def runs(world: World, server: Object) -> bool:
    pods = [p for p in world.server_pods() if p["metadata"]["uid"] == server["metadata"]["uid"]]
    return bool(pods) and "running" in container_of(pods[0]).get("state", {})


async def ended(world: World, server: Object) -> bool:
    """Whether it does not run any more, asked now: the operator may have heard of it before the world did."""
    found = await world.api.find(path("pods", world.namespace, server["metadata"]["name"]))
    same = found is not None and found["metadata"]["uid"] == server["metadata"]["uid"]
    return not (same and found is not None and "running" in container_of(found).get("state", {}))


async def _other_credential(world: World, server: Object) -> None:
    data = {"credential": b64encode(b"0123456789abcdef" * 4).decode()}
    await world.api.patch(path("secrets", world.namespace, server["metadata"]["name"]), {"data": data})


async def _no_secret(world: World, server: Object) -> None:
    await world.api.delete(path("secrets", world.namespace, server["metadata"]["name"]))


@pytest.mark.accept("O-001.4", "O-001.9", "O-001.6", "S-005.6", "S-003.6", "M-1")
@pytest.mark.parametrize(
    ("tamper", "reason"),
    [(_other_credential, "identity_mismatch"), (_no_secret, "credential_unavailable")],
)
async def test_a_server_that_cannot_be_taken_over_is_left_alone(
    world: World, tamper: Any, reason: str
) -> None:
    async with world.operator() as operator:
        server, agent = await left_alone(world)
        await tamper(world, server)
        kept = await world.api.find(path("secrets", world.namespace, server["metadata"]["name"]))
        await next_server(world, server)

        assert runs(world, server)
        assert world.evidence.living("s-1") == [agent]
        secret = await world.api.find(path("secrets", world.namespace, server["metadata"]["name"]))
        assert (secret or {}).get("data") == (kept or {}).get("data")
        assert adoptions(operator, "refused", reason) == 1
        assert operator.metric("tenure_instances_retracked_total") == 0
        await world.told("AdoptionRefused")
        # Its agent may work on: nobody may start another one for the session, until its pod is gone.
        assert (await world.session("s-1"))["status"] == "running"
        world.evidence.launch("s-1", number=2)
        await eventually(lambda: world.evidence.backend("refused", session="s-1"), within=WITHIN)
        assert world.evidence.backend("refused", session="s-1")[0]["retryable"]
        assert world.evidence.pids("s-1") == [agent]
        await world.delete_pod(server)
        await eventually(
            # By design it takes a minute: dead at two looks, half a minute apart.
            lambda: world.evidence.backend("launched", session="s-1", launch="launch-2"),
            within=4 * WITHIN,
            what="the session is launched again when the former agent has gone",
        )
        assert agent not in world.evidence.living("s-1")


@pytest.mark.accept("O-004.3", "O-004.4", "O-004.5", "S-005.6")
async def test_a_server_of_another_version_is_stopped_and_its_records_are_repaired(world: World) -> None:
    async with world.operator() as operator:
        server, _ = await left_alone(world, capabilities="agent-delivery.v1,other.v9")
        assert (await world.record())["capabilities"] == ["agent-delivery.v1", "other.v9"]
        await next_server(world, server)

        assert await ended(world, server)
        assert not world.evidence.living("s-1")
        assert adoptions(operator, "refused", "capability_incompatible") == 1
        assert operator.metric("tenure_instances_retracked_total") == 0
        row = await world.session("s-1")
        assert (row["state"], row["task"], row["status"]) == ("waiting_for_input", "review", "stopped")
        assert row["interrupted_at"] is not None
        assert await world.turns("s-1") in (["abandoned"], ["failed"])
        await world.launched("s-1", number=2)


@pytest.mark.accept("O-004.7", "S-005.6")
async def test_a_server_of_another_version_that_does_not_stop_keeps_its_records(world: World) -> None:
    async with world.operator() as operator:
        server, agent = await left_alone(world, capabilities="other.v9", stubborn=True)
        await next_server(world, server)

        assert runs(world, server)
        assert world.evidence.living("s-1") == [agent]
        assert adoptions(operator, "refused", "capability_incompatible") == 1
        assert operator.metric("tenure_instances_retracked_total") == 0
        # Not re-tracked, so people are told; but the row stays, and with it the guard: the agent may live.
        row = await world.session("s-1")
        assert (row["state"], row["status"]) == ("waiting_for_input", "running")
        assert await world.turns("s-1") == ["abandoned"]


@pytest.mark.accept("S-005.5", "S-005.7")
async def test_survival_that_is_turned_off_ends_the_agents_when_the_next_backend_starts(world: World) -> None:
    async with world.operator() as operator:
        first = await world.set_up("s-1")
        server = await world.server_pod()
        await world.working("s-1")
        await world.change(agentSurvival="Disabled")
        await world.until(lambda s: s.get("observedGeneration") == 2, what="the change is seen")
        assert world.status()["survival"]["effective"] == "Enabled"
        assert runs(world, server)
        assert len(world.evidence.living("s-1")) == 1
        life = world.kill_backend(first)
        await world.backend(other_than=[life])
        await world.server_pod(other_than=[server["metadata"]["uid"]])
        assert await ended(world, server)
        assert not world.evidence.living("s-1")
        assert adoptions(operator, "adopted", "none") == 0
        await world.until(lambda s: s["survival"]["effective"] == "Disabled")
        row = await world.session("s-1")
        assert (row["state"], row["status"]) == ("waiting_for_input", "stopped")


@pytest.mark.accept("S-005.5")
async def test_survival_that_is_turned_off_leaves_a_server_alone_that_does_not_prove_itself(
    world: World,
) -> None:
    async with world.operator():
        server, agent = await left_alone(world)
        await _other_credential(world, server)
        await world.change(agentSurvival="Disabled")
        await next_server(world, server)
        assert runs(world, server)
        assert world.evidence.living("s-1") == [agent]


@pytest.mark.accept("K-2", "S-001.1")
async def test_an_operator_that_comes_again_cuts_no_stream_of_the_backend(world: World) -> None:
    async with world.operator():
        backend = await world.set_up("s-1")
        await world.working("s-1")
        record = await world.record()
    server = await world.server_pod()
    name = server["metadata"]["name"]
    before = world.kubelet.log(world.namespace, name).count("stream")
    async with world.operator() as operator:
        await world.condition("Ready", "True")
        world.open_gate("s-1")
        await world.evidence.outcomes("s-1", 1)
        assert world.kubelet.log(world.namespace, name).count("stream") == before
        assert (await world.record())["rotation_id"] == record["rotation_id"]
        assert incarnation(world.backends()[-1]) == incarnation(backend)
        assert operator.metric("tenure_adoptions_total", outcome="adopted", reason="none") == 0


@pytest.mark.accept("K-1", "K-2")
async def test_operator_and_backend_killed_together_lose_nothing(world: World) -> None:
    async with world.operator_process(lease_name=f"both-{world.namespace}", lease_seconds=8) as operator:
        first = await world.set_up("s-1")
        agent = world.evidence.living("s-1")
        await world.working("s-1")
        operator.kill()
        life = world.kill_backend(first)
    world.open_gate("s-1")
    async with world.operator_process(lease_name=f"both-{world.namespace}", lease_seconds=8) as operator:
        second = await world.backend(other_than=[life])
        await world.attached(second, sessions=["s-1"])
        world.evidence.prompt("s-1", "say more")
        await eventually(
            lambda: len(world.evidence.agent("s-1", "finished")) == 2, within=WITHIN, what="both turns"
        )
        await eventually(lambda: world.evidence.backend("outcome", turn=2), within=WITHIN)
        assert world.evidence.living("s-1") == agent
        assert await world.turns("s-1") == ["completed", "completed"]
        assert "tenure_adoptions_total" in (await operator.page("metrics"))[1]
