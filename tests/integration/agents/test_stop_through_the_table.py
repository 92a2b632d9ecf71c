"""Somebody sets ``desired_state`` in the liveness table: the same drain, another origin, ``spec`` untouched."""

import asyncio
from datetime import UTC, datetime

import pytest
from tests.integration.agents.history import condition
from tests.integration.agents.world import World, all_of, shell
from tests.support.api import Object

from tenure.model.settings import OperatorSettings

IGNORES_THE_TABLE = "trap 'exit 0' TERM; while :; do sleep 60 & wait $!; done"


def spec_managers(item: Object) -> set[str]:
    """Who has ever written a field of ``spec``, by the API server's own books."""
    fields = item["metadata"]["managedFields"]
    return {entry["manager"] for entry in fields if "f:spec" in entry["fieldsV1"]}


def noticed_after(status: Object, marked: datetime) -> float:
    """Seconds from the mark until the operator knew of it: what follows, and how late we see it, is another matter."""
    return (datetime.fromisoformat(status["stop"]["requestedAt"]) - marked).total_seconds()


@pytest.mark.accept("L-10")
async def test_a_mark_is_seen_within_a_second_where_the_trigger_tells(world: World) -> None:
    async with world.operator(poll_seconds=60):
        created = await world.create("critic")
        instance = await world.running("critic")
        task = await world.busy("critic")
        await world.listened_to()  # and polling is most of a minute away
        marked = datetime.now(UTC)
        await world.mark(instance)
        status = await world.phase("critic", "Draining")
        assert noticed_after(status, marked) <= 1
        assert status["stop"]["origin"] == "Table"
        assert condition(world.history.resources["critic"], "Draining")["reason"] == "StopByTable"
        await world.release(task)
        stop = await world.stopped("critic", instance)
        assert (stop["origin"], stop["graceful"], stop["exitCode"]) == ("Table", True, 0)
        await world.phase("critic", "Stopped")
        item = world.history.resources["critic"]
        assert item["spec"] == created["spec"]
        assert item["metadata"]["generation"] == 1
        assert spec_managers(item) == spec_managers(created)
        await world.assert_finished_once(task)
        assert len(world.history.pod_names("critic")) == 1


@pytest.mark.accept("L-10")
async def test_a_mark_is_seen_within_five_seconds_without_the_trigger(world: World) -> None:
    await world.drop_trigger()
    async with world.operator(poll_seconds=OperatorSettings.model_fields["poll_seconds"].default):
        # An agent that does not read the table itself: only the operator can bring it the news.
        liveness = world.liveness(intervalSeconds=60)
        created = await world.create("plain", shell(IGNORES_THE_TABLE), liveness=liveness)
        pod = await world.pod_running("plain")
        uid = pod["metadata"]["uid"]
        await world.insert_row(uid, process_kind="plain", liveness_interval_s=60.0)
        await world.phase("plain", "Running")
        await world.polled()  # nothing is later than a mark that has just missed a poll
        marked = datetime.now(UTC)
        await world.mark(uid)
        status = await world.phase("plain", "Draining", "Stopped")
        assert noticed_after(status, marked) <= 5
        stop = await world.stopped("plain", uid)
        assert (stop["origin"], stop["graceful"], stop["exitCode"]) == ("Table", True, 0)
        await world.phase("plain", "Stopped")
        item = world.history.resources["plain"]
        assert (item["spec"], item["metadata"]["generation"]) == (created["spec"], 1)
        assert spec_managers(item) == spec_managers(created)
        assert len(world.history.pod_names("plain")) == 1


@pytest.mark.accept("L-10", "L-12")
async def test_what_follows_a_table_stop_is_for_spec_to_say(world: World) -> None:
    async def stopped(name: str) -> str:
        instance = await world.running(name)
        await world.mark(instance)
        stop = await world.stopped(name, instance)
        assert stop["origin"] == "Table"
        return instance

    async with world.operator():
        await all_of(
            world.create("stays"),
            world.create("returns", onExternalStop="Restart"),
            world.create("token"),
            world.create("toggle"),
        )
        stays, returns, token, toggle = await all_of(
            stopped("stays"), stopped("returns"), stopped("token"), stopped("toggle")
        )
        await world.next_instance("returns", returns)
        await all_of(world.phase("stays", "Stopped"), world.phase("toggle", "Stopped"))
        # A new token starts an agent that was stopped through the table.
        await world.change("token", restartToken="again")
        await world.next_instance("token", token)
        # Whoever asks for the stop of what has stopped takes it over, so that the way back starts it.
        await world.stop("toggle")
        await world.until("toggle", lambda s: s["stop"]["origin"] == "Resource")
        await world.start("toggle")
        await world.next_instance("toggle", toggle)
        assert world.status("stays")["instance"]["id"] == stays
        assert world.status("stays")["phase"] == "Stopped"
        # A changed template is no request to start.
        changed = world.manifest("stays")["spec"]["template"]
        changed["metadata"] = {"labels": {"changed": "yes"}}
        await world.change("stays", template=changed)
        await world.until("stays", lambda s: s["observedGeneration"] == 2)
        assert len(world.history.pod_names("stays")) == 1


@pytest.mark.accept("L-10")
async def test_the_operators_own_mark_is_never_taken_for_somebody_elses(world: World) -> None:
    async with world.operator():
        await world.create("critic", onExternalStop="Stay")
        first = await world.running("critic")
        task = await world.busy("critic")
        await world.change("critic", restartToken="1")
        await world.phase("critic", "Draining")

    # The operator that marked the row is gone; its successor finds a marked row and an agent that drains.
    async with world.operator():
        await asyncio.sleep(1)
        await world.release(task)
        assert (await world.stopped("critic", first))["origin"] == "Replacement"
        await world.next_instance("critic", first)


@pytest.mark.accept("L-10")
async def test_a_mark_during_a_disruption_turns_it_into_a_table_stop(world: World) -> None:
    async with world.operator():
        await world.create("critic")
        instance = await world.running("critic")
        task = await world.busy("critic")
        await world.api.evict(world.namespace, world.pod_name("critic"))
        status = await world.phase("critic", "Draining")
        assert status["stop"]["origin"] == "Disruption"
        assert (await world.row(instance))["desired_state"] is None, "the operator marks no row here"
        await world.mark(instance)
        await world.until("critic", lambda s: s["stop"]["origin"] == "Table")
        await world.release(task)
        assert (await world.stopped("critic", instance))["origin"] == "Table"
        await world.phase("critic", "Stopped")
