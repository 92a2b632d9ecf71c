"""Sessions as this backend runs them. Everything that must outlive it is with the control server, in the database,
or in ``prompts``; what is in memory here is for the page only."""

import asyncio
import contextlib
import json
import logging
import re
import shutil
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from examples.backend import places
from tenure.backend import (
    Backend,
    BackendError,
    Event,
    Final,
    FinalError,
    PermissionRequest,
    RetryableError,
    Session,
    TurnState,
)

log = logging.getLogger("example")

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}")
"""What a session may be called here: its workspace and its prompt are files of that name."""
LINES = 200
"""Lines of what happened that are shown for each session."""
ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ("README.md", "CONTRIBUTING.md", "examples/agent/README.md", "examples/worker/README.md")


@dataclass
class Watched:
    """A session that this process drives, and what it has seen of it."""

    session: Session
    lines: deque[dict[str, str]] = field(default_factory=lambda: deque(maxlen=LINES))
    permissions: tuple[PermissionRequest, ...] = ()
    look: asyncio.Event = field(default_factory=asyncio.Event)


class Service:
    """``agent``: the agent's command line. ``allow``: permission requests are answered with their first option."""

    def __init__(self, backend: Backend, agent: str, *, allow: bool) -> None:
        self.backend = backend
        self._agent = agent
        self._allow = allow
        self._watched: dict[str, Watched] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()
        self.found: int | None = None
        """How many sessions of an earlier process were found; None while nobody has looked."""

    async def run(self) -> None:
        """Find what an earlier process left, and go on with it."""
        while self.found is None:
            try:
                await self.backend.ready()
                sessions = await self.backend.resume_sessions()
            except RetryableError as error:
                log.warning("not ready yet: %s", error)
                await asyncio.sleep(0.5)
                continue
            self.found = len(sessions)
            for session in sessions:
                log.info("found session %s", session.id)
                self._watch(session)
                self._spawn(self._give_again(session), "resend")
        await self._tell()

    async def aclose(self) -> None:
        """Stop watching. The agents go on."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # What people ask for

    async def begin(self, text: str, session_id: str = "") -> str:
        """A session in a workspace of its own, with something to read in it, and its first prompt."""
        session_id = session_id or f"s-{uuid4().hex[:8]}"
        if not NAME.fullmatch(session_id):
            raise FinalError(Final.BAD_REQUEST, "a session is called by letters, digits, dots and dashes")
        workspace = (places.WORKSPACES / session_id).resolve()
        await asyncio.to_thread(furnish, workspace)
        session = await self.backend.launch(
            session_id=session_id,
            task_id=f"task-{session_id}",
            workspace_path=str(workspace),
            agent_command=self._agent,
        )
        self._watch(session)
        await self.prompt(session_id, text)
        return session_id

    async def prompt(self, session_id: str, text: str) -> int:
        """Give a prompt; the number of its turn. No row holds what people write, so we keep it ourselves, first:
        only we can give it again when this process dies before the control server has it."""
        session = self._driven(session_id).session
        if session.open_turn is None:
            await asyncio.to_thread(places.write_whole, places.PROMPTS / session_id, text)
        turn = await session.prompt(text)
        await self._tell()
        return turn.id

    async def cancel(self, session_id: str) -> None:
        """End the running turn early."""
        await self._driven(session_id).session.cancel()

    async def stop(self, session_id: str) -> None:
        """End the session with its agent."""
        await self._driven(session_id).session.stop(completed=True)
        self._watched.pop(session_id, None)
        await self._tell()

    async def answer(self, session_id: str, pending_id: str, option_id: str) -> None:
        """Answer a permission request."""
        watched = self._driven(session_id)
        await watched.session.answer(pending_id, option_id)
        watched.look.set()

    # What people see

    async def view(self) -> list[dict[str, Any]]:
        """All sessions, those that are over too, newest first."""
        records = await self.backend.records.sessions.newest(limit=20)
        return [await self._view(one.id, one.state.value) for one in records if NAME.fullmatch(one.id)]

    def lines(self, session_id: str) -> list[dict[str, str]]:
        """What has happened since this process watches."""
        watched = self._watched.get(session_id)
        return list(watched.lines) if watched is not None else []

    async def changes(self) -> AsyncIterator[None]:
        """Something has changed, again and again; at least every ten seconds."""
        while True:
            yield
            with contextlib.suppress(TimeoutError):
                async with self._changed, asyncio.timeout(10):
                    await self._changed.wait()

    async def _view(self, session_id: str, state: str) -> dict[str, Any]:
        watched = self._watched.get(session_id)
        turns = await self.backend.records.turns.of_session(session_id, limit=10)
        workspace = places.WORKSPACES / session_id
        return {
            "id": session_id,
            "state": state,
            "attached": watched is not None and watched.session.attached,
            "over": watched.session.over if watched is not None else "not driven from here",
            "agent_pid": agent_pid(workspace),
            "workspace": str(workspace),
            "turns": [
                {
                    "id": turn.id,
                    "state": turn.state.value,
                    "began": turn.created_at.isoformat(),
                    "seconds": round(
                        ((turn.finished_at or datetime.now(UTC)) - turn.created_at).total_seconds(), 1
                    ),
                    **(turn.outcome or {}),
                }
                for turn in turns
            ],
            "running": any(turn.state is TurnState.OPEN for turn in turns),
            "permissions": [one.model_dump(mode="json") for one in (watched.permissions if watched else ())],
        }

    # How

    def _driven(self, session_id: str) -> Watched:
        if session_id not in self._watched:
            raise KeyError(session_id)
        return self._watched[session_id]

    def _watch(self, session: Session) -> None:
        watched = self._watched[session.id] = Watched(session)
        self._spawn(self._read(watched), f"events of {session.id}")
        self._spawn(self._ask(watched), f"permissions of {session.id}")

    async def _read(self, watched: Watched) -> None:
        async for event in watched.session.events():
            watched.lines.append(
                {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), **spoken(event)}
            )
            if event.type.startswith("permission_"):
                watched.look.set()
            if event.terminal:
                # The page shows the turn's end when it is durable.
                await watched.session.settled()
            await self._tell()
        await self._tell()

    async def _ask(self, watched: Watched) -> None:
        """Keep the open permission requests, and answer them if we may. Looking again costs little and forgives
        a lost event."""
        session = watched.session
        while session.over is None:
            try:
                await session.ready()
                watched.permissions = await session.permissions()
                for request in watched.permissions if self._allow else ():
                    await session.answer(request.pending_id, request.options[0].option_id)
                    watched.look.set()
            except RetryableError as error:
                log.info("session %s: %s", session.id, error)
            except FinalError:
                # Answered by somebody else, or the session is over.
                watched.look.set()
                await asyncio.sleep(0.1)
            await self._tell()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(3):
                    await watched.look.wait()
            watched.look.clear()
        watched.permissions = ()

    async def _give_again(self, session: Session) -> None:
        """A turn that an earlier process wrote down, and perhaps never sent."""
        turn = session.open_turn
        if turn is None or turn.control_turn_id is not None:
            return
        text = await asyncio.to_thread((places.PROMPTS / session.id).read_text, encoding="utf-8")
        log.info("session %s: turn %d is given again", session.id, turn.id)
        while True:
            try:
                await session.resend(text)
                return
            except RetryableError as error:
                log.warning("session %s: %s", session.id, error)
                await asyncio.sleep(0.5)

    def _spawn(self, work: Any, name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            level = logging.WARNING if isinstance(error, BackendError) else logging.ERROR
            log.log(level, "%s: %s", task.get_name(), error)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def spoken(event: Event) -> dict[str, str]:
    """An event as a line for people."""
    said = event.fields
    match event.type:
        case "message_chunk" | "reasoning":
            text = str(said.get("text", said.get("reasoning_text", ""))).strip()
        case "tool_call":
            text = str(said.get("tool_title", ""))
        case "tool_update":
            text = f"{said.get('tool_call_id', '')} {said.get('tool_status', '')}"
        case "plan":
            entries = [one for one in _list(said.get("plan_entries")) if isinstance(one, dict)]
            text = f"{sum(one.get('status') == 'completed' for one in entries)} of {len(entries)} done"
        case "permission_request":
            text = str(said.get("title", ""))
        case "complete":
            text = str(said.get("stop_reason", ""))
        case "error":
            text = f"{said.get('code', '')} {said.get('message', '')}"
        case _:
            text = ""
    return {"type": event.type, "text": text}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def furnish(workspace: Path) -> None:
    """Make a workspace; an empty one gets something to read."""
    workspace.mkdir(parents=True, exist_ok=True)
    if not any(workspace.iterdir()):
        for name in SAMPLES:
            if (ROOT / name).is_file():
                shutil.copyfile(ROOT / name, workspace / name.replace("/", "-").lower())


def agent_pid(workspace: Path) -> int | None:
    """The process that wrote the last line of the workspace's journal: examples/agent keeps one."""
    with contextlib.suppress(OSError, ValueError, IndexError, KeyError):
        last = (workspace / ".agent" / "journal.jsonl").read_text().splitlines()[-1]
        return int(json.loads(last)["pid"])
    return None
