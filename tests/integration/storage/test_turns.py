"""Turns: opened unless the execution ends, bound to one number, ended exactly once."""

import asyncio
import json

import pytest
from tests.support.records import BROKE, DONE, SERVER, a_launch
from tests.support.turns import RUNNING, WAITING, Scene, by_number

from tenure.model.records import SessionState, TaskState, TurnState
from tenure.storage.records import (
    Applied,
    EntryRefused,
    Executor,
    Outcome,
    Records,
    Turn,
    TurnConflict,
    TurnName,
    TurnRefusal,
    TurnRefused,
)


async def test_an_open_turn_means_a_running_session_and_a_task_in_progress(scene: Scene) -> None:
    assert await scene.states() == RUNNING
    assert scene.turn.key == str(scene.turn.id)
    assert await scene.records.turns.of_session("session-1") == (scene.turn,)
    assert await scene.records.turns.get(scene.turn.id + 1) is None


@pytest.mark.parametrize(
    ("outcome", "completed", "expected"),
    [
        (DONE, False, WAITING),
        (DONE, True, (TurnState.COMPLETED, SessionState.COMPLETED, TaskState.REVIEW)),
        (BROKE, False, (TurnState.FAILED, SessionState.WAITING_FOR_INPUT, TaskState.REVIEW)),
        (
            Outcome("complete", "cancelled"),
            False,
            (TurnState.CANCELLED, SessionState.WAITING_FOR_INPUT, TaskState.REVIEW),
        ),
    ],
)
async def test_an_outcome_ends_the_turn_with_all_that_follows(
    scene: Scene, outcome: Outcome, completed: bool, expected: tuple[object, ...]
) -> None:
    await scene.records.turns.bind(scene.turn.id, SERVER, 7)
    assert await scene.records.turns.apply(by_number(7), outcome, completed=completed) is Applied.APPLIED
    assert await scene.states() == expected
    turn = await scene.records.turns.get(scene.turn.id)
    assert turn is not None
    assert turn.outcome == json.loads(outcome.to_json())
    assert turn.finished_at is not None


@pytest.mark.accept("S-004.4")
async def test_many_who_apply_one_outcome_apply_it_once(scene: Scene, rivals: tuple[Records, ...]) -> None:
    await scene.records.turns.bind(scene.turn.id, SERVER, 7)
    outcomes = [DONE if number % 2 else BROKE for number in range(len(rivals))]
    told = await asyncio.gather(
        *(rival.turns.apply(by_number(7), outcome) for rival, outcome in zip(rivals, outcomes, strict=True))
    )
    assert sorted(told) == [*[Applied.ALREADY] * (len(rivals) - 1), Applied.APPLIED]
    assert len(await scene.ends()) == 1
    winner = outcomes[told.index(Applied.APPLIED)]
    turn = await scene.records.turns.get(scene.turn.id)
    assert turn is not None
    assert turn.state is winner.state


@pytest.mark.accept("S-004.4")
@pytest.mark.parametrize("end", ["outcome", "abandoned"])
async def test_a_turn_that_is_over_is_changed_by_nothing(scene: Scene, end: str) -> None:
    turns = scene.records.turns
    await turns.bind(scene.turn.id, SERVER, 7)
    first = await (turns.apply(by_number(7), DONE) if end == "outcome" else turns.abandon(scene.turn.id))
    assert first is Applied.APPLIED
    before, states = await turns.get(scene.turn.id), await scene.states()
    next_turn = await turns.open("session-1", scene.executor.agent_execution_id)
    assert await turns.apply(by_number(7), BROKE, completed=True) is Applied.ALREADY
    assert await turns.abandon(scene.turn.id) is Applied.ALREADY
    assert await turns.get(scene.turn.id) == before
    assert states[1:] == (SessionState.WAITING_FOR_INPUT, TaskState.REVIEW)
    assert (await scene.states())[1:] == RUNNING[1:], "nor does it stop the turn that came after"
    assert await turns.of_session("session-1") == (next_turn, before)


