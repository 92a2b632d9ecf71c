"""A control server is made, adopted and kept: real API server, PostgreSQL, processes in pods, and the operator."""

import base64
from typing import Any

import pytest
from tests.integration.servers.history import container_of, incarnation
from tests.integration.servers.world import NAME, WITHIN, World
from tests.support.api import Object, path
from tests.support.wait import eventually


async def recovered(world: World, *, by: str = "", other_than: str = "") -> dict[str, Any]:
    """The record, once recovery is over: for this incarnation, or for another one than that."""

    async def look() -> dict[str, Any] | None:
        rows = await world.sql("SELECT * FROM tenure.control_servers")
        found = rows[0] if rows else {}
        done = found.get("recovered_by")
        fits = done == by if by else done not in (None, other_than)
        return found if fits and found["server_identity"] and found["adopted_by"] == done else None

    return await eventually(look, within=WITHIN, what="recovery is recorded")


async def hand_over(world: World) -> dict[str, str]:
    """The texts of the hand-over Secret; empty while there is none."""
    items = await world.api.list(path("secrets", world.namespace))
    found = [item for item in items if item["metadata"]["name"] == f"{NAME}-handover"]
    secret = found[0] if found else {}
    return {key: base64.b64decode(value).decode() for key, value in (secret.get("data") or {}).items()}


async def handed_over(world: World, pod: Object, *, rotation_id: int | None = None) -> dict[str, str]:
    """The hand-over, once it is written for this backend's pod (and of this rotation)."""

    async def look() -> dict[str, str] | None:
        found = await hand_over(world)
        fits = found.get("backend-pod-uid") == pod["metadata"]["uid"]
        return found if fits and rotation_id in (None, int(found["rotation-id"])) else None

    return await eventually(look, within=WITHIN, what="the hand-over is written")


async def is_ready(world: World, pod: Object) -> None:
    """Wait until the readiness gate of this backend's pod is open."""

    async def look() -> bool:
        found = await world.api.get(path("pods", world.namespace, pod["metadata"]["name"]))
        conditions = {c["type"]: c["status"] for c in found["status"].get("conditions", ())}
        return conditions.get("tenure.dev/recovered") == "True"

    await eventually(look, within=WITHIN, what="the backend's pod is told that recovery is over")


async def running(world: World, *, other_than: str = "") -> Object:
    """The pod of the backend, once its main container runs as another incarnation than that."""

    def look() -> Object | None:
        for pod in world.backends():
            if "running" in container_of(pod).get("state", {}) and incarnation(pod) != other_than:
                return pod
        return None

    return await eventually(look, within=WITHIN, what="a backend runs")


@pytest.mark.accept("O-001.0", "O-001.1")
async def test_a_fresh_server_without_sessions_is_recorded_and_handed_over(world: World) -> None:
    async with world.operator():
        await world.create()
        await world.alone()
        backend = await running(world)
        record = await recovered(world, by=incarnation(backend))
        pod = await world.server_pod()
        assert record["pod_uid"] == pod["metadata"]["uid"]
        assert record["credential_secret"] == pod["metadata"]["name"]
        given = await handed_over(world, backend)
        assert given["server-identity"] == record["server_identity"]
        await is_ready(world, backend)

        async def taken_back() -> bool:
            items = await world.api.list(path("secrets", world.namespace))
            names = {item["metadata"]["name"] for item in items}
            return pod["metadata"]["name"] in names and not any(n.endswith("-bootstrap") for n in names)

        await eventually(taken_back, within=WITHIN, what="the nonce is taken back")
    rows = await world.sql("SELECT count(*) AS sessions FROM tenure.sessions")
    assert rows[0]["sessions"] == 0


@pytest.mark.accept("O-002.1")
async def test_the_next_container_of_the_backend_adopts_rotates_and_is_handed_over_to(world: World) -> None:
    async with world.operator():
        await world.create()
        await world.alone()
        backend = await running(world)
        before = await recovered(world, by=incarnation(backend))
        given = await handed_over(world, backend)
        await is_ready(world, backend)
        former = world.kill_backend(backend)
        backend = await running(world, other_than=former)
        after = await recovered(world, by=incarnation(backend))
        assert after["server_identity"] == before["server_identity"]
        assert after["pod_uid"] == before["pod_uid"]
        assert after["rotation_id"] == 1
        renewed = await handed_over(world, backend, rotation_id=1)
        assert renewed["credential"] != given["credential"]
        await is_ready(world, backend)

        async def confirmed() -> bool:
            return bool((await world.record())["rotation_confirmed"])

        await eventually(confirmed, within=WITHIN, what="the rotation is confirmed")
    assert len(world.server_pods()) == 1


async def test_an_operator_that_is_killed_and_started_again_rotates_nothing(world: World) -> None:
    async with world.operator_process(lease_name="one") as operator:
        await world.create()
        await world.alone()
        backend = await running(world)
        before = await recovered(world, by=incarnation(backend))
        given = await handed_over(world, backend)
        operator.kill()
    async with world.operator_process(lease_name="two"):
        former = world.kill_backend(backend)
        backend = await running(world, other_than=former)
        after = await recovered(world, by=incarnation(backend))
        assert after["rotation_id"] == 1, (
            "one rotation for the new incarnation, none for the operator's restart"
        )
    assert before["rotation_id"] is None
    assert given["rotation-id"] == "0"
