"""ACP agents that tests run as real processes: ``scripted.py`` does what its prompts say, ``hostile.py`` what it must
not."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent


def scripted(journal: Path | None = None, *options: str) -> tuple[str, ...]:
    """The argv of a scripted agent (its language: the docstring of ``scripted.py``)."""
    kept = ("--journal", str(journal)) if journal else ()
    return (sys.executable, "-I", "-S", str(_HERE / "scripted.py"), *kept, *options)


def scripted_command(journal: Path | None = None, *options: str) -> str:
    """The same as one command line, for ``agent_command``."""
    return shlex.join(scripted(journal, *options))


def hostile(kind: str, *arguments: str) -> tuple[str, ...]:
    """The argv of an agent that misbehaves (the kinds: the docstring of ``hostile.py``)."""
    return (sys.executable, "-I", "-S", str(_HERE / "hostile.py"), kind, *arguments)


def hostile_command(kind: str, *arguments: str) -> str:
    """The same as one command line."""
    return shlex.join(hostile(kind, *arguments))


def read_journal(journal: Path, what: str = "") -> list[dict[str, Any]]:
    """What the agent wrote down, oldest first; all of it, or the entries of one kind."""
    if not journal.exists():
        return []
    # The last line may still be on its way.
    lines = journal.read_text().splitlines(keepends=True)
    entries: list[dict[str, Any]] = [json.loads(line) for line in lines if line.endswith("\n")]
    return [entry for entry in entries if what in ("", entry["what"])]
