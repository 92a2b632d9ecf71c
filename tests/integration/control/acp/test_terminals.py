"""Commands that an agent has the server run begin and end with it."""

import asyncio
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.integration.control.acp.conftest import BUDGET, Start, alive
from tests.support.agents import hostile
from tests.support.agents.host import Recorder
from tests.support.wait import eventually

from tenure.control.acp.contract import AgentExit
from tenure.control.acp.process import Child, children
from tenure.control.acp.terminals import ENDED_WITHIN


async def test_a_command_that_is_read_of_when_its_agent_has_ended_is_not_begun(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an agent wrote waits while nobody takes its events; its processes are looked for at its end only."""
    host = Recorder(limit=1)
    link, _ = await start(hostile("last-order", str(tmp_path / "begun")), host=host)
    begun: list[Any] = []
    begin = Child.start

    def beginning(*order: Any, **more: Any) -> Child:
        begun.append(order)
        return begin(*order, **more)

    monkeypatch.setattr(Child, "start", beginning)
    turn = asyncio.create_task(link.prompt("go", ()))
    await eventually(lambda: link.gone and host.waiting, within=60)
    assert host.texts == ["0"]
    host.take_all()
    await asyncio.gather(turn, return_exceptions=True)
    await eventually(lambda: host.of("agent_exited"), within=60)
    assert host.texts == ["0", "1"]
    await link.stop(BUDGET)
    assert begun == []


async def test_terminals_die_with_their_instance(start: Start, workspace: Path) -> None:
    link, _ = await start()
    await link.prompt("start trap '' TERM; sleep 600 & echo $! > inner; echo $$ > outer; wait; sleep 600", ())
    await eventually(lambda: (workspace / "outer").exists() and (workspace / "outer").read_text(), within=60)
    # A command without the mark: known because the server itself started it.
    await link.prompt("start echo $$ > bare; exec env -i sleep 600", ())
    await eventually(lambda: (workspace / "bare").exists() and (workspace / "bare").read_text(), within=60)
    ids = [int((workspace / name).read_text()) for name in ("outer", "inner", "bare")]
    assert all(alive(pid) for pid in ids)
    await asyncio.wait_for(link.stop(BUDGET), BUDGET + 1.0)
    assert not any(alive(pid) for pid in ids)
    assert not children() & {*ids, link.pid}


@pytest.mark.parametrize("late", [0.5, 2.0])
@pytest.mark.parametrize("script", ["start sleep 600", "release sleep 600"])
async def test_a_command_whose_end_is_noticed_late_is_reaped(
    start: Start, late: float, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Late: a loop that has much to do. Until somebody waits for it, a process that ended is a zombie."""
    ended = Child._ended

    def notice(child: Child, status: AgentExit) -> None:
        asyncio.get_running_loop().call_later(0 if child.pid == link.pid else late, ended, child, status)

    monkeypatch.setattr(Child, "_ended", notice)
    # Fixtures of the session have processes, too.
    before = set(psutil.Process().children())
    link, _ = await start()
    await link.prompt(script, ())
    commands = children() - {link.pid}
    assert len(commands) == 1
    await link.stop(10.0)
    if late < ENDED_WITHIN:
        assert not children()
    await eventually(lambda: not children(), within=60)
    assert set(psutil.Process().children()) <= before
