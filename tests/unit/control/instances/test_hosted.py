"""An instance whose agent does what no real one can be made to do at will."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue

from tenure.control.acp import AgentExit, AgentFailed, Launch
from tenure.control.acp import Host as AgentHost
from tenure.control.instances import Hosted, HostingConfig, Instances, Status, StopFailed
from tenure.control.instances import hosted as module
from tenure.protocol.frames import PermissionRequest, Prompt
from tenure.protocol.messages import CreateRequest


class FakeAgent:
    """It answers when the test says so."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[AgentExit] = asyncio.get_running_loop().create_future()
        self.prompted: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.busy = False
        self.gone = False
        self.failure = ""
        self.stops = 0

    async def initialize(self) -> JsonValue:
        return {}

    async def new_session(self) -> str:
        return "provider-1"

    async def load_session(self, id: str) -> None: ...

    async def prompt(self, text: str, attachments: Sequence[JsonValue]) -> str:
        return await self.prompted

    async def cancel(self) -> None: ...

    def stderr(self) -> tuple[str, ...]:
        return ()

    async def stop(self, budget: float) -> AgentExit:
        self.stops += 1
        exit_ = AgentExit(0, None, self.failure)
        if not self.ended.done():
            self.ended.set_result(exit_)
            self.gone = True
        if not self.prompted.done():
            self.prompted.set_exception(AgentFailed("stopped", "it is stopped"))
        await asyncio.sleep(0)
        return exit_


class Stage:
    """One instance of one fake agent."""

    def __init__(self, directory: Path, clock: Callable[[], float] = lambda: 0.0) -> None:
        root = directory.resolve()
        self.agent = FakeAgent()
        self.instances = Instances(
            HostingConfig((root,)), port=lambda: 1, clock=clock, start_agent=self._start
        )
        request = CreateRequest(workspace_path=str(root), agent_command="agent", auto_start=True, env={})
        self.hosted: Hosted = self.instances.admit(request)

    async def _start(self, launch: Launch, host: AgentHost) -> FakeAgent:
        return self.agent

    async def turn(self) -> int:
        """Begin a turn."""
        await self.instances.launch(self.hosted)
        await self.hosted.new_session()
        turn = self.hosted.prompt(Prompt(text="x"))
        await asyncio.sleep(0)
        return turn

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(frame) for frame in self.hosted.outbox.after(0, 100)]


async def test_a_dead_agent_s_prompt_that_never_fails_is_ended_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TURN_FAILS_WITHIN", 0.01)
    stage = Stage(tmp_path)
    turn = await stage.turn()
    stage.agent.ended.set_result(AgentExit(3, None))
    stage.agent.gone = True
    assert [one.status for one in stage.instances.enumerate()] == ["running"]
    await stage.hosted.event("agent_exited", {"exit_code": 3})
    assert [(e["type"], e.get("control_turn_id")) for e in stage.events()] == [
        ("error", turn),
        ("agent_exited", None),
    ]
    assert [one.status for one in stage.instances.enumerate()] == ["stopped"]
    # It fails in the end, and is not told a second time.
    stage.agent.prompted.set_exception(AgentFailed("exited", "it ended"))
    await asyncio.wait({stage.hosted._turn} if stage.hosted._turn else set())
    await stage.instances.stop_all()
    assert len(stage.events()) == 2


async def test_a_fault_of_ours_ends_the_turn_too(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    turn = await stage.turn()
    stage.agent.prompted.set_exception(RuntimeError("a secret of the agent's"))
    while not stage.events():
        await asyncio.sleep(0)
    (end,) = stage.events()
    assert (end["type"], end["code"], end["control_turn_id"]) == ("error", "internal", turn)
    assert "secret" not in json.dumps(end)
    await stage.instances.stop_all()


async def test_an_error_whose_details_nobody_could_read_keeps_its_code(tmp_path: Path) -> None:
    details: JsonValue = "x"
    for _ in range(100):
        details = [details]
    stage = Stage(tmp_path)
    await stage.turn()
    stage.agent.prompted.set_exception(AgentFailed("agent_error", "it refused", details))
    while not stage.events():
        await asyncio.sleep(0)
    assert (stage.events()[0]["code"], "details" in stage.events()[0]) == ("agent_error", False)
    await stage.instances.stop_all()


async def test_names_that_are_the_server_s_own_are_not_the_agent_s_to_give(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.instances.launch(stage.hosted)
    await stage.hosted.event("session_info", {"seq": 99, "listed_again": True, "title": "t"})
    frame = stage.hosted.outbox.after(0, 1)[0]
    assert json.loads(frame) == {"seq": 1, "type": "session_info", "title": "t"}
    assert frame.count(b'"seq"') == 1
    await stage.instances.stop_all()


async def test_what_is_left_of_an_agent_fails_the_stop_and_the_next_one_tries_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.turn()
    stage.agent.failure = "unstoppable"
    for _ in range(2):
        with pytest.raises(StopFailed):
            await stage.instances.stop(stage.hosted.id)
        assert stage.hosted.status is Status.STOPPING
    stage.agent.failure = ""
    assert await stage.instances.stop(stage.hosted.id)
    assert stage.agent.stops == 3
    assert [event["type"] for event in stage.events()] == ["error"]


async def test_an_agent_is_reaped_exactly_at_its_idle_timeout(tmp_path: Path) -> None:
    now = [0.0]
    stage = Stage(tmp_path, lambda: now[0])
    await stage.instances.launch(stage.hosted)
    now[0] = 100.0
    stage.hosted.activity()
    assert not stage.hosted.idle(3699.9)
    assert stage.hosted.idle(3700.0)
    stage.agent.busy = True
    assert not stage.hosted.idle(1e9)
    stage.agent.busy = False
    with stage.hosted.in_flight():
        assert not stage.hosted.idle(1e9)
    assert stage.hosted.idle(1e9)
    asks = asyncio.create_task(stage.hosted.permission(PermissionRequest(pending_id="p")))
    await asyncio.sleep(0)
    assert not stage.hosted.idle(1e9)
    stage.hosted.permissions.cancel("p")
    assert (await asks).cancelled
    assert stage.hosted.idle(1e9)
    await stage.instances.stop_all()
    assert not stage.hosted.idle(1e9)
