"""What is told of a stop: the ledger, Events and counters, each once, whatever happens in between."""

import asyncio
from collections import Counter

import pytest
from tests.integration.agents.history import condition
from tests.integration.agents.world import DEAF, OBEDIENT, World, all_of, shell
from tests.support.api import path
from tests.support.operator import running_operator
from tests.support.wait import eventually


@pytest.mark.accept("L-9", "L-11")
async def test_each_stop_is_told_once_by_events_counters_and_the_ledger(world: World) -> None:
    async with world.operator() as operator:
        await all_of(
            world.create("critic", shell(OBEDIENT)),
            world.create("deaf", shell(DEAF), drain={"gracePeriodSeconds": 1}),
        )
        critic, deaf = await all_of(world.running("critic"), world.running("deaf"))
        await all_of(world.stop("critic"), world.stop("deaf"))
        await all_of(world.stopped("critic", critic), world.stopped("deaf", deaf))
        for name in ("critic", "deaf"):
            await world.until(name, lambda s: s["stops"][-1].get("recorded"))
        events = await world.told("critic", "Stopped")
        assert Counter(e["reason"] for e in events) == dict.fromkeys(
            ("StopRequested", "Draining", "Stopped"), 1
        )
        asked = next(e for e in events if e["reason"] == "StopRequested")
        assert "Resource" in asked["note"]
        assert asked["reportingController"] == "tenure.dev/operator"
        assert Counter(e["reason"] for e in await world.told("deaf", "StopForced")) == dict.fromkeys(
            ("StopRequested", "Draining", "StopForced"), 1
        )
        assert operator.metric("tenure_stop_requests_total", origin="Resource") == 2
        assert operator.metric("tenure_stops_total", graceful="true") == 1
        assert operator.metric("tenure_stops_total", graceful="false") == 1
        assert operator.metric("tenure_drain_duration_seconds_count") == 2
        # A kubelet tells the end in whole seconds, so a grace of one may show as less.
        assert 0 < operator.metric("tenure_drain_duration_seconds_sum") < 10
        for name, instance, graceful, code, grace in (
            ("critic", critic, True, 0, 30),
            ("deaf", deaf, False, 137, 1),
        ):
            (row,) = await world.ended_in_ledger(name)
            assert (row["pod_uid"], row["instance_id"], row["origin"]) == (instance, instance, "Resource")
            assert (row["graceful"], row["exit_code"], row["grace_seconds"]) == (graceful, code, grace)
            assert row["requested_at"] <= row["finished_at"]
        # The gauge follows within its five seconds.
        await eventually(
            lambda: operator.metric("tenure_agent_processes", phase="Stopped") == 2, within=8, every=0.2
        )
    # A fresh operator has nothing to add.
    before = len(await world.events("critic"))
    async with world.operator() as operator:
        await asyncio.sleep(1)
        assert operator.metric("tenure_stops_total", graceful="true") == 0
    assert len(await world.events("critic")) == before
    assert len(await world.ledger("critic")) == 1


@pytest.mark.accept("L-12")
async def test_status_keeps_the_last_ten_stops_and_the_ledger_all(world: World) -> None:
    async with world.operator():
        await world.create("critic", shell(OBEDIENT))
        former = await world.running("critic")
        for number in range(11):
            await world.change("critic", restartToken=str(number))
            former = await world.next_instance("critic", former)
        await world.until("critic", lambda s: all(e.get("recorded") for e in s["stops"]))
        stops = world.status("critic")["stops"]
        assert len(stops) == 10
        assert len(await world.ledger("critic")) == 11
        assert {e["origin"] for e in stops} == {"Replacement"}


async def test_a_template_that_the_server_refuses_is_told_in_its_words_and_heals(world: World) -> None:
    async with world.operator():
        good = world.manifest("picky", shell(OBEDIENT))["spec"]["template"]
        bad = world.manifest("picky", shell(OBEDIENT))["spec"]["template"]
        bad["spec"]["containers"][0]["imagePullPolicy"] = "Sometimes"
        await world.create("picky", shell(OBEDIENT), template=bad)
        stalled = await world.condition("picky", "Stalled", "True", "TemplateRejected")
        assert 'supported values: "Always", "IfNotPresent", "Never"' in stalled["message"]
        assert world.status("picky")["phase"] == "Pending"
        (event,) = [
            e for e in await world.told("picky", "TemplateRejected") if e["reason"] == "TemplateRejected"
        ]
        assert event["type"] == "Warning"
        # Tried again by itself, told once.
        await asyncio.sleep(3)
        assert [e["reason"] for e in await world.events("picky")] == ["TemplateRejected"]
        await world.change("picky", template=good)
        await world.running("picky", within=5)
        await world.condition("picky", "Stalled", "False")


async def test_a_quota_that_was_in_the_way_heals_by_itself(world: World) -> None:
    url = f"/api/v1/namespaces/{world.namespace}/resourcequotas"
    await world.api.create(url, {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}})
    await eventually(lambda: _counted(world, url), within=10)
    async with world.operator():
        await world.create("plain", shell(OBEDIENT))
        stalled = await world.condition("plain", "Stalled", "True")
        assert "exceeded quota" in stalled["message"]
        await world.api.delete(f"{url}/none")
        await world.running("plain", within=15)
        assert condition(world.history.resources["plain"], "Stalled")["status"] == "False"


async def _counted(world: World, url: str) -> bool:
    return "hard" in (await world.api.get(f"{url}/none")).get("status", {})


async def test_the_three_pages_tell_of_a_leader_and_of_a_standby(world: World) -> None:
    lease = f"tenure-{world.namespace}"
    async with world.operator(lease_name=lease) as operator:
        await world.create("plain", shell(OBEDIENT))
        await world.running("plain")
        for name in ("healthz", "readyz"):
            assert await operator.page(name) == (200, "ok")
        _, text = await operator.page("metrics")
        assert "tenure_leader 1.0" in text
        assert 'tenure_stop_requests_total{origin="Disruption"} 0.0' in text
        assert "tenure_build_info{" in text
        found = await world.api.get(path("leases", world.namespace, lease))
        assert found["spec"]["holderIdentity"].startswith("tests_")
    released = await world.api.get(path("leases", world.namespace, lease))
    assert not released["spec"].get("holderIdentity"), "given up at the end, so that the next need not wait"
    pod = await world.api.get(path("pods", world.namespace, world.pod_name("plain")))
    assert pod["status"]["phase"] == "Running", "its end stops no agent"


@pytest.mark.accept("L-9")
async def test_an_operator_without_any_database_works_from_pods_alone(world: World) -> None:
    async with running_operator(world.plane, namespaces=[world.namespace]):
        await world.create("critic", shell(OBEDIENT), liveness=world.liveness())
        instance = await world.running_without_row("critic")
        alive = condition(world.history.resources["critic"], "Alive")
        assert (alive["status"], alive["reason"]) == ("Unknown", "NotConfigured")
        await world.stop("critic")
        stop = await world.stopped("critic", instance)
        assert stop["graceful"] is True
        await asyncio.sleep(0.3)
        assert not world.status("critic")["stops"][-1].get("recorded"), "there is no ledger"
