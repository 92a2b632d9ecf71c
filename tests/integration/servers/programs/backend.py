"""The backend of these tests: the program in the backend's pods, on ``tenure.backend``.

Its work is written down outside of the system, in the directory ORDERS, so that every process that is the backend for
a while finds the same work, whatever became of the one before:

=========================== ===============================================================================
SESSION/launch-N.json       launch the session for the N-th time: ``workspace``, ``command``, ``env``,
                            ``passthrough``
SESSION/prompts/NNNN        its prompts; as many were given as the session has turns
SESSION/allow               permission requests are answered with their first option
SESSION/stop                end the session
SESSION/hosted              an AgentProcess launches it: look for it
=========================== ===============================================================================

It appends to JOURNAL what it sees, a JSON object a line: ``started``, ``ready`` (server), ``found`` (sessions),
``launched``, ``refused`` (retryable, reason), ``given`` (turn), ``event`` (type, text, control_turn_id), ``outcome``
(turn, state), ``over`` (why), ``stopped``, ``detached``.

Variables: ORDERS, JOURNAL, DATABASE_URL, INSTALLATION, NAMESPACE, POD_UID, and HANDOVER_SECRET or HANDOVER_DIRECTORY.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tenure.backend import (
    Backend,
    BackendError,
    FinalError,
    HandOverDirectory,
    HandOverSecret,
    HandOverSource,
    RetryableError,
    Session,
    Turn,
)

ORDERS = Path(os.environ["ORDERS"])
EVERY = 0.05
LATER = 0.3


def journal(what: str, **fields: Any) -> None:
    """One line, whole, at once: a process that dies has written it or not."""
    entry = {"what": what, "at": time.time(), "pid": os.getpid(), "pod": os.environ["POD_UID"], **fields}
    file = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, json.dumps(entry).encode() + b"\n")
    os.close(file)


def hand_over() -> HandOverSource:
    """Where this pod learns of its server."""
    if "HANDOVER_DIRECTORY" in os.environ:
        return HandOverDirectory(os.environ["HANDOVER_DIRECTORY"])
    return HandOverSecret(os.environ["HANDOVER_SECRET"], os.environ["NAMESPACE"], interval=0.2)


class Worker:
    """Does what the orders say, for as long as it lives."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._followed: dict[int, Session] = {}
        self._turns: set[int] = set()
        self._later: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server = ""

    async def run(self) -> None:
        while True:
            await self._follow_server()
            for order in sorted(ORDERS.iterdir()):
                if self._later.get(order.name, 0) <= time.monotonic():
                    await self._attend(order)
            await asyncio.sleep(EVERY)

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow_server(self) -> None:
        """Whenever there is another server, see what lives there."""
        server = self.backend.server_identity
        if not server or server == self._server:
            return
        try:
            found = await self.backend.resume_sessions()
        except RetryableError:
            return
        self._server = server
        journal("found", server=server, sessions=sorted(session.id for session in found))

    async def _attend(self, order: Path) -> None:
        try:
            session = next((s for s in self.backend.sessions if s.id == order.name and self._lives(s)), None)
            launch = max(order.glob("launch-*.json"), key=lambda file: int(file.stem[7:]), default=None)
            if session is not None:
                await self._drive(order, session, launch)
            elif launch is not None and not self._done(order, launch):
                await self._launch(order, launch)
            elif (order / "hosted").exists() and not (order / "stop").exists():
                self._later[order.name] = time.monotonic() + LATER
                await self.backend.resume_sessions()
        except (RetryableError, FinalError) as error:
            retryable = isinstance(error, RetryableError)
            journal(
                "refused", session=order.name, retryable=retryable, reason=str(error.reason), text=str(error)
            )
            self._later[order.name] = time.monotonic() + (LATER if retryable else 10 * LATER)

    def _lives(self, session: Session) -> bool:
        """One that does not know yet that its server is gone is none to be driven."""
        return not session.over and session.server_identity == self.backend.server_identity

    @staticmethod
    def _done(order: Path, launch: Path) -> bool:
        return launch.with_suffix(".done").exists() or (order / "stop").exists()

    async def _launch(self, order: Path, launch: Path) -> None:
        asked = json.loads(launch.read_text())
        session = await self.backend.launch(
            session_id=order.name,
            task_id=f"task-of-{order.name}",
            workspace_path=asked["workspace"],
            agent_command=asked["command"],
            env=asked.get("env") or {},
            profile=asked.get("profile", ""),
            passthrough=asked.get("passthrough", False),
        )
        journal("launched", session=session.id, instance=session.instance_id, launch=launch.stem)
        await self._drive(order, session, launch)

    async def _drive(self, order: Path, session: Session, launch: Path | None) -> None:
        if launch is not None:
            launch.with_suffix(".done").touch()
        self._follow(order, session)
        if (order / "stop").exists():
            await session.stop(completed=True)
            journal("stopped", session=session.id)
            return
        prompts = sorted((order / "prompts").glob("*"))
        turn = session.open_turn
        if turn is None:
            given = len(await self.backend.records.turns.of_session(session.id, limit=1000))
            if given >= len(prompts):
                return
            turn = await session.prompt(prompts[given].read_text())
            journal("given", session=session.id, turn=turn.id)
        elif turn.control_turn_id is None:
            given = len(await self.backend.records.turns.of_session(session.id, limit=1000))
            turn = await session.resend(prompts[given - 1].read_text())
            journal("resent", session=session.id, turn=turn.id)
        if turn.id not in self._turns:
            self._turns.add(turn.id)
            self._spawn(self._outcome(turn))

    def _follow(self, order: Path, session: Session) -> None:
        if id(session) not in self._followed:
            self._followed[id(session)] = session
            self._spawn(self._events(session))
            self._spawn(self._permissions(order, session))

    async def _outcome(self, turn: Turn) -> None:
        end = await turn.outcome()
        journal("outcome", session=turn.session_id, turn=turn.id, state=end.state.value)

    async def _events(self, session: Session) -> None:
        async for event in session.events():
            said = event.model_dump(mode="json", exclude_none=True)
            kept = {
                key: said[key] for key in ("text", "control_turn_id", "stop_reason", "code") if key in said
            }
            journal("event", session=session.id, type=event.type, **kept)
        journal("over", session=session.id, why=str(session.over))

    async def _permissions(self, order: Path, session: Session) -> None:
        while session.over is None:
            if (order / "allow").exists():
                with suppress(BackendError):
                    for request in await session.permissions():
                        await session.answer(request.pending_id, request.options[0].option_id)
            await asyncio.sleep(LATER)

    def _spawn(self, work: Awaitable[None]) -> None:
        async def run() -> None:
            with suppress(FinalError):
                await work

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def work() -> None:
    journal("started")
    async with Backend.connect(
        hand_over(),
        os.environ["DATABASE_URL"],
        namespace=os.environ["NAMESPACE"],
        installation=os.environ["INSTALLATION"],
    ) as backend:
        await backend.ready()
        journal("ready", server=backend.server_identity)
        worker = Worker(backend)
        try:
            await worker.run()
        finally:
            await worker.aclose()


async def main() -> int:
    """SIGTERM detaches: no agent is stopped."""
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, told.set)
    working = asyncio.create_task(work())
    waiting = asyncio.create_task(told.wait())
    await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not working.done():
        working.cancel()
    ended: Callable[[], Any] = working.result
    await asyncio.wait({working})
    if working.cancelled():
        journal("detached")
        return 0
    ended()
    return 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
