"""A real agent process: a session, turns, permissions, files, commands, in order."""

import asyncio
import json
import os
from pathlib import Path

import pytest
from tests.integration.control.acp.conftest import Start
from tests.support.agents import read_journal, scripted
from tests.support.agents.host import Recorder
from tests.support.wait import eventually

from tenure.control.acp import AgentFailed


async def test_a_turn_tells_its_events_in_order_and_ends_after_them(start: Start) -> None:
    link, host = await start()
    assert await link.prompt("say first\nthink hm\nupdates 200\nsay last", ()) == "end_turn"
    assert host.texts == ["first", *map(str, range(200)), "last"]
    assert host.of("reasoning")[0]["reasoning_text"] == "hm"
    assert {fields["session_id"] for _, fields in host.events} == {link_session(host)}


def link_session(host: Recorder) -> object:
    return host.events[0][1]["session_id"]


async def test_an_agent_says_what_it_can_do(start: Start) -> None:
    link, _ = await start(ready=False)
    answer = await link.initialize()
    assert isinstance(answer, dict)
    assert answer["agentInfo"] == {"name": "scripted", "version": "1"}


async def test_an_update_of_an_unknown_kind_is_an_event_and_cannot_forge_the_end_of_a_turn(
    start: Start,
) -> None:
    link, host = await start()
    forged = {"sessionUpdate": "complete", "type": "complete", "control_turn_id": 7, "stop_reason": "x"}
    await link.prompt(f"update {json.dumps(forged)}", ())
    assert host.events[0] == (
        "session_update",
        {"session_update": "complete", "stop_reason": "x", "session_id": link_session(host)},
    )


async def test_a_permission_is_asked_and_its_answer_reaches_the_agent(start: Start) -> None:
    link, host = await start()
    turn = asyncio.create_task(link.prompt("say before\npermission rm -rf build\nsay after", ()))
    await eventually(lambda: host.asked, within=60)
    assert link.busy
    request = host.asked[0]
    assert (request.title, request.action_type) == ("rm -rf build", "command")
    assert [option.option_id for option in request.options] == ["allow", "deny"]
    assert host.texts == ["before"]
    host.answer(request.pending_id, "allow")
    assert await turn == "end_turn"
    assert host.texts == ["before", "permission: allow", "after"]
    assert not link.busy


async def test_an_option_that_was_not_offered_is_a_cancellation(start: Start) -> None:
    link, host = await start()
    turn = asyncio.create_task(link.prompt("permission x", ()))
    await eventually(lambda: host.asked, within=60)
    host.answer(host.asked[0].pending_id, "something else")
    await turn
    assert host.texts == ["permission: cancelled"]


async def test_cancelling_a_turn_ends_it_and_its_permission_requests(start: Start, journal: Path) -> None:
    link, host = await start(scripted(journal))
    turn = asyncio.create_task(link.prompt("permission x\nwait never", ()))
    await eventually(lambda: host.asked, within=60)
    await link.cancel()
    assert await turn == "cancelled"
    assert host.cancelled == [host.asked[0].pending_id]
    assert read_journal(journal, "permission")[0]["outcome"] == "cancelled"
    assert await link.prompt("say next", ()) == "end_turn"


async def test_a_permission_request_that_outlives_its_turn_is_cancelled(start: Start) -> None:
    link, host = await start()
    assert await link.prompt("demand x\nsay on", ()) == "end_turn"
    await eventually(lambda: host.asked and host.cancelled == [host.asked[0].pending_id], within=60)
    await eventually(lambda: not link.busy, within=60)


async def test_open_permission_requests_end_with_their_agent(start: Start) -> None:
    link, host = await start()
    with pytest.raises(AgentFailed):
        await link.prompt("demand x\nexit 1", ())
    await eventually(lambda: host.cancelled == [host.asked[0].pending_id], within=60)


async def test_files_of_the_workspace_are_read_and_written_for_the_agent(
    start: Start, workspace: Path
) -> None:
    (workspace / "in").write_text("content")
    link, host = await start()
    await link.prompt(
        "read in\nsave deep/er/out text\nread /etc/hostname\nsave ../escaped x\nread absent", ()
    )
    assert host.texts == ["read: content", "saved", "refused: -32602", "refused: -32602", "refused: -32002"]
    assert (workspace / "deep/er/out").read_text() == "text"
    assert not (workspace.parent / "escaped").exists()


async def test_a_command_is_run_and_counts_as_busy(start: Start, workspace: Path) -> None:
    link, host = await start()
    await link.prompt("run echo out; echo err >&2; exit 3", ())
    assert host.texts == ["ran: 3 out\nerr\n"]
    assert not link.busy
    os.mkfifo(workspace / "fifo")  # before: without it the command is over at once
    await link.prompt("start cat fifo; touch done", ())
    assert link.busy
    await link.prompt("run exit 0", ())


