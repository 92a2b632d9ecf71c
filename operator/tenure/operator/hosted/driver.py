"""Driving one agent where there is no backend: begin its session, give it its prompt once, answer its requests for
permission, and write down how its turn ended.

It may be ended at any point, by this process or with it, and begun anew: the turn is in the database before the prompt
is sent, and is sent under its number, so that whatever dies it is done once.
"""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import structlog
from pydantic import JsonValue

from tenure.model.adoption import HistorySetting, PermissionPolicy
from tenure.model.records import SessionState, TurnState
from tenure.operator.hosted.clients import Clients
from tenure.operator.hosted.executions import Execution
from tenure.operator.servers.ports import OwnedServer, ServerKey
from tenure.ownership.errors import ControlError, Declined, Refused, StreamClosed
from tenure.ownership.stream import ControlStream, StreamEnd
from tenure.protocol.errors import ProtocolViolation
from tenure.protocol.frames import (
    Action,
    PermissionRequest,
    PermissionsList,
    Prompt,
    PromptAccepted,
    SessionOpened,
    payload_of,
)
from tenure.storage.errors import StorageError
from tenure.storage.records import Outcome, Records, Turn, TurnName, TurnRefused

PREPARE_TIMEOUT = 60.0
"""Seconds for an agent to say hello, or to load a session."""
FIRST_WAIT, LONGEST_WAIT = 0.2, 5.0
PERMISSION_EVENT = "permission_request"

_KINDS = {PermissionPolicy.ALLOW_ONCE: "allow_once", PermissionPolicy.DENY: "reject_once"}

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Orders:
    """What one driver is for. ``prompt`` None: nothing is to be said. ``turns_before``: each later turn of the session
    is this execution's."""

    server: ServerKey
    identity: str
    incarnation: str
    """Whose the server is while this driver is wanted: where it gets a backend, that one drives the instance, and two
    would take turns with its one stream."""
    session: str
    instance: str
    records: Records
    turns_before: int
    prompt: str | None
    resume_token: str
    history: HistorySetting
    permissions: PermissionPolicy


class Unusable(Exception):
    """The agent does not begin a session."""


