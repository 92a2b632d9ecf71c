"""One hosted instance: its agent, its turns, its events, and who reads them."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

import structlog
from aiohttp import web
from pydantic import JsonValue

from tenure.control.acp import AgentExit, AgentFailed, Host, Launch
from tenure.control.instances.admission import Admitted
from tenure.control.instances.config import ActionRefused, HostingConfig, Status, StopFailed
from tenure.control.instances.outbox import Outbox
from tenure.control.instances.permissions import Permissions
from tenure.control.instances.stream import CloseCode, Stream
from tenure.protocol import frames, outcome
from tenure.protocol.frames import Event, PermissionAnswer, PermissionRequest, Prompt
from tenure.protocol.messages import InstanceWithEnvironment, OutcomeAnswer
from tenure.protocol.outcome import Turns

T = TypeVar("T")
UNSTOPPABLE = "unstoppable"
"""How ``Link.stop`` says that something is left."""
TURN_FAILS_WITHIN = 1.0
"""Seconds from the end of an agent to the failure of its prompt, at the longest."""
_log = structlog.get_logger(__name__)


class Agent(Protocol):
    """A running agent as its host needs it; ``acp.Link`` is one."""

    ended: "asyncio.Future[AgentExit]"

    @property
    def busy(self) -> bool: ...
    @property
    def gone(self) -> bool: ...
    async def initialize(self) -> JsonValue: ...
    async def new_session(self) -> str: ...
    async def load_session(self, id: str) -> None: ...
    async def prompt(self, text: str, attachments: Sequence[JsonValue]) -> str: ...
    async def cancel(self) -> None: ...
    def stderr(self) -> tuple[str, ...]: ...
    async def stop(self, budget: float) -> AgentExit: ...


StartAgent = Callable[[Launch, Host], Awaitable[Agent]]


class Hosted:
    """An instance from its registration to its removal. Made by ``Instances.admit``.

    It is the ``Host`` of its agent. What readers ask for comes in through the methods that raise
    ``ActionRefused`` and ``AgentFailed``.
    """

    def __init__(
        self,
        instance_id: str,
        admitted: Admitted,
        *,
        config: HostingConfig,
        clock: Callable[[], float],
        turn_ids: Iterator[int],
        start_agent: StartAgent,
    ) -> None:
        self.id = instance_id
        self._admitted, self._config, self._clock = admitted, config, clock
        self._turn_ids, self._start_agent = turn_ids, start_agent
        self._created_at = datetime.now(UTC)
        self._provider_session = ""
        self._agent: Agent | None = None
        self._starting: asyncio.Task[Agent] | None = None
        self._initialized: JsonValue = None
        self._stopping = False
        self._turns = Turns()
        self._turn: asyncio.Task[None] | None = None
        self._stream: Stream | None = None
        self._streams: set[Stream] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._requests = 0
        self._active_at = clock()
        self.lane = asyncio.Lock()
        self.outbox = Outbox(config.retention_limit, config.retention_bytes)
        self.permissions = Permissions(
            self.outbox, clock=clock, attached=lambda: self.attached, bound=config.timing.announce
        )

    @property
    def session_id(self) -> str:
        """The session that it was made for; empty for none."""
        return self._admitted.request.session_id

    @property
    def auto_start(self) -> bool:
        """Whether its agent is started with it."""
        return self._admitted.request.auto_start

    @property
    def attached(self) -> bool:
        """Whether it has a reader."""
        return self._stream is not None

    @property
    def streams(self) -> tuple[Stream, ...]:
        """Its streams whose connections still are there: at most one of them is not over."""
        return tuple(self._streams)

    @property
    def status(self) -> Status:
        """What an enumeration says. An agent that ended still is ``running`` while a turn is open (what it wrote
        before, the end of that turn perhaps, is not read while retention is full), and while something that it
        started lives: that would be a second agent of its session beside the next one."""
        if self._stopping:
            return Status.STOPPING
        if self._agent is None:
            return Status.STARTING
        return Status.STOPPED if self._agent.gone and not self._turns.running else Status.RUNNING

    def details(self, port: int) -> InstanceWithEnvironment:
        """The instance as it is enumerated. ``env`` is what was asked for, without what it inherits."""
        request, launch = self._admitted.request, self._admitted.launch
        return InstanceWithEnvironment(
            id=self.id,
            port=port,
            status=self.status,
            workspace_path=str(launch.cwd),
            agent_command=request.agent_command,
            created_at=self._created_at,
            session_id=request.session_id,
            task_id=request.task_id,
            workspace_source_roots=tuple(str(root) for root in launch.roots[1:]),
            provider_session_id=self._provider_session,
            env=request.env,
        )

    # The turn-outcome slot.

    def outcome(self) -> OutcomeAnswer:
        """The last terminal outcome until it is acknowledged; reading never discards."""
        return outcome.outcome_answer(self._turns)

    def acknowledge(self, turn_id: int) -> None:
        """Discard the outcome of this turn, if it is the one retained."""
        self._turns = outcome.acknowledged(self._turns, turn_id)

    # Streams.

    def attach(self, ws: web.WebSocketResponse, *, acknowledges: bool = False) -> Stream:
        """A reader takes over; an older one is closed. ``acknowledges``: see ``stream``. Synchronous."""
        older = self._stream
        stream = Stream(self, ws, acknowledges=acknowledges, timing=self._config.timing, clock=self._clock)
        self._streams.add(stream)
        if older is not None:
            older.end(CloseCode.REPLACED)
        if self._stopping:
            stream.end(CloseCode.INSTANCE_STOPPED)
        self._stream, self.outbox.on_arrival = stream, stream.wake
        self.permissions.attachment_changed()
        self.touch()
        return stream

    def detach(self, stream: Stream) -> None:
        """A stream is over; a newer one may have taken its place before."""
        if self._stream is stream:
            self._stream, self.outbox.on_arrival = None, None
            self.permissions.attachment_changed()

    def forget(self, stream: Stream) -> None:
        """The connection of a stream is gone."""
        self._streams.discard(stream)

    # What the agent tells (``acp.Host``).

    async def event(self, type: str, fields: Mapping[str, JsonValue]) -> None:
        """Deliver an event in its turn; waits while retention is full."""
        self.touch()
        if type == "agent_exited":
            await self._turn_ended()
        if "seq" in fields or "listed_again" in fields:
            fields = {name: value for name, value in fields.items() if name not in ("seq", "listed_again")}
        await self.outbox.put(frames.encoded(type, fields))

    async def permission(self, request: PermissionRequest) -> PermissionAnswer:
        """Wait for the answer to a permission request."""
        self.touch()
        try:
            return await self.permissions.ask(request)
        finally:
            self.touch()

    def activity(self) -> None:
        """The agent said something."""
        self.touch()

    # What a reader asks for (``actions``).

    async def initialize(self) -> JsonValue:
        """Start the agent, unless it runs, and agree on the protocol, once: a reader that comes later gets
        the same answer."""
        agent = await self.start()
        if agent.ended.done():
            raise ActionRefused("exited", "The agent ended.")
        if self._initialized is None:
            self._initialized = await agent.initialize()
        return self._initialized

    async def new_session(self) -> str:
        """Begin a session; the provider's own id of it."""
        agent = self._between_turns()
        self._provider_session = await agent.new_session()
        return self._provider_session

    async def load_session(self, provider_session_id: str) -> None:
        """Go on with an earlier session."""
        agent = self._between_turns()
        await agent.load_session(provider_session_id)
        self._provider_session = provider_session_id

    def prompt(self, prompt: Prompt) -> int:
        """Begin a turn: its id. A ``turn_key`` that is known gives the turn that it named, and no other."""
        turns, turn = outcome.prompted(self._turns, prompt.turn_key, next(self._turn_ids))
        if not turn.fresh:
            return turn.turn_id
        agent = self._between_turns()
        if not self._provider_session:
            raise ActionRefused("no_session", "A session has to be opened before the first prompt.")
        self._turns = turns
        self._turn = self.spawn(self._run_turn(agent, turn.turn_id, prompt))
        return turn.turn_id

    async def cancel(self) -> None:
        """Ask the agent to end its turn. Open permission requests are cancelled with it."""
        await self._running().cancel()

    def stderr(self) -> tuple[str, ...]:
        """The last lines of the agent's standard error, also after its end."""
        return () if self._agent is None else self._agent.stderr()

    # Its life.

    async def start(self) -> Agent:
        """The agent, started unless it was. Raises ``AgentFailed``, and ``ActionRefused`` while stopping."""
        if self._stopping:
            raise ActionRefused("stopping", "The instance is being stopped.")
        if self._starting is None:
            self._starting = self.spawn(self._launch())
        return await asyncio.shield(self._starting)

    def halt(self) -> None:
        """The stop begins: from here on nothing waits, and nothing is accepted. Idempotent, synchronous."""
        if self._stopping:
            return
        self._stopping = True
        last = list(self.permissions.cancel_all())
        if self._turns.running:
            last.append(self._failed_turn("stopped", "The instance was stopped.", None))
        self.outbox.stop(*last)

    async def end(self) -> None:
        """Stop the agent and close the stream, within the stop budget. Raises ``StopFailed`` when something
        of it still runs then; it may be called again."""
        timing, loop = self._config.timing, asyncio.get_running_loop()
        limit = loop.time() + self._config.stop_budget - 3 * timing.close
        if self._starting is not None:
            await asyncio.wait({self._starting}, timeout=limit - loop.time())
            if not self._starting.done():
                raise StopFailed("the agent is still being started")
        if self._agent is not None:
            await self._end_agent(self._agent, max(0.1, limit - loop.time()))
        if self._stream is not None:
            await self._stream.flushed(timing.close)
        for stream in self.streams:
            stream.end(CloseCode.INSTANCE_STOPPED, timing.close)
        await asyncio.gather(*(stream.gone(timing.close) for stream in self.streams))
        await self._finish_tasks(timing.close)

    def idle(self, now: float) -> bool:
        """Whether it may be reaped: nothing happens in it, for the whole idle timeout, and it keeps no outcome
        that nobody has acknowledged."""
        if self._stopping or self._turns.running or self._turns.retained is not None:
            return False
        if self._requests or len(self.permissions) or self.outbox.paused:
            return False
        if self._agent is not None and not self._agent.ended.done() and self._agent.busy:
            return False
        return now - self._active_at >= self._config.idle_timeout

    def touch(self) -> None:
        """Something happened."""
        self._active_at = self._clock()

    @contextlib.contextmanager
    def in_flight(self) -> Iterator[None]:
        """While a reader's request is being served the instance is busy."""
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1
            self.touch()

    def spawn(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Let something run that outlives the stream that began it, and ends with the instance."""
        task = asyncio.create_task(work, name=f"instance-{self.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _launch(self) -> Agent:
        try:
            self._agent = await self._start_agent(self._admitted.launch, self)
        except BaseException:
            self._starting = None
            raise
        return self._agent

    async def _end_agent(self, agent: Agent, budget: float) -> None:
        stop = self.spawn(agent.stop(budget))
        # It keeps to its time; one that does not is no reason to leave the caller without an answer.
        await asyncio.wait({stop}, timeout=budget + self._config.timing.close)
        if not stop.done() or stop.result().failure == UNSTOPPABLE:
            raise StopFailed("something of the agent is left after the stop budget")

    def _running(self) -> Agent:
        if self._stopping:
            raise ActionRefused("stopping", "The instance is being stopped.")
        if self._agent is None:
            raise ActionRefused("not_started", "The agent is not started: initialize it first.")
        return self._agent

    def _between_turns(self) -> Agent:
        agent = self._running()
        if agent.ended.done():
            raise ActionRefused("exited", "The agent ended.")
        if self._turns.running:
            raise ActionRefused("turn_in_progress", "A turn is running: wait for its end, or cancel it.")
        return agent

    async def _run_turn(self, agent: Agent, turn_id: int, prompt: Prompt) -> None:
        try:
            reason = await agent.prompt(prompt.text, prompt.attachments)
        except AgentFailed as failed:
            body = self._failed_turn(failed.code, failed.message, failed.details, turn_id)
        except Exception as error:  # noqa: BLE001
            # A fault of ours must not leave a turn open for ever.
            _log.error("turn failed", instance=self.id, turn=turn_id, error=type(error).__name__)
            body = self._failed_turn("internal", "The control server failed at this turn.", None, turn_id)
        else:
            told = {"session_id": self._provider_session, "stop_reason": reason}
            body = self._finished(turn_id, frames.made("complete", told)[0])
        self.touch()
        if body:
            await self.outbox.put(body)

    async def _turn_ended(self) -> None:
        """The end of a dead agent's turn is told before the end of the agent: wait until its prompt failed, or
        returned, and was told."""
        if self._turn is not None and self._turns.running:
            await asyncio.wait({self._turn}, timeout=TURN_FAILS_WITHIN)
            if self._turns.running:
                self.outbox.offer(self._failed_turn("exited", "The agent ended.", None))

    def _failed_turn(self, code: str, message: str, details: JsonValue, turn_id: int = 0) -> bytes:
        told: dict[str, JsonValue] = {"session_id": self._provider_session, "code": code, "message": message}
        event, _ = frames.made("error", told if details is None else {**told, "details": details})
        if "omitted" in event.fields:
            event, _ = frames.made("error", told)
        return self._finished(turn_id or self._turns.newest, event)

    def _finished(self, turn_id: int, event: Event) -> bytes:
        """The one end of a turn, as it is delivered; nothing for another one."""
        if turn_id != self._turns.newest or not self._turns.running:
            return b""
        self._turns, stamped = outcome.finished(self._turns, turn_id, event)
        return stamped.to_wire()

    async def _finish_tasks(self, within: float) -> None:
        """What still waits for the agent learns of its end; what does not is cut off."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within)
        left = tuple(self._tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
