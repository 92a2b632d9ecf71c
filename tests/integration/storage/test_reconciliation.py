"""What becomes of sessions that were not re-tracked: decided under lock, and written with the row in one go."""

import asyncio
from collections.abc import Callable

import pytest
from tests.support.records import DONE, INCARNATION, SERVER, Cutter, a_launch
from tests.support.rows import row_of

from tenure.model.masked import Masked
from tenure.model.records import ExecutorStatus, SessionState, TaskState, TurnState
from tenure.plan.adoption.liveness import RowVerdict
from tenure.plan.adoption.repair import RowRepair, SessionRepair, SessionView, reconcile
from tenure.storage.records import EntryRefused, Executor, LaunchRefused, Records, Session, Task, TurnName

DEAD, UNKNOWN = RowVerdict.DEAD, RowVerdict.UNKNOWN


def judged(
    executor: Executor, verdict: RowVerdict, *, unstopped: bool = False
) -> Callable[[SessionView], SessionRepair]:
    """The plan's own decision about a session that was not re-tracked."""
    return lambda view: reconcile(
        view, row_of(executor), retracked=False, verdict=verdict, unstopped=unstopped
    )


async def at_work(records: Records, session_id: str = "session-1", **values: object) -> Executor:
    executor = await records.executions.launch(a_launch(session_id, **values))
    await records.turns.open(session_id, executor.agent_execution_id)
    return executor


async def idle(records: Records, session_id: str = "session-1") -> Executor:
    executor = await records.executions.launch(a_launch(session_id))
    turn = await records.turns.open(session_id, executor.agent_execution_id)
    await records.turns.apply(TurnName(turn=turn.id), DONE)
    return executor


async def seen(records: Records, session_id: str = "session-1") -> tuple[Session, Task, Executor]:
    session, row = await records.sessions.get(session_id), await records.inventory.of_session(session_id)
    assert session is not None
    assert row is not None
    task = await records.sessions.task(session.task_id)
    assert task is not None
    return session, task, row


@pytest.mark.accept("S-002.7")
@pytest.mark.parametrize(("verdict", "live"), [(DEAD, False), (UNKNOWN, True)])
async def test_what_was_at_work_waits_and_its_row_guards_it_while_its_agent_may_live(
    records: Records, verdict: RowVerdict, live: bool
) -> None:
    executor = await at_work(records)
    await records.executions.launched("session-1", executor.agent_execution_id, resume_token="provider-7")
    (turn,) = await records.turns.of_session("session-1")
    repair = await records.inventory.reconcile(executor, judged(executor, verdict))
    assert repair is not None
    assert (repair.abandon, repair.interrupted) == ((turn.id,), True)
    session, task, row = await seen(records)
    assert (session.state, task.state) == (SessionState.WAITING_FOR_INPUT, TaskState.REVIEW)
    assert session.interrupted_at == task.interrupted_at is not None
    assert (await records.turns.of_session("session-1"))[0].state is TurnState.ABANDONED
    assert (row.live, row.resume_token, row.worktree_id) == (live, "provider-7", "worktree-1")
    if live:
        with pytest.raises(LaunchRefused):
            await records.executions.launch(a_launch())
    assert await records.inventory.reconcile(executor, judged(executor, verdict)) is None
    assert await seen(records) == (session, task, row)


async def test_a_session_that_waited_for_its_next_prompt_was_not_interrupted(records: Records) -> None:
    executor = await idle(records)
    session, task, _ = await seen(records)
    repair = await records.inventory.reconcile(executor, judged(executor, DEAD))
    assert repair == SessionRepair("session-1", row=RowRepair.STOPPED)
    after, task_after, row = await seen(records)
    assert (after, task_after) == (session, task)
    assert row.status is ExecutorStatus.STOPPED
    executor = await records.executions.launch(a_launch())
    assert len(await records.inventory.repair([executor])) == 1
    assert (await seen(records))[0].interrupted_at is None


async def test_of_many_that_reconcile_at_once_one_writes(
    records: Records, rivals: tuple[Records, ...]
) -> None:
    executor = await at_work(records)
    told = await asyncio.gather(
        *(rival.inventory.reconcile(executor, judged(executor, UNKNOWN)) for rival in rivals)
    )
    assert len([repair for repair in told if repair is not None]) == 1


async def test_the_last_of_a_tasks_sessions_sends_it_to_review_also_when_all_end_at_once(
    records: Records, rivals: tuple[Records, ...]
) -> None:
    names = [f"session-{number}" for number in range(len(rivals))]
    executors = [await at_work(records, name, task_id="shared") for name in names]
    await asyncio.gather(
        *(
            rival.inventory.reconcile(executor, judged(executor, DEAD))
            for rival, executor in zip(rivals, executors, strict=True)
        )
    )
    task = await records.sessions.task("shared")
    assert task is not None
    assert (task.state, task.interrupted_at is not None) == (TaskState.REVIEW, True)


