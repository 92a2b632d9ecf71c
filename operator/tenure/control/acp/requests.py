"""What an agent asks of the control server: permissions, files, terminals."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import acp.schema
import structlog
from acp.exceptions import RequestError
from pydantic import BaseModel, JsonValue, ValidationError

from tenure.control.acp import files, translate
from tenure.control.acp.contract import Host, Launch
from tenure.control.acp.process import BLOCKING
from tenure.control.acp.terminals import Terminals

_log = structlog.get_logger(__name__)

M = TypeVar("M", bound=BaseModel)

CANCELLED = {"outcome": {"outcome": "cancelled"}}


class Requests:
    """Answers the requests of one agent. Raises ``RequestError`` and nothing else: what the library does with
    anything else is log it."""

    def __init__(
        self, launch: Launch, host: Host, terminals: Terminals, *, unsent: Callable[[], int] = lambda: 0
    ) -> None:
        self._unsent = unsent
        self._launch = launch
        self._host = host
        self._terminals = terminals
        self._numbers = itertools.count(1)
        self._asking: set[asyncio.Task[Any]] = set()
        # One at a time: what a hostile agent has read into our memory is one file, not thirty.
        self._files = asyncio.Lock()
        self._closed = False

    async def answer(self, method: str, params: JsonValue) -> Any:
        """The result of a request."""
        handler = self._handlers().get(method)
        if handler is None:
            raise RequestError(-32601, "there is no such method")
        try:
            return await handler(params)
        except RequestError:
            raise
        except Exception as error:  # noqa: BLE001
            # The kind only: the text may quote the agent.
            _log.warning("a request of an agent failed", kind=type(error).__name__)
        raise RequestError(-32603, "it cannot be done")

    async def cancel_permissions(self) -> None:
        """Answer every open permission request with "cancelled". The host is told when this returns; whether
        it did what it does then is not waited for."""
        self._cancel_all()
        for _ in range(3 if self._asking else 0):
            await asyncio.sleep(0)

    def _cancel_all(self) -> None:
        for task in self._asking:
            task.cancel()

    def close(self) -> None:
        """The same, also for whatever is asked from now on."""
        self._closed = True
        self._cancel_all()

    def _handlers(self) -> dict[str, Callable[[JsonValue], Awaitable[Any]]]:
        return {
            "session/request_permission": self._permission,
            "fs/read_text_file": self._read,
            "fs/write_text_file": self._write,
            "terminal/create": self._create,
            "terminal/output": self._output,
            "terminal/wait_for_exit": self._wait,
            "terminal/kill": self._kill,
            "terminal/release": self._release,
        }

    async def _permission(self, params: JsonValue) -> Any:
        request = translate.permission_request(params, f"permission-{next(self._numbers)}")
        if request is None:
            raise files.refused("it is no request for a permission")
        if self._closed:
            return CANCELLED
        # A task of its own: cancelling the one that the library made would leave the agent without an answer.
        task = asyncio.ensure_future(self._host.permission(request))
        self._asking.add(task)
        try:
            await asyncio.wait([task])
        finally:
            self._asking.discard(task)
            task.cancel()
        if task.cancelled():
            return CANCELLED
        return translate.permission_outcome(request, task.result())

    async def _read(self, params: JsonValue) -> Any:
        asked = _parsed(acp.schema.ReadTextFileRequest, params)
        text = await self._blocking(files.read_text, asked.path, asked.line, asked.limit)
        return {"content": text}

    async def _write(self, params: JsonValue) -> Any:
        asked = _parsed(acp.schema.WriteTextFileRequest, params)
        await self._blocking(files.write_text, asked.path, asked.content)
        return {}

    async def _blocking(self, function: Callable[..., Any], *arguments: Any) -> Any:
        async with self._files:
            if self._unsent() > files.READ_LIMIT:
                raise RequestError(-32000, "read the answers to your other requests first")
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(BLOCKING, function, self._launch.roots, *arguments)

    async def _create(self, params: JsonValue) -> Any:
        return await self._terminals.create(_parsed(acp.schema.CreateTerminalRequest, params))

    async def _output(self, params: JsonValue) -> Any:
        return self._terminals.output(_parsed(acp.schema.TerminalOutputRequest, params).terminal_id)

    async def _wait(self, params: JsonValue) -> Any:
        return await self._terminals.wait(_parsed(acp.schema.WaitForTerminalExitRequest, params).terminal_id)

    async def _kill(self, params: JsonValue) -> Any:
        self._terminals.kill(_parsed(acp.schema.KillTerminalRequest, params).terminal_id)
        return {}

    async def _release(self, params: JsonValue) -> Any:
        self._terminals.release(_parsed(acp.schema.ReleaseTerminalRequest, params).terminal_id)
        return {}


def _parsed(kind: type[M], params: JsonValue) -> M:
    try:
        return kind.model_validate(params)
    except (ValidationError, RecursionError):
        pass
    raise files.refused("the parameters are not those of the method")