class Driver:
    """``run`` returns when there is nothing more to do here; ``on_news`` is called whenever something changed."""

    def __init__(self, orders: Orders, clients: Clients, on_news: Callable[[], None]) -> None:
        self._orders = orders
        self._clients = clients
        self._news = on_news
        self._asked = asyncio.Event()

    async def run(self) -> None:
        """Drive it until it is gone, or the server is another one, or another owner's."""
        wait = FIRST_WAIT
        while True:
            found = self._clients.get(self._orders.server)
            if found is not None and self._is_of_others(found[0]):
                return
            try:
                if found is not None:
                    orders = self._orders
                    execution = Execution(orders.records, *found, orders.session, orders.instance)
                    if await self._attach(execution):
                        wait = FIRST_WAIT
            except Refused as error:
                if error.status == 404:
                    return
                self._failed(error)
            except (ControlError, StorageError, ProtocolViolation) as error:
                self._failed(error)
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)

    def _is_of_others(self, server: OwnedServer) -> bool:
        orders = self._orders
        return (server.identity, server.incarnation) != (orders.identity, orders.incarnation)

    def _failed(self, error: Exception) -> None:
        log.info("an agent is not attached", session=self._orders.session, error=type(error).__name__)

    async def _attach(self, execution: Execution) -> bool:
        """One stream from its beginning to its end. Whether the agent became ready."""
        await execution.last_words()
        stream = await execution.client.stream(execution.id)
        ready = asyncio.Event()
        serve = asyncio.create_task(self._serve(execution, stream, ready), name="stream")
        tasks = {
            serve,
            asyncio.create_task(self._answer(stream), name="permissions"),
            asyncio.create_task(self._pump(execution, stream), name="events"),
        }
        try:
            # Serving ends by itself, when there is nothing more to be said; the others end with the stream.
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            if stream.end is StreamEnd.NEWER_STREAM:
                # Whoever it is has our credential. Do not take turns with it at full speed.
                await asyncio.sleep(1.0)
        finally:
            for task in tasks:
                task.cancel()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            await stream.aclose()
            self._news()
        errors = [each for each in found if isinstance(each, Exception)]
        if any(isinstance(each, Unusable) for each in errors):
            await execution.finish(state=SessionState.WAITING_FOR_INPUT, failed=True, last_words=True)
            self._news()
        for each in errors:
            if not isinstance(each, Unusable | _Over | StreamClosed):
                raise each
        # One whose agent is gone is not asked again and again at full speed.
        return ready.is_set() and not any(isinstance(each, _Gone) for each in errors)

    async def _pump(self, execution: Execution, stream: ControlStream) -> None:
        """Take the events: each is acknowledged when the next is asked for, so an outcome is durable before."""
        async for event in stream.events():
            if event.terminal and event.control_turn_id is not None:
                await execution.apply(event.control_turn_id, event)
                self._news()
            elif event.type == PERMISSION_EVENT:
                self._asked.set()
        raise _Over

    async def _serve(self, execution: Execution, stream: ControlStream, ready: asyncio.Event) -> None:
        await self._prepare(execution, stream)
        ready.set()
        self._asked.set()
        turn = await self._turn(execution)
        if turn is not None and turn.control_turn_id is None and self._orders.prompt is not None:
            await self._say(execution, stream, turn, self._orders.prompt)
        self._news()

    # Its session

    async def _prepare(self, execution: Execution, stream: ControlStream) -> None:
        """Have the agent say hello and begin its session, or load the one it had, unless it has done so before."""
        orders = self._orders
        token = (await execution.client.instance(execution.id)).provider_session_id
        if not token:
            try:
                await stream.send(Action.INITIALIZE, timeout=PREPARE_TIMEOUT)
                token = await self._open(stream)
            except Declined as error:
                _over_if_gone(error)
                log.warning("an agent does not begin a session", session=orders.session)
                raise Unusable from error
        if token and token != orders.resume_token:
            # Read off the two names, so that it is said also by whoever comes after a crash in between.
            anew = bool(orders.resume_token) and orders.history is HistorySetting.LOAD
            await orders.records.executions.launched(
                orders.session, orders.instance, resume_token=token, began_anew=anew
            )

    async def _open(self, stream: ControlStream) -> str:
        orders = self._orders
        if orders.resume_token and orders.history is HistorySetting.LOAD:
            payload: JsonValue = {"session_id": orders.resume_token}
            try:
                await stream.send(Action.SESSION_LOAD, payload, timeout=PREPARE_TIMEOUT)
            except Declined as error:
                _over_if_gone(error)
                log.warning("an agent does not load its session, and begins anew", session=orders.session)
            else:
                return orders.resume_token
        answer = await stream.send(Action.SESSION_NEW, timeout=PREPARE_TIMEOUT)
        return payload_of(SessionOpened, answer).session_id

    # Its turn

    async def _turn(self, execution: Execution) -> Turn | None:
        """The turn of this execution that is open; opened now if there has been none and something is to be said."""
        orders = self._orders
        turns = await orders.records.turns.of_session(orders.session, limit=1)
        newest = turns[0] if turns and turns[0].id > orders.turns_before else None
        if newest is not None:
            ours = newest.server_identity in (None, orders.identity)
            return newest if newest.state is TurnState.OPEN and ours else None
        if orders.prompt is None:
            return None
        try:
            return await orders.records.turns.open(
                orders.session, execution.id, server_identity=orders.identity
            )
        except TurnRefused as refused:
            log.info("no turn is opened", session=orders.session, why=str(refused))
            return None

    async def _say(self, execution: Execution, stream: ControlStream, turn: Turn, text: str) -> None:
        payload: JsonValue = json.loads(Prompt(text=text, turn_key=turn.key).to_wire())
        try:
            accepted = payload_of(PromptAccepted, await stream.send(Action.PROMPT, payload))
        except Declined as error:
            # An earlier attempt may have been accepted all the same, and its outcome wait.
            await execution.last_words()
            _over_if_gone(error)
            log.warning("an agent does not take its prompt", session=execution.session)
            await execution.records.turns.apply(TurnName(turn=turn.id), Outcome("error", code="declined"))
            return
        await execution.records.turns.bind(turn.id, execution.server.identity, accepted.turn_id)

    # Its requests for permission

    async def _answer(self, stream: ControlStream) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            payload = await stream.send(Action.PERMISSIONS_LIST)
            for request in payload_of(PermissionsList, payload).permissions:
                # Answered by somebody, or taken back, meanwhile.
                with suppress(Declined):
                    await self._decide(stream, request)

    async def _decide(self, stream: ControlStream, request: PermissionRequest) -> None:
        kind = _KINDS[self._orders.permissions]
        option = next((each.option_id for each in request.options if each.kind == kind), "")
        answer: JsonValue = {"pending_id": request.pending_id}
        if not option:
            await stream.send(Action.PERMISSIONS_CANCEL, answer)
            return
        await stream.send(Action.PERMISSIONS_RESPOND, {"pending_id": request.pending_id, "option_id": option})


class _Over(Exception):
    """The stream has ended."""


class _Gone(_Over):
    """Its agent has."""


def _over_if_gone(error: Declined) -> None:
    """An agent that is gone has refused nothing. What became of it whoever looks at the instance finds out: its server
    may be on its way out, and that is no failure of the agent's."""
    if error.gone:
        raise _Gone from error
