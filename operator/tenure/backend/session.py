"""A session of an agent, as the backend drives it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any

from pydantic import JsonValue, ValidationError

from tenure.backend.core import Core
from tenure.backend.errors import BackendError, Final, FinalError, Retry, RetryableError
from tenure.backend.following import Follower, KeylessServer, Over, Sending, former_of
from tenure.backend.link import cancelled
from tenure.backend.mailbox import Mailbox
from tenure.backend.refusals import of_control, translated
from tenure.backend.settling import Settling, persistently
from tenure.backend.turns import Turn, TurnEnd
from tenure.model.records import SessionState, TurnState
from tenure.ownership.errors import ControlError, Declined
from tenure.protocol.errors import ProtocolViolation
from tenure.protocol.frames import Action, Event, PermissionRequest, PermissionsList, Prompt, payload_of
from tenure.storage.errors import DatabaseUnavailable, StorageError
from tenure.storage.records import Executor
from tenure.storage.records.types import Turn as TurnRecord

log = logging.getLogger("tenure.backend")


class Session:
    """One agent at work on one workspace. Made by ``Backend.launch`` and ``Backend.resume_sessions``.

    It is attached until it is stopped, or its instance is gone, or the ``Backend`` is closed; streams come and
    go meanwhile without anybody noticing. Everything raises ``RetryableError`` or ``FinalError``.
    """

    def __init__(self, core: Core, executor: Executor, server_identity: str, *, buffer: int) -> None:
        self.id = executor.session_id
        self.task_id = executor.task_id
        self.instance_id = executor.agent_execution_id
        self.workspace_path = executor.workspace_path
        self.server_identity = server_identity
        self._core = core
        self._executor = executor
        self._turn: Turn | None = None
        self._stopping = False
        self._opening = asyncio.Lock()
        self._next_turn: int | None = None
        self._mailbox = Mailbox(buffer, lambda _: self._follower.consumed())
        self._settling = Settling(
            core.records,
            core.link,
            session_id=self.id,
            instance_id=self.instance_id,
            server_identity=server_identity,
            turn=lambda: self._turn,
        )
        self._follower = Follower(
            core.link,
            instance_id=self.instance_id,
            server_identity=server_identity,
            mailbox=self._mailbox,
            settling=self._settling,
            former=former_of(executor),
        )
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self._deliveries: set[asyncio.Task[Turn]] = set()

    def __repr__(self) -> str:
        return f"Session(id={self.id!r}, instance_id={self.instance_id!r}, over={self.over!r})"

    # What it is

    @property
    def attached(self) -> bool:
        """Whether its stream is open at this moment, and its agent ready."""
        return self._follower.attached.is_set()

    @property
    def over(self) -> Over | None:
        """Why it is not driven any more from here; None while it is."""
        return self._follower.over

    @property
    def agent_session_id(self) -> str:
        """The agent's own name of its session; empty until it has told."""
        return self._follower.provider_session_id

    @property
    def began_anew(self) -> bool:
        """Whether the session had an agent before, and this one did not load what was said with that: it was asked to,
        and declined, and knows nothing of it. Known when it is ready, and to whoever attaches later."""
        return self._follower.began_anew or self._executor.began_anew

    @property
    def open_turn(self) -> Turn | None:
        """The turn that has no outcome yet, also when an earlier process began it.

        When its ``control_turn_id`` is None nobody knows whether the control server has the prompt, because
        that process ended between writing the turn down and hearing that it was accepted: give the text to
        ``resend``, which does no work twice.
        """
        turn = self._turn
        return turn if turn is not None and turn.end is None else None

    async def ready(self) -> None:
        """Wait until it is attached and its agent ready."""
        await self._follower.ready()

    # Turns

    async def prompt(self, text: str, attachments: Sequence[JsonValue] = ()) -> Turn:
        """Give the agent its next turn, and return when the control server has it.

        The turn is in the database before it is sent, and is sent under its number, so it is done once,
        whatever dies. A caller that stops waiting does not take it back: it is ``open_turn`` then.
        ``RetryableError`` (``TURN_OPEN``): the former one is not over.
        """
        return await self._carried_out(self._prompted(_prompt(text, attachments)))

    async def resend(self, text: str, attachments: Sequence[JsonValue] = ()) -> Turn:
        """Give the text of ``open_turn`` again, under the key that it had: an agent that has it does not get it a
        second time. Does nothing for a turn that is known to have been accepted."""
        return await self._carried_out(self._resent(_prompt(text, attachments)))

    async def cancel(self) -> None:
        """Ask the agent to end its turn early: the turn then ends as cancelled."""
        await self._follower.ask(Action.CANCEL)

    # What the agent says and asks

    async def events(self) -> AsyncIterator[Event]:
        """What happens, in order, nothing lost and nothing twice; ends when the session is over. For one reader.

        An event counts as read when the next one is asked for. One that was not is told again to whoever
        attaches next, in another process too. While nobody reads, up to 256 events wait here, then more at the
        control server, and then the agent pauses: launch with ``events=False`` if you want none.
        """
        while (event := await self._mailbox.get()) is not None:
            yield event
            self._mailbox.done(event)

    async def permissions(self) -> tuple[PermissionRequest, ...]:
        """What the agent waits for an answer to, oldest first."""
        payload = await self._follower.ask(Action.PERMISSIONS_LIST)
        try:
            return payload_of(PermissionsList, payload).permissions
        except ProtocolViolation as error:
            raise RetryableError(Retry.NO_ANSWER, str(error)) from None

    async def answer(self, pending_id: str, option_id: str) -> None:
        """Answer a permission request with one of its options."""
        payload: JsonValue = {"pending_id": pending_id, "option_id": option_id}
        await self._follower.ask(Action.PERMISSIONS_RESPOND, payload)

    async def refuse(self, pending_id: str) -> None:
        """Answer a permission request by cancelling it."""
        await self._follower.ask(Action.PERMISSIONS_CANCEL, {"pending_id": pending_id})

    # Its end

    async def stop(self, *, grace: float = 0.0, completed: bool = False) -> None:
        """End the session: no further turn, the open one has ``grace`` seconds to finish, then the agent is stopped
        and an open turn abandoned. ``completed``: the session's work is done, and its state says so
        from now on.

        After an error call it again: every step may be repeated, and a process that dies in between leaves a
        row ``stopping``, which the next ``resume_sessions`` finishes.
        """
        self._stopping = True
        state = SessionState.COMPLETED if completed else None
        executions = self._core.records.executions
        with translated():
            if not await executions.stopping(self.id, self.instance_id, session_state=state):
                log.info("session %s: it had ended before", self.id)
        turn = self.open_turn
        if turn is not None and grace > 0 and self.over is None:
            await _within(grace, turn.outcome)
        await self._core.stop_instance(self.instance_id, self.server_identity, self._settling)
        await _within(2.0, self._settling.idle)
        with translated():
            await executions.ended(self.id, self.instance_id, session_state=state)
        await self._refresh_turn()
        await self.detach()

    async def detach(self) -> None:
        """Leave the session to itself: its agent goes on, and whoever attaches next finds everything."""
        ours = {*self._tasks, *self._deliveries} - {asyncio.current_task()}
        await cancelled(*ours)
        self._follower.over = self._follower.over or Over.DETACHED
        await self._mailbox.close()
        if self._core.sessions.get(self.id) is self:
            del self._core.sessions[self.id]
        if self._turn is not None:
            self._turn.finish(_detached())

    async def settled(self) -> None:
        """Wait until every outcome that has come is in the database, and acknowledged as far as that is possible."""
        await self._settling.idle()

    # For the library

    def begin(self, turn: Turn | None = None) -> None:
        """Attach. ``turn``: the open one that was found."""
        self._turn = turn
        self._core.sessions[self.id] = self
        self._tasks = (
            asyncio.create_task(self._follow(), name=f"session {self.id}"),
            asyncio.create_task(self._settling.run(), name=f"outcomes of {self.id}"),
        )

    async def _follow(self) -> None:
        learning = asyncio.create_task(self._learn(), name="provider session")
        try:
            over = await self._follower.run()
        finally:
            await cancelled(learning)
        if over in (Over.GONE, Over.SERVER_LOST) and not self._stopping:
            log.warning("session %s is over: %s", self.id, over)
            await self._lost(over)
        if self._core.sessions.get(self.id) is self:
            del self._core.sessions[self.id]
        if over is Over.FAILED and self._turn is not None:
            self._turn.finish(FinalError(Final.OWNERSHIP_LOST, "the control server is not ours any more"))
        if not self._stopping:
            await cancelled(*self._tasks[1:])

    async def _learn(self) -> None:
        """Write down the agent's own name of the session: with it the next launch loads it."""
        await self._follower.attached.wait()
        token = self._follower.provider_session_id
        if token and token != self._executor.resume_token:
            await persistently(
                lambda: self._core.records.executions.launched(
                    self.id, self.instance_id, resume_token=token, began_anew=self._follower.began_anew
                )
            )

    async def _lost(self, over: Over) -> None:
        """The instance is no more: what was open is abandoned. A record of the library's own ends here; one of a
        resource is the operator's."""
        await self._settling.idle()
        if over is Over.GONE and self._executor.agent_process_uid is None:
            await persistently(
                lambda: self._core.records.executions.ended(self.id, self.instance_id, failed=True)
            )
        turn = self.open_turn
        if turn is not None:
            await persistently(lambda: self._core.records.turns.abandon(turn.id))
        await persistently(self._refresh_turn)

    async def _refresh_turn(self) -> None:
        turn = self._turn
        if turn is None or turn.end is not None:
            return
        with translated():
            record = await self._core.records.turns.get(turn.id)
        if record is not None:
            turn.settle_with(record)

    def _refuse_over(self) -> None:
        if self.over is not None or self._stopping:
            raise FinalError(Final.SESSION_ENDED, f"the session is over ({self.over or 'stopping'})")

    async def _prompted(self, prompt: Prompt) -> Turn:
        async with self._opening:
            self._refuse_over()
            with translated():
                self._turn = Turn(await self._opened())
            return await self._deliver(self._turn, prompt)

    async def _opened(self) -> TurnRecord:
        """The next turn, in the database. One of which it is not known whether it came to be there is opened again
        under the same number, until the answer is heard: it would be in the way of every other."""
        turns = self._core.records.turns
        while True:
            if self._next_turn is None:
                self._next_turn = await turns.fresh_id()
            record = await turns.open(
                self.id, self.instance_id, server_identity=self.server_identity, turn_id=self._next_turn
            )
            self._next_turn = None
            if record.state is TurnState.OPEN:
                return record

    async def _resent(self, prompt: Prompt) -> Turn:
        async with self._opening:
            self._refuse_over()
            turn = self.open_turn
            if turn is None:
                raise FinalError(Final.BAD_REQUEST, "the session has no open turn")
            return turn if turn.control_turn_id is not None else await self._deliver(turn, prompt, again=True)

    async def _carried_out(self, work: Coroutine[Any, Any, Turn]) -> Turn:
        """Do it to its end, also when the caller stops waiting: a turn that was opened has to be delivered, and one
        that is refused has to be ended."""
        delivery = asyncio.create_task(work, name=f"a turn of {self.id}")
        self._deliveries.add(delivery)
        delivery.add_done_callback(self._delivery_ended)
        try:
            return await asyncio.shield(delivery)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if delivery.cancelled() and current is not None and not current.cancelling():
                raise _detached() from None
            raise

    def _delivery_ended(self, delivery: "asyncio.Task[Turn]") -> None:
        self._deliveries.discard(delivery)
        if not delivery.cancelled() and (error := delivery.exception()) is not None:
            log.info("session %s: a prompt was not accepted: %s", self.id, type(error).__name__)

    async def _deliver(self, turn: Turn, prompt: Prompt, *, again: bool = False) -> Turn:
        keyed = prompt.model_copy(update={"turn_key": turn.key})
        accepted: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._follower.send(Sending(turn, keyed, accepted, sent=again))
        ended = asyncio.create_task(turn.settled(), name="turn")
        try:
            concerned: set[asyncio.Future[Any]] = {accepted, ended}
            await asyncio.wait(concerned, return_when=asyncio.FIRST_COMPLETED)
            if not accepted.done():
                # Lost with its instance before anybody accepted it.
                return turn
            turn.control_turn_id = accepted.result()
        except Declined as error:
            await self._declined(turn)
            raise of_control(error) from None
        except KeylessServer:
            await self._abandon_unknown(turn)
            raise FinalError(
                Final.SESSION_ENDED, "the prompt's answer is lost, and this server cannot tell a repetition"
            ) from None
        finally:
            await cancelled(ended)
        await self._bind(turn)
        return turn

    async def _bind(self, turn: Turn) -> None:
        assert turn.control_turn_id is not None
        try:
            await self._core.records.turns.bind(turn.id, self.server_identity, turn.control_turn_id)
        except DatabaseUnavailable as error:
            # The outcome binds it, too: it is the session's only turn without a number.
            log.warning("session %s: a turn's number is not written down: %s", self.id, error)
        except StorageError as error:
            log.error("session %s: a turn's number contradicts the records: %s", self.id, error)

    async def _declined(self, turn: Turn) -> None:
        """Refused, this time: but an earlier attempt may have been accepted, and its outcome wait."""
        try:
            retained = await self._core.link.require().client.outcome(self.instance_id)
        except (ControlError, BackendError):
            retained = None
        if retained is not None:
            self._settling.take(retained.turn_id, retained.event)
            await self._settling.idle()
        await persistently(lambda: self._core.records.turns.abandon(turn.id))
        await persistently(self._refresh_turn)

    async def _abandon_unknown(self, turn: Turn) -> None:
        await persistently(lambda: self._core.records.turns.abandon(turn.id))
        turn.finish(TurnEnd(TurnState.ABANDONED))
        await self.stop()


def _detached() -> FinalError:
    return FinalError(Final.CLOSED, "the session was detached; its turn goes on")


def _prompt(text: str, attachments: Sequence[JsonValue]) -> Prompt:
    try:
        prompt = Prompt(text=text, attachments=tuple(attachments))
        if len(prompt.to_wire()) + 4096 <= Prompt.max_bytes:
            return prompt
    except (ValidationError, ValueError, TypeError, RecursionError):
        pass
    raise FinalError(Final.BAD_REQUEST, "the prompt is too long, or its attachments are no JSON")


async def _within(seconds: float, wait: Callable[[], Awaitable[object]]) -> None:
    try:
        async with asyncio.timeout(seconds):
            await wait()
    except TimeoutError:
        return
