"""Evictions, node drains, and pods that are killed or taken away under the agent."""

import asyncio
import signal
import time
from collections.abc import Callable

import pytest
from tests.integration.agents.history import condition
from tests.integration.agents.world import DEAF, OBEDIENT, World, all_of, shell
from tests.support.api import Object, path
from tests.support.history import Seen
from tests.support.wait import eventually


@pytest.mark.accept("L-16")
async def test_an_eviction_lets_the_task_finish_and_a_new_instance_follows(world: World) -> None:
    async with world.operator() as operator:
        await world.create("critic")
        first = await world.running("critic")
        task = await world.busy("critic")
        await world.api.evict(world.namespace, world.pod_name("critic"))
        status = await world.phase("critic", "Draining")
        assert status["stop"]["origin"] == "Disruption"
        # Longer than any of the operator's intervals: it neither hurries the agent nor starts another.
        await asyncio.sleep(2)
        assert world.status("critic")["phase"] == "Draining"
        assert len(world.history.pod_names("critic")) == 1
        await world.release(task)
        await world.next_instance("critic", first)
        await world.assert_finished_once(task)
        stop = world.status("critic")["stops"][-1]
        assert (stop["instance"], stop["origin"], stop["graceful"]) == (first, "Disruption", True)
        assert "EvictionByEvictionAPI" in stop["message"]
        assert world.status("critic").get("restarts", 0) == 0, "a disruption is no crash"
        assert operator.metric("tenure_stop_requests_total", origin="Disruption") == 1


@pytest.mark.accept("L-16")
async def test_a_drained_node_gets_its_agents_back_when_it_is_uncordoned(world: World) -> None:
    node = path("nodes", None, world.kubelet.node)
    async with world.operator():
        await all_of(world.create("one"), world.create("two", shell(OBEDIENT)))
        one, two = await all_of(world.running("one"), world.running("two"))
        task = await world.busy("one")
        await world.api.patch(node, {"spec": {"unschedulable": True}})
        await all_of(*(world.api.evict(world.namespace, world.pod_name(name)) for name in ("one", "two")))
        await world.next_instance("two", two, phase="Starting")
        await world.release(task)
        await world.next_instance("one", one, phase="Starting")
        await world.assert_finished_once(task)
        waiting = [f"{world.namespace}/{world.pod_name(name)}" for name in ("one", "two")]
        await eventually(lambda: set(waiting) <= set(world.kubelet.waiting()), within=15)
        await world.api.patch(node, {"spec": {"unschedulable": None}})
        await all_of(world.next_instance("one", one), world.next_instance("two", two))


@pytest.mark.accept("L-16", "L-11")
async def test_an_eviction_of_an_agent_that_does_not_end_is_reported_as_ungraceful(world: World) -> None:
    async with world.operator():
        await world.create("deaf", shell(DEAF), drain={"gracePeriodSeconds": 1})
        first = await world.running("deaf")
        await world.api.evict(world.namespace, world.pod_name("deaf"))
        stop = await world.stopped("deaf", first)
        assert (stop["origin"], stop["graceful"]) == ("Disruption", False)
        await world.next_instance("deaf", first)


async def killed_in_place(world: World, pod: Object) -> None:
    world.kubelet.kill(world.namespace, pod["metadata"]["name"], number=signal.SIGKILL)


async def evicted(world: World, pod: Object) -> None:
    await world.api.evict(world.namespace, pod["metadata"]["name"])


async def deleted(world: World, pod: Object) -> None:
    await world.api.delete(path("pods", world.namespace, pod["metadata"]["name"]))


async def force_deleted(world: World, pod: Object) -> None:
    await world.api.delete(path("pods", world.namespace, pod["metadata"]["name"]), grace=0)


async def failed_by_its_node(world: World, pod: Object) -> None:
    """What a kubelet under pressure writes, before its containers have ended."""
    url = path("pods", world.namespace, pod["metadata"]["name"], "status")
    await world.api.patch(
        url, {"status": {"phase": "Failed", "reason": "Evicted", "message": "low on memory"}}
    )


