"""Making and ending instances: what is refused, what is stopped, and what one may do to another."""

import asyncio
import contextlib
import errno
import os
from pathlib import Path
from typing import Any

import psutil
import pytest
from structlog.testing import capture_logs
from tests.integration.control.instances.hosting import SOON, Clock, hosting
from tests.support.agents import hostile_command, read_journal, scripted_command
from tests.support.wait import eventually

from tenure.control.acp import Host, Launch, Link
from tenure.control.instances import CreateRefused, StopFailed, Timing


def digest(root: Path) -> dict[str, Any]:
    """Every path below it, with content and times."""
    return {
        str(path.relative_to(root)): (
            path.lstat().st_mtime_ns,
            path.lstat().st_mode,
            path.read_bytes() if path.is_file() else None,
        )
        for path in sorted(root.rglob("*"))
    }


def alive(pid: int) -> bool:
    """Whether it runs; one that ended and whose parent has not looked yet does not."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


async def test_an_enumeration_tells_everything_that_a_recovery_needs(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        hosted = await host.made(
            id="one",
            session_id="s1",
            task_id="t1",
            env={"RUN_ID": "run-7", "KEY": "secret"},
            workspace_source_roots=[str(host.workspace("sources"))],
        )
        reader = await host.attached(hosted)
        provider = await reader.opened()
        (listed,) = host.instances.enumerate()
        assert (listed.id, listed.port, listed.status) == ("one", 4321, "running")
        assert listed.workspace_path == str(host.workspace())
        assert listed.workspace_source_roots == (str(host.workspace("sources")),)
        assert (listed.session_id, listed.task_id) == ("s1", "t1")
        assert {name: value.reveal() for name, value in listed.env.items()} == {
            "RUN_ID": "run-7",
            "KEY": "secret",
        }
        assert listed.provider_session_id == provider
        assert listed.agent_command == scripted_command(host.journal)


async def test_agents_get_the_server_s_environment_without_its_secrets_and_with_what_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_NONCE", "secret")
    monkeypatch.setenv("INHERITED", "yes")
    monkeypatch.setenv("OVERRIDDEN", "old")
    async with hosting(tmp_path, scrub=frozenset({"TENURE_NONCE"})) as host:
        _, reader = await host.ready(env={"OVERRIDDEN": "new", "ASKED": "yes"})
        await reader.prompt("environ seen.json")
        await reader.until("complete")
        seen = (host.workspace() / "seen.json").read_text()
        assert '"INHERITED": "yes"' in seen
        assert '"OVERRIDDEN": "new"' in seen
        assert '"ASKED": "yes"' in seen
        assert "TENURE_NONCE" not in seen


async def test_a_session_with_a_live_instance_is_refused_until_that_is_gone(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        first = await host.made(session_id="s1")
        with pytest.raises(CreateRefused) as refused:
            host.instances.admit(host.request(session_id="s1"))
        assert (refused.value.status, refused.value.error) == (409, "session_in_use")
        host.instances.admit(host.request(session_id="s2"))
        await host.instances.stop(first.id)
        host.instances.admit(host.request(session_id="s1"))


async def test_an_instance_whose_agent_ended_stays_readable_and_frees_its_session(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        hosted, reader = await host.ready(session_id="s1")
        turn = await reader.prompt("exit 0")
        await reader.until("agent_exited")
        assert [one.status for one in host.instances.enumerate()] == ["stopped"]
        assert hosted.outcome().turn_id == turn
        host.instances.admit(host.request(session_id="s1"))
        assert await host.instances.stop(hosted.id)


async def test_a_session_is_not_free_while_anything_lives_that_its_agent_started(tmp_path: Path) -> None:
    """What a backend starts may be a wrapper: the agent that works on the workspace is its child then."""
    left = tmp_path / "left"
    async with hosting(tmp_path) as host:
        command = hostile_command("leaves", str(left), "quiet")
        _, reader = await host.ready(session_id="s1", agent_command=command)
        await reader.prompt("leave")
        await eventually(lambda: left.read_text() if left.exists() else "", within=SOON, every=0.001)
        child = psutil.Process(int(left.read_text()))
        lived = []

        def admitted() -> bool:
            lived.append(alive(child.pid))
            with contextlib.suppress(CreateRefused):
                host.instances.admit(host.request(session_id="s1"))
                return True
            return False

        await eventually(admitted, within=SOON, every=0.001)
        # At the time of the first attempt it did live, or this says nothing.
        assert lived[0]
        assert not lived[-1]
        assert [one.status for one in host.instances.enumerate()] == ["stopped", "starting"]


async def test_an_id_is_taken_as_it_is_chosen_and_only_once(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        assert host.instances.admit(host.request(id="mine")).id == "mine"
        with pytest.raises(CreateRefused) as refused:
            host.instances.admit(host.request(id="mine"))
        assert (refused.value.status, refused.value.error) == (409, "id_in_use")


async def test_an_agent_that_does_not_start_leaves_no_instance(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        hosted = host.instances.admit(host.request(agent_command="/nowhere/agent", auto_start=True))
        with capture_logs() as logged, pytest.raises(CreateRefused) as refused:
            await host.instances.launch(hosted)
        assert refused.value.status == 500
        (told,) = [line for line in logged if line["event"] == "an agent did not start"]
        assert os.strerror(errno.ENOENT) in told["problem"]
        assert "/nowhere" not in told["problem"], "a command may hold secrets"
        assert host.instances.enumerate() == ()


@pytest.mark.accept("S-001.10")
async def test_a_stop_ends_agent_and_descendants_and_concurrent_stops_are_one(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        hosted, reader = await host.ready(
            agent_command=scripted_command(host.journal, "--linger"), session_id="s1"
        )
        await reader.prompt("spawn sleep 600\nexec sleep 600")
        agent = psutil.Process(read_journal(host.journal, "started")[0]["pid"])
        await eventually(lambda: len(agent.children(recursive=True)) >= 2, within=SOON)
        family = [agent, *agent.children(recursive=True)]
        async with asyncio.timeout(SOON):
            stops = await asyncio.gather(*(host.instances.stop(hosted.id) for _ in range(5)))
        assert stops == [True] * 5
        assert not any(alive(process.pid) for process in family)
        assert host.instances.enumerate() == ()
        assert await host.instances.stop(hosted.id) is False


async def test_a_caller_that_goes_away_does_not_take_the_stop_with_it(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        hosted = await host.made()
        caller = asyncio.create_task(host.instances.stop(hosted.id))
        await eventually(lambda: hosted.status == "stopping", within=SOON, every=0.001)
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        await eventually(lambda: not host.instances.enumerate(), within=SOON)


async def test_an_instance_that_is_stopping_is_live_and_accepts_nothing(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        hosted, reader = await host.ready(
            agent_command=scripted_command(host.journal, "--linger"), session_id="s1"
        )
        stop = asyncio.create_task(host.instances.stop(hosted.id))
        await eventually(lambda: hosted.status == "stopping", within=SOON, every=0.001)
        with pytest.raises(CreateRefused, match="session_in_use"):
            host.instances.admit(host.request(session_id="s1"))
        assert await reader.refused("agent.prompt", {"text": "say x"}) == "stopping"
        assert await stop


async def test_all_instances_are_stopped_at_the_same_time_and_none_is_admitted_then(tmp_path: Path) -> None:
    async with hosting(tmp_path) as host:
        for _ in range(4):
            await host.made(agent_command=scripted_command(host.journal, "--linger"))
        pids = [entry["pid"] for entry in read_journal(host.journal, "started")]
        async with asyncio.timeout(SOON):
            await host.instances.stop_all()
        assert not any(alive(pid) for pid in pids)
        assert host.instances.enumerate() == ()
        with pytest.raises(CreateRefused, match="shutting_down"):
            host.instances.admit(host.request())


async def test_an_agent_that_cannot_be_ended_is_said_to_be_there_and_can_be_tried_again(
    tmp_path: Path,
) -> None:
    links: list[Link] = []

    async def start(launch: Launch, host: Host) -> Link:
        links.append(await Link.start(launch, host))
        return links[-1]

    async with hosting(tmp_path, start_agent=start) as host:
        hosted = await host.made(session_id="s1")
        real = links[0].stop

        async def too_short(budget: float) -> Any:
            raise_after = asyncio.get_running_loop().create_future()
            await raise_after

        links[0].stop = too_short  # type: ignore[method-assign]
        with pytest.raises(StopFailed):
            await host.instances.stop(hosted.id)
        assert [one.status for one in host.instances.enumerate()] == ["stopping"]
        links[0].stop = real  # type: ignore[method-assign]
        assert await host.instances.stop(hosted.id)
        assert host.instances.enumerate() == ()


async def test_a_stop_during_the_start_waits_for_it_and_leaves_nothing(tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def start(launch: Launch, host: Host) -> Link:
        await gate.wait()
        return await Link.start(launch, host)

    async with hosting(tmp_path, start_agent=start) as host:
        hosted = host.instances.admit(host.request(auto_start=True))
        launching = asyncio.create_task(host.instances.launch(hosted))
        await asyncio.sleep(0)
        stopping = asyncio.create_task(host.instances.stop(hosted.id))
        await eventually(lambda: hosted.status == "stopping", within=SOON, every=0.001)
        gate.set()
        assert await stopping
        await asyncio.gather(launching, return_exceptions=True)
        assert host.instances.enumerate() == ()
        for entry in read_journal(host.journal, "started"):
            assert not alive(entry["pid"])


HOSTILE = {
    "garbage": ("garbage", "5000"),
    "a long line": ("long", "10000000"),
    "a line without end": ("endless",),
    "nesting": ("deep",),
    "closed output": ("closes-output",),
    "closed input": ("closes-input",),
    "a crash": ("crash", "3"),
    "SIGTERM ignored": ("ignores-term",),
    "frozen": ("freezes",),
    "reads nothing": ("deaf",),
    "a flood of updates": ("flood",),
    "a flood of requests": ("floods-requests",),
    "a flood of errors": ("floods-stderr",),
}


@pytest.mark.parametrize("what", HOSTILE)
async def test_what_one_agent_does_harms_no_other_instance(tmp_path: Path, what: str) -> None:
    async with hosting(tmp_path) as host:
        bad, one = await host.ready(agent_command=hostile_command(*HOSTILE[what]))
        good, other = await host.ready()
        await one.prompt("go")
        await other.prompt("updates 200")
        assert len(await other.until("complete")) == 201
        async with asyncio.timeout(SOON):
            assert await host.instances.stop(bad.id)
            await one.closed()
        await other.prompt("say unharmed")
        await other.until("complete")
        assert [listed.id for listed in host.instances.enumerate()] == [good.id]


async def test_a_bomb_of_processes_is_stopped_and_harms_no_other_instance(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    async with hosting(tmp_path) as host:
        bad, one = await host.ready(agent_command=hostile_command("bomb", "40", str(pids)))
        _, other = await host.ready()
        await one.prompt("go")
        await eventually(lambda: pids.exists() and len(pids.read_text().split()) >= 30, within=SOON)
        async with asyncio.timeout(SOON):
            with contextlib.suppress(StopFailed):
                await host.instances.stop(bad.id)
        await eventually(lambda: _stopped(host, bad.id), within=30.0)
        assert not any(alive(int(pid)) for pid in pids.read_text().split())
        await other.prompt("say unharmed")
        await other.until("complete")


async def _stopped(host: Any, instance_id: str) -> bool:
    with contextlib.suppress(StopFailed):
        await host.instances.stop(instance_id)
    return host.instances.find(instance_id) is None


@pytest.mark.accept("S-001.7")
async def test_hosting_detaching_and_stopping_leave_the_workspace_alone(tmp_path: Path) -> None:
    async with hosting(tmp_path, retention_limit=5) as host:
        work = host.workspace()
        (work / "notes.txt").write_text("mine")
        (work / "folder").mkdir()
        (work / "link").symlink_to("notes.txt")
        before = digest(work)
        hosted, reader = await host.ready()
        await reader.prompt("updates 50")
        await host.detached(hosted, reader)
        await eventually(lambda: hosted.outbox.paused, within=SOON)
        again = await host.attached(hosted)
        await again.until("complete")
        await again.prompt("sleep 600")
        await host.instances.close_streams()
        await host.instances.stop(hosted.id)
        other, second = await host.ready()
        await second.prompt("die 9")
        await second.until("agent_exited")
        await host.instances.stop(other.id)
        assert digest(work) == before


async def test_an_idle_instance_is_reaped_and_one_with_a_turn_a_request_or_an_outcome_is_not(
    tmp_path: Path,
) -> None:
    clock = Clock()
    async with hosting(tmp_path, clock=clock, idle_timeout=3600.0) as host:
        idle, _ = await host.ready()
        turn, one = await host.ready()
        await one.prompt("wait go")
        asks, two = await host.ready()
        await two.prompt("permission May I?")
        await two.until("permission_request")
        kept, three = await host.ready()
        kept_turn = await three.prompt("say done")
        await three.until("complete")
        command, four = await host.ready()
        command_turn = await four.prompt("start sleep 600")
        await four.until("complete")
        command.acknowledge(command_turn)
        ended, five = await host.ready()
        ended_turn = await five.prompt("exit 3")
        await five.until("agent_exited")

        clock.now += 3599.0
        host.instances.reap()
        assert len(host.instances.enumerate()) == 6
        clock.now += 1.0
        host.instances.reap()
        await eventually(lambda: host.instances.find(idle.id) is None, within=SOON)
        left = {one.id for one in host.instances.enumerate()}
        assert left == {turn.id, asks.id, kept.id, command.id, ended.id}

        kept.acknowledge(kept_turn)
        ended.acknowledge(ended_turn)
        host.instances.reap()
        await eventually(lambda: host.instances.find(kept.id) is None, within=SOON)
        await eventually(lambda: host.instances.find(ended.id) is None, within=SOON)
        assert {one.id for one in host.instances.enumerate()} == {turn.id, asks.id, command.id}


async def test_idle_instances_are_looked_for_again_and_again_until_cancelled(tmp_path: Path) -> None:
    clock = Clock()
    async with hosting(tmp_path, clock=clock, idle_timeout=5.0, timing=Timing(scan=0.02)) as host:
        scan = asyncio.create_task(host.instances.run())
        for _ in range(2):
            await host.made()
            clock.now += 5.0
            await eventually(lambda: not host.instances.enumerate(), within=SOON)
        scan.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await scan


async def test_without_an_idle_timeout_nothing_is_reaped(tmp_path: Path) -> None:
    async with hosting(tmp_path, idle_timeout=0.0, timing=Timing(scan=0.001)) as host:
        await asyncio.wait_for(host.instances.run(), SOON)
