"""Rows for the tests of the storages."""

from datetime import UTC, datetime, timedelta

from tenure.storage.liveness import AgentLivenessRecord

STARTED = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def a_record(instance_id: str = "one", **changes: object) -> AgentLivenessRecord:
    values: dict[str, object] = {
        "instance_id": instance_id,
        "process_kind": "critic",
        "hostname": "critic-1a2b3c4d-1",
        "pid": 7,
        "liveness_interval_s": 30.0,
        "started_at": STARTED,
        "last_heartbeat_at": STARTED + timedelta(minutes=1),
    }
    return AgentLivenessRecord(**{**values, **changes})  # type: ignore[arg-type]
