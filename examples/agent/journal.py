"""What the agent did, one JSON object a line, only ever added to.

A line is on the disk (fsync) before the agent goes on: ``started`` before a step's work, ``finished`` after
it. So a ``started`` without a ``finished`` was cut off, and a step that was ``finished`` twice was done twice.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FOLDER = ".agent"
"""Within the workspace; the agent's own and none of its subject."""

Line = dict[str, Any]
Step = tuple[str, int, str]


class Journal:
    """The journal of one workspace; several processes may write it, each line whole."""

    def __init__(self, workspace: Path) -> None:
        self._folder = workspace / FOLDER
        self._file = self._folder / "journal.jsonl"

    def note(self, session: str, turn: int, step: str, event: str, **more: object) -> None:
        """Add a line and wait until the disk has it."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"at": at, "pid": os.getpid(), "session": session, "turn": turn, "step": step, "event": event}
        self._append(self._file, {**line, **more})

    def lines(self, session: str | None = None) -> list[Line]:
        """Every line, or those of one session, oldest first."""
        return [line for line in _read(self._file) if session in (None, line["session"])]

    def say(self, session: str, who: str, text: str) -> None:
        """Keep what was said, for ``session/load`` to tell it again. ``who``: ``user`` or ``agent``."""
        self._append(self._transcript(session), {"who": who, "text": text})

    def said(self, session: str) -> list[Line]:
        """What was said in a session, oldest first; empty for one that nobody knows."""
        return list(_read(self._transcript(session)))

    def _transcript(self, session: str) -> Path:
        return self._folder / f"{session}.jsonl"

    def _append(self, file: Path, line: Line) -> None:
        self._folder.mkdir(exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, json.dumps(line).encode() + b"\n")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _read(file: Path) -> Iterator[Line]:
    if not file.exists():
        return
    for line in file.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            # The machine died in the middle of this line, so what it tells did not happen.
            continue


@dataclass
class Verdict:
    """What a journal proves. ``unfinished``: begun and without an end, ``twice``: finished more than once."""

    turns: int = 0
    finished: int = 0
    processes: list[int] = field(default_factory=list)
    unfinished: list[Step] = field(default_factory=list)
    twice: list[Step] = field(default_factory=list)


def judge(lines: list[Line]) -> Verdict:
    """Read the lines as evidence. A step that was cancelled, or failed, came to an end, too."""
    last: dict[Step, str] = {}
    finished = Counter[Step]()
    for line in lines:
        step = (line["session"], line["turn"], line["step"])
        last[step] = line["event"]
        finished[step] += line["event"] == "finished"
    works = [step for step, times in finished.items() if times and step[2] != "turn"]
    return Verdict(
        turns=len({(session, turn) for session, turn, _ in last if turn}),
        finished=len(works),
        processes=list(dict.fromkeys(line["pid"] for line in lines)),
        unfinished=[step for step, event in last.items() if event in ("started", "asked", "answered")],
        twice=[step for step in works if finished[step] > 1],
    )
