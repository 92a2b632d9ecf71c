"""What the tests of the backend library stand on."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
from tests.support.agents import read_journal, scripted_command
from tests.support.control import ROOT, RunningServer
from tests.support.wait import eventually

from tenure.backend import Backend, LocalOwner, Retry, RetryableError, Session

SESSION = "session-1"
TASK = "task-1"
WITHIN = 20.0


@dataclass
class Scene:
    """``server`` is replaced by tests that start another one on the same installation."""

    server: RunningServer
    database_url: str
    directory: Path
    state: Path = Path()
    """Where the owner keeps its credential."""
    _processes: list[asyncio.subprocess.Process] = field(default_factory=list)

    @property
    def journal(self) -> Path:
        """What the agents of this scene wrote down."""
        return self.directory / "journal"

    @property
    def nonce_file(self) -> Path:
        """Where a server's nonce is before the server is."""
        return self.server.directory / "nonce"

    def __post_init__(self) -> None:
        if self.state == Path():
            self.state = self.directory / "owner" / "credential.json"

    def workspace(self, session_id: str = SESSION) -> Path:
        """The workspace of a session: of this test's alone."""
        return self.server.workspace(f"{self.directory.name}-{session_id}")

    def owner(self) -> LocalOwner:
        """The source of a backend without Kubernetes."""
        return LocalOwner(
            self.server.url,
            home=self.server.home_dir,
            nonce_file=self.nonce_file,
            state=self.state,
            interval=0.05,
        )

    @contextlib.asynccontextmanager
    async def backend(self, **options: Any) -> AsyncIterator[Backend]:
        """A backend that is ready."""
        async with Backend.connect(self.owner(), self.database_url, **options) as backend:
            async with asyncio.timeout(WITHIN):
                await backend.ready()
            yield backend

    def command(self, *options: str) -> str:
        """The command of a scripted agent that keeps the scene's journal."""
        return scripted_command(self.journal, *options)

    async def launch(self, backend: Backend, session_id: str = SESSION, **options: Any) -> Session:
        """A session of a scripted agent in a workspace of its own."""
        order: dict[str, Any] = {
            "session_id": session_id,
            "task_id": f"task-of-{session_id}",
            "workspace_path": str(self.workspace(session_id)),
            "agent_command": self.command(),
        }
        return await backend.launch(**(order | options))

    async def launch_again(self, backend: Backend, session_id: str = SESSION, **options: Any) -> Session:
        """The same, of a session whose failed launch was undone: its row says so a moment before its backend knows."""
        async with asyncio.timeout(WITHIN):
            while True:
                try:
                    return await self.launch(backend, session_id, **options)
                except RetryableError as error:
                    if error.reason is not Retry.SESSION_IN_USE:
                        raise
                await asyncio.sleep(0.05)

    def told(self, what: str) -> list[dict[str, Any]]:
        """Entries of the agents' journal of one kind."""
        return read_journal(self.journal, what)

    def agent_pids(self) -> set[int]:
        """Pids of all agents that were ever started."""
        return {entry["pid"] for entry in self.told("started")}

    async def fetch(self, sql: str, *values: object) -> list[Any]:
        """Rows, past the library."""
        connection = await asyncpg.connect(self.database_url, timeout=10)
        try:
            return [tuple(row) for row in await connection.fetch(sql, *values)]
        finally:
            await connection.close()

    async def execute(self, sql: str) -> None:
        """Change rows, past the library."""
        connection = await asyncpg.connect(self.database_url, timeout=10)
        try:
            await connection.execute(sql)
        finally:
            await connection.close()

    async def turns(self, session_id: str = SESSION) -> list[str]:
        """States of the session's turns, oldest first."""
        rows = await self.fetch(
            "SELECT state FROM tenure.turns WHERE session_id = $1 ORDER BY id", session_id
        )
        return [row[0] for row in rows]

    async def execution(self, session_id: str = SESSION) -> str:
        """State of the session's inventory row; empty for none."""
        rows = await self.fetch(
            "SELECT status FROM tenure.executors_running WHERE session_id = $1", session_id
        )
        return str(rows[0][0]) if rows else ""

    async def session_state(self, session_id: str = SESSION) -> str:
        rows = await self.fetch("SELECT state FROM tenure.sessions WHERE id = $1", session_id)
        return str(rows[0][0]) if rows else ""

    def settings(self, *, text: str = "say hello", kill: str = "", stop: bool = True, wait: str = "") -> str:
        """For ``driver``."""
        return json.dumps(
            {
                "url": self.server.url,
                "home": self.server.home_dir,
                "nonce_file": str(self.nonce_file),
                "state": str(self.state),
                "database": self.database_url,
                "workspace": str(self.workspace()),
                "command": self.command(),
                "text": text,
                "kill": kill,
                "stop": stop,
                "wait": wait,
            }
        )

    async def run(self, **settings: Any) -> int:
        """A backend as a process of its own, to its end; its exit code, negative for a signal."""
        process = await self.start(**settings)
        return await self.ended(process)

    async def start(self, **settings: Any) -> asyncio.subprocess.Process:
        """The same, running. Whoever started it waits for its end."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.integration.backend.driver", self.settings(**settings), cwd=ROOT
        )
        self._processes.append(process)
        return process

    async def ended(self, process: asyncio.subprocess.Process) -> int:
        """Wait for its end."""
        async with asyncio.timeout(60):
            return await process.wait()

    async def until(self, probe: Any, what: str = "") -> Any:
        return await eventually(probe, within=WITHIN, what=what)

    async def aclose(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                process.kill()
                await process.wait()
