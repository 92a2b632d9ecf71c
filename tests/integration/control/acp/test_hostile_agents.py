"""What an agent does wrong is the end of that agent at most, and nothing of it stays behind."""

import asyncio
import ctypes
import errno
import gc
import logging
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.integration.control.acp.conftest import BUDGET, Start, alive
from tests.support.agents import hostile, scripted
from tests.support.agents.host import Recorder
from tests.support.wait import eventually

from tenure.control.acp import AgentFailed, Link, proctable, stopping
from tenure.control.acp.process import children


async def stopped(link: Link) -> bool:
    return (await link.stop(BUDGET)).failure == ""


async def failure(link: Link, text: str = "go") -> str:
    with pytest.raises(AgentFailed) as failed:
        await link.prompt(text, ())
    return failed.value.code


FAILURES = [
    (("garbage", "50"), "invalid_output"),
    (("long", "10000000"), "line_too_long"),
    (("endless",), "line_too_long"),
    (("closes-output",), "closed_output"),
    (("closes-input",), "closed_input"),
    (("crash", "3"), "exited"),
]


@pytest.mark.parametrize(
    ("kind", "code"), FAILURES, ids=lambda value: value[0] if isinstance(value, tuple) else ""
)
async def test_an_agent_that_breaks_the_protocol_fails_alone(
    start: Start, kind: tuple[str, ...], code: str
) -> None:
    neighbour, heard = await start()
    turn = asyncio.create_task(neighbour.prompt("say before\nwait go\nsay after", ()))
    bad, host = await start(hostile(*kind))
    assert await failure(bad) == code
    ended = await asyncio.wait_for(asyncio.shield(bad.ended), 10)
    assert ended.failure == ("" if code == "exited" else code)
    assert (ended.code == 3) == (code == "exited")
    exited = await eventually(lambda: host.of("agent_exited"), within=60)
    assert exited[0].get("failure", "") == ended.failure
    assert host.events[-1][0] == "agent_exited"
    assert await failure(bad) == code
    await eventually(lambda: not alive(bad.pid) and bad.pid not in children(), within=60)
    (Path(neighbour._launch.cwd) / "go").touch()
    assert await turn == "end_turn"
    assert heard.texts == ["before", "after"]


async def test_a_little_garbage_is_told_and_put_up_with(start: Start) -> None:
    link, host = await start(hostile("garbage", "15"))
    assert await link.prompt("go", ()) == "end_turn"
    problems = [fields["problem"] for fields in host.of("invalid_output")]
    assert problems == [
        *("not_json", "not_json"),
        *("not_an_object",) * 4,
        *("no_message",) * 8,
        "not_json",
    ]
    assert "KANARIE" not in str(host.events)


async def test_what_an_agent_wrote_before_its_crash_is_told_before_its_failure(start: Start) -> None:
    link, host = await start(hostile("crash", "9"))
    assert await failure(link) == "exited"
    assert host.texts == ["0", "1", "2"]
    await eventually(lambda: host.of("agent_exited"), within=60)
    assert host.of("agent_exited") == [{"exit_code": 9, "signal": None}]


async def test_an_agent_that_is_killed_is_told_with_its_signal(start: Start) -> None:
    link, host = await start()
    assert await failure(link, "die 9") == "exited"
    assert (await link.ended).signal == signal.SIGKILL
    await eventually(lambda: host.of("agent_exited") == [{"exit_code": None, "signal": 9}], within=60)


async def test_nesting_without_end_is_garbage(start: Start) -> None:
    link, host = await start(hostile("deep"))
    assert await link.prompt("go", ()) == "end_turn"
    assert host.of("invalid_output") == [{"problem": "not_json", "count": 1}]


@pytest.mark.parametrize("kind", [kind for kind, _ in FAILURES], ids=lambda kind: kind[0])
async def test_nothing_that_an_agent_says_reaches_a_log(
    start: Start, caplog: pytest.LogCaptureFixture, kind: tuple[str, ...]
) -> None:
    caplog.set_level(logging.DEBUG)
    link, _ = await start(hostile(*kind))
    await failure(link)
    await link.stop(BUDGET)
    assert "KANARIE" not in caplog.text
    assert not [record for record in caplog.records if record.name == "root"]


