"""A pod that a watch or a list no longer shows may well run on: somebody took its label away."""

import pytest
from tests.unit.passes.bench import Bench


@pytest.mark.accept("L-17")
async def test_a_running_agent_that_lost_its_label_is_neither_stopped_nor_replaced() -> None:
    bench = Bench()
    name = await bench.started()
    bench.leaves_the_selector(name)
    await bench.run()
    assert bench.pods == [name]
    assert "deletionTimestamp" not in bench.api.pod(name)["metadata"]
    assert bench.status["phase"] == "Running"
    assert "stop" not in bench.status


@pytest.mark.accept("L-17")
async def test_an_unlabelled_agent_that_a_list_does_not_show_is_neither_stopped_nor_replaced() -> None:
    bench = Bench()
    name = await bench.started()
    del bench.api.pod(name)["metadata"]["labels"]["tenure.dev/role"]
    for _ in range(3):
        bench.later(300)
        bench.cache.drop_missing_pods(set(), bench.clock)
        await bench.run()
        assert bench.pods == [name]
        assert "deletionTimestamp" not in bench.api.pod(name)["metadata"]
        assert bench.status["phase"] == "Running"


@pytest.mark.accept("L-17")
async def test_an_unlabelled_agent_that_drains_is_not_called_stopped_and_gets_no_second_beside_it() -> None:
    bench = Bench()
    name = await bench.started()
    bench.edit(desiredState="StopRequested")
    await bench.run()
    bench.leaves_the_selector(name)
    await bench.run()
    assert bench.status["phase"] == "Draining"
    bench.edit(desiredState="Running")
    await bench.run()
    assert bench.living == [name]


@pytest.mark.accept("L-17")
async def test_no_pod_is_created_while_the_recorded_one_lives_whatever_the_cache_says() -> None:
    """The end was recorded by mistake, and the pod forgotten: the live look before a create is the last to notice."""
    bench = Bench()
    name = await bench.started()
    uid = bench.api.pod(name)["metadata"]["uid"]
    bench.cache.forget_pod(uid)
    bench.edit_status(stop={"instance": uid, "origin": "Resource", "finishedAt": "2026-11-30T10:00:00Z"})
    await bench.run()
    assert bench.pods == [name]


async def test_the_end_of_an_unlabelled_agent_is_seen_with_its_exit_code() -> None:
    bench = Bench(restart_policy="Never")
    name = await bench.started()
    bench.leaves_the_selector(name)
    await bench.run()
    state = {"terminated": {"exitCode": 3, "finishedAt": "2026-11-30T10:00:00Z"}}
    bench.api.stamp(bench.api.pod(name))["status"] = {
        "phase": "Failed",
        "containerStatuses": [{"name": "agent", "state": state}],
    }
    bench.later(300)
    bench.cache.drop_missing_pods(set(), bench.clock)
    await bench.run()
    assert bench.status["phase"] == "Failed"
    assert bench.status["stop"]["exitCode"] == 3


async def test_a_pod_that_is_gone_costs_one_look_and_is_a_disruption() -> None:
    bench = Bench()
    name = await bench.started()
    raw = bench.api.pods.pop(("agents", name))
    bench.cache.drop_pod(bench.api.stamp(raw))
    await bench.run()
    assert bench.status["stops"][-1]["origin"] == "Disruption"
    assert len(bench.living) == 1
    assert bench.living != [name]