async def test_a_task_that_a_surviving_session_works_on_was_not_interrupted(records: Records) -> None:
    lost = await at_work(records, "lost", task_id="shared")
    await at_work(records, "survivor", task_id="shared")
    await records.inventory.reconcile(lost, judged(lost, DEAD))
    session, task, _ = await seen(records, "lost")
    assert session.interrupted_at is not None
    assert (task.state, task.interrupted_at) == (TaskState.IN_PROGRESS, None)
    survivor, _, _ = await seen(records, "survivor")
    assert (survivor.state, survivor.interrupted_at) == (SessionState.RUNNING, None)


async def test_an_outcome_that_came_first_leaves_nothing_to_interrupt(records: Records) -> None:
    executor = await at_work(records)
    (turn,) = await records.turns.of_session("session-1")
    before = judged(executor, DEAD)
    await records.turns.bind(turn.id, SERVER, 1)
    await records.turns.apply(TurnName(server_identity=SERVER, control_turn_id=1), DONE)
    repair = await records.inventory.reconcile(executor, before)
    assert repair is not None
    assert not repair.interrupted
    assert (await records.turns.of_session("session-1"))[0].state is TurnState.COMPLETED
    assert (await seen(records))[0].interrupted_at is None


async def test_what_was_launched_again_is_not_reconciled(records: Records) -> None:
    executor = await at_work(records)
    await records.executions.ended("session-1", executor.agent_execution_id)
    assert await records.inventory.reconcile(executor, judged(executor, DEAD)) is None
    again = await at_work(records)
    assert await records.inventory.reconcile(executor, judged(executor, DEAD)) is None
    session, _, row = await seen(records)
    assert (session.state, row.live) == (SessionState.RUNNING, True)
    assert row.agent_execution_id == again.agent_execution_id


async def test_a_reconciliation_whose_answer_was_lost_is_done_once(
    records: Records, database_url: str
) -> None:
    executor = await at_work(records)
    async with Cutter.running(database_url) as cutter:
        cut_off = Records(Masked(cutter.proxied), namespace="team-a", size=1)
        await cut_off.servers.get("none")
        cutter.armed = True
        await cut_off.inventory.reconcile(executor, judged(executor, UNKNOWN))
        first = await seen(records)
        assert cutter.cuts == 1
        await cut_off.aclose()
    session, _, row = first
    assert (session.interrupted_at is not None, row.live) == (True, True)
    assert await records.inventory.reconcile(executor, judged(executor, UNKNOWN)) is None
    assert await seen(records) == first


async def test_an_agent_that_could_not_be_stopped_is_flagged_with_what_becomes_of_its_session(
    records: Records,
) -> None:
    executor = await at_work(records)
    decide = judged(executor, DEAD, unstopped=True)
    repair = await records.inventory.reconcile(executor, decide, incarnation=INCARNATION)
    assert repair is not None
    assert repair.row is RowRepair.FLAG
    session, _, row = await seen(records)
    assert (row.live, row.unstopped_by) == (True, INCARNATION)
    assert session.state is SessionState.WAITING_FOR_INPUT
    with pytest.raises(EntryRefused, match="incarnation"):
        await records.inventory.reconcile(executor, decide)


async def test_a_flagged_row_ends_only_when_that_is_said(records: Records) -> None:
    executor = await at_work(records)
    await records.inventory.flag_unstopped("session-1", executor.agent_execution_id, INCARNATION)
    await records.inventory.reconcile(executor, judged(executor, DEAD))
    session, _, row = await seen(records)
    assert (row.live, session.interrupted_at is not None) == (True, True)
    await records.inventory.reconcile(executor, judged(executor, DEAD), even_unstopped=True)
    _, _, row = await seen(records)
    assert (row.live, row.unstopped_by) == (False, None)


async def test_a_stop_that_was_begun_goes_on_after_a_publication(records: Records) -> None:
    executor = await at_work(records)
    await records.executions.stopping("session-1", executor.agent_execution_id)
    (found,) = await records.inventory.live()
    assert await records.inventory.retracked(found, found.agent_execution_id)
    _, _, row = await seen(records)
    assert row.status is ExecutorStatus.STOPPING


async def test_a_former_incarnations_flag_goes_with_the_publication_and_a_new_one_forbids_it(
    records: Records,
) -> None:
    executor = await at_work(records)
    await records.inventory.flag_unstopped("session-1", executor.agent_execution_id, "incarnation-0")
    (found,) = await records.inventory.live()
    for _ in range(2):
        assert await records.inventory.retracked(found, "winner")
    assert await records.inventory.flag_unstopped("session-1", "winner", INCARNATION)
    assert not await records.inventory.retracked(found, "winner")
    await records.inventory.clear_unstopped("session-1")
    assert await records.executions.ended("session-1", "winner")