KINDS = [
    ("ignores-term",),
    ("freezes",),
    ("deaf",),
    ("flood",),
    ("floods-requests",),
    ("floods-stderr",),
    ("endless",),
    ("closes-output",),
    ("closes-input",),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind[0])
async def test_any_agent_is_stopped_within_the_budget(
    start: Start, kind: tuple[str, ...], tmp_path: Path
) -> None:
    link, _ = await start(hostile(*kind))
    turn = asyncio.create_task(link.prompt("go", ()))
    await asyncio.wait([turn], timeout=0.3)
    ended = await asyncio.wait_for(link.stop(BUDGET), BUDGET + 1.0)
    assert ended.failure != "unstoppable"
    assert not psutil.pid_exists(link.pid)
    await asyncio.gather(turn, return_exceptions=True)


async def test_an_agent_that_reads_no_answers_costs_bounded_memory(start: Start, workspace: Path) -> None:
    (workspace / "big").write_text("x" * 4_000_000)
    link, _ = await start(hostile("deaf", str(workspace / "big")))
    turn = asyncio.create_task(link.prompt("go", ()))
    await eventually(lambda: link._transport.requests >= 32, within=30)
    # Until each of them has its answer, which waits to be sent.
    last = -1
    while last != (last := link._transport.unsent) or last < 4_000_000:
        await asyncio.sleep(0.3)
    assert last < 13_000_000
    await link.cancel()
    await asyncio.wait_for(link.stop(BUDGET), BUDGET + 1.0)
    assert link._transport.unsent == 0
    await asyncio.gather(turn, return_exceptions=True)


async def test_an_agent_that_never_answers_is_stopped_within_the_budget(start: Start) -> None:
    link, _ = await start(hostile("mute"), ready=False)
    asking = asyncio.create_task(link.initialize())
    await asyncio.sleep(0)
    assert link.busy
    await asyncio.wait_for(link.stop(BUDGET), BUDGET + 1.0)
    with pytest.raises(AgentFailed) as failed:
        await asking
    assert failed.value.code == "stopped"


async def test_children_that_left_group_session_parent_or_environment_are_stopped_too(
    start: Start, tmp_path: Path
) -> None:
    ids = tmp_path / "ids"
    link, _ = await start(hostile("escapes", str(ids)))
    assert await link.prompt("go", ()) == "end_turn"
    escaped = [int(pid) for pid in ids.read_text().split()]
    assert len(escaped) == 4
    assert all(alive(pid) for pid in escaped)
    await asyncio.wait_for(link.stop(BUDGET), BUDGET + 1.0)
    assert [alive(pid) for pid in (link.pid, *escaped)] == [False] * 5


@pytest.fixture
def takes_in_orphans() -> Iterator[None]:
    """As the control server does: what loses its parent becomes a child of this process."""
    set_child_subreaper = 36
    libc = ctypes.CDLL(None)
    assert libc.prctl(set_child_subreaper, 1, 0, 0, 0) == 0
    yield
    libc.prctl(set_child_subreaper, 0, 0, 0, 0)


@pytest.mark.usefixtures("takes_in_orphans")
@pytest.mark.parametrize("kind", ["escapes", "bomb", "leaves"])
async def test_orphans_that_the_server_takes_in_are_stopped_and_leave_no_zombie(
    start: Start, tmp_path: Path, kind: str
) -> None:
    ids = tmp_path / "ids"
    link, _ = await start(hostile(kind, *(["60"] if kind == "bomb" else []), str(ids)))
    await asyncio.gather(link.prompt("go", ()), return_exceptions=True)
    if kind == "leaves":
        await eventually(lambda: link.pid not in children(), within=60)
    assert (await link.stop(3.0)).failure == ""
    escaped = [int(pid) for pid in ids.read_text().split()]
    assert escaped
    await eventually(lambda: not any(psutil.pid_exists(pid) for pid in escaped), within=60)
    assert not [one for one in psutil.Process().children() if one.status() == psutil.STATUS_ZOMBIE]


