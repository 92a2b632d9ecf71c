"""What the operator writes into status, and what nobody can write."""

import asyncio
from datetime import UTC, datetime

import pytest
from tests.support.agent_manifests import manifest
from tests.support.api import AdminClient, ApiError, path

from tenure.model.reasons import ConditionReason, ConditionStatus, ConditionType, Phase, StopOrigin
from tenure.model.resources import parse_agent_process
from tenure.model.status import (
    STOPS_KEPT,
    BackoffStatus,
    Condition,
    CurrentTask,
    InstanceStatus,
    Status,
    StopRecord,
    StopStatus,
)

NOON = datetime(2026, 11, 30, 12, 0, 0, 123456, tzinfo=UTC)


def _stop(instance: str = "8d1c") -> StopStatus:
    return StopStatus(
        instance=instance,
        origin=StopOrigin.TABLE,
        requested_at=NOON,
        finished_at=NOON,
        graceful=False,
        exit_code=137,
        message="killed at the end of its grace",
    )


def _full() -> Status:
    return Status(
        observed_generation=3,
        phase=Phase.DRAINING,
        instance=InstanceStatus(
            id="8d1c",
            pod_name="reviewer-0a1b2c3d-4",
            ordinal=4,
            started_at=NOON,
            row_id="8d1c",
            template_hash="0123456789abcdef",
            restart_token="again",
        ),
        current_task=CurrentTask(id=2**62, type="review", since=NOON),
        stop=_stop(),
        backoff=BackoffStatus(failures=2, until=NOON),
        restarts=7,
        stops=tuple(
            StopRecord(**_stop(f"i{n}").model_dump(by_alias=False), recorded=True) for n in range(STOPS_KEPT)
        ),
        conditions=tuple(
            Condition(
                type=kind,
                status=ConditionStatus.UNKNOWN,
                observed_generation=3,
                last_transition_time=NOON,
                reason=ConditionReason.NOT_OBSERVED,
                message="not looked at yet",
            )
            for kind in ConditionType
        ),
    )


async def _written(api: AdminClient, namespace: str, status: object) -> Status:
    made = await api.create(path("agentprocesses", namespace), manifest())
    url = path("agentprocesses", namespace, made["metadata"]["name"], "status")
    await api.patch(url, {"status": status}, fieldValidation="Strict")
    return parse_agent_process(
        await api.get(path("agentprocesses", namespace, made["metadata"]["name"]))
    ).status


async def test_a_full_status_comes_back_as_it_was_written(api: AdminClient, namespace: str) -> None:
    assert await _written(api, namespace, _full().to_wire()) == _full()


async def test_every_phase_and_origin_has_a_place_in_the_schema(api: AdminClient, namespace: str) -> None:
    made = await api.create(path("agentprocesses", namespace), manifest())
    url = path("agentprocesses", namespace, made["metadata"]["name"], "status")

    async def write(status: Status) -> None:
        await api.patch(url, {"status": status.to_wire()}, dryRun="All", fieldValidation="Strict")

    stops = [Status(stop=_stop().model_copy(update={"origin": origin})) for origin in StopOrigin]
    await asyncio.gather(*map(write, [*(Status(phase=phase) for phase in Phase), *stops]))


async def test_texts_from_outside_are_cut_to_what_the_schema_takes(api: AdminClient, namespace: str) -> None:
    long = "x" * 10_000
    status = Status(
        current_task=CurrentTask(id=1, type=long),
        stop=_stop().model_copy(update={"message": StopStatus(instance="a", message=long).message}),
    )
    stored = await _written(api, namespace, status.to_wire())
    assert stored.current_task is not None
    assert stored.current_task.type is not None
    assert stored.current_task.type.endswith("x…")


async def test_an_eleventh_stop_has_no_place(api: AdminClient, namespace: str) -> None:
    stops = [_stop(f"i{n}").to_wire() for n in range(STOPS_KEPT + 1)]
    with pytest.raises(ApiError, match="10 items"):
        await _written(api, namespace, {"stops": stops})


async def test_who_writes_the_resource_does_not_write_its_status(api: AdminClient, namespace: str) -> None:
    body = manifest() | {"status": {"phase": "Running"}}
    made = await api.create(path("agentprocesses", namespace), body)
    assert "status" not in made


async def test_who_writes_the_status_does_not_write_the_spec(api: AdminClient, namespace: str) -> None:
    made = await api.create(path("agentprocesses", namespace), manifest())
    url = path("agentprocesses", namespace, made["metadata"]["name"], "status")
    after = await api.patch(url, {"spec": {"desiredState": "StopRequested"}, "status": {"phase": "Running"}})
    assert after["spec"]["desiredState"] == "Running"
    assert after["metadata"]["generation"] == made["metadata"]["generation"]
