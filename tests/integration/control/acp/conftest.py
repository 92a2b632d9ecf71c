"""Links to real agents, each stopped at the end of its test."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from tests.support.agents import scripted
from tests.support.agents.host import Recorder

from tenure.control.acp import Launch, Link

Start = Callable[..., Awaitable[tuple[Link, Recorder]]]
BUDGET = 1.5


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def launch(argv: Sequence[str], workspace: Path, **env: str) -> Launch:
    """A launch in a workspace, with a small environment."""
    whole = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **env}
    return Launch(argv=tuple(argv), cwd=workspace, env=whole, roots=(workspace,))


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path.resolve() / "workspace"
    path.mkdir()
    return path


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest_asyncio.fixture
async def start(workspace: Path) -> AsyncIterator[Start]:
    """Starts an agent (``argv``), by default a scripted one, initialized and with a session."""
    links: list[Link] = []

    async def starting(
        argv: Sequence[str] | None = None, *, ready: bool = True, host: Recorder | None = None, **env: str
    ) -> tuple[Link, Recorder]:
        recorder = host or Recorder()
        link = await Link.start(launch(argv or scripted(), workspace, **env), recorder)
        links.append(link)
        if ready:
            await link.initialize()
            await link.new_session()
        return link, recorder

    yield starting
    for link in links:
        await link.stop(3.0)
