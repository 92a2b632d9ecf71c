"""docs/backends.md: the five commands, typed as they are written, and the backend that is shown there."""

import json
import re
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import pytest
from examples.backend.places import alive
from tests.integration.examples.conftest import Trial
from tests.integration.examples.page import blocks, read
from tests.support.wait import eventually

PAGE = read("backends.md")
FIVE, REMOVE = (block.strip().splitlines() for block in blocks(PAGE, "sh")[:2])


def journal(workspace: Path) -> list[dict[str, Any]]:
    file = workspace / ".agent" / "journal.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def finished(workspace: Path) -> list[str]:
    return [line["step"] for line in journal(workspace) if line["event"] == "finished"]


@pytest.mark.accept("S-001.2")
async def test_five_commands_show_a_turn_that_outlives_its_backend(trial: Trial) -> None:
    prepare, server, start, kill, again = FIVE
    assert "PostgreSQL runs" in await trial.shell.typed(prepare)
    assert "listens on http://127.0.0.1:" in await trial.shell.typed(server)

    said = await trial.shell.typed(start)
    assert re.search(r"turn 1 is running", said)
    first, agent = (int(number) for number in re.findall(r"process (\d+)", said)[:2])
    [workspace] = trial.workspaces.iterdir()
    assert f"kill -9 {first}" in await trial.shell.typed(kill)
    assert not alive(first)
    # Nobody is there, and the agent goes on until it has to ask.
    await eventually(lambda: [line for line in journal(workspace) if line["event"] == "asked"], within=60)
    assert not (workspace / "REPORT.md").exists()

    said = await trial.shell.typed(again)
    assert "sessions found: 1" in said
    assert "turn 1 is completed" in said
    assert "permission_request" in said
    assert {line["pid"] for line in journal(workspace)} == {agent}
    assert len(set(finished(workspace))) == len(finished(workspace)), "a step was done twice"
    assert "`wc -w` agrees." in (workspace / "REPORT.md").read_text()
    look = next(line for line in said.splitlines() if "--journal" in line)
    assert "Done twice: none." in await trial.shell.typed(look.strip())

    database = json.loads((trial.folder / ".cache" / "try" / "database.json").read_text())
    connection = await asyncpg.connect(database["url"])
    turns = await connection.fetch("SELECT state FROM tenure.turns")
    await connection.close()
    assert [turn["state"] for turn in turns] == ["completed"]

    [remove] = REMOVE
    await trial.shell.typed(remove)
    assert not (trial.folder / ".cache" / "try").exists()
    assert not Path(database["root"]).exists()
    assert not [one for one in psutil.process_iter() if _of(trial, one)]


def _of(trial: Trial, process: psutil.Process) -> bool:
    """Whether this process came from the commands: it works in their folder."""
    try:
        return str(trial.folder) in process.cwd()
    except psutil.Error:
        return False


@pytest.mark.parametrize("moment", ["before its end", "not at all"])
async def test_the_backend_of_the_page_works_and_may_be_killed(trial: Trial, moment: str) -> None:
    [program] = blocks(PAGE, "python")
    (trial.folder / "mine.py").write_text(program)
    trial.env["AGENT_STEP_SECONDS"] = "0.3"
    for command in FIVE[:2]:
        await trial.shell.typed(command)
    state = json.loads((trial.folder / ".cache" / "try" / "database.json").read_text())
    trial.env["TENURE_DATABASE_URL"] = state["url"]
    trial.env["SERVER_URL"] = f"http://127.0.0.1:{trial.env['TENURE_SERVER_PORT']}"
    mine = trial.workspaces / "mine"
    mine.mkdir(parents=True)
    for name in ("a.txt", "b.txt", "c.txt"):
        (mine / name).write_text("one two three\n")
    if moment == "before its end":
        killed = (
            ".venv/bin/python mine.py & "
            f"while ! grep -q '\"read a.txt\"' {mine}/.agent/journal.jsonl 2>/dev/null; do sleep 0.1; done; "
            "kill -9 $!"
        )
        await trial.shell.typed(killed)
    said = await trial.shell.typed(".venv/bin/python mine.py")
    assert ("1 sessions found" in said) == (moment == "before its end")
    assert "TurnEnd(state=<TurnState.COMPLETED" in said
    assert "| total | 9 |" in (mine / "REPORT.md").read_text()
    assert len(set(finished(mine))) == len(finished(mine))
