"""Towards a server that cannot tell a repeated prompt from a new one (agentctl), nothing is sent twice: the turn is
abandoned, and its instance stopped."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.agentctl import Agentctl, DoubleInstance, Json
from tests.support.wait import eventually

from tenure.backend import Backend, Final, FinalError, HandOver, HandOverDirectory, TurnState, write_handover
from tenure.model.masked import Masked
from tenure.ownership.client import ControlClient
from tenure.ownership.endpoint import Endpoint
from tenure.storage.migrations import migrate_schema


class Forgetful(Agentctl):
    """Says hello, and hangs up instead of answering a prompt."""

    def __init__(self) -> None:
        super().__init__()
        self.capabilities = ["agent-survival.v1", "agent-delivery.v1"]
        self.hang_up = True

    async def _act(self, instance: DoubleInstance, asked: Json) -> None:
        assert instance.stream is not None
        if asked.get("action") in ("agent.initialize", "agent.session.new"):
            head = {"id": asked["id"], "action": asked["action"], "type": "response"}
            await instance.stream.send_str(json.dumps({**head, "payload": {"session_id": "s"}}))
        elif asked.get("action") == "agent.prompt" and self.hang_up:
            await instance.stream.close()
        else:
            await super()._act(instance, asked)

    def prompts(self) -> int:
        """How many prompts have come."""
        return sum(
            asked.get("action") == "agent.prompt" for one in self.seen.values() for asked in one.requests
        )

    @property
    def seen(self) -> dict[str, DoubleInstance]:
        self._seen = {**getattr(self, "_seen", {}), **self.instances}
        return self._seen


@pytest.fixture
async def server() -> AsyncIterator[Forgetful]:
    async with Forgetful() as made:
        yield made


@pytest.fixture
async def source(server: Forgetful, tmp_path: Path, database_url: str) -> HandOverDirectory:
    await migrate_schema(Masked(database_url))
    async with ControlClient(
        Endpoint(server.url), credential=None, home_dir=server.home_dir, expected_identity=None
    ) as client:
        credential = await client.handshake(Masked(server.nonce))
    write_handover(tmp_path, HandOver(server.url, credential, server.identity, server.home_dir, 0))
    return HandOverDirectory(tmp_path, pod_uid="", interval=0.05)


async def test_a_prompt_whose_answer_is_lost_is_not_sent_again(
    server: Forgetful, source: HandOverDirectory, database_url: str
) -> None:
    async with Backend.connect(source, database_url) as backend:
        await backend.ready()
        session = await backend.launch(
            session_id="s", task_id="t", workspace_path="/w", agent_command="a", events=False
        )
        assert server.seen
        with pytest.raises(FinalError) as refused:
            await session.prompt("once")
        assert refused.value.reason is Final.SESSION_ENDED
        assert server.prompts() == 1
        assert server.instances == {}
        (turn,) = await backend.records.turns.of_session("s")
        assert turn.state is TurnState.ABANDONED
        assert await backend.records.inventory.live() == ()


async def test_nor_by_the_next_process(
    server: Forgetful, source: HandOverDirectory, database_url: str
) -> None:
    async with Backend.connect(source, database_url) as backend:
        await backend.ready()
        session = await backend.launch(
            session_id="s", task_id="t", workspace_path="/w", agent_command="a", events=False
        )
        await backend.records.turns.open("s", session.instance_id)
    server.hang_up = False
    async with Backend.connect(source, database_url) as backend:
        await backend.ready()
        (session,) = await backend.resume_sessions(events=False)
        turn = session.open_turn
        assert turn is not None
        with pytest.raises(FinalError):
            await session.resend("once")
        assert server.prompts() == 0
        assert (await turn.outcome()).state is TurnState.ABANDONED
        await eventually(lambda: server.instances == {}, within=60)
