"""Keeping one session attached: across rotations, lost connections and restarts of either side."""

import asyncio
import contextlib
import json
import logging
from dataclasses import dataclass, field
from enum import StrEnum

from pydantic import JsonValue

from tenure.backend.errors import BackendError, FinalError, Retry, RetryableError
from tenure.backend.link import Link, Peer, cancelled, delays
from tenure.backend.mailbox import Mailbox
from tenure.backend.refusals import of_control
from tenure.backend.settling import Settling
from tenure.backend.turns import Turn
from tenure.model.adoption import HistorySetting
from tenure.ownership.errors import BadAnswer, ControlError, Declined, Refused
from tenure.ownership.stream import ControlStream, StreamEnd
from tenure.protocol.errors import ProtocolViolation
from tenure.protocol.frames import Action, Prompt, PromptAccepted, payload_of
from tenure.protocol.messages import Instance
from tenure.storage.records import HISTORY_KEY, Executor

log = logging.getLogger("tenure.backend")

LAST_WORD = 1.0
"""Seconds that a detach takes at most to tell the server what was read."""
PREPARE_TIMEOUT = 60.0
"""Seconds for an agent to say hello: some load a whole runtime first."""


class Over(StrEnum):
    """Why a session is not followed any more."""

    GONE = "gone"
    """The server, ours and answering, has no such instance."""
    SERVER_LOST = "server_lost"
    """The hand-over names another server by now."""
    FAILED = "failed"
    """There will be no hand-over any more."""
    DETACHED = "detached"


class KeylessServer(Exception):
    """The answer to a prompt is lost, and sending it again might do the work twice."""


@dataclass(eq=False)
class Sending:
    """A prompt on its way. ``accepted`` gets the server's turn id, or the refusal."""

    turn: Turn
    prompt: Prompt = field(repr=False)
    accepted: "asyncio.Future[int]" = field(repr=False)
    sent: bool = False


def former_of(executor: Executor) -> str:
    """What its agent is to load: the agent's own name of the session, from the launch before this one."""
    discard = executor.metadata.get(HISTORY_KEY) == HistorySetting.DISCARD.value
    return "" if discard or executor.began_anew else executor.resume_token or ""