async def test_a_turn_opens_or_the_stop_comes_first_and_never_both(
    records: Records, rivals: tuple[Records, ...]
) -> None:
    executions = [await records.executions.launch(a_launch(f"session-{number}")) for number in range(12)]

    async def race(executor: Executor, opener: Records, stopper: Records) -> tuple[object, object]:
        name = (executor.session_id, executor.agent_execution_id)
        both = (opener.turns.open(*name), stopper.executions.ended(*name))
        opened, ended = await asyncio.gather(*both, return_exceptions=True)
        return opened, ended

    for number, executor in enumerate(executions):
        opened, ended = await race(executor, rivals[number], rivals[-number - 1])
        assert ended is True
        turns = await records.turns.of_session(executor.session_id)
        if isinstance(opened, TurnRefused):
            assert opened.refusal is TurnRefusal.NOT_LIVE
            assert turns == ()
        else:
            assert isinstance(opened, Turn)
            assert [turn.state for turn in turns] == [TurnState.ABANDONED]


@pytest.mark.parametrize("state", ["stopping", "ended", "relaunched", "unknown", "another turn open"])
async def test_no_turn_opens_where_none_can_end(records: Records, state: str) -> None:
    executor = await records.executions.launch(a_launch())
    name = ("session-9" if state == "unknown" else "session-1", executor.agent_execution_id)
    expected = TurnRefusal.NOT_LIVE
    if state == "stopping":
        await records.executions.stopping(*name)
        expected = TurnRefusal.STOPPING
    elif state in ("ended", "relaunched"):
        await records.executions.ended(*name)
    elif state == "another turn open":
        await records.turns.open(*name)
        expected = TurnRefusal.TURN_OPEN
    if state == "relaunched":
        await records.executions.launch(a_launch())
    before = await records.sessions.get("session-1"), await records.turns.of_session("session-1")
    with pytest.raises(TurnRefused) as caught:
        await records.turns.open(*name)
    assert caught.value.refusal is expected
    assert caught.value.retryable is (expected is TurnRefusal.TURN_OPEN)
    assert before == (await records.sessions.get("session-1"), await records.turns.of_session("session-1"))


async def test_of_many_who_prompt_a_session_one_opens_a_turn(
    records: Records, rivals: tuple[Records, ...]
) -> None:
    executor = await records.executions.launch(a_launch())
    results = await asyncio.gather(
        *(rival.turns.open("session-1", executor.agent_execution_id) for rival in rivals),
        return_exceptions=True,
    )
    refusals = [result.refusal for result in results if isinstance(result, TurnRefused)]
    assert refusals == [TurnRefusal.TURN_OPEN] * (len(rivals) - 1)


async def test_a_number_is_bound_once_and_a_misfit_is_a_conflict(scene: Scene) -> None:
    turns = scene.records.turns
    for _ in range(2):
        await turns.bind(scene.turn.id, SERVER, 7)
    other = await scene.records.executions.launch(a_launch("session-2"))
    second = await turns.open("session-2", other.agent_execution_id, server_identity=SERVER)
    misfits = [
        TurnName(turn=scene.turn.id, server_identity=SERVER, control_turn_id=8),
        TurnName(turn=scene.turn.id, server_identity="server-2", control_turn_id=7),
        TurnName(turn=second.id, server_identity=SERVER, control_turn_id=7),
        TurnName(turn=second.id, server_identity="server-2", control_turn_id=1),
        TurnName(turn=second.id, session_id="session-1"),
        TurnName(session_id="session-2", server_identity=SERVER, control_turn_id=7),
    ]
    for name in misfits:
        with pytest.raises(TurnConflict):
            await turns.apply(name, DONE)
    with pytest.raises(TurnConflict):
        await turns.bind(second.id + 1, SERVER, 9)
    assert await scene.ends() == []
    assert (await scene.states()) == RUNNING


async def test_one_number_for_two_turns_at_once_is_a_conflict_for_one(
    records: Records, rivals: tuple[Records, ...]
) -> None:
    opened = []
    for number in range(6):
        executor = await records.executions.launch(a_launch(f"session-{number}"))
        opened.append(await records.turns.open(executor.session_id, executor.agent_execution_id))
    results = await asyncio.gather(
        *(rival.turns.bind(turn.id, SERVER, 7) for rival, turn in zip(rivals, opened, strict=False)),
        return_exceptions=True,
    )
    conflicts = [result for result in results if isinstance(result, TurnConflict)]
    assert len(conflicts) == 5
    assert all(error.__context__ is None for error in conflicts)


