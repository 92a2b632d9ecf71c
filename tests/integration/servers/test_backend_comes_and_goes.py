"""The backend is killed, deleted, rolled out and evicted in the middle of a turn; its agents never hear of it."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.integration.servers.history import container_of, incarnation
from tests.integration.servers.world import WITHIN, World, all_of
from tests.support.api import Object
from tests.support.wait import eventually

pytestmark = pytest.mark.timeout(240)
End = Callable[[World, Object], Awaitable[str]]


async def _killed(world: World, pod: Object) -> str:
    return world.kill_backend(pod)


async def _deleted(world: World, pod: Object) -> str:
    return await world.delete_pod(pod)


async def _deleted_at_once(world: World, pod: Object) -> str:
    return await world.delete_pod(pod, grace=0)


async def _rolled_out(world: World, pod: Object) -> str:
    await world.roll_out("2")
    return incarnation(pod)


async def _evicted(world: World, pod: Object) -> str:
    return await world.evict(pod)


@pytest.mark.accept(
    "K-1",
    "S-001.1",
    "S-001.2",
    "S-001.4",
    "S-003.2",
    "S-003.3",
    "S-003.4",
    "S-003.5",
    "O-002.1",
    "O-001.1",
    "M-1",
    "M-2",
)
@pytest.mark.parametrize("end", [_killed, _deleted, _deleted_at_once, _rolled_out, _evicted])
async def test_the_next_backend_goes_on_with_the_same_agents(world: World, end: End) -> None:
    async with world.operator() as operator:
        first = await world.set_up("s-1", "s-2")
        agents = [*world.evidence.pids("s-1"), *world.evidence.pids("s-2")]
        await world.working("s-1")
        record = await world.record()
        life = await end(world, first)
        second = await world.backend(other_than=[life])
        await world.attached(second, sessions=["s-1", "s-2"])
        world.open_gate("s-1")
        await world.evidence.outcomes("s-1", 1)
        world.evidence.prompt("s-1", "say more")
        world.evidence.prompt("s-2", "say first")
        await all_of(world.evidence.outcomes("s-1", 2), world.evidence.outcomes("s-2", 1))

        assert [*world.evidence.pids("s-1"), *world.evidence.pids("s-2")] == agents
        assert [*world.evidence.living("s-1"), *world.evidence.living("s-2")] == agents
        assert await world.turns("s-1") == ["completed", "completed"]
        for session in ("s-1", "s-2"):
            row = await world.session(session)
            assert (row["interrupted_at"], row["task_interrupted_at"], row["status"]) == (
                None,
                None,
                "running",
            )
        after = await world.record()
        assert after["server_identity"] == record["server_identity"]
        assert after["rotation_id"] == (record["rotation_id"] or 0) + 1
        assert operator.metric("tenure_adoptions_total", outcome="adopted", reason="none") == 1
        assert operator.metric("tenure_instances_retracked_total") == 2
        await world.condition("Recovered", "True")
        await world.condition("Ready", "True")
        await world.told("AdoptionAttempted", "Adopted")


@pytest.mark.accept("S-001.5", "S-004.1", "S-004.2", "S-004.3")
async def test_what_agents_do_while_nobody_is_there_is_told_to_the_next_backend(world: World) -> None:
    async with world.operator():
        first = await world.set_up("s-1")
        await world.working("s-1", "wait gate\nupdates 30\nsay the end")
        await world.scale(0)
        await eventually(lambda: not world.backends(), within=WITHIN, what="no backend is left")
        world.open_gate("s-1")
        await eventually(lambda: world.evidence.agent("s-1", "finished"), within=WITHIN)
        await world.scale(1)
        await world.backend(other_than=[incarnation(first)])
        # By recovery, before the session was published.
        assert await world.turns("s-1") == ["completed"]

        def heard() -> list[str]:
            chunks = world.evidence.backend("event", session="s-1", type="message_chunk")
            return [entry["text"] for entry in chunks]

        wanted = [*map(str, range(30)), "the end"]
        await eventually(lambda: heard()[-1:] == wanted[-1:], within=WITHIN, what="the last words are heard")
        assert list(dict.fromkeys(heard())) == wanted


@pytest.mark.accept("K-3")
async def test_of_two_backends_of_one_revision_one_is_the_owner_and_stays_it(world: World) -> None:
    async with world.operator() as operator:
        await world.create()
        await world.deploy(replicas=2, gate=False)
        first = await world.backend()
        await eventually(lambda: len(world.backends()) == 2, within=WITHIN)
        await world.condition("BackendOverlap", "True")
        agent = await world.launched("s-1")
        owner = incarnation(first)
        await world.until(lambda s: s.get("adoptedBy") == owner, what="the first one is the owner")
        # The other one comes and goes: nothing of that is about the owner.
        other = next(pod for pod in world.backends() if incarnation(pod) != owner)
        await world.delete_pod(other)
        former = {first["metadata"]["uid"], other["metadata"]["uid"]}

        def third() -> bool:
            others = [pod for pod in world.backends() if pod["metadata"]["uid"] not in former]
            return any("running" in container_of(pod).get("state", {}) for pod in others)

        await eventually(third, within=WITHIN, what="a third one stands by")
        await world.condition("BackendOverlap", "True")
        owners = {status["adoptedBy"] for status in world.history.statuses() if status.get("adoptedBy")}
        assert owners == {owner}
        assert operator.metric("tenure_adoptions_total", outcome="adopted", reason="none") == 0
        # Time for the operator to hear of the third one, if it has not yet.
        world.kubelet.restart_delay = 20.0
        world.kill_backend(first)
        second = await world.backend(other_than=[owner])
        world.kubelet.restart_delay = 0.1
        await world.attached(second, sessions=["s-1"])
        assert second["metadata"]["uid"] != first["metadata"]["uid"]
        assert world.evidence.living("s-1") == [agent]


@pytest.mark.accept("K-4", "O-003.1", "O-003.5", "S-002.7", "S-004.4", "S-003.1", "M-1")
async def test_a_backend_that_crashes_again_and_again_leaves_its_server_to_the_unowned_period(
    world: World,
) -> None:
    async with world.operator() as operator:
        first = await world.set_up("s-1", floor_seconds=3, idleTimeoutSeconds=12)
        server = await world.server_pod()
        await world.working("s-1")
        await world.sql(
            "UPDATE tenure.executors_running SET resume_token = 'token-1', worktree_id = 'tree-1'"
        )
        world.evidence.forgiven.append("turns lost")
        world.kubelet.restart_delay = 20.0
        life = world.kill_backend(first)
        fresh = await world.server_pod(other_than=[server["metadata"]["uid"]], within=90)
        world.kubelet.restart_delay = 0.1
        await world.backend(other_than=[life])
        assert not world.evidence.living("s-1")
        identity = (await world.record())["server_identity"]
        await world.until(
            lambda s: (s["serverIdentity"], s["pod"]["uid"]) == (identity, fresh["metadata"]["uid"]),
            what="the status names the fresh server",
        )
        row = await world.session("s-1")
        assert (row["state"], row["task"], row["status"]) == ("waiting_for_input", "review", "stopped")
        assert row["interrupted_at"] is not None
        assert (row["resume_token"], row["worktree_id"]) == ("token-1", "tree-1")
        assert await world.turns("s-1") == ["abandoned"]
        assert operator.metric("tenure_unowned_shutdowns_total") == 1
        assert operator.metric("tenure_adoptions_total", outcome="no_server", reason="no_answer") == 1
        await world.told("UnownedShutdown")
        world.open_gate("s-1")
        await world.launched("s-1", number=2)
        world.evidence.prompt("s-1", "say again")
        await world.evidence.outcomes("s-1", 1)


@pytest.mark.accept("K-5", "O-001.8", "S-002.7", "S-003.6")
@pytest.mark.parametrize("how", ["killed", "deleted"])
async def test_a_server_that_is_gone_is_replaced_and_its_sessions_say_so(world: World, how: str) -> None:
    async with world.operator():
        backend = await world.set_up("s-1", "s-2")
        server = await world.server_pod()
        uid = server["metadata"]["uid"]
        await world.working("s-1")
        pid = world.kubelet.container(world.namespace, backend["metadata"]["name"]).pid
        if how == "killed":
            world.kill_server(server)
        else:
            await world.delete_pod(server)
        await world.server_pod(other_than=[uid])
        await world.until(
            lambda s: (s.get("pod") or {}).get("uid") not in (None, uid) and s.get("recoveredBy")
        )
        await eventually(
            lambda: len(world.evidence.backend("found", pid=pid)) == 2,
            within=WITHIN,
            what="the backend, which was never restarted, has the fresh server",
        )
        # A server that is told to end still says what became of the turn, to a backend that listens.
        cut = await world.turns("s-1")
        assert cut in (["abandoned"], *([["failed"]] if how == "deleted" else []))
        assert (await world.session("s-1"))["state"] == "waiting_for_input"
        assert [(await world.session(each))["status"] for each in ("s-1", "s-2")] == ["stopped", "stopped"]
        assert not world.evidence.living("s-1") + world.evidence.living("s-2")
        await world.launched("s-1", number=2)
        world.evidence.prompt("s-1", "say again")
        await eventually(lambda: world.evidence.agent("s-1", "finished"), within=WITHIN)
        await eventually(lambda: world.evidence.backend("outcome", session="s-1", turn=2), within=WITHIN)
        assert await world.turns("s-1") == [*cut, "completed"]


@pytest.mark.accept("K-6")
async def test_the_hand_over_is_written_after_recovery_and_emptied_when_its_backend_ends(
    world: World,
) -> None:
    url = f"/api/v1/namespaces/{world.namespace}/secrets/main-handover"
    early: list[str] = []

    async def look() -> str:
        secret = await world.api.find(url)
        if secret is None or not any((secret.get("data") or {}).values()):
            return ""
        # Read after the Secret: what is in it by now was recorded before.
        record = await world.record()
        if record["recovered_by"] is None:
            early.append("a hand-over before recovery")
        return "written"

    async def watch() -> None:
        while True:
            await look()
            await asyncio.sleep(0.02)

    async with world.operator():
        watching = asyncio.create_task(watch())
        try:
            await world.create()
            await world.deploy()
            first = await world.backend()
            await eventually(look, within=WITHIN, what="the hand-over is written")
            await world.scale(0)
            await eventually(lambda: not world.backends(), within=WITHIN)

            async def emptied() -> bool:
                return not await look()

            await eventually(emptied, within=WITHIN, what="the hand-over is emptied")
            await world.scale(1)
            await world.backend(other_than=[incarnation(first)])
            await eventually(look, within=WITHIN, what="the hand-over is written again")
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
    assert not early
