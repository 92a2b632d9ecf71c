"""examples/backend as people and curl use it."""

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest_asyncio
from examples.backend.places import alive
from tests.integration.examples.conftest import Trial
from tests.integration.examples.page import blocks, read
from tests.support.wait import eventually

from tenure.model.masked import Masked
from tenure.storage.records import Records

PREPARE, SERVER, *_ = blocks(read("backends.md"), "sh")[0].splitlines()
START = ".venv/bin/python -m examples.backend start"
FORM = {"Accept": "text/html"}


@pytest_asyncio.fixture
async def http(trial: Trial) -> AsyncIterator[aiohttp.ClientSession]:
    """The backend runs, with a fast agent and nobody who allows anything; its HTTP side."""
    trial.env["AGENT_STEP_SECONDS"] = "0.1"
    for command in (PREPARE, SERVER, START):
        await trial.shell.typed(command)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{trial.backend_port}") as session:
        yield session


async def the_one(http: aiohttp.ClientSession) -> dict[str, Any]:
    """The only session."""
    async with http.get("/api/sessions") as answer:
        [one] = (await answer.json())["sessions"]
    found: dict[str, Any] = one
    return found


async def page(http: aiohttp.ClientSession) -> str:
    async with http.get("/") as answer:
        return await answer.text()


async def post(http: aiohttp.ClientSession, path: str, status: int = 200, **fields: str) -> None:
    async with http.post(path, data=fields) as answer:
        assert answer.status == status, await answer.text()


async def asked(http: aiohttp.ClientSession) -> dict[str, Any] | None:
    one = await the_one(http)
    return one if one["permissions"] else None


async def ended(http: aiohttp.ClientSession, state: str) -> dict[str, Any] | None:
    one = await the_one(http)
    return one if one["turns"][0]["state"] == state and not one["running"] else None


async def test_people_answer_cancel_prompt_and_stop_on_the_page(
    trial: Trial, http: aiohttp.ClientSession
) -> None:
    await post(http, "/api/sessions", 201, id="mine", prompt="count <b>every</b> word of * into OUT.md")
    one = await eventually(lambda: asked(http), within=30)
    text = await page(http)
    assert "Write OUT.md?" in text
    assert 'value="allow">Write it</button>' in text
    request = one["permissions"][0]["pending_id"]
    where = f"/api/sessions/mine/permissions/{request}"
    async with http.post(where, data={"option": "allow"}, headers=FORM, allow_redirects=False) as answer:
        assert (answer.status, answer.headers["Location"]) == (303, "/")
    await eventually(lambda: ended(http, "completed"), within=30)
    assert "`wc -w` agrees." in (trial.workspaces / "mine" / "OUT.md").read_text()

    await post(http, "/api/sessions/mine/prompt", 202, prompt="count every file into OUT.md")
    await eventually(lambda: asked(http), within=30)
    await post(http, "/api/sessions/mine/prompt", 503, prompt="count")
    await post(http, "/api/sessions/mine/cancel")
    one = await eventually(lambda: ended(http, "cancelled"), within=30)
    await post(http, "/api/sessions/mine/stop")
    assert not alive(one["agent_pid"])
    assert (await the_one(http))["state"] == "completed"
    await post(http, "/api/sessions/mine/prompt", 404, prompt="count")


async def test_it_is_for_this_machine_and_for_plain_names_only(http: aiohttp.ClientSession) -> None:
    for headers in ({"Host": "evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        async with http.post("/api/sessions", data={"prompt": "count"}, headers=headers) as answer:
            assert answer.status == 403
    await post(http, "/api/sessions", 409, id="../../etc", prompt="count")
    assert "No session yet." in await page(http)


async def test_a_prompt_that_was_written_down_and_never_sent_is_given_after_a_restart(
    trial: Trial, http: aiohttp.ClientSession
) -> None:
    await post(http, "/api/sessions", 201, id="mine", prompt="count every *.md into ONE.md")
    one = await eventually(lambda: asked(http), within=30)
    await post(http, f"/api/sessions/mine/permissions/{one['permissions'][0]['pending_id']}", option="allow")
    await eventually(lambda: ended(http, "completed"), within=30)
    await trial.shell.typed(".venv/bin/python -m examples.backend kill")

    # What is left of a backend that dies between the two: its text, and an open turn that no server has.
    folder = trial.folder / ".cache" / "try"
    (folder / "prompts" / "mine").write_text("count every *.md into TWO.md")
    records = Records(Masked(json.loads((folder / "database.json").read_text())["url"]), namespace="default")
    execution = await records.inventory.of_session("mine")
    assert execution is not None
    await records.turns.open(
        "mine", execution.agent_execution_id, server_identity=execution.container_identity
    )
    await records.aclose()

    await trial.shell.typed(f"{START} --allow --follow")
    one = await the_one(http)
    assert [turn["state"] for turn in one["turns"]] == ["completed", "completed"]
    assert (trial.workspaces / "mine" / "TWO.md").exists()
    journal = (trial.workspaces / "mine" / ".agent" / "journal.jsonl").read_text().splitlines()
    lines = [json.loads(line) for line in journal]
    assert [line["turn"] for line in lines if line["step"] == "turn" and line["event"] == "started"] == [1, 2]
