"""Random histories: each storage behaves like a dictionary of rows."""

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.liveness import STARTED, a_record

from tenure.storage.liveness import AgentLivenessRecord

if TYPE_CHECKING:
    from tests.integration.storage.conftest import Bench

ids = st.sampled_from(["one", "two", "three"])
heartbeats = st.builds(
    lambda id_, seconds, task, desired: a_record(
        id_,
        started_at=STARTED + timedelta(seconds=seconds),
        last_heartbeat_at=STARTED + timedelta(seconds=seconds),
        current_task_id=task,
        current_task_type=None if task is None else "review",
        desired_state=desired,
    ),
    ids,
    st.integers(0, 10_000),
    st.none() | st.integers(-(2**31), 2**31 - 1),
    st.sampled_from([None, "running", "stop_requested"]),
)
histories = st.lists(heartbeats | ids, max_size=8)


@pytest.mark.accept("L-2", "L-3")
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=histories)
async def test_only_a_stop_request_sets_the_state_and_only_a_heartbeat_the_rest(
    bench: "Bench", history: list[AgentLivenessRecord | str]
) -> None:
    await bench.storage.migrate()
    await bench.execute("DELETE FROM cks_agent_liveness")
    model: dict[str, AgentLivenessRecord] = {}
    for step in history:
        if isinstance(step, str):
            assert await bench.storage.request_agent_stop(step) is (step in model)
            if step in model:
                model[step] = replace(model[step], desired_state="stop_requested")
            continue
        await bench.storage.upsert_agent_liveness(step)
        known = model.get(step.instance_id)
        model[step.instance_id] = (
            replace(step, desired_state=None)
            if known is None
            else replace(
                known,
                last_heartbeat_at=step.last_heartbeat_at,
                current_task_id=step.current_task_id,
                current_task_type=step.current_task_type,
            )
        )
    rows = await bench.storage.list_agent_liveness()
    assert {row.instance_id: row for row in rows} == model
    starts = [row.started_at for row in rows]
    assert starts == sorted(starts, reverse=True)
    for id_ in ("one", "two", "three"):
        assert await bench.storage.get_agent_liveness(id_) == model.get(id_)
