"""Clients of the control servers that are ours, one for each, made anew when its credential is."""

import asyncio
from collections.abc import Callable

from tenure.operator.servers.ports import OwnedServer, ServerKey
from tenure.ownership.client import ControlClient
from tenure.ownership.endpoint import ReadBudget


class Clients:
    """``held`` names the server of a ControlServer that is owned by this process now."""

    def __init__(self, held: Callable[[ServerKey], OwnedServer | None]) -> None:
        self._held = held
        self._clients: dict[ServerKey, tuple[OwnedServer, ControlClient]] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def server(self, key: ServerKey) -> OwnedServer | None:
        """The server in use."""
        return self._held(key)

    def get(self, key: ServerKey) -> tuple[OwnedServer, ControlClient] | None:
        """The server in use, and a client of it, which is not the caller's to close."""
        server = self._held(key)
        known = self._clients.get(key)
        if known is not None and (server is None or known[0] != server):
            del self._clients[key]
            self._close(known[1])
            known = None
        if server is None:
            return None
        if known is None:
            known = self._clients[key] = (server, server.client(ReadBudget()))
        return known

    async def aclose(self) -> None:
        """Close all. Nothing is told to any server."""
        for _, client in self._clients.values():
            self._close(client)
        self._clients.clear()
        if self._closing:
            await asyncio.wait(self._closing)

    def _close(self, client: ControlClient) -> None:
        task = asyncio.create_task(client.aclose(), name="closing a client")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
