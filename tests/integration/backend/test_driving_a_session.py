"""Launch, prompt, events, permission, outcome, stop: what each answers, and what is in the database after it."""

import pytest
from tests.integration.backend.scene import Scene
from tests.support.control import RunningServer

from tenure.backend import Backend, Final, FinalError, HandOverDirectory, Retry, RetryableError, TurnState


async def test_a_session_is_launched_prompted_and_stopped_and_every_step_is_in_the_database(
    scene: Scene,
) -> None:
    async with scene.backend() as backend:
        session = await scene.launch(backend)
        assert await scene.execution() == "running"
        turn = await session.prompt("say hello\nwrite out.txt done")
        types = []
        async for event in session.events():
            types.append(event.type)
            if event.terminal:
                break
        end = await turn.outcome()
        assert (end.state, end.stop_reason) == (TurnState.COMPLETED, "end_turn")
        assert types[-2:] == ["message_chunk", "complete"]
        assert await scene.turns() == ["completed"]
        assert await scene.session_state() == "waiting_for_input"
        assert (scene.workspace() / "out.txt").read_text() == "done"
        await session.stop(completed=True)
        assert await scene.execution() == "stopped"
        assert await scene.session_state() == "completed"
        assert scene.server.descendants() == []
        with pytest.raises(FinalError) as refused:
            await session.prompt("more")
        assert refused.value.reason is Final.SESSION_ENDED


async def test_one_turn_after_another_and_never_two_at_a_time(scene: Scene) -> None:
    gate = scene.directory / "gate"
    async with scene.backend() as backend:
        session = await scene.launch(backend, events=False)
        first = await session.prompt(f"wait {gate}")
        with pytest.raises(RetryableError) as refused:
            await session.prompt("say too early")
        assert refused.value.reason is Retry.TURN_OPEN
        assert session.open_turn is first
        gate.touch()
        assert (await first.outcome()).completed
        assert session.open_turn is None
        second = await session.prompt("say hello")
        assert (await second.outcome()).completed
        assert second.control_turn_id != first.control_turn_id
    assert await scene.turns() == ["completed", "completed"]
    assert [entry["text"] for entry in scene.told("prompt")] == [f"wait {gate}", "say hello"]


async def test_a_permission_request_is_listed_and_answered_once(scene: Scene) -> None:
    async with scene.backend() as backend:
        session = await scene.launch(backend)
        turn = await session.prompt("permission Delete it all")
        async for event in session.events():
            if event.type == "permission_request":
                break
        (asked,) = await session.permissions()
        assert asked.title == "Delete it all"
        allow = next(option for option in asked.options if option.kind == "allow_once")
        await session.answer(asked.pending_id, allow.option_id)
        assert (await turn.outcome()).completed
        assert [entry["outcome"] for entry in scene.told("permission")] != []
        assert await session.permissions() == ()
        with pytest.raises(FinalError):
            await session.answer(asked.pending_id, allow.option_id)


async def test_a_turn_can_be_cancelled_and_a_permission_request_refused(scene: Scene) -> None:
    async with scene.backend() as backend:
        session = await scene.launch(backend, events=False)
        turn = await session.prompt("permission May I")
        (asked,) = await scene.until(session.permissions)
        await session.refuse(asked.pending_id)
        assert (await turn.outcome()).state in (TurnState.COMPLETED, TurnState.CANCELLED)
        turn = await session.prompt("wait never")
        await scene.until(lambda: len(scene.told("prompt")) == 2)
        await session.cancel()
        assert (await turn.outcome()).state is TurnState.CANCELLED
    assert (await scene.turns())[-1] == "cancelled"


async def test_an_agent_that_dies_ends_its_turn_as_failed_and_the_session_can_be_launched_anew(
    scene: Scene,
) -> None:
    async with scene.backend() as backend:
        session = await scene.launch(backend, events=False)
        turn = await session.prompt("exit 3")
        end = await turn.outcome()
        assert end.state is TurnState.FAILED
        assert end.code
        with pytest.raises(FinalError) as refused:
            await session.prompt("say are you there")
        assert refused.value.reason is Final.AGENT_FAILED
        assert await scene.turns() == ["failed", "abandoned"]
        await session.stop()
        again = await scene.launch(backend, events=False)
        assert (await (await again.prompt("say hello")).outcome()).completed


async def test_a_launch_that_the_server_refuses_is_rolled_back(scene: Scene) -> None:
    async with scene.backend() as backend:
        with pytest.raises(FinalError) as refused:
            await scene.launch(backend, workspace_path="/")
        assert refused.value.reason is Final.BAD_REQUEST
        assert await scene.execution() == "failed"
        session = await scene.launch(backend)
        assert session.attached
        assert await scene.execution() == "running"


