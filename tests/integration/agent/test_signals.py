"""Signals, to real processes: as PID 1, under a shell that swallows them, and to agents that block."""

import os
import shutil
import signal
import sqlite3
import sys
from pathlib import Path

import pytest
from tests.integration.agent.processes import started
from tests.support.wait import eventually

ASYNC_AGENT = """
import asyncio
from tenure.agent import run

async def claim():
    return 1

async def work(task):
    print("working", flush=True)
    await asyncio.sleep(1)
    print("done", flush=True)

asyncio.run(run(claim, work))
print("ended", flush=True)
"""

BLOCKING_AGENT = """
import time
from tenure.agent import run_blocking

def claim():
    return 1

def work(task):
    print("working", flush=True)
    time.sleep(1)
    print("done", flush=True)

run_blocking(claim, work)
print("ended", flush=True)
"""

IDLE_AGENT = BLOCKING_AGENT.replace("return 1", "print('working', flush=True)").replace(
    "run_blocking(claim, work)", "run_blocking(claim, work, poll_interval=600)"
)


@pytest.mark.accept("L-4")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("code", [ASYNC_AGENT, BLOCKING_AGENT], ids=["asyncio", "blocking"])
async def test_a_signal_ends_an_agent_after_its_task(code: str, number: signal.Signals) -> None:
    async with started(sys.executable, "-c", code) as agent:
        await agent.said("working")
        agent.send(number)
        assert await agent.ended() == 0
        await eventually(lambda: agent.says("ended"), within=5)
    assert agent.lines.count("working") == agent.lines.count("done") == 1


async def test_an_idle_blocking_agent_ends_at_once() -> None:
    async with started(sys.executable, "-c", IDLE_AGENT) as agent:
        await agent.said("working")
        agent.send(signal.SIGTERM)
        assert await agent.ended(within=5) == 0


@pytest.mark.accept("L-4")
@pytest.mark.skipif(not shutil.which("unshare"), reason="PID 1 needs unshare, which Linux has")
async def test_it_works_as_pid_1() -> None:
    somebody = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    unshare = ["unshare", *somebody, "--pid", "--fork", "--kill-child", "--mount-proc"]
    code = "import os; assert os.getpid() == 1\n" + ASYNC_AGENT
    async with started(*unshare, sys.executable, "-c", code) as agent:
        await agent.said("working")
        (child,) = Path(f"/proc/{agent.process.pid}/task/{agent.process.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGTERM)
        assert await agent.ended() == 0
        await eventually(lambda: agent.says("ended"), within=5)
    assert agent.lines.count("working") == agent.lines.count("done") == 1


@pytest.mark.accept("L-4")
async def test_under_a_shell_that_swallows_sigterm_the_table_still_reaches_it(tmp_path: Path) -> None:
    path = tmp_path / "liveness.db"
    script = f"trap '' TERM; {sys.executable} -c \"$CODE\"; exit $?"
    environ = {
        "CODE": ASYNC_AGENT,
        "TENURE_DATABASE_URL": f"sqlite:///{path}",
        "TENURE_LIVENESS_INTERVAL": "0.2",
        "TENURE_INSTANCE_ID": "one",
    }
    async with started("/bin/sh", "-c", script, **environ) as agent:
        await agent.said("working")
        agent.send(signal.SIGTERM)  # to the shell, as the kubelet does
        with pytest.raises(AssertionError, match="still running"):
            await agent.ended(within=2)
        connection = sqlite3.connect(path, timeout=10)
        with connection:
            connection.execute("UPDATE cks_agent_liveness SET desired_state = 'stop_requested'")
        connection.close()
        assert await agent.ended() == 0
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT last_heartbeat_at FROM cks_agent_liveness").fetchall() == [
        ("1970-01-01T00:00:00+00:00",)
    ]
    connection.close()


async def test_a_wrong_setting_is_a_sentence_on_standard_error() -> None:
    async with started(sys.executable, "-c", ASYNC_AGENT, TENURE_LIVENESS_INTERVAL="soon") as agent:
        assert await agent.ended() == 1
        await eventually(lambda: agent.says("must be a number of seconds, not 'soon'"), within=5)
