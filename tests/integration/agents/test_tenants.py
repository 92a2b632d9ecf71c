"""Two tenants: no field, status edit or planted object of one reaches what is the other's."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.integration.agents.history import condition, owner_of
from tests.integration.agents.world import OBEDIENT, World, all_of, shell
from tests.support.api import Object, path
from tests.support.operator import database, running_operator
from tests.support.postgres import PostgresServer
from tests.support.wait import eventually

MakeWorld = Callable[..., Awaitable[World]]


def planted(name: str, owner: Object, **meta: object) -> Object:
    """A pod that claims to be an agent's."""
    reference = {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }
    return {
        "metadata": {
            "name": name,
            "labels": {"tenure.dev/role": "agent"},
            "ownerReferences": [reference],
            **meta,
        },
        "spec": {"containers": [{"name": "agent", "image": "example.invalid/foreign:1"}]},
    }


@pytest.mark.accept("K-9")
async def test_an_edited_status_reaches_no_foreign_pod(world: World) -> None:
    async with world.operator():
        await all_of(world.create("mine", shell(OBEDIENT)), world.create("yours", shell(OBEDIENT)))
        mine, yours = await all_of(world.running("mine"), world.running("yours"))
        victim = world.history.pods[yours]["metadata"]
        stranger: Object = {
            "metadata": {"name": "stranger"},
            "spec": {
                "containers": [{"name": "c", "image": "example.invalid/c:1", "command": shell(OBEDIENT)}]
            },
        }
        other = await world.api.create(path("pods", world.namespace), stranger)
        for name, uid in ((victim["name"], victim["uid"]), ("stranger", other["metadata"]["uid"])):
            # Whoever may edit the status says that somebody else's pod is this agent's instance, and stops it.
            forged = {"id": uid, "podName": name, "ordinal": 1}
            await world.api.patch(
                f"{world.url_of('mine')}/status", {"status": {"instance": forged, "stop": None}}
            )
            await world.stop("mine")
            await asyncio.sleep(1)
            await world.start("mine")
        assert "deletionTimestamp" not in world.history.pods[yours]["metadata"]
        found = await world.api.get(path("pods", world.namespace, "stranger"))
        assert "deletionTimestamp" not in found["metadata"]
        assert world.status("yours")["phase"] == "Running"
        world.forgiven += ["the ordinal went", "two pods of mine"]
        assert mine


@pytest.mark.accept("K-9")
async def test_a_status_forged_while_no_operator_looks_reaches_no_foreign_pod_row_or_ledger(
    world: World,
) -> None:
    """Nobody sets it right before it is acted upon: it is the first that the next operator sees."""
    names = ("pod", "row", "yours")
    async with world.operator():
        await all_of(*(world.create(name, shell(OBEDIENT), liveness=world.liveness()) for name in names))
        pods = await all_of(*map(world.pod_running, names))
        _, own, yours = [pod["metadata"]["uid"] for pod in pods]
        await world.insert_row(yours, process_kind="row", liveness_interval_s=600.0)
        await all_of(*(world.phase(name, "Running") for name in names))
    by_pod: Object = {
        "phase": "Draining",
        "instance": {"id": yours, "podName": world.pod_name("yours"), "rowID": yours, "ordinal": 1},
        "stop": {"instance": yours, "origin": "Resource", "requestedAt": "2026-01-01T00:00:00Z"},
    }
    for name, forged in (("pod", by_pod), ("row", {"instance": {"rowID": yours}})):
        await world.api.patch(f"{world.url_of(name)}/status", {"status": forged})
        await world.stop(name)
    async with world.operator():
        # What a stop ends is the own pod, whatever row the status names; who names another's pod waits for it.
        await world.stopped("row", own)
        await world.until("row", lambda s: s["stops"][-1].get("recorded"))
        await world.until("pod", lambda s: s["observedGeneration"] == 2)
        await asyncio.sleep(1)
        pod = world.history.pods[yours]
        assert "deletionTimestamp" not in pod["metadata"]
        assert pod["status"]["phase"] == "Running"
        row = await world.row(yours)
        assert row is not None
        assert row["desired_state"] is None
        assert world.status("yours")["phase"] == "Running"
        assert "stop" not in world.status("yours")
        entries = [entry for name in names for entry in await world.ledger(name)]
        assert {entry["pod_uid"] for entry in entries} == {own}


@pytest.mark.accept("K-9")
async def test_a_planted_pod_is_never_adopted(world: World) -> None:
    async with world.operator():
        created = await world.create("mine", shell(OBEDIENT), desiredState="StopRequested")
        await world.phase("mine", "Stopped")
        # The name of the first instance is no secret. Here is a pod of that name that somebody else owns.
        from tenure.model.ids import child_name

        name = child_name("mine", created["metadata"]["uid"], 1)
        body = planted(name, created)
        del body["metadata"]["ownerReferences"]
        foreign = await world.api.create(path("pods", world.namespace), body)
        await world.start("mine")
        instance = await world.running("mine")
        assert instance != foreign["metadata"]["uid"]
        assert world.status("mine")["instance"]["ordinal"] > 1, "the name is taken: a later number it is"
        found = await world.api.get(path("pods", world.namespace, name))
        assert found["metadata"]["uid"] == foreign["metadata"]["uid"]
        assert "deletionTimestamp" not in found["metadata"]


