"""Job one on a real node: what a user does to agents at work, and what becomes of their work."""

import pytest
from tests.e2e.agents import Agents
from tests.support.wait import eventually

pytestmark = pytest.mark.timeout(240)


@pytest.mark.accept("L-9", "L-4", "L-22")
async def test_a_stop_through_the_resource_lets_the_task_finish(agents: Agents) -> None:
    agents.create("resource")
    _, instance = await agents.busy("resource")
    agents.patch("resource", desiredState="StopRequested")
    agents.wait("resource", "Stopped")
    # Its task may have been over before anybody could watch it drain.
    await eventually(lambda: "Draining" in agents.events("resource"), within=15, every=0.5)
    stop = agents.status("resource")["stop"]
    assert (stop["origin"], stop["graceful"], stop["exitCode"]) == ("Resource", True, 0)
    assert agents.row(instance) == ("stop_requested", True)
    agents.assert_nothing_was_cut(instance)
    assert [pod["metadata"]["uid"] for pod in agents.pods("resource")] in ([instance], [])
    agents.wait("resource", "Ready", 10)


@pytest.mark.accept("L-12", "L-14", "L-22")
async def test_starting_again_makes_a_new_instance(agents: Agents) -> None:
    agents.create("again")
    _, first = await agents.busy("again")
    agents.patch("again", desiredState="StopRequested")
    agents.wait("again", "Stopped")
    agents.patch("again", desiredState="Running")
    agents.wait("again", "Stopped=False", 30)
    agents.wait("again", "Ready")
    _, second = await agents.busy("again")
    assert second != first
    assert agents.row(second) == ("", False)
    agents.assert_nothing_was_cut(first)


@pytest.mark.accept("L-10")
async def test_a_stop_through_the_table_leaves_the_spec_alone(agents: Agents) -> None:
    agents.create("table")
    _, instance = await agents.busy("table")
    before = agents.get("table")
    agents.mark(instance)
    await eventually(
        lambda: agents.status("table").get("stop"), within=5, every=0.2, what="the stop is noticed"
    )
    agents.wait("table", "Stopped")
    after = agents.get("table")
    assert after["status"]["stop"]["origin"] == "Table"
    assert after["status"]["stop"]["graceful"] is True
    assert after["spec"] == before["spec"]
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    agents.assert_nothing_was_cut(instance)


@pytest.mark.accept("L-4", "L-10")
async def test_an_agent_under_a_shell_that_swallows_sigterm_hears_of_the_stop_through_its_row(
    agents: Agents,
) -> None:
    agents.create("shell", shell=True)
    _, instance = await agents.busy("shell")
    agents.patch("shell", desiredState="StopRequested")
    agents.wait("shell", "Stopped", 50)
    assert agents.status("shell")["stop"]["graceful"] is True
    agents.assert_nothing_was_cut(instance)


@pytest.mark.accept("L-11")
async def test_an_agent_that_outlives_its_grace_is_killed_and_called_ungraceful(agents: Agents) -> None:
    agents.create("stubborn", env={"WORKER_IGNORE_STOP": "1"}, drain={"gracePeriodSeconds": 3})
    await agents.busy("stubborn")
    agents.patch("stubborn", desiredState="StopRequested")
    agents.wait("stubborn", "Stopped", 60)
    stop = agents.status("stubborn")["stop"]
    assert (stop["graceful"], stop["exitCode"]) == (False, 137)
    await eventually(lambda: "StopForced" in agents.events("stubborn"), within=10, every=0.5)
    assert agents.done_twice() == 0


@pytest.mark.accept("L-13", "L-18")
async def test_a_killed_process_is_noticed_and_started_again_after_its_back_off(agents: Agents) -> None:
    agents.create("crash", shell=True)
    pod, first = await agents.busy("crash")
    agents.stage.kill_process(pod)
    await eventually(
        lambda: agents.status("crash")["phase"] != "Running",
        within=10,
        every=0.2,
        what="the phase leaves Running",
    )
    _, second = await agents.busy("crash")
    status = agents.status("crash")
    assert second != first
    assert status["restarts"] == 1
    assert agents.done_twice() == 0


