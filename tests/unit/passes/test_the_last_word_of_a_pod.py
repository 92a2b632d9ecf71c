"""A pod that somebody looked for and did not find: how its agent ended the watch is still to tell, and may be late."""

import copy
from datetime import timedelta
from typing import Any

import pytest
from tests.support.builders import NOW, wire
from tests.unit.passes.bench import Bench

from tenure.plan.ends import LAST_WORD_SECONDS
from tenure.storage.stops import StopEntry


class Ledger:
    def __init__(self) -> None:
        self.entries: list[StopEntry] = []

    async def record_stop(self, entry: StopEntry) -> None:
        self.entries.append(entry)


def ended_unseen(bench: Bench, name: str, exit_code: int = 0) -> dict[str, Any]:
    """The agent ends, and the kubelet removes the pod; no watch has told of either. The pod's last state."""
    bench.ends_unseen(name, exit_code)
    return bench.api.stamp(bench.api.pods.pop(("agents", name)))


async def draining(bench: Bench) -> str:
    name = await bench.started()
    bench.edit(desiredState="StopRequested")
    bench.api.pod(name)["metadata"] |= {
        "deletionTimestamp": wire(NOW + timedelta(seconds=30)),
        "deletionGracePeriodSeconds": 30,
    }
    return name


@pytest.mark.accept("L-17")
async def test_its_exit_code_is_waited_for() -> None:
    """The deletion that the plan asks for finds nothing: the agent was faster."""
    bench = Bench()
    name = await draining(bench)
    last = ended_unseen(bench, name, 3)
    wait = await bench.run()
    assert wait is not None
    assert 0 < wait <= LAST_WORD_SECONDS
    assert bench.status["phase"] == "Draining"
    assert "finishedAt" not in bench.status["stop"]
    bench.cache.drop_pod(last)
    await bench.run()
    assert (bench.status["phase"], bench.status["stop"]["exitCode"]) == ("Stopped", 3)


async def test_the_event_before_the_last_one_tells_enough() -> None:
    bench = Bench()
    name = await draining(bench)
    last = ended_unseen(bench, name, 3)
    await bench.run()
    bench.cache.put_pod(last)
    await bench.run()
    assert (bench.status["phase"], bench.status["stop"]["exitCode"]) == ("Stopped", 3)


@pytest.mark.parametrize("told", [True, False], ids=["no exit code", "no event"])
async def test_it_is_not_waited_for_in_vain(told: bool) -> None:
    """Force-deleted from a node that is gone, or its event was lost with a watch."""
    bench = Bench()
    name = await draining(bench)
    last = bench.api.stamp(bench.api.pods.pop(("agents", name)))
    await bench.run()
    if told:
        bench.cache.drop_pod(last)
    else:
        bench.later(LAST_WORD_SECONDS)
    await bench.run()
    assert bench.status["phase"] == "Stopped"
    assert "exitCode" not in bench.status["stop"]


@pytest.mark.accept("L-17")
async def test_the_ledger_waits_for_it_when_the_resource_is_gone_too() -> None:
    ledger = Ledger()
    bench = Bench(store=ledger)
    name = await draining(bench)
    bench.show(name)
    await bench.run()
    ended = ended_unseen(bench, name)
    raw = bench.api.processes.pop(("agents", "critic"))
    bench.cache.drop_agent_process(bench.api.stamp(copy.deepcopy(raw)))
    bench.cache.drop_missing_pods(set(), bench.clock + 1)
    wait = await bench.run()
    assert [entry for entry in ledger.entries if entry.finished_at is not None] == []
    assert wait is not None
    assert 0 < wait <= LAST_WORD_SECONDS
    bench.cache.drop_pod(ended)
    await bench.run()
    entry = ledger.entries[-1]
    assert (entry.graceful, entry.exit_code) == (True, 0)


async def test_a_pod_that_was_missed_by_mistake_is_not_missed_when_it_goes() -> None:
    """It had lost its label, a live look showed it, and then it went without a word."""
    bench = Bench()
    name = await bench.started()
    uid = bench.api.pod(name)["metadata"]["uid"]
    bench.cache.drop_pod_uid(uid)
    bench.cache.found_pod(bench.api.stamp(bench.api.pod(name)))
    view = bench.cache.pod(uid)
    assert view is not None
    assert (view.departed, view.missed_at) == (False, None)


async def test_one_whose_whole_life_no_watch_has_told_of_yet_is_waited_for_too() -> None:
    """Else it would be said that its agent had never started, which is graceful."""
    bench = Bench(restart_policy="Never")
    await bench.run()
    (name,) = bench.pods
    bench.runs_unseen(name)
    last = ended_unseen(bench, name, 3)
    bench.cache.drop_missing_pods(set(), bench.clock + 1)
    await bench.run()
    assert "finishedAt" not in bench.status.get("stop", {})
    bench.cache.drop_pod(last)
    await bench.run()
    assert (bench.status["phase"], bench.status["stop"]["exitCode"]) == ("Failed", 3)
