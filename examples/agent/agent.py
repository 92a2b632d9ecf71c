"""An ACP agent that counts words, step by step, and can prove what it did. It needs no model and no network.

    python agent.py --step-seconds 1    speak ACP on standard input and output
    python agent.py --journal DIR       what happened in this workspace, and whether anything was done twice

See README.md.
"""

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

from acp import PROTOCOL_VERSION, RequestError, run_agent
from acp.helpers import update_agent_message_text, update_user_message_text
from acp.schema import (
    AgentCapabilities,
    ClientCapabilities,
    Implementation,
    InitializeResponse,
    LoadSessionResponse,
    NewSessionResponse,
    PromptResponse,
)
from journal import Journal, judge
from turn import Session, Turn
from work import HELP

log = logging.getLogger("words")


class WordAgent:
    """The agent's side of ACP: sessions, and the one turn that each of them may have."""

    def __init__(self, step_seconds: float) -> None:
        self._step_seconds = step_seconds
        self._capabilities = ClientCapabilities()
        self._sessions: dict[str, Session] = {}
        self._client: Any = None

    def on_connect(self, client: Any) -> None:
        """Called by the library with the connection."""
        self._client = client

    async def initialize(
        self, protocol_version: int, client_capabilities: ClientCapabilities | None = None, **_: Any
    ) -> InitializeResponse:
        """Both sides say what they can."""
        self._capabilities = client_capabilities or ClientCapabilities()
        return InitializeResponse(
            protocol_version=min(protocol_version, PROTOCOL_VERSION),
            agent_capabilities=AgentCapabilities(load_session=True),
            agent_info=Implementation(name="words", version="1"),
        )

    async def new_session(self, cwd: str, **_: Any) -> NewSessionResponse:
        """A session in a workspace, which the journal remembers."""
        session_id = f"words-{uuid4().hex[:12]}"
        session = self._open(session_id, cwd)
        session.journal.note(session_id, 0, "session", "opened")
        self._sessions[session_id] = session
        return NewSessionResponse(session_id=session_id)

    async def load_session(self, cwd: str, session_id: str, **_: Any) -> LoadSessionResponse:
        """Take up a session of an earlier process, and tell again what was said in it."""
        session = self._open(session_id, cwd)
        if not session.journal.lines(session_id):
            raise RequestError.resource_not_found(session_id)
        session.journal.note(session_id, 0, "session", "loaded")
        for line in session.journal.said(session_id):
            tell = update_user_message_text if line["who"] == "user" else update_agent_message_text
            await self._client.session_update(session_id, tell(line["text"]))
        self._sessions[session_id] = session
        return LoadSessionResponse()

    async def prompt(self, session_id: str, prompt: list[Any], **_: Any) -> PromptResponse:
        """One turn. A cancellation ends it, and is an answer as well."""
        session = self._session(session_id)
        if session.running is not None:
            raise RequestError.invalid_request({"details": "a turn is running"})
        text = "".join(block.text for block in prompt if block.type == "text")
        turn = Turn.begin(session, text, self._client, self._capabilities, self._step_seconds)
        # A task of its own: cancelling the handler of this request would also cancel its answer.
        session.running = asyncio.create_task(turn.run() if turn else self._explain(session))
        try:
            await session.running
        except asyncio.CancelledError:
            if session.cancelled:
                return PromptResponse(stop_reason="cancelled")
            raise
        finally:
            session.running, session.cancelled = None, False
        return PromptResponse(stop_reason="end_turn")

    async def cancel(self, session_id: str, **_: Any) -> None:
        """Stop the running turn; none is no error."""
        session = self._session(session_id)
        if session.running is not None:
            session.cancelled = True
            session.running.cancel()

    async def _explain(self, session: Session) -> None:
        session.journal.say(session.id, "agent", HELP)
        await self._client.session_update(session.id, update_agent_message_text(HELP))

    def _open(self, session_id: str, cwd: str) -> Session:
        workspace = Path(cwd)
        if not workspace.is_dir():
            raise RequestError.invalid_params({"details": "cwd is no folder"})
        return Session(session_id, workspace, Journal(workspace))

    def _session(self, session_id: str) -> Session:
        try:
            return self._sessions[session_id]
        except KeyError:
            raise RequestError.resource_not_found(session_id) from None


def show(workspace: Path) -> int:
    """Print the journal and what it proves; the exit code is 1 when something was done twice."""
    lines = Journal(workspace).lines()
    if not lines:
        print(f"No agent has worked in {workspace} yet.")
        return 0
    for line in lines:
        print(
            f"{line['at'][11:23]}  pid {line['pid']}  turn {line['turn']}  {line['event']:9}  {line['step']}"
        )
    found = judge(lines)
    processes = ", ".join(map(str, found.processes))
    steps, turns = _counted(found.finished, "step"), _counted(found.turns, "turn")
    print(f"\n{steps} finished in {turns} by process {processes}.", end=" ")
    print("Unfinished: " + (", ".join(step for _, _, step in found.unfinished) or "none") + ".", end=" ")
    print("Done twice: " + (", ".join(step for _, _, step in found.twice) or "none") + ".")
    return 1 if found.twice else 0


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description="An ACP agent that counts words, step by step.")
    default = float(os.environ.get("AGENT_STEP_SECONDS") or 1)
    parser.add_argument("--step-seconds", type=float, default=default, help="how long each step takes")
    parser.add_argument("--journal", type=Path, metavar="DIR", help="show what happened in a workspace")
    chosen = parser.parse_args()
    if chosen.journal is not None:
        sys.exit(show(chosen.journal))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)
    log.info("pid %d speaks ACP on standard input and output", os.getpid())
    asyncio.run(run_agent(WordAgent(chosen.step_seconds)))  # type: ignore[arg-type]  # the optional parts are left out


if __name__ == "__main__":
    main()
