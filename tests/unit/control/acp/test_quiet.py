"""The library's own log lines quote what an agent sent."""

import asyncio
import logging
from typing import Any

import pytest
from acp._transport import memory_transport_pair
from acp.connection import Connection

from tenure.control.acp.quiet import quieten


async def provoke() -> None:
    """Have the library log an exception with an agent's words in it."""
    ours, theirs = memory_transport_pair()

    async def handler(method: str, params: Any, is_notification: bool) -> Any:
        raise ValueError(f"about {params}")

    connection = Connection(handler, ours)
    await theirs.send({"jsonrpc": "2.0", "id": 1, "method": "x", "params": "KANARIE"})
    assert "error" in (await asyncio.wait_for(theirs.receive(), 10) or {})
    await connection.close()


async def test_nothing_that_the_library_logs_comes_out(caplog: pytest.LogCaptureFixture) -> None:
    root = logging.getLogger()
    kept = list(root.filters)
    root.filters[:] = []
    try:
        await provoke()
        assert "KANARIE" in caplog.text
        caplog.clear()
        quieten()
        quieten()
        assert len(root.filters) == 1
        await provoke()
        assert caplog.text == ""
        root.warning("ours")
        logging.getLogger("somebody.else").warning("theirs")
        assert [record.message for record in caplog.records] == ["ours", "theirs"]
    finally:
        root.filters[:] = kept
