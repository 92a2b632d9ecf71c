"""What the operator writes into the status of a ControlServer, and what nobody can write."""

import asyncio
from datetime import UTC, datetime

import pytest
from tests.support.api import AdminClient, ApiError, path
from tests.support.server_manifests import server_manifest

from tenure.model.adoption import AgentSurvival, SurvivalCode
from tenure.model.control_server import parse_control_server
from tenure.model.reasons import ConditionStatus, ServerConditionReason, ServerConditionType, ServerPhase
from tenure.model.records import SurvivalEffective
from tenure.model.server_status import (
    INSTANCES_KEPT,
    AdjustmentStatus,
    BackendStatus,
    InstanceMention,
    RecoveryStatus,
    ServerCondition,
    ServerPodStatus,
    ServerStatus,
    SurvivalStatus,
)

NOON = datetime(2026, 11, 30, 12, 0, 0, 123456, tzinfo=UTC)
INCARNATION = f"5e12b0d4-0000-4000-8000-123456789abc/containerd://{'0' * 64}"


def _mentions(what: str) -> tuple[InstanceMention, ...]:
    return tuple(
        InstanceMention(id=f"{what}{n}", session_id=f"s{n}", reason="it did not stop")
        for n in range(INSTANCES_KEPT)
    )


def _full() -> ServerStatus:
    return ServerStatus(
        observed_generation=3,
        phase=ServerPhase.RUNNING,
        installation_id="main",
        server_identity="cs-0123456789abcdef0123456789abcdef",
        endpoint="https://10.0.0.1:8443",
        pod=ServerPodStatus(name="main-0a1b2c3d-4", uid="8d1c", ordinal=4),
        backend=BackendStatus(pod_name="b" * 253, incarnation=INCARNATION),
        adopted_by=INCARNATION,
        recovered_by=INCARNATION,
        survival=SurvivalStatus(
            requested=AgentSurvival.ENABLED,
            effective=SurvivalEffective.UNAVAILABLE,
            reason_code=SurvivalCode.NO_DURABLE_STORE,
        ),
        capabilities=("agent-survival.v1", "detached-continuity.v1"),
        diagnostic_output="/var/lib/tenure/main/servers/cs-1/server.log",
        recovery=RecoveryStatus(
            started_at=NOON, finished_at=NOON, retracked=3, not_retracked=2, refused=1, stopped=1
        ),
        unstopped_instances=_mentions("u"),
        untracked_instances=_mentions("t"),
        adjustments=(
            AdjustmentStatus(
                setting="unowned_period",
                requested_milliseconds=2**53,
                effective_milliseconds=60_000,
                reason="floor",
            ),
        ),
        conditions=tuple(
            ServerCondition(
                type=kind,
                status=ConditionStatus.UNKNOWN,
                observed_generation=3,
                last_transition_time=NOON,
                reason=ServerConditionReason.NOT_OBSERVED,
                message="not looked at yet",
            )
            for kind in ServerConditionType
        ),
    )


async def _written(api: AdminClient, namespace: str, status: object) -> ServerStatus:
    made = await api.create(path("controlservers", namespace), server_manifest())
    one = path("controlservers", namespace, made["metadata"]["name"])
    await api.patch(f"{one}/status", {"status": status}, fieldValidation="Strict")
    return parse_control_server(await api.get(one)).status


async def test_a_full_status_comes_back_as_it_was_written(api: AdminClient, namespace: str) -> None:
    assert await _written(api, namespace, _full().to_wire()) == _full()


async def test_an_empty_status_stays_empty(api: AdminClient, namespace: str) -> None:
    assert await _written(api, namespace, {}) == ServerStatus()


async def test_every_word_that_is_shown_has_a_place_in_the_schema(api: AdminClient, namespace: str) -> None:
    made = await api.create(path("controlservers", namespace), server_manifest())
    url = path("controlservers", namespace, made["metadata"]["name"], "status")

    async def write(status: ServerStatus) -> None:
        await api.patch(url, {"status": status.to_wire()}, dryRun="All", fieldValidation="Strict")

    survivals = [SurvivalStatus(effective=word) for word in SurvivalEffective]
    codes = [SurvivalStatus(reason_code=code) for code in SurvivalCode]
    await asyncio.gather(
        *(write(ServerStatus(phase=phase)) for phase in ServerPhase),
        *(write(ServerStatus(survival=survival)) for survival in [*survivals, *codes]),
    )


@pytest.mark.parametrize("place", ["unstoppedInstances", "untrackedInstances"])
async def test_more_instances_than_are_kept_have_no_place(
    place: str, api: AdminClient, namespace: str
) -> None:
    instances = [{"id": f"i{n}"} for n in range(INSTANCES_KEPT + 1)]
    with pytest.raises(ApiError, match=f"{INSTANCES_KEPT} items"):
        await _written(api, namespace, {place: instances})


async def test_who_writes_the_resource_does_not_write_its_status(api: AdminClient, namespace: str) -> None:
    body = server_manifest() | {"status": {"phase": "Running", "adoptedBy": "me"}}
    assert "status" not in await api.create(path("controlservers", namespace), body)


async def test_who_writes_the_status_does_not_write_the_spec(api: AdminClient, namespace: str) -> None:
    made = await api.create(path("controlservers", namespace), server_manifest())
    url = path("controlservers", namespace, made["metadata"]["name"], "status")
    after = await api.patch(url, {"spec": {"agentSurvival": "Enabled"}, "status": {"phase": "Running"}})
    assert after["spec"]["agentSurvival"] == "Disabled"
    assert after["metadata"]["generation"] == made["metadata"]["generation"]