async def test_a_fork_bomb_is_put_out_and_a_neighbour_goes_on(start: Start, tmp_path: Path) -> None:
    ids = tmp_path / "ids"
    neighbour, _ = await start()
    link, _ = await start(hostile("bomb", "200", str(ids)))
    turn = asyncio.create_task(link.prompt("go", ()))
    await eventually(lambda: ids.exists() and len(ids.read_text().split()) > 60, within=60)
    assert await asyncio.wait_for(neighbour.prompt("say on", ()), 30) == "end_turn"
    # Its own budget may not be enough on a busy machine; then it goes on, and says so.
    await asyncio.wait_for(link.stop(BUDGET), BUDGET + 5.0)
    await eventually(lambda: stopped(link), within=60)
    await asyncio.gather(turn, return_exceptions=True)
    assert not [pid for pid in map(int, ids.read_text().split()) if alive(pid)]


async def test_what_an_agent_leaves_behind_at_its_end_is_ended(start: Start, tmp_path: Path) -> None:
    left = tmp_path / "left"
    link, host = await start(hostile("leaves", str(left)))
    # The child holds the agent's output open: without its end, the end of the output would not come.
    assert await failure(link) == "exited"
    assert host.texts == ["last words"]
    await eventually(lambda: not alive(int(left.read_text())), within=60)


@pytest.mark.parametrize("kind", ["crash", "escapes", "ignores-term"])
async def test_where_process_handles_are_forbidden_ends_are_noticed_and_brought_about_all_the_same(
    start: Start, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(pid: int) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "pidfd_open", forbidden)
    ids = tmp_path / "ids"
    link, _ = await start(hostile(kind, "3" if kind == "crash" else str(ids)))
    await asyncio.gather(link.prompt("go", ()), return_exceptions=True)
    if kind == "crash":
        assert (await asyncio.wait_for(asyncio.shield(link.ended), 10)).code == 3
    assert (await link.stop(5.0)).failure == ""
    escaped = [int(pid) for pid in ids.read_text().split()] if kind == "escapes" else []
    assert not any(alive(pid) for pid in (link.pid, *escaped))


async def test_a_crowd_is_frozen_before_anything_else(start: Start, workspace: Path) -> None:
    link, _ = await start(scripted(None, "--linger"))
    await link.prompt(
        "start for i in $(seq 150); do sh -c 'while :; do sleep 0.01; done' & done; touch up; wait", ()
    )
    await eventually(lambda: (workspace / "up").exists(), within=30)
    family = link._family
    await stopping.look(family)
    crowd = [seen for seen in proctable.living(family) if seen.pid not in family.leaders]
    assert len(crowd) >= 150
    await eventually(
        lambda: {s.state for s in proctable.living(family) if s.pid not in family.leaders} == {"T"}, within=10
    )
    assert {s.state for s in proctable.living(family) if s.pid in family.leaders} <= {"S", "R"}
    await eventually(lambda: stopped(link), within=60)


async def test_agents_leave_the_processor_to_the_server(start: Start, workspace: Path) -> None:
    link, _ = await start()
    await link.prompt("exec nice > nice", ())
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, link.pid) == min(19, own + 10)
    assert int((workspace / "nice").read_text()) > own


async def test_a_polite_agent_is_asked_before_it_is_killed(start: Start, tmp_path: Path) -> None:
    from tests.support.agents import read_journal

    journal = tmp_path / "journal"
    link, host = await start(scripted(journal))
    turn = asyncio.create_task(link.prompt("wait never", ()))
    await eventually(lambda: read_journal(journal, "prompt"), within=60)
    ended = await link.stop(10.0)
    assert (ended.code, ended.signal) == (0, None)
    assert await turn == "cancelled"
    assert [entry["what"] for entry in read_journal(journal)][-3:] == ["cancelled", "finished", "closed"]
    assert not host.of("agent_exited")