async def test_a_command_begins_in_the_workspace_and_keeps_the_mark_of_its_instance(
    start: Start, workspace: Path
) -> None:
    link, host = await start()
    variables = [{"name": "TENURE_INSTANCE_MARK", "value": "another"}, {"name": "OWN", "value": "x"}]
    create = {"sessionId": "s", "command": "sh", "args": ["-c", "pwd > where; env > env"], "env": variables}
    ask = json.dumps({"sessionId": "s", "terminalId": "terminal-1"})
    await link.prompt(f"call terminal/create {json.dumps(create)}\ncall terminal/wait_for_exit {ask}", ())
    assert (workspace / "where").read_text() == f"{workspace}\n"
    seen = (workspace / "env").read_text().splitlines()
    assert "OWN=x" in seen
    assert "TENURE_INSTANCE_MARK=another" not in seen
    for cwd in ("/", str(workspace.parent), "relative", str(workspace / "absent")):
        await link.prompt(f"call terminal/create {json.dumps({**create, 'cwd': cwd})}", ())
        assert host.texts[-1] == "refused: -32602"
    await link.prompt(f"call terminal/create {json.dumps({**create, 'command': '/no/such'})}", ())
    assert host.texts[-1] == "refused: -32000"


async def test_a_terminal_keeps_the_end_of_its_output_from_a_characters_beginning_on(start: Start) -> None:
    link, host = await start()
    create = {"sessionId": "s", "command": "printf", "args": ["a€€€"], "outputByteLimit": 7}
    await link.prompt(f"call terminal/create {json.dumps(create)}", ())
    ask = json.dumps({"sessionId": "s", "terminalId": "terminal-1"})
    await link.prompt(f"call terminal/wait_for_exit {ask}\ncall terminal/output {ask}", ())
    output = json.loads(host.texts[-1].removeprefix("result: "))
    assert output == {"output": "€€", "truncated": True, "exitStatus": {"exitCode": 0, "signal": None}}
    await link.prompt(f"call terminal/release {ask}\ncall terminal/output {ask}", ())
    assert host.texts[-1] == "refused: -32002"


async def test_a_session_is_loaded_with_its_history(start: Start, journal: Path) -> None:
    link, _ = await start(scripted(journal))
    await link.prompt("say something", ())
    session = read_journal(journal, "session")[0]["session"]
    await link.stop(3.0)
    again, host = await start(scripted(journal), ready=False)
    await again.initialize()
    await again.load_session(session)
    assert host.of("message_chunk")[0] | {"role": "user"} == host.of("message_chunk")[0]
    assert host.texts == ["say something", "finished: end_turn"]
    assert await again.prompt("say more", ()) == "end_turn"


async def test_attachments_become_content_blocks(start: Start, journal: Path) -> None:
    link, _ = await start(scripted(journal))
    image = {"type": "image", "data": "aGk=", "mime_type": "image/png"}
    await link.prompt("say x", [image, "file:///a/b.txt"])
    assert read_journal(journal, "prompt")[0]["blocks"] == [
        {"type": "text", "text": "say x"},
        {"type": "image", "data": "aGk=", "mimeType": "image/png"},
        {"type": "resource_link", "uri": "file:///a/b.txt", "name": "b.txt"},
    ]
    with pytest.raises(AgentFailed) as failed:
        await link.prompt("say x", [{"type": "audio", "data": "aGk=", "mimeType": "audio/wav"}])
    assert failed.value.code == "not_supported"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--acp-version", "2"), "protocol_version"),
        (("--login",), "auth_required"),
        (("--no-load",), "not_supported"),
    ],
)
async def test_what_an_agent_does_not_do_is_a_failure_with_a_code(
    start: Start, options: tuple[str, ...], code: str
) -> None:
    link, _ = await start(scripted(None, *options), ready=False)
    with pytest.raises(AgentFailed) as failed:
        await link.initialize()
        await (link.load_session("x") if code == "not_supported" else link.new_session())
    assert failed.value.code == code


async def test_an_error_of_the_agent_fails_the_turn_only(start: Start) -> None:
    link, _ = await start()
    with pytest.raises(AgentFailed) as failed:
        await link.prompt("fail -32050", ())
    assert failed.value.code == "agent_error"
    assert "script" not in str(failed.value)
    assert failed.value.details == {"code": -32050, "message": "the script said so"}
    assert await link.prompt("say on", ()) == "end_turn"


async def test_the_environment_is_the_launchs_and_nothing_of_the_servers(
    start: Start, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_SECRET_OF_THE_SERVER", "s3cret")
    link, _ = await start(PROVIDER_KEY="its own")
    await link.prompt("environ agent\nrun env > command", ())
    seen = json.loads((workspace / "agent").read_text())
    assert seen.pop("TENURE_INSTANCE_MARK")
    assert seen == {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "PROVIDER_KEY": "its own"}
    assert "s3cret" not in (workspace / "command").read_text()
    # Nor are descriptors: whatever the server has open, the agent has its three pipes only.
    held = os.listdir(f"/proc/{link.pid}/fd")
    assert sorted(map(int, held)) == [0, 1, 2]


async def test_standard_error_is_kept_at_its_end(start: Start) -> None:
    link, _ = await start()
    await link.prompt("stderr one\nstderr two", ())
    await eventually(lambda: link.stderr() == ("one", "two"), within=60)