@pytest.mark.accept("K-9")
async def test_planted_pods_and_rows_of_one_namespace_do_not_reach_the_agents_of_another(
    make_world: MakeWorld, postgres_server: PostgresServer
) -> None:
    mine, theirs = await make_world(postgres_server), await make_world(postgres_server)
    databases = [
        database(mine.url, "mine", namespaces=[mine.namespace]),
        database(theirs.url, "theirs", namespaces=[theirs.namespace], store=False),
    ]
    namespaces = [mine.namespace, theirs.namespace]
    async with running_operator(mine.plane, databases=databases, namespaces=namespaces):
        await all_of(
            mine.create("critic", shell(OBEDIENT), liveness=mine.liveness(database="mine")),
            theirs.create("critic", shell(OBEDIENT), liveness=theirs.liveness(database="theirs")),
            # A name that is configured, and not for this namespace.
            theirs.create("greedy", shell(OBEDIENT), liveness=theirs.liveness(database="mine")),
        )
        uids = {w.namespace: (await w.pod_running("critic"))["metadata"]["uid"] for w in (mine, theirs)}
        mine_uid, theirs_uid = uids[mine.namespace], uids[theirs.namespace]
        await mine.insert_row(mine_uid, process_kind="critic", liveness_interval_s=600.0)
        await theirs.insert_row(theirs_uid, process_kind="critic", liveness_interval_s=600.0)
        await all_of(mine.phase("critic", "Running"), theirs.phase("critic", "Running"))
        refused = await theirs.condition("greedy", "Alive", "Unknown", "DatabaseNotAllowed")
        assert "mine" in refused["message"]
        assert "theirs" in refused["message"]
        # Their database says that my agent is to stop, and has ended; my pod's name is in their rows.
        greedy = (await theirs.pod_running("greedy"))["metadata"]
        await theirs.insert_row(mine_uid, process_kind="critic", desired_state="stop_requested")
        await theirs.insert_row(
            "own-id", process_kind="critic", hostname=mine.pod_name("critic"), desired_state="stop_requested"
        )
        # My database has a row for a pod of theirs that may not use it.
        await mine.insert_row(greedy["uid"], process_kind="greedy", desired_state="stop_requested")
        # A pod in their namespace that says that my agent owns it.
        theirs.forgiven.append("two pods of critic")
        body = planted(
            "planted", mine.history.resources["critic"], annotations={"tenure.dev/liveness-database": "mine"}
        )
        await theirs.api.create(path("pods", theirs.namespace), body)
        await asyncio.sleep(2.5)
        for world in (mine, theirs):
            assert world.status("critic")["phase"] == "Running"
            assert "stop" not in world.status("critic")
        assert theirs.status("greedy")["phase"] == "Running"
        assert condition(theirs.history.resources["greedy"], "Alive")["reason"] == "DatabaseNotAllowed"
        assert await theirs.is_marked(mine_uid)
        # A stop through the resource marks nothing in a database that is not theirs to use.
        await mine.sql(
            "UPDATE cks_agent_liveness SET desired_state = NULL WHERE instance_id = $1", greedy["uid"]
        )
        await theirs.stop("greedy")
        await theirs.stopped("greedy", greedy["uid"])
        assert not await mine.is_marked(greedy["uid"])
        # Nor does a deletion, whatever annotation the pod carries.
        assert mine.history.pods[mine_uid]["status"]["phase"] == "Running"


@pytest.mark.accept("K-9")
async def test_a_pod_with_a_foreign_owner_of_our_name_is_not_ours(world: World) -> None:
    async with world.operator():
        await world.create("critic", shell(OBEDIENT))
        await world.running("critic")
        owner = {**world.history.resources["critic"]}
        owner["metadata"] = {**owner["metadata"], "uid": "00000000-0000-0000-0000-000000000000"}
        world.forgiven.append("two pods of critic")
        body = planted("foreign-1", owner)
        await world.api.create(path("pods", world.namespace), body)
        await asyncio.sleep(0.5)
        assert world.status("critic")["instance"]["podName"] != "foreign-1"
        assert world.status("critic")["phase"] == "Running"
        # The garbage collector sees that this owner does not exist.
        await eventually(
            lambda: not [p for p in world.history.pods.values() if p["metadata"]["name"] == "foreign-1"],
            within=20,
        )
        assert all(owner_of(pod) == "critic" for pod in world.history.pods.values())
        assert len(world.history.pods_of("critic")) == 1


@pytest.mark.accept("K-9")
async def test_an_operator_leaves_the_namespaces_alone_that_are_not_its_own(
    make_world: MakeWorld, postgres_server: PostgresServer
) -> None:
    mine = await make_world(postgres_server)
    theirs = await make_world(postgres_server, url=mine.url)
    async with mine.operator():
        await theirs.create("critic", shell(OBEDIENT))
        await mine.create("critic", shell(OBEDIENT))
        await mine.running("critic")
        await asyncio.sleep(0.5)
        assert not theirs.history.pods
        assert "status" not in theirs.history.resources["critic"]
