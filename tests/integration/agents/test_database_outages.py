"""A database that is down or frozen makes everything about rows Unknown, and nobody pays for it with his life."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest
from tests.integration.agents.history import condition
from tests.integration.agents.world import CRASHES_WHEN_TOLD, DEAF, OBEDIENT, World, all_of, shell
from tests.support.postgres import PostgresServer, running_postgres
from tests.support.wait import eventually

# asyncpg drops a socket without closing it when a server dies while a connection to it is being made.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

RESTART = {"policy": "Restart", "afterIntervals": 3}


@pytest.mark.accept("L-15")
async def test_an_outage_shows_as_unknown_kills_nobody_and_heals(
    make_world: Callable[..., Awaitable[World]], own_postgres: PostgresServer
) -> None:
    with running_postgres() as other:
        stopped, frozen = await make_world(own_postgres), await make_world(other)
        await all_of(
            outage(stopped, PostgresServer.stop, PostgresServer.start),
            outage(frozen, PostgresServer.freeze, PostgresServer.thaw),
        )
        await frozen.leave()


async def outage(
    world: World, fail: Callable[[PostgresServer], None], return_: Callable[[PostgresServer], None]
) -> None:
    """Thirteen seconds without a database, with agents whose policy is to restart the hung."""
    async with world.operator() as operator:
        await all_of(
            world.create("critic", hung=RESTART, liveness=world.liveness(intervalSeconds=2)),
            world.create("silent", shell(OBEDIENT), hung=RESTART, liveness=world.liveness(intervalSeconds=2)),
            world.create("plain", shell(OBEDIENT)),
        )
        critic, silent, plain = await all_of(
            world.running("critic"), world.pod_running("silent"), world.running("plain")
        )
        # An agent that no longer heartbeats when the database is back: stale, but not yet for long enough.
        await world.insert_row(silent["metadata"]["uid"], process_kind="silent", liveness_interval_s=2.0)
        await world.phase("silent", "Running")
        # In a thread: it takes seconds, in which an operator in this loop would see nothing.
        await asyncio.to_thread(fail, world.server)
        began = time.monotonic()
        await all_of(world.phase("critic", "Unknown"), world.phase("silent", "Unknown"))
        alive = condition(world.history.resources["critic"], "Alive")
        assert (alive["status"], alive["reason"]) == ("Unknown", "DatabaseUnavailable")
        assert operator.metric("tenure_database_errors_total") > 0
        # Longer than it takes for a row to expire and the agent to count as hung.
        await asyncio.sleep(max(0.0, 13 - (time.monotonic() - began)))
        for name, instance in (("critic", critic), ("silent", silent["metadata"]["uid"])):
            assert world.history.phases(name)[-1] == "Unknown"
            assert world.status(name)["instance"]["id"] == instance
            assert "stop" not in world.status(name)
            assert len(world.history.pod_names(name)) == 1
        assert world.status("plain")["phase"] == "Running", "who has no table does not notice"
        status, _ = await operator.page("healthz")
        assert status == 200
        await asyncio.to_thread(return_, world.server)
        back = time.monotonic()
        beats = "SELECT 1 FROM cks_agent_liveness WHERE instance_id = $1 AND last_heartbeat_at > now() - interval '5 s'"
        await eventually(lambda: world.sql(beats, critic), within=15, what="the agent heartbeats again")
        # Two intervals of the agent's: it is judged by its row again, and nobody was hurt.
        await world.phase("critic", "Running", within=4)
        await world.condition("critic", "Alive", "True")
        # Every row is stale at once when a database returns: that alone hangs nobody, nor is it told.
        await world.until("silent", lambda s: s["phase"] != "Unknown")
        seen = list(world.history.versions("silent"))
        last = max(n for n, item in enumerate(seen) if item.get("status", {}).get("phase") == "Unknown")
        assert condition(seen[last + 1], "Alive")["reason"] == "Settling"
        await world.until("silent", lambda s: (s.get("stop") or {}).get("origin"), within=20)
        assert time.monotonic() - back > 4, "three intervals of two seconds after the return"
        assert world.status("silent")["stop"]["origin"] == "Replacement"
        assert world.status("critic")["instance"]["id"] == critic
        assert world.status("plain")["instance"]["id"] == plain
        assert "Hung" not in world.history.phases("critic")
        assert len(world.history.pod_names("critic")) == 1


@pytest.mark.accept("L-15")
async def test_rows_that_are_stale_when_an_operator_starts_hang_nobody_at_once(world: World) -> None:
    async with world.operator():
        await world.create("silent", shell(OBEDIENT), hung=RESTART, liveness=world.liveness())
        pod = await world.pod_running("silent")
        await world.insert_row(
            pod["metadata"]["uid"], process_kind="silent", age=5000, liveness_interval_s=1.0
        )
        await world.until("silent", lambda s: s["instance"].get("rowID"))
    async with world.operator():
        began = time.monotonic()
        await world.until("silent", lambda s: (s.get("stop") or {}).get("origin"), within=10)
        assert time.monotonic() - began > 2.5, "three intervals after the start"


@pytest.mark.accept("L-15")
async def test_a_stop_asked_for_in_an_outage_happens_and_is_marked_and_recorded_afterwards(
    frail_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("ledger", "agents"):
        monkeypatch.setattr(f"tenure.operator.passes.{module}.RETRY", 2.0)  # ten seconds, in life
    world = frail_world
    async with world.operator():
        await all_of(
            world.create("slow", shell(DEAF), liveness=world.liveness(), drain={"gracePeriodSeconds": 60}),
            world.create("quick", shell(OBEDIENT), liveness=world.liveness()),
        )
        slow, quick = [
            pod["metadata"]["uid"]
            for pod in await all_of(world.pod_running("slow"), world.pod_running("quick"))
        ]
        for uid, kind in ((slow, "slow"), (quick, "quick")):
            await world.insert_row(uid, process_kind=kind, liveness_interval_s=600.0)
        await all_of(world.phase("slow", "Running"), world.phase("quick", "Running"))
        world.server.stop()
        await world.phase("slow", "Unknown")
        await all_of(world.stop("slow"), world.stop("quick"))
        await world.phase("slow", "Draining")
        stop = await world.stopped("quick", quick)
        assert (stop["origin"], stop["graceful"]) == ("Resource", True)
        record = world.status("quick")["stops"][-1]
        assert not record.get("recorded"), "the ledger is in the database"
        await world.phase("quick", "Stopped")
        world.server.start()
        # The drain goes on, so the row is still worth marking.
        await eventually(lambda: world.is_marked(slow), within=10, what="the row is marked")
        await world.until("quick", lambda s: s["stops"][-1].get("recorded"), within=15)
        rows = await world.ledger("quick")
        assert [(row["origin"], row["graceful"], row["exit_code"]) for row in rows] == [("Resource", True, 0)]
        assert (await world.row(quick))["desired_state"] is None, "nobody is there to be asked"


@pytest.mark.accept("L-15", "L-10")
async def test_a_crash_in_an_outage_waits_for_the_word_of_the_row(frail_world: World) -> None:
    """A table stop may be in it: to restart without having looked would undo somebody's stop."""
    world = frail_world
    await world.drop_trigger()
    async with world.operator(poll_seconds=60):
        names = ("marked", "crashed", "returns")
        await all_of(
            *(world.create(name, shell(CRASHES_WHEN_TOLD), liveness=world.liveness()) for name in names[:2]),
            world.create(
                "returns", shell(CRASHES_WHEN_TOLD), liveness=world.liveness(), onExternalStop="Restart"
            ),
        )
        pods = await all_of(*(world.pod_running(name) for name in names))
        uids = dict(zip(names, (pod["metadata"]["uid"] for pod in pods), strict=True))
        # In this order: a row that a reading finds is read once more, by its key, and that may be after the mark.
        await world.pause_for_rows(*names)
        for name, uid in uids.items():
            await world.insert_row(uid, process_kind=name, liveness_interval_s=600.0)
        # The operator reads once a minute, and nobody tells it: it does not know of this.
        await all_of(world.mark(uids["marked"]), world.mark(uids["returns"]))
        world.server.freeze()
        for pod in pods:
            world.kubelet.kill(world.namespace, pod["metadata"]["name"], number=10)
        for name in names:
            await world.condition(name, "Ready", "Unknown", "NotObserved")
            assert world.status(name)["phase"] == "Unknown"
        world.server.thaw()
        await world.next_instance("crashed", uids["crashed"], phase="Starting")
        stop = await world.stopped("marked", uids["marked"])
        assert (stop["origin"], stop["exitCode"], stop["graceful"]) == ("Table", 3, False)
        assert len(world.history.pod_names("marked")) == 1
        await world.next_instance("returns", uids["returns"], phase="Starting")
        await world.phase("marked", "Stopped")
