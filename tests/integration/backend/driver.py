"""A backend as a program of its own: it does one job and ends, or ends itself by SIGKILL at a named moment.

``python -m tests.integration.backend.driver SETTINGS`` with SETTINGS a JSON object: ``url``, ``home``, ``nonce_file``,
``state``, ``database``, ``workspace``, ``command``, ``text`` (the prompt), ``kill`` ("", or "before STEP" or "after
STEP"; the steps are the keys of ``STEPS``), ``stop`` (whether the session is stopped in the end), ``wait`` (a file to
wait for before the session is stopped).

The job is an application's: one session, one prompt, given again under its key when nobody knows whether it arrived.
Started again it finishes what the one before began.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tenure.backend import Backend, LocalOwner, RetryableError, Session
from tenure.ownership.client import ControlClient
from tenure.ownership.files import FileCredentialStore
from tenure.ownership.stream import ControlStream
from tenure.storage.records.executions import Executions
from tenure.storage.records.servers import ControlServers
from tenure.storage.records.turns import Turns

STEPS: dict[str, tuple[type, str, str]] = {
    "store": (FileCredentialStore, "store", ""),
    "record": (ControlServers, "record", ""),
    "recovered": (ControlServers, "set_recovered", ""),
    "row": (Executions, "launch", ""),
    "create": (ControlClient, "create", ""),
    "stream": (ControlClient, "stream", ""),
    "hello": (ControlStream, "send", "agent.initialize"),
    "session": (ControlStream, "send", "agent.session.new"),
    "open": (Turns, "open", ""),
    "send": (ControlStream, "send", "agent.prompt"),
    "bind": (Turns, "bind", ""),
    "apply": (Turns, "apply", ""),
    "ack": (ControlClient, "acknowledge", ""),
    "stopping": (Executions, "stopping", ""),
    "delete": (ControlClient, "delete", ""),
    "ended": (Executions, "ended", ""),
}
"""Every step that somebody else sees, in the order in which a run comes by."""


def intercept(step: str, before: Callable[[], object], after: Callable[[], object]) -> None:
    """Have these called around the first call of a step in this process."""
    owner, name, action = STEPS[step]
    real: Callable[..., Awaitable[Any]] = getattr(owner, name)
    done = False

    async def wrapped(self: object, *args: Any, **kwargs: Any) -> Any:
        nonlocal done
        if done or (action and str(args[0]) != action):
            return await real(self, *args, **kwargs)
        done = True
        before()
        answer = await real(self, *args, **kwargs)
        after()
        return answer

    setattr(owner, name, wrapped)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def _patiently(step: Callable[[], Awaitable[Any]]) -> Any:
    while True:
        try:
            return await step()
        except RetryableError:
            await asyncio.sleep(0.05)


async def _session(backend: Backend, settings: dict[str, Any]) -> Session | None:
    """The session of the job: the one that lives, or a new one; None when the job is done."""
    found = [s for s in await _patiently(backend.resume_sessions) if s.id == "session-1"]
    if found:
        return found[0]
    if await backend.records.turns.of_session("session-1"):
        # Only a stop that was begun leaves a turn without its session.
        return None
    return await _patiently(
        lambda: backend.launch(
            session_id="session-1",
            task_id="task-1",
            workspace_path=settings["workspace"],
            agent_command=settings["command"],
            events=False,
        )
    )


async def work(settings: dict[str, Any]) -> None:
    """The job."""
    owner = LocalOwner(
        settings["url"],
        home=settings["home"],
        nonce_file=settings["nonce_file"],
        state=settings["state"],
        interval=0.05,
    )
    async with Backend.connect(owner, settings["database"]) as backend:
        await backend.ready()
        session = await _session(backend, settings)
        if session is None:
            return
        await session.ready()
        turn = session.open_turn
        if turn is not None:
            turn = await session.resend(settings["text"])
        elif not await backend.records.turns.of_session("session-1"):
            turn = await session.prompt(settings["text"])
        if turn is not None:
            await turn.outcome()
        while settings["wait"] and not Path(settings["wait"]).exists():
            await asyncio.sleep(0.02)
        if settings["stop"]:
            # Of an outcome the acknowledgement is the last step, and nobody waits for it.
            await session.settled()
            await _patiently(lambda: session.stop(completed=True))


def main() -> None:
    settings = json.loads(sys.argv[1])
    when, _, step = settings["kill"].partition(" ")
    if step:
        intercept(
            step,
            _die if when == "before" else lambda: None,
            _die if when == "after" else lambda: None,
        )
    asyncio.run(work(settings))


if __name__ == "__main__":
    main()