class Follower:
    """The stream of one instance, opened again whenever it ends, until the session is over.

    What was asked of it is not lost with a stream: a prompt is sent again under its key. ``former``: the agent's own
    name of the session from an earlier launch, which is to be loaded; empty: there is none.
    """

    def __init__(
        self,
        link: Link,
        *,
        instance_id: str,
        server_identity: str,
        mailbox: Mailbox,
        settling: Settling,
        former: str = "",
    ) -> None:
        self.over: Over | None = None
        self.attached = asyncio.Event()
        """Set while the stream is open and the agent is ready for a prompt."""
        self.refused: BackendError | None = None
        """The agent did not become ready, and will not."""
        self.provider_session_id = ""
        self.began_anew = False
        """It was to load what was said in the session before, and did not."""
        self._former = former
        self._loading = False
        self._link, self._instance_id, self._server = link, instance_id, server_identity
        self._mailbox, self._settling = mailbox, settling
        self._stream: ControlStream | None = None
        self._outbox: asyncio.Queue[Sending] = asyncio.Queue()
        self._sending: Sending | None = None
        self._read = asyncio.Event()
        self._told = 0
        self._progress = asyncio.Event()

    def send(self, sending: Sending) -> None:
        """Have a prompt sent, now or on the next stream."""
        self._outbox.put_nowait(sending)

    def consumed(self) -> None:
        """Events were read: the server may forget them."""
        self._read.set()

    async def ready(self) -> None:
        """Wait until the session is attached and its agent ready. Raises why it will never be."""
        while not self.attached.is_set():
            self._progress.clear()
            if self.refused is not None:
                raise self.refused
            if self.over is not None:
                raise RetryableError(Retry.NO_HAND_OVER, f"the session is over ({self.over})")
            await self._progress.wait()

    async def ask(self, action: Action, payload: JsonValue = None) -> JsonValue:
        """A request on the stream. Raises ``RetryableError`` when there is none at present."""
        if self._stream is None:
            raise RetryableError(Retry.NO_ANSWER, "the session is not attached at present")
        try:
            return await self._stream.send(action, payload)
        except ControlError as error:
            raise of_control(error) from None

    async def run(self) -> Over:
        """Follow until the session is over, and return why."""
        waits = delays()
        try:
            while self.over is None:
                peer = await self._link.wait()
                if peer.name != self._server:
                    self.over = Over.SERVER_LOST
                    break
                try:
                    if await self._attach(peer):
                        waits = delays()
                except ControlError as error:
                    if isinstance(error, Refused) and error.status == 404:
                        self.over = Over.GONE
                        break
                    self._link.report(peer, error)
                    log.info("an instance is not attached: %s", error)
                await asyncio.sleep(next(waits))
        except FinalError:
            self.over = Over.FAILED
        except Exception as error:  # noqa: BLE001
            # A fault of ours must be the end of this session for all who wait for it, and of no other.
            log.error("an instance is not followed any more: %s", type(error).__name__)
            self.over = Over.FAILED
        except asyncio.CancelledError:
            self.over = self.over or Over.DETACHED
            raise
        finally:
            self.attached.clear()
            self._progress.set()
            await self._mailbox.close()
        return self.over

    async def _attach(self, peer: Peer) -> bool:
        """One stream from its beginning to its end. Whether it became ready."""
        instance = await peer.client.instance(self._instance_id)
        stream = await peer.client.stream(self._instance_id)
        self._stream, self._told = stream, 0
        became_ready = False
        pump = asyncio.create_task(self._pump(stream), name="events")
        serve = asyncio.create_task(self._serve(peer, stream, instance), name="stream")
        try:
            await asyncio.wait({pump, serve}, return_when=asyncio.FIRST_COMPLETED)
            if serve.done():
                await serve
            await pump
            log.debug("a stream ended: %s", stream.end)
            if stream.end is StreamEnd.NEWER_STREAM:
                # Whoever it is has our credential. Do not take turns with it at full speed.
                await asyncio.sleep(1.0)
        finally:
            became_ready = self.attached.is_set()
            self.attached.clear()
            self._stream = None
            await cancelled(pump, serve)
            try:
                await self._acknowledge_the_last(stream)
            finally:
                await stream.aclose()
        return became_ready

    async def _pump(self, stream: ControlStream) -> None:
        async for event in stream.events(acknowledge=False):
            if event.terminal and event.control_turn_id is not None:
                self._settling.take(event.control_turn_id, event)
            if self._loading:
                # What was said before was told before, and nobody can read while a launch is under way.
                self._mailbox.skip(event)
            else:
                await self._mailbox.put(event)

    async def _serve(self, peer: Peer, stream: ControlStream, instance: Instance) -> None:
        """What is done on a stream beside reading it, until it is closed."""
        try:
            retained = await peer.client.outcome(self._instance_id)
        except BadAnswer as error:
            log.warning("an outcome cannot be read: %s", error)
        else:
            if retained is not None:
                self._settling.take(retained.turn_id, retained.event)
        acknowledging = asyncio.create_task(self._acknowledge(stream), name="acknowledge")
        try:
            if not await self._prepared(stream, instance):
                await asyncio.Event().wait()
            self.attached.set()
            self._progress.set()
            while True:
                if self._sending is None:
                    self._sending = await self._outbox.get()
                await self._send(peer, stream, instance, self._sending)
                self._sending = None
        finally:
            await cancelled(acknowledging)

    async def _prepared(self, stream: ControlStream, instance: Instance) -> bool:
        """Have the agent say hello and begin its session, unless it has done so before."""
        self.provider_session_id = self.provider_session_id or instance.provider_session_id
        if not self.provider_session_id and self.refused is None:
            try:
                await stream.send(Action.INITIALIZE, timeout=PREPARE_TIMEOUT)
                self.provider_session_id = await self._begun(stream)
            except Declined as error:
                stopped = RetryableError(
                    Retry.SHUTTING_DOWN, "the instance was stopped before its session began"
                )
                self.refused = stopped if error.stopped else of_control(error)
                self._progress.set()
        # Read off the two names, so that it is said also by whoever attaches after a crash in between.
        self.began_anew = self._former not in ("", self.provider_session_id)
        return self.refused is None

    async def _begun(self, stream: ControlStream) -> str:
        """Load the session that the launch before had, or begin one; the agent's own name of it."""
        if self._former:
            # Its history comes as events before the answer, and so is taken by the pump before this goes on.
            self._loading = True
            try:
                payload: JsonValue = {"session_id": self._former}
                await stream.send(Action.SESSION_LOAD, payload, timeout=PREPARE_TIMEOUT)
            except Declined as error:
                log.warning("an agent does not load its session, and begins anew: %s", error)
            else:
                return self._former
            finally:
                self._loading = False
        answer = await stream.send(Action.SESSION_NEW, timeout=PREPARE_TIMEOUT)
        found = answer.get("session_id") if isinstance(answer, dict) else None
        return found if isinstance(found, str) else ""

    async def _send(self, peer: Peer, stream: ControlStream, instance: Instance, sending: Sending) -> None:
        if sending.accepted.done():
            return
        if sending.sent and not peer.knows_turn_keys(instance):
            sending.accepted.set_exception(KeylessServer())
            return
        sending.sent = True
        payload: JsonValue = json.loads(sending.prompt.to_wire())
        try:
            accepted = payload_of(PromptAccepted, await stream.send(Action.PROMPT, payload))
        except Declined as error:
            sending.accepted.set_exception(error)
        except ProtocolViolation as error:
            # Whether it was accepted is unknown; the next stream asks again.
            raise BadAnswer(str(error)) from None
        else:
            with contextlib.suppress(asyncio.InvalidStateError):
                sending.accepted.set_result(accepted.turn_id)

    async def _acknowledge(self, stream: ControlStream) -> None:
        """Tell the server what was read: the newest number, whenever it has grown."""
        while True:
            if self._mailbox.read > self._told:
                told = self._mailbox.read
                await stream.acknowledge(told)
                self._told = told
            self._read.clear()
            if self._mailbox.read == self._told:
                await self._read.wait()

    async def _acknowledge_the_last(self, stream: ControlStream) -> None:
        """What was read just before a detach would come again, to whoever attaches next."""
        if stream.end is None and self._mailbox.read > self._told:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORD):
                    await stream.acknowledge(self._mailbox.read)