@pytest.mark.accept("L-18")
async def test_a_pod_that_ends_or_goes_is_noticed_within_five_seconds(world: World) -> None:
    ways: list[tuple[Callable[[World, Object], object], str | None]] = [
        (killed_in_place, None),
        (evicted, "Disruption"),
        (deleted, "Disruption"),
        (force_deleted, "Disruption"),
        (failed_by_its_node, None),
    ]

    async def one(way: Callable[..., object], origin: str | None) -> None:
        name = way.__name__.replace("_", "-")
        await world.create(name, shell(OBEDIENT), backoff={"initialSeconds": 1, "maxSeconds": 1})
        first = await world.running(name)
        pod = world.history.pods[first]
        before = len(world.history.seen)
        await way(world, pod)  # type: ignore[misc]
        await world.until(name, lambda s: s["phase"] != "Running", within=5, what="it leaves Running")

        def shown() -> Seen | None:
            """The first news of its pod, which is on a watch of its own."""
            since = world.history.seen[before:]
            return next((s for s in since if s.plural == "pods" and s.item["metadata"]["uid"] == first), None)

        gone = await eventually(shown, within=5, what="what happened to the pod is seen")
        left = next(
            s.at
            for s in world.history.seen[before:]
            if s.plural == "agentprocesses"
            and s.item["metadata"]["name"] == name
            and s.item["status"]["phase"] != "Running"
        )
        assert left - gone.at < 5
        await world.stopped(name, first)
        await world.next_instance(name, first)
        ends = [i["status"]["stop"] for i in world.history.versions(name) if i.get("status", {}).get("stop")]
        end = next(e for e in ends if e["instance"] == first and e.get("finishedAt"))
        assert end.get("origin") == origin, (name, end)

    async with world.operator():
        world.forgiven.append("two pods of failed-by-its-node")  # this kubelet's containers outlive its word
        await all_of(*(one(way, origin) for way, origin in ways))


@pytest.mark.accept("L-18")
async def test_a_pod_on_a_node_that_is_cut_off_stays_the_only_one(world: World) -> None:
    """Whether its process still runs nobody knows, so nothing is started beside it."""
    async with world.operator():
        await world.create("plain", shell(OBEDIENT))
        first = await world.running("plain")
        world.kubelet.go_silent()
        await world.stop("plain")
        await world.phase("plain", "Draining")
        await world.start("plain")
        await asyncio.sleep(2)
        assert world.status("plain")["phase"] == "Draining"
        assert len(world.history.pod_names("plain")) == 1
        world.kubelet.come_back()
        await world.next_instance("plain", first)


async def test_a_busy_agent_is_marked_for_autoscalers_to_spare_and_an_idle_one_is_not(world: World) -> None:
    wanted = {
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        "karpenter.sh/do-not-disrupt": "true",
    }

    def protection(name: str) -> dict[str, str]:
        pod = world.history.pods_of(name)[-1]
        return {k: v for k, v in (pod["metadata"].get("annotations") or {}).items() if k in wanted}

    async with world.operator():
        await all_of(world.create("spared"), world.create("allowed", eviction="Allow"))
        await all_of(world.running("spared"), world.running("allowed"))
        assert protection("spared") == {}
        tasks = await all_of(world.busy("spared"), world.busy("allowed"))
        await eventually(lambda: protection("spared") == wanted, within=15, what="the annotations come")
        await world.until("allowed", lambda s: s.get("currentTask"), within=15)
        assert protection("allowed") == {}
        assert condition(world.history.resources["spared"], "Ready")["status"] == "True"
        await world.change("spared", eviction="Allow")
        await eventually(lambda: protection("spared") == {}, within=15, what="the annotations go")
        await all_of(*(world.release(task) for task in tasks))


async def test_the_protection_goes_after_a_while_without_a_task(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.plan.agent_process.IDLE_SECONDS", 3.0)  # a minute, in life

    def safe() -> bool:
        pod = world.history.pods_of("critic")[-1]
        return "karpenter.sh/do-not-disrupt" in (pod["metadata"].get("annotations") or {})

    async with world.operator():
        await world.create("critic")
        await world.running("critic")
        task = await world.busy("critic")
        await eventually(safe, within=15)
        await world.release(task)
        began = time.monotonic()
        await eventually(lambda: not safe(), within=10)
        assert time.monotonic() - began > 2.5
