"""An agent that does not begin its session: whether it refused, or was gone before it could."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.wait import eventually

from tenure.model.adoption import HistorySetting, PermissionPolicy
from tenure.operator.hosted.driver import Driver, Orders
from tenure.operator.servers.ports import ServerKey
from tenure.ownership.errors import Declined


class Stream:
    """Answers every request with the same error."""

    end = None

    def __init__(self, code: str) -> None:
        self._code = code

    async def send(self, *request: Any, **options: Any) -> Any:
        raise Declined(self._code)

    async def events(self) -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield None

    async def aclose(self) -> None:
        pass


class Server:
    """As client and as records: counts streams, and what is ended."""

    identity, incarnation = "cs-1", "backend/1"

    def __init__(self, code: str) -> None:
        self.code, self.streams = code, 0
        self.ended: list[tuple[str, bool]] = []
        self.deleted: list[str] = []
        self.executions = SimpleNamespace(ended=self._ended)

    def get(self, key: ServerKey) -> Any:
        return self, self

    async def stream(self, instance: str) -> Stream:
        self.streams += 1
        return Stream(self.code)

    async def instance(self, instance: str) -> Any:
        return SimpleNamespace(provider_session_id="")

    async def outcome(self, instance: str) -> None:
        return None

    async def delete(self, instance: str) -> None:
        self.deleted.append(instance)

    async def _ended(self, session: str, instance: str, *, failed: bool, session_state: Any) -> bool:
        self.ended.append((session, failed))
        return True


async def driven(code: str) -> Server:
    """After two streams: whatever the first refusal led to has happened."""
    server: Any = Server(code)
    orders = Orders(
        server=ServerKey("agents", "main"),
        identity=server.identity,
        incarnation=server.incarnation,
        session="one",
        instance="one-1",
        records=server,
        turns_before=0,
        prompt=None,
        resume_token="",
        history=HistorySetting.LOAD,
        permissions=PermissionPolicy.DENY,
    )
    running = asyncio.create_task(Driver(orders, server, lambda: None).run())
    try:
        await eventually(lambda: server.streams == 2, within=20, what="a second stream")
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    found: Server = server
    return found


@pytest.mark.parametrize("code", ["stopping", "stopped", "exited"])
async def test_one_that_is_gone_is_not_ended_here(code: str) -> None:
    """Its server may be on its way out, and that is no failure of the agent's: it is for a pass to judge."""
    server = await driven(code)
    assert (server.deleted, server.ended) == ([], [])


@pytest.mark.parametrize("code", ["agent_error", "auth_required", "protocol_version"])
async def test_one_that_refuses_is_ended_as_failed(code: str) -> None:
    server = await driven(code)
    assert server.deleted[:1] == ["one-1"]
    assert server.ended[:1] == [("one", True)]