async def test_a_number_that_was_never_written_down_is_the_sessions_open_turns(scene: Scene) -> None:
    turns = scene.records.turns
    name = TurnName(session_id="session-1", server_identity=SERVER, control_turn_id=7)
    assert await turns.apply(by_number(7), DONE) is Applied.UNKNOWN, "nothing says which turn it is"
    assert await turns.apply(name, DONE) is Applied.APPLIED
    assert await turns.apply(by_number(7), DONE) is Applied.ALREADY, "it is known by its number from now on"
    later = await turns.open("session-1", scene.executor.agent_execution_id)
    assert await turns.apply(name, BROKE) is Applied.ALREADY, (
        "an outcome told late does not end the next turn"
    )
    assert (await turns.of_session("session-1"))[0] == later


async def test_a_turn_opened_for_one_server_takes_no_number_of_another(records: Records) -> None:
    executor = await records.executions.launch(a_launch())
    await records.turns.open("session-1", executor.agent_execution_id, server_identity=SERVER)
    name = TurnName(session_id="session-1", server_identity="server-2", control_turn_id=7)
    assert await records.turns.apply(name, DONE) is Applied.UNKNOWN


async def test_a_task_stays_in_progress_while_another_session_works_on_it(
    scene: Scene, rivals: tuple[Records, ...]
) -> None:
    opened = [scene.turn]
    for number in (2, 3):
        executor = await scene.records.executions.launch(
            a_launch(f"session-{number}", task_id="task-of-session-1")
        )
        opened.append(await scene.records.turns.open(executor.session_id, executor.agent_execution_id))
    await scene.records.turns.abandon(opened[0].id)
    assert (await scene.states())[2] is TaskState.IN_PROGRESS
    # The last two at once: both have ended their turns, and neither has committed, when the task is looked at.
    holder = await scene.server.connect(scene.database)
    await holder.execute("BEGIN; SELECT 1 FROM tenure.tasks FOR UPDATE")
    ending = [
        asyncio.create_task(rival.turns.abandon(turn.id))
        for rival, turn in zip(rivals, opened[1:], strict=False)
    ]
    await scene.waiters(2)
    await holder.execute("COMMIT")
    await asyncio.gather(*ending, holder.close())
    assert (await scene.states())[2] is TaskState.REVIEW, "whoever comes last sees that the other has ended"


async def test_a_task_that_people_called_done_stays_done_until_it_is_prompted_again(scene: Scene) -> None:
    await scene.execute("UPDATE tenure.tasks SET state = 'done'")
    await scene.records.turns.apply(TurnName(turn=scene.turn.id), DONE)
    await scene.records.inventory.repair(await scene.records.inventory.live())
    assert (await scene.states())[2] is TaskState.DONE
    again = await scene.records.executions.launch(a_launch())
    await scene.records.turns.open("session-1", again.agent_execution_id)
    assert (await scene.states())[2] is TaskState.IN_PROGRESS


@pytest.mark.parametrize(
    "outcome", [Outcome("complete", "x" * 2000), Outcome("complete", "canary\0")], ids=["long", "zero byte"]
)
async def test_an_outcome_that_no_table_takes_is_refused_and_changes_nothing(
    scene: Scene, outcome: Outcome
) -> None:
    with pytest.raises(EntryRefused) as caught:
        await scene.records.turns.apply(TurnName(turn=scene.turn.id), outcome)
    assert "canary" not in str(caught.value)
    assert await scene.states() == RUNNING


async def test_nothing_but_words_of_an_outcome_gets_into_a_row(scene: Scene) -> None:
    for value in ('{"type": "complete", "message": "canary"}', '["canary"]'):
        with pytest.raises(Exception, match="turns_outcome_check"):
            await scene.execute(
                f"UPDATE tenure.turns SET outcome = '{value}', state = 'completed', finished_at = now()"
            )


def test_a_turn_has_to_be_named() -> None:
    for name in (
        {},
        {"session_id": "s"},
        {"turn": 1, "server_identity": "x"},
        {"turn": 1, "control_turn_id": 1},
    ):
        with pytest.raises(ValueError):
            TurnName(**name)
