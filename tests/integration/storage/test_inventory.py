"""The inventory: what is live, what recovery decided, and repair in place."""

import asyncio
from dataclasses import replace

import asyncpg
import pytest
from tests.support.records import DONE, INCARNATION, INSTALLATION, SERVER, a_launch

from tenure.model.records import ExecutorStatus, SessionState, TaskState, TurnState
from tenure.storage.records import Applied, EntryRefused, LaunchRefused, Records, TurnName


async def test_the_live_inventory_is_the_rows_that_may_have_an_agent(records: Records) -> None:
    running = await records.executions.launch(a_launch("running"))
    stopping = await records.executions.launch(a_launch("stopping"))
    await records.executions.stopping("stopping", stopping.agent_execution_id)
    elsewhere = await records.executions.launch(a_launch("elsewhere", installation_id="installation-2"))
    passthrough = await records.executions.launch(a_launch("terminal", passthrough=True))
    for name in ("stopped", "failed"):
        executor = await records.executions.launch(a_launch(name))
        await records.executions.ended(name, executor.agent_execution_id, failed=name == "failed")
    ours = await records.inventory.live(INSTALLATION)
    assert {executor.session_id for executor in ours} == {"running", "stopping", "terminal"}
    assert [executor.session_id for executor in ours if executor.passthrough] == [passthrough.session_id]
    assert set(await records.inventory.live()) - set(ours) == {elsewhere}
    assert running in ours
    assert await records.inventory.of_session("never") is None


@pytest.mark.accept("O-003.5")
@pytest.mark.accept("S-002.7")
async def test_repair_interrupts_what_was_running_and_keeps_what_is_needed_to_go_on(records: Records) -> None:
    executor = await records.executions.launch(a_launch())
    await records.executions.launched("session-1", executor.agent_execution_id, resume_token="provider-7")
    turn = await records.turns.open("session-1", executor.agent_execution_id)
    (repaired,) = await records.inventory.repair(await records.inventory.live())
    assert (repaired.record, repaired.session_id, repaired.abandoned) == (
        executor.id,
        "session-1",
        (turn.id,),
    )
    row = await records.inventory.of_session("session-1")
    assert row is not None
    assert (row.id, row.status, row.resume_token, row.worktree_id) == (
        executor.id,
        ExecutorStatus.STOPPED,
        "provider-7",
        "worktree-1",
    )
    session, task = await records.sessions.get("session-1"), await records.sessions.task("task-of-session-1")
    assert session is not None
    assert task is not None
    assert (session.state, task.state) == (SessionState.WAITING_FOR_INPUT, TaskState.REVIEW)
    assert session.interrupted_at == task.interrupted_at is not None
    assert (await records.turns.get(turn.id)).state is TurnState.ABANDONED  # type: ignore[union-attr]


async def test_repair_again_changes_nothing(records: Records, rivals: tuple[Records, ...]) -> None:
    executor = await records.executions.launch(a_launch())
    await records.turns.open("session-1", executor.agent_execution_id)
    judged = await records.inventory.live()
    told = await asyncio.gather(*(rival.inventory.repair(judged) for rival in rivals))
    assert sum(len(repaired) for repaired in told) == 1
    before = [await records.sessions.get("session-1"), await records.inventory.of_session("session-1")]
    assert await records.inventory.repair(judged) == ()
    assert before == [
        await records.sessions.get("session-1"),
        await records.inventory.of_session("session-1"),
    ]


async def test_repair_spares_what_was_launched_again_since_it_was_judged(records: Records) -> None:
    await records.executions.launch(a_launch())
    judged = await records.inventory.live()
    await records.executions.ended("session-1", judged[0].agent_execution_id)
    new = await records.executions.launch(a_launch())
    assert await records.inventory.repair(judged) == ()
    assert await records.inventory.live() == (new,)


async def test_repair_leaves_a_session_that_is_over_what_it_is(records: Records) -> None:
    executor = await records.executions.launch(a_launch())
    turn = await records.turns.open("session-1", executor.agent_execution_id)
    # The writer died between the outcome and the end of the execution.
    await records.turns.apply(TurnName(turn=turn.id), DONE, completed=True)
    assert len(await records.inventory.repair(await records.inventory.live())) == 1
    session = await records.sessions.get("session-1")
    assert session is not None
    assert (session.state, session.interrupted_at) == (SessionState.COMPLETED, None)


async def test_a_flagged_row_is_repaired_only_when_its_pod_is_provably_gone(records: Records) -> None:
    executor = await records.executions.launch(a_launch())
    await records.inventory.flag_unstopped("session-1", executor.agent_execution_id, INCARNATION)
    judged = await records.inventory.live()
    assert judged[0].unstopped_by == INCARNATION
    assert await records.inventory.repair(judged) == ()
    assert len(await records.inventory.repair(judged, even_unstopped=True)) == 1
    row = await records.inventory.of_session("session-1")
    assert row is not None
    assert (row.live, row.unstopped_by) == (False, None)


