"""Launches, servers and outcomes as tests need them, and a proxy that cuts a connection where it hurts."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tenure.storage.records import LaunchRequest, Outcome, ServerFacts

INSTALLATION = "installation-1"
INCARNATION = "incarnation-1"
SERVER = "server-1"
DONE = Outcome("complete", "end_turn")
BROKE = Outcome("error", code="agent_exited")

COMMITTED = b"C\x00\x00\x00\x0bCOMMIT\x00"
"""How PostgreSQL says that a transaction is durable."""

_numbers = itertools.count(1)


def a_launch(session_id: str = "session-1", **values: Any) -> LaunchRequest:
    """A launch with an instance id of its own."""
    defaults: dict[str, Any] = {
        "task_id": f"task-of-{session_id}",
        "installation_id": INSTALLATION,
        "agent_execution_id": f"instance-{next(_numbers)}",
        "created_by": INCARNATION,
        "agent_profile": "coder",
        "workspace_path": "/workspaces/one",
        "worktree_id": "worktree-1",
        "metadata": {"secondary_profile": "office"},
    }
    return LaunchRequest(session_id=session_id, **(defaults | values))


def a_server(**values: Any) -> ServerFacts:
    """A server as a record names it."""
    defaults: dict[str, Any] = {
        "server_identity": SERVER,
        "endpoint": "https://10.0.0.7:8443",
        "pod_uid": "pod-1",
        "credential_secret": "server-1-credential",
        "capabilities": ("agent-survival.v1",),
        "unowned_period_ms": 600_000,
        "rotation_id": 1,
    }
    return ServerFacts(**(defaults | values))


@dataclass
class Cutter:
    """Stands between a client and PostgreSQL. While ``armed``, the next answer that says COMMIT is swallowed, and
    its connection cut: the transaction is durable, and the client cannot know."""

    url: str
    armed: bool = False
    cuts: int = 0
    _port: int = 0
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def proxied(self) -> str:
        """The same database, through the proxy."""
        parts = urlsplit(self.url)
        return parts._replace(netloc=f"{parts.username}:{parts.password}@127.0.0.1:{self._port}").geturl()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parts = urlsplit(self.url)
        upstream_reader, upstream_writer = await asyncio.open_connection(parts.hostname, parts.port)
        self._writers |= {writer, upstream_writer}
        up = asyncio.create_task(self._copy(reader, upstream_writer, watch=False))
        down = asyncio.create_task(self._copy(upstream_reader, writer, watch=True))
        try:
            await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (up, down):
                task.cancel()
            await asyncio.gather(up, down, return_exceptions=True)
            for each in (writer, upstream_writer):
                each.transport.abort()
                self._writers.discard(each)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, watch: bool) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                if watch and self.armed and COMMITTED in data:
                    self.armed, self.cuts = False, self.cuts + 1
                    return
                writer.write(data)
                await writer.drain()

    @classmethod
    @contextlib.asynccontextmanager
    async def running(cls, url: str) -> "AsyncIterator[Cutter]":
        """A proxy before the database of ``url``, for the time of a ``with``."""
        cutter = cls(url)
        tasks: set[asyncio.Task[None]] = set()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            await cutter.serve(reader, writer)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        cutter._port = server.sockets[0].getsockname()[1]
        try:
            yield cutter
        finally:
            server.close()
            for writer in list(cutter._writers):
                writer.transport.abort()
            await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
