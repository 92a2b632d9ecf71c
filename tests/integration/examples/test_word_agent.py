"""examples/agent, driven over stdio as any ACP client does it."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from acp import RequestError, spawn_agent_process, text_block
from acp.schema import (
    AllowedOutcome,
    ClientCapabilities,
    CreateTerminalResponse,
    DeniedOutcome,
    FileSystemCapabilities,
    ReadTextFileResponse,
    RequestPermissionResponse,
    TerminalOutputResponse,
    WaitForTerminalExitResponse,
)
from tests.support.wait import eventually

AGENT = Path(__file__).parents[3] / "examples" / "agent" / "agent.py"
EVERYTHING = ClientCapabilities(
    terminal=True, fs=FileSystemCapabilities(read_text_file=True, write_text_file=True)
)
PROMPT = "Count the words of every file and write a report"


@dataclass
class Client:
    """What an editor or a control server does for the agent: files, commands and answers, all of them real."""

    answer: str | None = "allow"
    updates: list[Any] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    outputs: dict[str, bytes] = field(default_factory=dict)

    def on_connect(self, _: Any) -> None: ...

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append(update)

    async def request_permission(self, tool_call: Any, options: Any, **_: Any) -> RequestPermissionResponse:
        self.asked.append(tool_call.title)
        if self.answer == "never":
            await asyncio.Event().wait()
        if self.answer is None:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        assert self.answer in [option.option_id for option in options]
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=self.answer))

    async def read_text_file(self, path: str, **_: Any) -> ReadTextFileResponse:
        self.calls.append(f"read {Path(path).name}")
        try:
            return ReadTextFileResponse(content=Path(path).read_text())
        except UnicodeDecodeError:
            raise RequestError.invalid_params({"details": "no text"}) from None

    async def write_text_file(self, path: str, content: str, **_: Any) -> None:
        self.calls.append(f"write {Path(path).name}")
        Path(path).write_text(content)

    async def create_terminal(
        self, command: str, args: list[str], cwd: str, **_: Any
    ) -> CreateTerminalResponse:
        process = await asyncio.create_subprocess_exec(
            command, *args, cwd=cwd, stdout=asyncio.subprocess.PIPE
        )
        self.outputs["one"], _none = await process.communicate()
        self.calls.append(f"run {command}")
        return CreateTerminalResponse(terminal_id="one")

    async def wait_for_terminal_exit(self, **_: Any) -> WaitForTerminalExitResponse:
        return WaitForTerminalExitResponse(exit_code=0)

    async def terminal_output(self, terminal_id: str, **_: Any) -> TerminalOutputResponse:
        return TerminalOutputResponse(output=self.outputs[terminal_id].decode(), truncated=False)

    async def release_terminal(self, **_: Any) -> None:
        self.calls.append("release")

    @property
    def said(self) -> str:
        return "".join(u.content.text for u in self.updates if u.session_update == "agent_message_chunk")


@contextlib.asynccontextmanager
async def agent(
    client: Client, can: ClientCapabilities = EVERYTHING, seconds: float = 0.0
) -> AsyncIterator[tuple[Any, asyncio.subprocess.Process]]:
    arguments = (str(AGENT), "--step-seconds", str(seconds))
    async with spawn_agent_process(client, sys.executable, *arguments) as (connection, process):
        await connection.initialize(protocol_version=1, client_capabilities=can)
        yield connection, process


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "one.txt").write_text("one two three\n")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "two.md").write_text("four five\n")
    return tmp_path


def journal(workspace: Path) -> list[dict[str, Any]]:
    file = workspace / ".agent" / "journal.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def finished(workspace: Path) -> list[str]:
    return [line["step"] for line in journal(workspace) if line["event"] == "finished"]


async def judged(workspace: Path) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(AGENT), "--journal", str(workspace), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    return process.returncode, output.decode()


async def test_it_plans_reads_runs_a_command_asks_and_writes_its_report(workspace: Path) -> None:
    client = Client()
    async with agent(client) as (connection, _):
        session = await connection.new_session(cwd=str(workspace), mcp_servers=[])
        answer = await connection.prompt(session_id=session.session_id, prompt=[text_block(PROMPT)])
    assert answer.stop_reason == "end_turn"
    assert "| total | 5 |" in (workspace / "REPORT.md").read_text()
    assert "`wc -w` agrees." in (workspace / "REPORT.md").read_text()
    assert client.asked == ["Write REPORT.md"]
    assert client.calls == ["read two.md", "read one.txt", "run wc", "release", "write REPORT.md"]
    assert "5 words in 2 files; the report is written to REPORT.md." in client.said
    plans = [update for update in client.updates if update.session_update == "plan"]
    assert [entry.status for entry in plans[-1].entries] == ["completed"] * 5
    steps = ["look", "read deep/two.md", "read one.txt", "check", "write"]
    assert finished(workspace) == [*steps, "turn"]
    code, output = await judged(workspace)
    assert code == 0
    assert "5 steps finished in 1 turn by" in output
    assert "Done twice: none." in output


async def test_it_does_without_what_its_client_cannot_do(workspace: Path) -> None:
    client = Client()
    async with agent(client, ClientCapabilities()) as (connection, _):
        session = await connection.new_session(cwd=str(workspace), mcp_servers=[])
        await connection.prompt(
            session_id=session.session_id, prompt=[text_block("count every *.md into WORDS.md")]
        )
    assert client.calls == []
    assert "| total | 2 |" in (workspace / "WORDS.md").read_text()


async def test_a_file_that_cannot_be_read_costs_no_other(workspace: Path) -> None:
    (workspace / "picture.txt").write_bytes(b"\xff\xfe\x00")
    client = Client()
    async with agent(client) as (connection, _):
        session = await connection.new_session(cwd=str(workspace), mcp_servers=[])
        end = await connection.prompt(session_id=session.session_id, prompt=[text_block(PROMPT)])
    assert end.stop_reason == "end_turn"
    assert "picture.txt: I cannot read it." in client.said
    assert "| one.txt | 3 |" in (workspace / "REPORT.md").read_text()


@pytest.mark.parametrize("answer", ["reject", None])
async def test_without_permission_it_writes_nothing(workspace: Path, answer: str | None) -> None:
    (workspace / "REPORT.md").write_text("mine")
    client = Client(answer=answer)
    async with agent(client) as (connection, _):
        session = await connection.new_session(cwd=str(workspace), mcp_servers=[])
        end = await connection.prompt(session_id=session.session_id, prompt=[text_block(PROMPT)])
    assert end.stop_reason == "end_turn"
    assert client.asked == ["Overwrite REPORT.md"]
    assert (workspace / "REPORT.md").read_text() == "mine"


async def test_a_cancellation_ends_the_turn_and_the_next_one_goes_on(workspace: Path) -> None:
    client = Client(answer="never")
    async with agent(client) as (connection, _):
        session = await connection.new_session(cwd=str(workspace), mcp_servers=[])
        turn = asyncio.create_task(
            connection.prompt(session_id=session.session_id, prompt=[text_block(PROMPT)])
        )
        await eventually(lambda: client.asked, within=60)
        with pytest.raises(RequestError):
            await connection.prompt(session_id=session.session_id, prompt=[text_block(PROMPT)])
        await connection.cancel(session_id=session.session_id)
        assert (await turn).stop_reason == "cancelled"
        assert not (workspace / "REPORT.md").exists()
        client.answer = "allow"
        await connection.prompt(session_id=session.session_id, prompt=[text_block("continue")])
    assert (workspace / "REPORT.md").exists()
    assert client.calls.count("run wc") == 1, "what was finished before the cancellation was done again"
    assert (await judged(workspace))[0] == 0


async def test_a_killed_agent_is_continued_by_another_process_and_nothing_is_done_twice(
    workspace: Path,
) -> None:
    client = Client(answer="never")
    with contextlib.suppress(ConnectionError):
        async with agent(client) as (connection, process):
            session = await connection.new_session(cwd=str(workspace), mcp_servers=[])
            turn = asyncio.create_task(
                connection.prompt(session_id=session.session_id, prompt=[text_block(PROMPT)])
            )
            await eventually(lambda: client.asked, within=60)
            process.kill()
            await asyncio.wait([turn])
            assert turn.exception() is not None
    assert "Unfinished: turn, write." in (await judged(workspace))[1]

    later = Client()
    async with agent(later) as (connection, _):
        await connection.load_session(cwd=str(workspace), session_id=session.session_id, mcp_servers=[])
        await eventually(lambda: PROMPT in [getattr(u.content, "text", "") for u in later.updates], within=60)
        assert "wc counts the same." in later.said, "the earlier answers are told again"
        await connection.prompt(session_id=session.session_id, prompt=[text_block("continue")])
    assert "| total | 5 |" in (workspace / "REPORT.md").read_text()
    assert later.calls == ["write REPORT.md"]
    code, output = await judged(workspace)
    assert code == 0
    assert "Unfinished: none. Done twice: none." in output
    assert len({line["pid"] for line in journal(workspace)}) == 2


async def test_an_unknown_session_is_not_loaded_and_an_unclear_prompt_is_explained(workspace: Path) -> None:
    client = Client()
    async with agent(client) as (connection, _):
        with pytest.raises(RequestError):
            await connection.load_session(cwd=str(workspace), session_id="words-nobody", mcp_servers=[])
        session = await connection.new_session(cwd=str(workspace), mcp_servers=[])
        end = await connection.prompt(session_id=session.session_id, prompt=[text_block("hello")])
    assert end.stop_reason == "end_turn"
    assert "I count words." in client.said