async def test_a_retracked_session_goes_on_as_it_was_under_the_winners_id(records: Records) -> None:
    executor = await records.executions.launch(a_launch())
    turn = await records.turns.open("session-1", executor.agent_execution_id)
    before = [await records.sessions.get("session-1"), await records.sessions.task("task-of-session-1")]
    for _ in range(2):
        assert await records.inventory.retracked(executor, "instance-of-another-name")
    assert before == [
        await records.sessions.get("session-1"),
        await records.sessions.task("task-of-session-1"),
    ]
    assert await records.turns.get(turn.id) == turn
    row = await records.inventory.of_session("session-1")
    assert row is not None
    assert (row.agent_execution_id, row.created_by) == ("instance-of-another-name", executor.created_by)
    with pytest.raises(LaunchRefused):
        await records.executions.launch(a_launch())
    name = TurnName(session_id="session-1", server_identity=SERVER, control_turn_id=1)
    assert await records.turns.apply(name, DONE) is Applied.APPLIED


async def test_what_changed_since_it_was_judged_is_not_published(records: Records) -> None:
    executor = await records.executions.launch(a_launch())
    await records.executions.ended("session-1", executor.agent_execution_id)
    assert not await records.inventory.retracked(executor, executor.agent_execution_id)
    await records.executions.launch(a_launch())
    assert not await records.inventory.retracked(executor, executor.agent_execution_id)
    assert not await records.inventory.retracked(replace(executor, session_id="session-9"), "x")
    assert await records.inventory.repair([replace(executor, session_id="session-9")]) == ()


async def test_rows_are_published_together_and_each_as_if_it_were_alone(records: Records) -> None:
    names = ("goes-on", "other-winner", "stops", "ended", "launched-again", "flagged", "moved")
    judged = {name: await records.executions.launch(a_launch(name)) for name in names}
    await records.executions.launch(a_launch("not asked for"))
    await records.executions.stopping("stops", judged["stops"].agent_execution_id)
    for name in ("ended", "launched-again"):
        await records.executions.ended(name, judged[name].agent_execution_id)
    await records.executions.launch(a_launch("launched-again"))
    await records.inventory.flag_unstopped("flagged", judged["flagged"].agent_execution_id, INCARNATION)
    assert await records.inventory.retracked(judged["moved"], "of somebody else")
    before = {name: await records.inventory.of_session(name) for name in (*names, "not asked for")}
    winners = {name: row.agent_execution_id for name, row in judged.items()} | {"other-winner": "winner"}
    for _ in range(2):
        done = await records.inventory.retracked_together([(judged[name], winners[name]) for name in names])
        assert done == {judged[name].id for name in ("goes-on", "other-winner", "stops")}
    for name, row in before.items():
        now = await records.inventory.of_session(name)
        assert row is not None
        assert now is not None
        if name in ("goes-on", "other-winner", "stops"):
            assert now.last_seen_at > row.last_seen_at
            row = replace(
                row,
                agent_execution_id=winners[name],
                last_seen_at=now.last_seen_at,
                updated_at=row.updated_at if name == "stops" else now.updated_at,
            )
        assert now == row
    assert await records.inventory.retracked_together([]) == frozenset()


async def test_a_value_that_is_refused_leaves_all_rows_as_they_were(records: Records) -> None:
    rows = [await records.executions.launch(a_launch(name)) for name in ("one", "two")]
    with pytest.raises(EntryRefused):
        await records.inventory.retracked_together([(rows[0], "winner"), (rows[1], "no\0text")])
    assert set(await records.inventory.live()) == set(rows)


async def test_nobody_waits_for_the_row_of_another_session(records: Records, database_url: str) -> None:
    held, free = [await records.executions.launch(a_launch(name)) for name in ("held", "free")]
    both = [(held, held.agent_execution_id), (free, free.agent_execution_id)]
    connection = await asyncpg.connect(database_url, timeout=10)
    try:
        async with connection.transaction():
            await connection.execute(
                "SELECT 1 FROM tenure.executors_running WHERE id = $1 FOR UPDATE", held.id
            )
            assert await records.inventory.retracked_together(both) == {free.id}
    finally:
        await connection.close()
    assert await records.inventory.retracked_together(both) == {held.id, free.id}


async def test_work_that_goes_on_is_not_interrupted_any_more(records: Records) -> None:
    await records.executions.launch(a_launch())
    await records.inventory.repair(await records.inventory.live())
    again = await records.executions.launch(a_launch())
    await records.turns.open("session-1", again.agent_execution_id)
    session, task = await records.sessions.get("session-1"), await records.sessions.task("task-of-session-1")
    assert session is not None
    assert task is not None
    assert (session.interrupted_at, task.interrupted_at) == (None, None)


async def test_sessions_are_listed_newest_first(records: Records) -> None:
    for name in ("one", "two", "three"):
        await records.executions.launch(a_launch(name))
    assert [session.id for session in await records.sessions.newest(limit=2)] == ["three", "two"]
    assert await records.sessions.get("four") is None
    assert await records.sessions.task("four") is None
