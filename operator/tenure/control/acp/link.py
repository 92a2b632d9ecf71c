"""One running agent: the process, the conversation with it, and its end."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import acp.schema
import structlog
from acp.connection import Connection
from acp.exceptions import RequestError
from acp.meta import PROTOCOL_VERSION
from acp.utils import serialize_params
from pydantic import BaseModel, JsonValue, ValidationError

from tenure import __version__
from tenure.control.acp import stopping, translate
from tenure.control.acp.contract import AgentExit, AgentFailed, Host, Launch
from tenure.control.acp.pipes import Input, Output, Tail, read_from, tail_of, write_to
from tenure.control.acp.process import Child
from tenure.control.acp.proctable import MARK, Family
from tenure.control.acp.quiet import quieten
from tenure.control.acp.requests import Requests
from tenure.control.acp.terminals import Terminals
from tenure.control.acp.transport import READER_LIMIT, AgentTransport, Ears, Problem

INITIALIZE_SECONDS = 60.0
"""How long an agent may take for its first answer. Nothing else has a limit: a session that is loaded tells its
history as events, and those may have to wait for a backend."""
_EXIT_SECONDS = 1.0
"""How long an agent that closed one of its pipes has for ending by itself."""
_FAILED_BUDGET = 1.0
_TRIES = 10
_LEAST_BUDGET = 0.2

_log = structlog.get_logger(__name__)

M = TypeVar("M", bound=BaseModel)

_MESSAGES = {
    "stopped": "the agent is being stopped",
    "exited": "the agent ended",
    "closed_output": "the agent closed its output",
    "closed_input": "the agent closed its input",
    "line_too_long": "the agent wrote a message that is too long",
    "invalid_output": "the agent wrote too much that is no message",
}


class Link:
    """A running agent. Made by ``start``; every other method but ``stop`` raises ``AgentFailed`` once it ended."""

    def __init__(self, launch: Launch, host: Host, child: Child, family: Family) -> None:
        self._host = host
        self._launch = launch
        self._child = child
        self._family = family
        self.pid = child.pid
        self.ended: asyncio.Future[AgentExit] = asyncio.get_running_loop().create_future()
        """Done when the process ended; never raises. What the agent wrote before may still be on its way to
        the host: ``prompt`` fails, and the event ``agent_exited`` comes, only after it."""
        self._terminals = Terminals(launch, family)
        self._requests = Requests(launch, host, self._terminals, unsent=lambda: self._transport.unsent)
        self._asked = 0
        self._prompts = 0
        self._session = ""
        self._initialized: JsonValue = None
        self._failure = ""
        self._silent = False
        self._telling: asyncio.Timeout | None = None
        self._heard_all = asyncio.Event()
        self._judged = asyncio.Event()
        self._stop: asyncio.Task[AgentExit] | None = None

    @classmethod
    async def start(cls, launch: Launch, host: Host) -> "Link":
        """Run the agent in a session of its own. Raises ``AgentFailed`` ("not_started")."""
        quieten()
        family = Family(f"{launch.brand}.{secrets.token_hex(16)}")
        launch = replace(launch, env={**launch.env, MARK: family.mark})
        child = Child.start(launch.argv, launch.cwd, launch.env)
        family.lead(child.pid)
        link = cls(launch, host, child, family)
        try:
            await link._connect(
                await write_to(child.stdin),
                await read_from(child.stdout, READER_LIMIT),
                await tail_of(child.stderr),
            )
        except BaseException:
            await asyncio.shield(stopping.end(family, child, time.monotonic() + _FAILED_BUDGET, 0.0))
            raise
        return link

    async def _connect(self, input_: Input, output: Output, stderr: Tail) -> None:
        self._input, self._output, self._stderr = input_, output, stderr
        ears = Ears(self._notification, self._garbage, self._host.activity, self._fail, self._over)
        self._transport = AgentTransport(output.reader, input_, ears)
        self._connection = Connection(self._handle, self._transport)
        self._ending = asyncio.create_task(self._watch_end(), name=f"agent-{self.pid}-end")

    @property
    def busy(self) -> bool:
        """A request of ours or of the agent's is in flight, or a command of its terminals runs."""
        return bool(self._asked or self._transport.requests or self._terminals.running)

    @property
    def gone(self) -> bool:
        """Whether the process ended and nothing that comes from it is left: the real agent may well be a child of
        what was started."""
        return self._child.reaped

    def stderr(self) -> tuple[str, ...]:
        """The last lines that the agent wrote to its standard error, at most 64 KiB."""
        return tuple(self._stderr.text().splitlines())

    async def initialize(self) -> JsonValue:
        """Agree on the protocol; the agent's own answer (capabilities, methods of logging in, its name)."""
        request = acp.schema.InitializeRequest(
            protocol_version=PROTOCOL_VERSION,
            client_capabilities=acp.schema.ClientCapabilities(
                fs=acp.schema.FileSystemCapabilities(read_text_file=True, write_text_file=True), terminal=True
            ),
            client_info=acp.schema.Implementation(name="tenure", title="Tenure", version=__version__),
        )
        try:
            async with asyncio.timeout(INITIALIZE_SECONDS):
                answer = await self._request("initialize", request)
        except TimeoutError:
            raise AgentFailed("no_answer", "the agent does not answer") from None
        if _parsed(acp.schema.InitializeResponse, answer).protocol_version != PROTOCOL_VERSION:
            raise AgentFailed("protocol_version", "the agent speaks another version of ACP")
        self._initialized = answer
        return answer

    async def new_session(self) -> str:
        """Begin a session in the workspace; the agent's own id of it, needed to load it later."""
        request = acp.schema.NewSessionRequest(cwd=str(self._launch.cwd), mcp_servers=[])
        answer = await self._request("session/new", request, mcpServers=[])
        self._session = _parsed(acp.schema.NewSessionResponse, answer).session_id
        return self._session

    async def load_session(self, id: str) -> None:
        """Go on with an earlier session of this agent; its history is told as events before this returns."""
        if self._capability("loadSession") is not True:
            raise AgentFailed("not_supported", "the agent loads no sessions")
        request = acp.schema.LoadSessionRequest(cwd=str(self._launch.cwd), session_id=id, mcp_servers=[])
        await self._request("session/load", request, mcpServers=[])
        self._session = id

    async def prompt(self, text: str, attachments: Sequence[JsonValue]) -> str:
        """Give the agent a turn and wait for its end: the stop reason. Every event of the turn was told before."""
        if not self._session:
            raise AgentFailed("no_session", "there is no session yet")
        blocks = translate.prompt_blocks(text, attachments, self._capability("promptCapabilities"))
        self._prompts += 1
        try:
            answer = await self._call("session/prompt", {"sessionId": self._session, "prompt": blocks})
        finally:
            self._prompts -= 1
        if not self._prompts:
            # Nobody waits for the answers any more; the host tells that before the end of the turn.
            await self._requests.cancel_permissions()
        reason = answer.get("stopReason") if isinstance(answer, dict) else None
        if not isinstance(reason, str) or not 0 < len(reason) <= 253:
            raise AgentFailed("invalid_answer", "the agent's answer is not what ACP says")
        return reason

    async def cancel(self) -> None:
        """Ask the agent to end its turn: ``prompt`` then returns "cancelled". Open permission requests are
        cancelled. Never waits for the agent."""
        if self._stop is not None or self.ended.done() or self._failure:
            raise self._error()
        if self._prompts:
            # First: an agent whose question is answered before may end its turn as if nothing were.
            self._post_cancel()
        await self._requests.cancel_permissions()

    async def stop(self, budget: float) -> AgentExit:
        """End the agent and every process that comes from it, within ``budget`` seconds: cancel and close its
        input, then SIGTERM, then SIGKILL. Idempotent; concurrent calls share one stop. Never raises.

        When the budget was not enough the ``failure`` of the answer is "unstoppable": it is gone on with, and
        another call waits for that.
        """
        if self._stop is None or (self._stop.done() and not self._child.reaped):
            self._stop = asyncio.create_task(self._stopping(budget), name=f"agent-{self.pid}-stop")
        await asyncio.wait([self._stop], timeout=max(budget, _LEAST_BUDGET))
        return self._stop.result() if self._stop.done() else AgentExit(None, None, "unstoppable")

    # --- What the agent says

    async def _handle(self, method: str, params: JsonValue, is_notification: bool) -> Any:
        # Notifications never come here: the transport passes them on itself.
        return await self._requests.answer(method, params)

    async def _notification(self, method: str, params: JsonValue) -> bool:
        if method != "session/update":
            # Withdrawn requests and extensions: nothing depends on them.
            return True
        event = translate.update_event(params)
        if event is None:
            return False
        await self._tell(*event)
        return True

    async def _garbage(self, problem: Problem, count: int) -> None:
        await self._tell("invalid_output", {"problem": problem.value, "count": count})

    async def _tell(self, type_: str, fields: dict[str, JsonValue]) -> None:
        if self._silent:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None) as self._telling:
                try:
                    await self._host.event(type_, fields)
                except Exception as error:  # noqa: BLE001
                    _log.warning("an event was not taken", type=type_, kind=type(error).__name__)

    def _be_silent(self) -> None:
        """Tell the host nothing more, and let go of what it has not taken: from now on the agent's output is
        read to the end, whatever the host does."""
        self._silent = True
        if self._telling is not None and not self._telling.expired():
            with contextlib.suppress(RuntimeError):
                self._telling.reschedule(asyncio.get_running_loop().time())
        self._requests.close()

    # --- What the agent is asked

    def _capability(self, name: str) -> JsonValue:
        answer = self._initialized if isinstance(self._initialized, dict) else {}
        capabilities = answer.get("agentCapabilities")
        return capabilities.get(name) if isinstance(capabilities, dict) else None

    async def _request(self, method: str, request: BaseModel, **more: JsonValue) -> JsonValue:
        return await self._call(method, {**serialize_params(request), **more})

    async def _call(self, method: str, params: JsonValue) -> JsonValue:
        if self._failure or self.ended.done():
            raise self._error()
        self._asked += 1
        problem: AgentFailed | None = None
        try:
            answer: JsonValue = await self._connection.send_request(method, params)
            return answer
        except RequestError as error:
            problem = _refused(error)
        except ConnectionError:
            problem = self._error()
        finally:
            self._asked -= 1
        raise problem

    def _post_cancel(self) -> None:
        message = {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": self._session}}
        with contextlib.suppress(ConnectionError):
            self._transport.post(message)

    def _error(self) -> AgentFailed:
        code = self._failure or ("stopped" if self._stop is not None else "exited")
        return AgentFailed(code, _MESSAGES[code])

    # --- Its end

    def _fail(self, code: str) -> None:
        """The agent broke the protocol: nothing more is read, and it is ended."""
        self._failure = self._failure or code

    async def _over(self) -> None:
        """Nothing more comes. What was asked of the agent fails only when it is known why."""
        self._heard_all.set()
        await self._judged.wait()

    async def _watch_end(self) -> None:
        """Whatever the agent does to end itself: end the rest, too, and tell."""
        try:
            await self._judge()
            self._settle()
            self._judged.set()
            await self._end_the_rest(time.monotonic() + _FAILED_BUDGET, _FAILED_BUDGET / 4)
            self._settle()
            await self._tell_the_end()
        except Exception as error:  # noqa: BLE001
            _log.warning("the end of an agent was not dealt with", kind=type(error).__name__)
        finally:
            self._judged.set()

    async def _end_the_rest(self, deadline: float, grace: float) -> None:
        # What the agent wrote is read on. A command that it asked for last would outlive everything: nobody looks
        # again for what comes from the instance.
        self._terminals.closed = True
        for _ in range(_TRIES):
            if await stopping.end(self._family, self._child, deadline, grace):
                return
            deadline, grace = time.monotonic() + _FAILED_BUDGET, 0.0
            await asyncio.sleep(0.1)
        _log.error("processes of an agent cannot be ended", pid=self.pid)

    async def _judge(self) -> None:
        closed = [asyncio.create_task(e.wait()) for e in (self._heard_all, self._input.closed)]
        try:
            first: list[asyncio.Future[Any]] = [self._child.exit, *closed]
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if not self._failure:
                # The pipes of a process close before it is gone.
                await asyncio.wait([self._child.exit], timeout=_EXIT_SECONDS)
        finally:
            for task in closed:
                task.cancel()
            await asyncio.gather(*closed, return_exceptions=True)
        if not self._child.exit.done():
            self._fail("closed_output" if self._heard_all.is_set() else "closed_input")

    def _settle(self) -> None:
        if not self.ended.done() and self._child.exit.done():
            self.ended.set_result(replace(self._child.exit.result(), failure=self._failure))

    async def _tell_the_end(self) -> None:
        # What the agent wrote comes first, then the failure of what was asked of it.
        await self._heard_all.wait()
        await asyncio.sleep(0.01)
        status = self._child.exit.result() if self._child.exit.done() else AgentExit(None, None)
        fields: dict[str, JsonValue] = {"exit_code": status.code, "signal": status.signal}
        if self._failure:
            fields["failure"] = self._failure
        await self._tell("agent_exited", fields)
        await self._close()

    async def _stopping(self, budget: float) -> AgentExit:
        deadline = time.monotonic() + max(budget, _LEAST_BUDGET)
        self._be_silent()
        self._ending.cancel()
        await asyncio.gather(self._ending, return_exceptions=True)
        if not self._child.reaped:
            # While its parents live: a child in a session of its own, with an environment of its own, is known
            # by its parent only.
            await stopping.look(self._family)
            await self._politely(deadline - 0.5 * budget)
            await self._end_the_rest(deadline, 0.25 * budget)
        self._settle()
        await self._close()
        if not self._child.reaped:
            return AgentExit(None, None, "unstoppable")
        return self.ended.result()

    async def _politely(self, until: float) -> None:
        # Meanwhile its requests are answered, and its output is read.
        if self._prompts:
            self._post_cancel()
            while self._prompts and time.monotonic() < until - 0.2 and not self._child.exit.done():
                await asyncio.wait([self._child.exit], timeout=0.02)
        self._input.end()
        await asyncio.wait([self._child.exit], timeout=max(0.0, until - time.monotonic()))

    async def _close(self) -> None:
        await self._connection.close()
        await self._terminals.close()
        self._input.abort()
        self._output.close()
        self._stderr.close()


def _refused(error: RequestError) -> AgentFailed:
    details: JsonValue = {"code": error.code, "message": str(error)[:4096]}
    if error.code == -32000:
        return AgentFailed("auth_required", "the agent wants somebody to log in first", details)
    return AgentFailed("agent_error", f"the agent answered with error {error.code}", details)


def _parsed(kind: type[M], answer: JsonValue) -> M:
    try:
        return kind.model_validate(answer)
    except (ValidationError, RecursionError):
        pass
    raise AgentFailed("invalid_answer", "the agent's answer is not what ACP says")
