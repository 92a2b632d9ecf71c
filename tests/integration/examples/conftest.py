"""A folder in which the commands of the documentation run as they are written."""

import os
import shutil
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest_asyncio
from tests.integration.examples.page import ROOT
from tests.integration.examples.running import Shell


@dataclass
class Trial:
    """``shell`` runs commands in ``folder``, which looks like a checkout and keeps what they leave."""

    folder: Path
    shell: Shell
    backend_port: int
    env: dict[str, str] = field(default_factory=dict)

    @property
    def workspaces(self) -> Path:
        return self.folder / ".cache" / "try" / "workspaces"


@pytest_asyncio.fixture
async def trial(tmp_path: Path) -> AsyncIterator[Trial]:
    """Removed at the end by the command that the page gives for it."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    backend_port, server_port = free_port(), free_port()
    env = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")} | {
        "EXAMPLE_PORT": str(backend_port),
        "TENURE_SERVER_PORT": str(server_port),
        "PYTHONUNBUFFERED": "1",
    }
    shell = Shell(tmp_path, env)
    try:
        yield Trial(tmp_path, shell, backend_port, env)
    finally:
        await shell.run(".venv/bin/python -m examples.backend remove")
        shutil.rmtree(tmp_path / ".cache", ignore_errors=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