@pytest.mark.accept("L-16")
async def test_an_eviction_lets_the_task_finish_and_a_new_instance_follows(agents: Agents) -> None:
    agents.create("evicted")
    pod, first = await agents.busy("evicted")
    agents.evict(pod)
    await eventually(lambda: "Draining" in agents.events("evicted"), within=20, every=0.5)
    await eventually(lambda: not agents.exists(pod), within=60, every=0.5)
    _, second = await agents.busy("evicted")
    assert second != first
    last = agents.status("evicted")["stops"][-1]
    assert (last["origin"], last["graceful"]) == ("Disruption", True)
    assert agents.row(first)[0] == "", "under a disruption the operator marks nothing"
    agents.assert_nothing_was_cut(first)


@pytest.mark.accept("L-16")
async def test_a_cordoned_nodes_agents_finish_their_tasks_and_wait_for_a_node(agents: Agents) -> None:
    agents.create("drained")
    pod, first = await agents.busy("drained")
    node = agents.pods("drained")[0]["spec"]["nodeName"]
    agents.stage.kubectl("cordon", node)
    try:
        agents.evict(pod)
        await eventually(lambda: not agents.exists(pod), within=60, every=0.5)
        await agents.phase("drained", "Starting", within=20)
        agents.assert_nothing_was_cut(first)
    finally:
        agents.stage.kubectl("uncordon", node)
    _, second = await agents.busy("drained")
    assert second != first


@pytest.mark.accept("L-17")
async def test_a_changed_template_replaces_the_instance_after_its_task(agents: Agents) -> None:
    agents.create("replaced")
    _, first = await agents.busy("replaced")
    template = agents.get("replaced")["spec"]["template"]
    template["metadata"] = {"labels": {"version": "2"}}
    agents.patch("replaced", template=template)
    overlaps: list[list[str]] = []

    def replaced() -> bool:
        unended = [
            p["metadata"]["name"] for p in agents.pods("replaced") if p["status"].get("phase") in _UNENDED
        ]
        if len(unended) > 1:
            overlaps.append(unended)
        return agents.status("replaced").get("instance", {}).get("id") not in (first, None)

    await eventually(replaced, within=60, every=0.2, what="the replacement")
    await agents.busy("replaced")
    assert overlaps == []
    assert agents.status("replaced")["stops"][-1]["origin"] == "Replacement"
    agents.assert_nothing_was_cut(first)


_UNENDED = ("Pending", "Running", "Unknown")


@pytest.mark.accept("L-17")
async def test_a_deleted_resource_drains_its_agent(agents: Agents) -> None:
    agents.create("deleted")
    pod, instance = await agents.busy("deleted")
    agents.stage.kubectl("delete", "agentprocess", "deleted", "--wait=true", "--timeout=60s")
    await eventually(lambda: not agents.exists(pod), within=60, every=0.5)
    agents.assert_nothing_was_cut(instance)
    ledger = f"SELECT origin, graceful FROM tenure.agent_stops WHERE pod_uid = '{instance}'"
    await eventually(
        lambda: agents.sql_value(ledger) == "Deletion|t", within=20, every=0.5, what="the ledger"
    )


@pytest.mark.accept("L-18")
async def test_a_pod_deleted_without_grace_is_noticed(agents: Agents) -> None:
    agents.create("gone")
    pod, first = await agents.busy("gone")
    agents.stage.kubectl("delete", "pod", pod, "--grace-period=0", "--force", "--wait=false")
    await eventually(
        lambda: agents.status("gone").get("instance", {}).get("id") != first, within=30, every=0.2
    )
    _, second = await agents.busy("gone")
    assert second != first
    assert agents.status("gone")["stops"][-1]["origin"] == "Disruption"


async def test_an_upgrade_of_the_operator_replaces_and_stops_nothing(agents: Agents) -> None:
    names = ("calm-1", "calm-2")
    for name in names:
        agents.create(name)
    before = {name: await agents.busy(name) for name in names}
    stage = agents.stage
    stage.install({"operator.logLevel": "DEBUG"})
    stage.kubectl("rollout", "restart", "deployment/tenure-operator", namespace=stage.system)
    stage.kubectl("rollout", "status", "deployment/tenure-operator", "--timeout=120s", namespace=stage.system)
    agents.create("calm-3")
    await agents.busy("calm-3")
    after = {name: await agents.busy(name) for name in names}
    assert after == before
    assert all(agents.status(name).get("stops", []) == [] for name in names)
    agents.patch("calm-1", desiredState="StopRequested")
    agents.wait("calm-1", "Stopped")
    agents.assert_nothing_was_cut(before["calm-1"][1])
