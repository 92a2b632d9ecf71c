"""Pods whose AgentProcess is gone: which of them are to be drained, and whose rows may be marked for it."""

import copy
from typing import Any

import pytest
from tests.support.builders import ago, process, raw_pod, raw_process, row, wire
from tests.unit.passes.bench import CRITIC, Bench

VICTIM = "critic-0a1b2c3d-7"
"""The name of another tenant's pod, as its row in a shared database shows it."""


async def gone(bench: Bench) -> None:
    """The object is deleted in the background: it is gone before its pods are."""
    raw = bench.api.processes.pop(("agents", "critic"))
    bench.cache.drop_agent_process(bench.api.stamp(raw))


def plant(bench: Bench, name: str, owner_uid: str) -> dict[str, Any]:
    raw = raw_pod(process(), uid="planted", agent={"running": {}})
    raw["metadata"]["name"] = name
    raw["metadata"]["ownerReferences"][0]["uid"] = owner_uid
    bench.api.pods["agents", name] = bench.api.stamp(raw)
    bench.show(name)
    return raw


@pytest.mark.accept("K-9")
async def test_a_planted_pod_with_the_name_of_another_tenants_pod_marks_no_row_of_that_name() -> None:
    bench = Bench(table=True)
    assert bench.rows is not None
    await bench.started()
    bench.rows.rows = [row("own-id", hostname=VICTIM)]
    plant(bench, VICTIM, bench.process["metadata"]["uid"])
    await gone(bench)
    await bench.run()
    assert bench.rows.marked == []


@pytest.mark.accept("K-9")
async def test_a_planted_pod_of_an_object_that_never_was_marks_no_row_of_its_name() -> None:
    """An owner's UID can be made up so that its digits in the name fit."""
    bench = Bench(table=True)
    name = await bench.started()
    raw = copy.deepcopy(bench.api.pod(name))
    other = Bench(table=True)
    assert other.rows is not None
    other.rows.rows = [row("own-id", hostname=name)]
    del other.api.processes["agents", "critic"]
    other.cache.drop_agent_process_uid(CRITIC, "uid-of-critic")
    other.api.pods["agents", name] = raw
    other.show(name)
    await other.run()
    assert other.rows.marked == []


@pytest.mark.accept("L-21")
@pytest.mark.parametrize("by_uid", [True, False], ids=["by its UID", "by its name"])
async def test_the_agent_of_an_object_that_was_is_asked_through_its_row(by_uid: bool) -> None:
    bench = Bench(table=True)
    assert bench.rows is not None
    name = await bench.started()
    uid = bench.api.pod(name)["metadata"]["uid"]
    bench.rows.rows = [row(uid if by_uid else "own-id", hostname=name)]
    await gone(bench)
    await bench.run()
    assert bench.rows.marked == [uid if by_uid else "own-id"]
    assert "deletionTimestamp" in bench.api.pod(name)["metadata"]


async def test_a_pod_that_was_left_behind_on_purpose_goes_on() -> None:
    """``--cascade=orphan``: the pod was released before the object went, but its watch is behind the other."""
    bench = Bench(table=True)
    assert bench.rows is not None
    name = await bench.started()
    bench.rows.rows = [row("own-id", hostname=name)]
    bench.api.stamp(bench.api.pod(name))["metadata"]["ownerReferences"] = []
    await gone(bench)
    assert await bench.run() is None
    assert "deletionTimestamp" not in bench.api.pod(name)["metadata"]
    assert bench.rows.marked == []


@pytest.mark.parametrize("released", [True, False], ids=["left behind on purpose", "forgotten by everybody"])
async def test_what_an_earlier_object_of_the_name_left_is_drained_unless_it_was_released(
    released: bool,
) -> None:
    """Deleted with ``--cascade=orphan`` and applied again at once: the watch of pods still shows the former owner."""
    bench = Bench()
    name = await bench.started()
    bench.api.pod(name)["metadata"]["creationTimestamp"] = wire(ago(7200))
    bench.show(name)
    if released:
        bench.api.stamp(bench.api.pod(name))["metadata"]["ownerReferences"] = []
    await gone(bench)
    bench.put_process(raw_process(uid="another", liveness={"mode": "Pod"}))
    await bench.run()
    assert ("deletionTimestamp" in bench.api.pod(name)["metadata"]) is not released
    assert len(bench.living) == (2 if released else 1)