async def test_stops_share_one_stop_and_stopping_again_is_the_same_answer(start: Start) -> None:
    link, _ = await start()
    first, second = await asyncio.gather(link.stop(BUDGET), link.stop(BUDGET))
    assert first == second == await link.stop(BUDGET)
    assert await failure(link) in ("stopped", "exited")


@pytest.mark.accept("S-001.6")
async def test_while_an_update_waits_nothing_more_is_read(start: Start, workspace: Path) -> None:
    host = Recorder(limit=100)
    link, _ = await start(host=host)
    process = psutil.Process()
    gc.collect()
    before = process.memory_info().rss
    turn = asyncio.create_task(link.prompt("updates 5000 1000 progress", ()))
    await eventually(lambda: host.waiting, within=30)

    def written() -> int:
        return int((workspace / "progress").read_text())

    # The agent blocks in its write: a pipe (64 KiB) and two readers' limits are full, and no more.
    last = -1
    while last != (last := written()) or last < 100:
        await asyncio.sleep(0.3)
    assert 100 <= last < 100 + (64 + 3 * 64) * 1024 // 1000 + 2
    assert len(asyncio.all_tasks()) < 15
    assert process.memory_info().rss - before < 8 * 1024 * 1024
    assert host.waiting == 1
    assert link.busy
    host.take_all()
    assert await turn == "end_turn"
    assert [text.strip() for text in host.texts] == list(map(str, range(5000)))


@pytest.mark.accept("S-001.10")
async def test_an_update_that_waits_does_not_hold_up_the_stop(start: Start) -> None:
    host = Recorder(limit=10)
    link, _ = await start(host=host)
    turn = asyncio.create_task(link.prompt("updates 5000 1000", ()))
    await eventually(lambda: host.waiting, within=30)
    ended = await link.stop(10.0)
    # What it still had to say was read and dropped: so it could end by itself.
    assert (ended.code, ended.signal, ended.failure) == (0, None, "")
    assert await turn == "cancelled"
    assert len(host.events) == 10
    assert host.waiting == 0


async def test_a_neighbour_is_served_while_agents_flood(start: Start) -> None:
    floods = [await start(hostile(kind)) for kind in ("flood", "floods-requests", "floods-stderr")]
    turns = [asyncio.create_task(link.prompt("go", ())) for link, _ in floods]
    neighbour, host = await start()
    began = time.monotonic()
    for number in range(20):
        await asyncio.wait_for(neighbour.prompt(f"say {number}", ()), 20)
    assert host.texts == list(map(str, range(20)))
    print(f"20 turns beside floods: {time.monotonic() - began:.2f} s")
    assert floods[2][0].stderr()
    assert sum(map(len, floods[2][0].stderr())) <= 64 * 1024
    for link, _ in floods:
        await link.stop(BUDGET)
    await asyncio.gather(*turns, return_exceptions=True)


async def test_a_program_that_cannot_be_run_is_a_failure_that_quotes_nothing(start: Start) -> None:
    with pytest.raises(AgentFailed) as failed:
        await start(("/no/such/program", "--key=KANARIE"))
    assert failed.value.code == "not_started"
    assert "KANARIE" not in str(failed.value)
    assert "no/such" not in str(failed.value)


async def test_no_descriptor_and_no_process_is_left(start: Start) -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    link, _ = await start()
    await link.prompt("run echo x\nstart sleep 600", ())
    await link.stop(BUDGET)
    before = open_files()
    for _ in range(5):
        link, _ = await start()
        await link.prompt("run echo x\nstart sleep 600", ())
        await link.stop(BUDGET)
        await asyncio.sleep(0.01)
    assert open_files() <= before
    assert not psutil.Process().children() or not [
        child for child in psutil.Process().children() if child.status() == psutil.STATUS_ZOMBIE
    ]
