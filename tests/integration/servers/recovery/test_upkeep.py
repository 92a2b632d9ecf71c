"""What is looked after between recoveries: agents that have ended, and sessions of resources that were deleted."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.integration.servers.recovery.stage import KEY, NEW, WITHIN, Operator, Stage
from tests.support.wait import eventually

from tenure.operator.servers.orphans import AGENT_PROCESS_KEY, gone_by
from tenure.operator.servers.recovery import DRAIN_SECONDS, UPKEEP_SECONDS
from tenure.storage.records import Executor, TurnRefusal, TurnRefused

HOSTED: dict[str, Any] = {"agent_process_uid": "u-1", "metadata": {AGENT_PROCESS_KEY: "coder"}}


class Api:
    """The AgentProcess as the API server has it."""

    def __init__(self, found: Any) -> None:
        self.found = found

    async def get_agent_process(self, namespace: str, name: str) -> Any:
        assert (namespace, name) == ("team", "coder")
        return self.found


def asking(operator: Operator, found: Any) -> Operator:
    """An operator whose API server says this of the AgentProcess."""
    operator.recovery._gone = gone_by(Api(found))  # type: ignore[arg-type]
    return operator


async def upkeep(operator: Operator) -> float | None:
    async with asyncio.timeout(WITHIN):
        return await operator.recovery.upkeep(operator.recovering())


@pytest.mark.parametrize("found", [None, {"metadata": {"uid": "u-2"}}], ids=["absent", "another one"])
async def test_a_session_of_a_resource_that_has_gone_is_drained_and_then_stopped(
    stage: Stage, found: Any
) -> None:
    await stage.session(**HOSTED, grace_seconds=600)
    await stage.prompted(text="wait gate")
    operator = asking(await stage.recovered(), found)
    assert await upkeep(operator) == DRAIN_SECONDS
    # Its turn may end; no other begins.
    assert await stage.state() == ("stopping", "running", "in_progress", ["open"], False)
    assert await stage.alive() == {"i-s-1"}
    with pytest.raises(TurnRefused) as refused:
        await stage.records.turns.open("s-1", "i-s-1")
    assert refused.value.refusal is TurnRefusal.STOPPING
    (instance,) = await stage.client.instances()
    (Path(instance.workspace_path) / "gate").touch()
    await stage.retained()
    turn = (await stage.records.turns.of_session("s-1"))[0]
    assert turn.control_turn_id is not None
    # Whoever drives it applies how it ended.
    await stage.execute("UPDATE tenure.turns SET state = 'completed', finished_at = now()")
    assert await upkeep(operator) == UPKEEP_SECONDS
    assert await stage.alive() == set()
    assert (await stage.row_of()).status.value == "stopped"


async def test_a_turn_that_outlasts_the_grace_is_abandoned(stage: Stage) -> None:
    await stage.session(**HOSTED, grace_seconds=0)
    await stage.prompted(text="wait gate")
    operator = asking(await stage.recovered(), None)
    assert await upkeep(operator) == UPKEEP_SECONDS
    assert await stage.alive() == set()
    state = await stage.state()
    assert (state[0], state[3]) == ("stopped", ["abandoned"])


async def test_a_session_on_another_server_is_not_released_because_this_one_does_not_know_it(
    stage: Stage,
) -> None:
    await stage.row(**HOSTED, container_identity="pod-0", grace_seconds=0)
    operator = asking(stage.operator(), None)
    both = operator.recovering(present=frozenset({"pod-0", "pod-1"}))
    for _ in range(2):
        await operator.recovery.upkeep(both)
    assert (await stage.row_of()).status.value == "running"


async def test_a_session_whose_resource_is_there_or_unknown_is_left_alone(stage: Stage) -> None:
    await stage.session("s-1", **HOSTED)
    await stage.session("s-2", agent_process_uid="u-3")
    await stage.session("s-3")
    operator = asking(await stage.recovered(), {"metadata": {"uid": "u-1"}})
    for _ in range(2):
        assert await upkeep(operator) == UPKEEP_SECONDS
    assert await stage.alive() == {"i-s-1", "i-s-2", "i-s-3"}
    assert operator.tracked == {"s-1", "s-2", "s-3"}


async def test_an_agent_that_ended_with_nobody_there_is_heard_before_its_row_is_repaired(
    stage: Stage,
) -> None:
    await stage.session()
    operator = await stage.recovered()
    await stage.prompted(text="say done")
    await stage.retained()
    for pid in stage.pids():
        os.kill(pid, signal.SIGKILL)

    async def ended() -> bool:
        return [i.status for i in await stage.client.instances()] == ["stopped"]

    await eventually(ended, within=WITHIN, what="the end of the agent")
    await upkeep(operator)
    assert (await stage.row_of()).status.value == "running"
    await upkeep(operator)
    assert await stage.state() == ("stopped", "waiting_for_input", "review", ["completed"], False)
    assert await stage.alive() == set()
    assert operator.tracked == set()


async def test_a_launch_of_this_incarnation_is_given_time_to_make_its_instance(stage: Stage) -> None:
    operator = await stage.recovered()
    await stage.row(created_by=NEW)
    for _ in range(3):
        await upkeep(operator)
    row: Executor = await stage.row_of()
    assert row.status.value == "running"
    assert operator.recovery.report(KEY).hosted == 0