@pytest.mark.parametrize("why", ["no such program", "refuses a session"])
async def test_a_launch_whose_agent_does_not_get_ready_is_rolled_back(scene: Scene, why: str) -> None:
    command = "/no/such/program" if why == "no such program" else scene.command("--login")
    async with scene.backend() as backend:
        with pytest.raises(FinalError) as refused:
            await scene.launch(backend, agent_command=command)
        assert refused.value.reason is Final.AGENT_FAILED
        assert await scene.execution() == "failed"
        assert scene.server.descendants() == []
        assert backend.sessions == ()
        await scene.launch(backend)


async def test_values_that_no_server_takes_are_refused_before_anything_is_written(scene: Scene) -> None:
    secret = "nobody-may-see-this"
    async with scene.backend() as backend:
        for wrong in ({"env": {"A=B": secret}}, {"env": {"KEY": secret + "\0"}}, {"workspace_path": ""}):
            with pytest.raises(FinalError) as refused:
                await scene.launch(backend, **wrong)
            assert refused.value.reason is Final.BAD_REQUEST
            assert secret not in str(refused.value)
        assert await scene.execution() == ""
        session = await scene.launch(backend)
        with pytest.raises(FinalError) as refused:
            await session.prompt("x" * 5_000_000)
        assert refused.value.reason is Final.BAD_REQUEST
        assert await scene.turns() == []


async def test_a_session_in_use_is_retryable_and_one_that_cannot_be_stopped_is_final(scene: Scene) -> None:
    async with scene.backend() as backend:
        await scene.launch(backend)
        with pytest.raises(RetryableError) as in_use:
            await scene.launch(backend)
        assert in_use.value.reason is Retry.SESSION_IN_USE
        await scene.execute("UPDATE tenure.control_servers SET recovered_by = NULL")
        with pytest.raises(RetryableError) as recovering:
            await scene.launch(backend)
        assert recovering.value.reason is Retry.RECOVERY_IN_PROGRESS
        await scene.execute("UPDATE tenure.executors_running SET unstopped_by = created_by")
        with pytest.raises(FinalError) as unstopped:
            await scene.launch(backend)
        assert unstopped.value.reason is Final.UNSTOPPED_AGENT
    assert len(scene.told("started")) == 1


async def test_without_a_hand_over_a_launch_is_refused_at_once_as_retryable(
    database_url: str, scene: Scene
) -> None:
    source = HandOverDirectory(scene.directory / "nothing", pod_uid="")
    async with Backend.connect(source, database_url) as backend:
        with pytest.raises(RetryableError) as refused:
            await scene.launch(backend)
        assert refused.value.reason is Retry.NO_HAND_OVER
        assert backend.server_identity is None
    assert await scene.execution() == ""


async def test_an_environment_and_a_prompt_are_in_no_row_and_no_log(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    async with scene.backend() as backend:
        session = await scene.launch(backend, env={"KEY": "canary-in-env"}, events=False)
        turn = await session.prompt("environ env.json\nsay canary-in-prompt\nfail -32000")
        assert (await turn.outcome()).state is TurnState.FAILED
        await session.stop()
    assert "canary-in-env" in (scene.workspace() / "env.json").read_text()
    for table in ("control_servers", "tasks", "sessions", "executors_running", "turns"):
        rows = await scene.fetch(f"SELECT t::text FROM tenure.{table} t")
        assert rows
        assert "canary" not in str(rows)
    assert "canary" not in caplog.text
    assert _credential_of(scene) not in caplog.text


def _credential_of(scene: Scene) -> str:
    import json

    return str(json.loads(scene.state.read_text())["credential"])


async def test_an_instance_that_no_record_names_gives_way_to_the_record_s_own(scene: Scene) -> None:
    """A launch whose answer was lost, and which was undone before the server had even read it."""
    async with scene.backend() as backend:
        session = await scene.launch(backend)
        await session.detach()
        await scene.execute("UPDATE tenure.executors_running SET status = 'failed'")
        again = await scene.launch(backend, events=False)
        assert again.instance_id != session.instance_id
        assert (await (await again.prompt("say hello")).outcome()).completed
        (agent,) = _agents(scene.server)
        assert agent == list(scene.told("started"))[-1]["pid"]


def _agents(server: RunningServer) -> list[int]:
    return [process.pid for process in server.descendants()]
