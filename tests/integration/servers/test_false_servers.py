"""At the address of a control server that was left, somebody else answers; or the server itself, and not as it should.

Each of these runs in the server's own pod, with the server's own key: only what it says differs.
"""

from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from tests.integration.servers import changelings
from tests.integration.servers.history import container_of, incarnation
from tests.integration.servers.test_ownership import handed_over, recovered, running
from tests.integration.servers.world import WITHIN, World
from tests.support.api import Object, path
from tests.support.operator import RunningOperator
from tests.support.wait import eventually

pytestmark = pytest.mark.timeout(240)

IDENTITY, PROVE = "GET /identity", "POST /ownership/prove"
ROTATE, DETAILS = "POST /api/v1/ownership/rotate", "GET /api/v1/ownership/details"
SHUTDOWN = "POST /api/v1/ownership/shutdown"
QUICK = {"deadlineSeconds": 5, "readTimeoutMilliseconds": 900, "readRetries": 0}
"""``spec.recovery`` where somebody keeps silent or fails until the deadline."""


@dataclass(frozen=True)
class Case:
    """How it is with the one at the address: what it says, what it may be asked, and what is made of that."""

    behaviour: Mapping[str, Any]
    asked: tuple[str, ...]
    """In this order, repeats apart."""
    outcome: str
    reason: str
    trusted: bool = False
    """It has proven itself: a credential may reach it."""
    recovery: Mapping[str, int] | None = None


def merged(where: str, **fields: Any) -> dict[str, Any]:
    return {where: {"merge": fields}}


CASES = {
    "another identity": Case(
        merged(IDENTITY, server_identity="somebody-else"), (IDENTITY,), "refused", "identity_mismatch"
    ),
    "no identity": Case(
        {IDENTITY: {"status": 404, "body": {"error": "no such path"}}},
        (IDENTITY,),
        "refused",
        "identity_mismatch",
    ),
    "no capability": Case(merged(IDENTITY, capabilities=[]), (IDENTITY,), "refused", "identity_mismatch"),
    "a wrong proof": Case(
        merged(PROVE, proofs=["00" * 32]), (IDENTITY, PROVE), "refused", "identity_mismatch"
    ),
    "the challenge for a proof": Case(
        {PROVE: {"echo": True}}, (IDENTITY, PROVE), "refused", "identity_mismatch"
    ),
    "a recycled address": Case(changelings.OTHER_CERTIFICATE, (), "no_server", "no_answer"),
    "silence": Case({IDENTITY: {"silent": True}}, (IDENTITY,), "no_server", "no_answer", recovery=QUICK),
    "a shutdown": Case(
        {PROVE: {"status": 409, "body": {"error": "shutting down"}}},
        (IDENTITY, PROVE),
        "no_server",
        "shutting_down",
    ),
    "a credential that is not accepted": Case(
        {ROTATE: {"status": 401, "body": {"error": "unauthorized"}}},
        (IDENTITY, PROVE, ROTATE),
        "refused",
        "authentication_failed",
        trusted=True,
    ),
    "a rotation that fails": Case(
        {ROTATE: {"status": 500, "body": {"error": "not now"}}},
        (IDENTITY, PROVE, ROTATE),
        "refused",
        "credential_rotation_failed",
        trusted=True,
        recovery=QUICK,
    ),
    "another home directory": Case(
        merged(DETAILS, home_dir="/somewhere/else"),
        (IDENTITY, PROVE, ROTATE, DETAILS),
        "refused",
        "identity_mismatch",
        trusted=True,
    ),
}


async def left_alone(world: World, **spec: Any) -> Object:
    """A server without a backend; its pod."""
    await changelings.create(world, **spec)
    pod = await world.alone()
    backend = await running(world)
    await recovered(world, by=incarnation(backend))
    await handed_over(world, backend)
    server = await world.server_pod()
    await world.api.delete(path("pods", world.namespace, pod["metadata"]["name"]), grace=0)
    await world.condition("Ready", "False", "NoBackend")
    await eventually(lambda: not world.backends(), within=WITHIN, what="no backend is left")
    return server


async def credential(world: World, name: str) -> str:
    """What the Secret of this name holds."""
    secret = await world.api.get(path("secrets", world.namespace, name))
    return b64decode(secret["data"]["credential"]).decode()


