"""What agents and backends wrote down, outside of the system under test; and what must never be found in it."""

import asyncio
import json
import os
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.agents import read_journal, scripted_command
from tests.support.wait import eventually

Entry = dict[str, Any]
AUDIT = """
CREATE TABLE audit (id serial PRIMARY KEY, turn bigint NOT NULL, before text NOT NULL, after text NOT NULL);
CREATE FUNCTION audit_turn() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
    INSERT INTO public.audit (turn, before, after) VALUES (NEW.id, OLD.state, NEW.state); RETURN NEW; END $$;
CREATE TRIGGER audit_turn AFTER UPDATE ON tenure.turns FOR EACH ROW
    WHEN (OLD.state IS DISTINCT FROM NEW.state OR OLD.outcome IS DISTINCT FROM NEW.outcome)
    EXECUTE FUNCTION audit_turn();
"""
"""Every change of a turn's outcome, by whomever: an outcome that is applied twice has two lines."""


@dataclass
class Evidence:
    """The journals below ``folder``, and the orders from which backends work (see ``programs/backend.py``).

    Nothing below /tmp: pods of servers have a /tmp of their own.
    """

    folder: Path
    offences: list[str] = field(default_factory=list)
    forgiven: list[str] = field(default_factory=list)
    """Parts of offences that a test expects."""

    def __post_init__(self) -> None:
        for directory in (self.orders, self.workspaces, self.folder / "agents"):
            directory.mkdir(parents=True, exist_ok=True)

    @property
    def orders(self) -> Path:
        return self.folder / "orders"

    @property
    def workspaces(self) -> Path:
        return self.folder / "workspaces"

    @property
    def backend_journal(self) -> Path:
        return self.folder / "backends"

    # Orders

    def launch(
        self, session: str, *options: str, env: dict[str, str] | None = None, number: int = 1, **more: Any
    ) -> None:
        """Order a session of a scripted agent. ``number``: for a session that has had an agent before."""
        workspace = self.workspaces / session
        workspace.mkdir(exist_ok=True)
        command = scripted_command(self.agent_journal(session), *options)
        asked = {"workspace": str(workspace), "command": command, "env": env or {}, **more}
        self._put(self.orders / session / f"launch-{number}.json", json.dumps(asked))

    def prompt(self, session: str, script: str) -> str:
        """Order a prompt; the note that the agent writes down when it begins with it."""
        number = len(list((self.orders / session / "prompts").glob("*"))) + 1
        note = f"{session} prompt {number}"
        self._put(self.orders / session / "prompts" / f"{number:04}", f"journal {note}\n{script}")
        return note

    def allow(self, session: str) -> None:
        """From now on its permission requests are granted."""
        self._put(self.orders / session / "allow", "")

    def end(self, session: str) -> None:
        """Order its end."""
        self._put(self.orders / session / "stop", "")

    @staticmethod
    def _put(file: Path, text: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.parent.parent / f".{file.name}-{os.getpid()}"
        beside.write_text(text)
        beside.replace(file)

    # Journals

    def agent_journal(self, session: str) -> Path:
        return self.folder / "agents" / session

    def agent(self, session: str, what: str = "") -> list[Entry]:
        """What the session's agents wrote down, all processes one after the other."""
        return read_journal(self.agent_journal(session), what)

    def backend(self, what: str = "", **wanted: Any) -> list[Entry]:
        """What the backends wrote down, narrowed to entries with these fields."""
        found = read_journal(self.backend_journal, what)
        return [each for each in found if all(each.get(key) == value for key, value in wanted.items())]

    def pids(self, session: str) -> list[int]:
        """The agent processes that the session ever had, in order."""
        return [entry["pid"] for entry in self.agent(session, "started")]

    def living(self, session: str) -> list[int]:
        """Those that run."""
        return [pid for pid in self.pids(session) if alive(pid, str(self.agent_journal(session)))]

    async def began(self, note: str, within: float = 30) -> None:
        """Wait until an agent has begun with the prompt of this note."""
        session = note.split(" ", 1)[0]
        await eventually(
            lambda: any(entry["text"] == note for entry in self.agent(session, "note")),
            within=within,
            what=f"{note} has begun; backends say {self.backend()[-3:]}",
        )

    async def outcomes(self, session: str, count: int, within: float = 30) -> list[Entry]:
        """Wait until backends have heard of so many outcomes of the session's turns."""

        def heard() -> list[Entry] | None:
            found = {entry["turn"]: entry for entry in self.backend("outcome", session=session)}
            return list(found.values()) if len(found) >= count else None

        return await eventually(
            heard, within=within, what=f"{count} outcomes of {session}; {self.backend()[-3:]}"
        )

    # What must never be

    async def watch(self) -> None:
        """Look again and again for two agents of one session, until cancelled."""
        while True:
            for journal in (self.folder / "agents").iterdir():
                living = self.living(journal.name)
                if len(living) > 1:
                    sentence = f"two agents of {journal.name} at once: {living}"
                    if sentence not in self.offences:
                        self.offences.append(sentence)
            await asyncio.sleep(0.1)

    def judge(self, turns: list[Entry], audit: list[Entry]) -> list[str]:
        """Sentences about broken promises. ``turns``: rows of ``tenure.turns``, ``audit``: those of AUDIT."""
        found = list(self.offences)
        changes = Counter(row["turn"] for row in audit)
        found += [f"the outcome of turn {turn} was written {n} times" for turn, n in changes.items() if n > 1]
        for journal in sorted((self.folder / "agents").iterdir()):
            session = journal.name
            asked = Counter(entry["text"] for entry in self.agent(session, "prompt"))
            found += [f"{session} was asked twice: {text!r}" for text, n in asked.items() if n > 1]
            done = [e for e in self.agent(session, "finished") if e.get("stop_reason") == "end_turn"]
            told = [row for row in turns if row["session_id"] == session and row["state"] == "completed"]
            if len(told) > len(done):
                found.append(f"{session}: {len(told)} turns completed, the agent finished {len(done)}")
            if len(told) < len(done):
                found.append(f"{session}: turns lost: the agent finished {len(done)}, completed {len(told)}")
        return [each for each in found if not any(part in each for part in self.forgiven)]


def alive(pid: int, mark: str = "") -> bool:
    """Whether this process runs, and (``mark``) has this in its command line: a number may be another's by now."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return False
    return state not in ("Z", "X") and mark in words


def now() -> float:
    """As in journals."""
    return time.time()