def adoptions(operator: RunningOperator) -> dict[tuple[str, str], float]:
    """Every attempt that was counted."""
    samples = [
        sample
        for metric in operator.contexts[-1].metrics.registry.collect()
        for sample in metric.samples
        if sample.name == "tenure_adoptions_total" and sample.value
    ]
    return {(s.labels["outcome"], s.labels["reason"]): s.value for s in samples}


def once_each(asked: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(asked))


@pytest.mark.accept("O-001.2", "O-001.4", "O-001.5", "O-001.6", "O-001.8", "S-005.6", "K-7", "M-1")
@pytest.mark.parametrize("case", CASES.values(), ids=[name.replace(" ", "-") for name in CASES])
async def test_who_is_not_our_server_is_neither_used_nor_stopped(world: World, case: Case) -> None:
    spec = {"recovery": dict(case.recovery)} if case.recovery else {}
    async with world.operator() as operator:
        server = await left_alone(world, **spec)
        name, before = server["metadata"]["name"], adoptions(operator)
        kept = await credential(world, name)
        other = await changelings.change(world, server, case.behaviour)
        await world.alone("next")
        backend = await running(world)
        record = await recovered(world, by=incarnation(backend))
        given = await handed_over(world, backend)

        # One outcome with one reason; nothing that ours would have been asked for next.
        ended = {key: n - before.get(key, 0) for key, n in adoptions(operator).items()}
        assert {key for key, n in ended.items() if n} == {(case.outcome, case.reason)}
        assert ended[case.outcome, case.reason] == 1
        assert once_each(other.asked) == case.asked
        assert other.saw(kept) == case.trusted
        assert operator.metric("tenure_instances_retracked_total") == 0
        # It runs on, with its Secret as it was; the record and the backend have another.
        fresh = await world.server_pod(other_than=[server["metadata"]["uid"]])
        assert record["pod_uid"] == fresh["metadata"]["uid"]
        assert record["credential_secret"] == fresh["metadata"]["name"] != name
        assert given["server-identity"] == record["server_identity"]
        assert given["credential"] not in other.credentials
        left = [pod for pod in world.server_pods() if pod["metadata"]["name"] == name]
        assert [pod["metadata"]["uid"] for pod in left] == [server["metadata"]["uid"]]
        assert "running" in container_of(left[0])["state"]
        assert "deletionTimestamp" not in left[0]["metadata"]
        assert await credential(world, name) == kept
        if case.outcome == "refused":
            await world.told("AdoptionAttempted", "AdoptionRefused")
            assert any(case.reason in event["note"] for event in await world.events("AdoptionRefused"))
        # Asked once in an incarnation, and by nobody again.
        asked = len(other.received)
        await world.condition("Ready", "True")
        world.kill_backend(backend)
        await recovered(world, by=incarnation(await running(world, other_than=incarnation(backend))))
        assert len(other.received) == asked


@pytest.mark.accept("S-005.5")
@pytest.mark.parametrize("proves", [True, False], ids=["that-is-ours", "that-is-not"])
async def test_where_survival_is_off_only_a_server_is_stopped_that_proves_to_be_ours(
    world: World, proves: bool
) -> None:
    async with world.operator() as operator:
        server = await left_alone(world)
        kept = await credential(world, server["metadata"]["name"])
        behaviour = {} if proves else CASES["a wrong proof"].behaviour
        other = await changelings.change(world, server, behaviour)
        await world.change(agentSurvival="Disabled")
        await world.alone("next")
        backend = await running(world)
        record = await recovered(world, by=incarnation(backend))
        await handed_over(world, backend)
        assert record["pod_uid"] != server["metadata"]["uid"]
        assert once_each(other.asked) == (IDENTITY, PROVE, *([SHUTDOWN] if proves else []))
        assert other.saw(kept) == proves
        assert not {pair for pair in adoptions(operator) if pair[0] in ("adopted", "refused")}

        def runs() -> bool:
            found = [p for p in world.server_pods() if p["metadata"]["uid"] == server["metadata"]["uid"]]
            return bool(found) and "running" in container_of(found[0]).get("state", {})

        if proves:
            await eventually(lambda: not runs(), within=WITHIN, what="the survivor has ended")
        else:
            assert runs()
            assert await credential(world, server["metadata"]["name"]) == kept
        await world.until(
            lambda s: s.get("recoveredBy") == incarnation(backend), what="the status names the new backend"
        )
