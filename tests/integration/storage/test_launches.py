"""A launch takes its session, or is told why not; the live row is the guard, in every process."""

import asyncio
from typing import Any

import pytest
from tests.support.postgres import PostgresServer
from tests.support.records import INCARNATION, INSTALLATION, Cutter, a_launch, a_server

from tenure.model.adoption import LaunchRefusal
from tenure.model.masked import Masked
from tenure.model.records import DEFAULT_PROFILE, ExecutorStatus, SessionState, TaskState, TurnState
from tenure.storage.database import Database
from tenure.storage.records import DatabaseUnavailable, EntryRefused, LaunchRefused, Records


async def test_a_first_launch_makes_task_session_and_a_live_row(records: Records) -> None:
    launch = a_launch()
    executor = await records.executions.launch(launch)
    assert executor.live
    assert (executor.agent_execution_id, executor.created_by) == (launch.agent_execution_id, INCARNATION)
    assert executor.metadata == {"secondary_profile": "office"}
    session = await records.sessions.get("session-1")
    assert session is not None
    assert (session.state, session.task_state) == (SessionState.CREATED, TaskState.TODO)


@pytest.mark.accept("S-002.8")
@pytest.mark.parametrize("before", ["never launched", "stopped"])
async def test_of_many_launches_of_one_session_exactly_one_wins(
    records: Records, rivals: tuple[Records, ...], before: str
) -> None:
    if before == "stopped":
        old = await records.executions.launch(a_launch())
        await records.executions.ended("session-1", old.agent_execution_id)
    launches = [a_launch(created_by=f"incarnation-{n}") for n in range(len(rivals))]
    results = await asyncio.gather(
        *(rival.executions.launch(launch) for rival, launch in zip(rivals, launches, strict=True)),
        return_exceptions=True,
    )
    won = [result for result in results if not isinstance(result, BaseException)]
    lost = [result for result in results if isinstance(result, LaunchRefused)]
    assert (len(won), len(lost)) == (1, len(rivals) - 1)
    assert all(error.retryable and error.refusal is None for error in lost)
    assert await records.inventory.of_session("session-1") == won[0]


@pytest.mark.accept("S-002.8")
async def test_a_live_session_is_refused_as_retryable_until_recovery_is_over(records: Records) -> None:
    executor = await records.executions.launch(a_launch())
    await records.servers.ensure(INSTALLATION, "workers")
    refusals = []

    async def refused() -> None:
        with pytest.raises(LaunchRefused) as caught:
            await records.executions.launch(a_launch())
        refusals.append((caught.value.refusal, caught.value.retryable))

    await refused()  # the record is there, and nobody has recovered
    await records.servers.record(INSTALLATION, a_server(), adopted_by=None, incarnation=INCARNATION)
    await refused()
    await records.servers.set_recovered(INSTALLATION, INCARNATION, adopted_by=INCARNATION)
    await refused()
    await records.servers.begin_recovery(INSTALLATION, adopted_by=INCARNATION)
    await refused()
    await records.servers.set_recovered(INSTALLATION, INCARNATION, adopted_by=INCARNATION)
    await records.servers.set_adopted(INSTALLATION, adopted_by=INCARNATION, incarnation="incarnation-2")
    await refused()
    recovering, in_use = (LaunchRefusal.RECOVERY_IN_PROGRESS, True), (None, True)
    assert refusals == [recovering, recovering, in_use, recovering, recovering]
    await records.inventory.repair([executor])
    assert await records.executions.launch(a_launch()), "repair releases the guard, recovery or not"


async def test_a_session_without_a_live_row_is_launched_while_another_is_recovered(records: Records) -> None:
    await records.servers.ensure(INSTALLATION, "workers")
    assert await records.executions.launch(a_launch())


async def test_an_unstopped_agent_refuses_launches_for_good_also_after_a_restart(
    records: Records, rivals: tuple[Records, ...]
) -> None:
    executor = await records.executions.launch(a_launch())
    await records.servers.ensure(INSTALLATION, "workers")
    await records.servers.record(INSTALLATION, a_server(), adopted_by=None, incarnation=INCARNATION)
    assert await records.inventory.flag_unstopped("session-1", executor.agent_execution_id, INCARNATION)
    await records.servers.set_recovered(INSTALLATION, INCARNATION, adopted_by=INCARNATION)
    for process in rivals[:2]:
        with pytest.raises(LaunchRefused) as caught:
            await process.executions.launch(a_launch())
        assert (caught.value.refusal, caught.value.retryable) == (LaunchRefusal.UNSTOPPED_AGENT, False)
    assert not await records.executions.ended("session-1", executor.agent_execution_id)
    assert await records.inventory.repair([executor]) == ()
    assert await records.inventory.clear_unstopped("session-1")
    assert await records.executions.ended("session-1", executor.agent_execution_id)
    assert await records.executions.launch(a_launch())


async def test_the_flag_is_of_one_incarnation_the_next_decides_anew(records: Records) -> None:
    executor = await records.executions.launch(a_launch())
    await records.servers.ensure(INSTALLATION, "workers")
    await records.inventory.flag_unstopped("session-1", executor.agent_execution_id, INCARNATION)
    await records.servers.vacate(INSTALLATION, adopted_by=None, incarnation="incarnation-2", pod_uid=None)
    with pytest.raises(LaunchRefused) as caught:
        await records.executions.launch(a_launch())
    assert caught.value.refusal is LaunchRefusal.RECOVERY_IN_PROGRESS


async def test_a_flag_reaches_only_the_execution_that_it_means(records: Records) -> None:
    old = await records.executions.launch(a_launch())
    await records.executions.ended("session-1", old.agent_execution_id)
    assert not await records.inventory.flag_unstopped("session-1", old.agent_execution_id, INCARNATION)
    await records.executions.launch(a_launch())
    assert not await records.inventory.flag_unstopped("session-1", old.agent_execution_id, INCARNATION)
    assert not await records.inventory.flag_unstopped("session-9", old.agent_execution_id, INCARNATION)
    assert not await records.inventory.clear_unstopped("session-1")


async def test_a_passthrough_row_blocks_nobody_and_the_stored_mode_decides(records: Records) -> None:
    await records.executions.launch(a_launch(passthrough=True))
    second = await records.executions.launch(a_launch())  # from now on an ordinary session
    with pytest.raises(LaunchRefused):
        await records.executions.launch(a_launch(passthrough=True))
    assert await records.inventory.of_session("session-1") == second


@pytest.mark.accept("O-003.5")
@pytest.mark.accept("S-002.7")
async def test_a_revived_row_keeps_its_resume_token_and_its_worktree(records: Records) -> None:
    first = await records.executions.launch(a_launch())
    await records.executions.launched("session-1", first.agent_execution_id, resume_token="provider-7")
    await records.inventory.repair(await records.inventory.live())
    repaired = await records.inventory.of_session("session-1")
    assert repaired is not None
    assert (repaired.resume_token, repaired.worktree_id) == ("provider-7", "worktree-1")
    again = await records.executions.launch(a_launch(worktree_id="another", agent_profile="critic"))
    assert (again.id, again.resume_token, again.worktree_id) == (first.id, "provider-7", "worktree-1")
    assert (again.agent_profile, again.agent_execution_id) != ("coder", first.agent_execution_id)


async def test_a_launch_whose_answer_was_lost_finds_its_own_row(records: Records, database_url: str) -> None:
    async with Cutter.running(database_url) as cutter:
        cut_off = Records(Masked(cutter.proxied), namespace="team-a", size=1)
        await cut_off.sessions.newest()  # connected
        cutter.armed = True
        executor = await cut_off.executions.launch(launch := a_launch())
        assert cutter.cuts == 1
        assert executor.agent_execution_id == launch.agent_execution_id
        await cut_off.aclose()
    assert await records.inventory.live() == (executor,)


async def test_a_stop_that_has_begun_is_not_undone_by_the_launch_repeated(records: Records) -> None:
    launch = a_launch()
    await records.executions.launch(launch)
    assert await records.executions.stopping("session-1", launch.agent_execution_id)
    with pytest.raises(LaunchRefused):
        await records.executions.launch(launch)
    found = await records.inventory.of_session("session-1")
    assert found is not None
    assert found.status is ExecutorStatus.STOPPING


async def test_nobody_ends_an_execution_that_is_not_theirs(records: Records) -> None:
    old = await records.executions.launch(a_launch())
    assert await records.executions.rolled_back("session-1", old.agent_execution_id)
    rolled_back = await records.inventory.of_session("session-1")
    assert rolled_back is not None
    assert rolled_back.status is ExecutorStatus.FAILED
    new = await records.executions.launch(a_launch())
    assert not await records.executions.rolled_back("session-1", old.agent_execution_id)
    assert not await records.executions.ended("session-1", old.agent_execution_id)
    assert not await records.executions.stopping("session-1", old.agent_execution_id)
    assert not await records.executions.launched("session-1", old.agent_execution_id, resume_token="stolen")
    assert not await records.executions.ended("session-9", old.agent_execution_id)
    assert not await records.executions.stopping("session-9", old.agent_execution_id)
    assert await records.inventory.of_session("session-1") == new


async def test_the_end_of_an_execution_may_be_told_twice_and_its_first_word_stays(records: Records) -> None:
    executor = await records.executions.launch(a_launch())
    assert await records.executions.ended("session-1", executor.agent_execution_id)
    assert await records.executions.ended("session-1", executor.agent_execution_id, failed=True)
    found = await records.inventory.of_session("session-1")
    assert found is not None
    assert found.status is ExecutorStatus.STOPPED


async def test_a_launch_leaves_no_turn_open_that_nobody_will_end(records: Records) -> None:
    first = await records.executions.launch(a_launch())
    turn = await records.turns.open("session-1", first.agent_execution_id)
    await records.executions.ended("session-1", first.agent_execution_id, abandon=False)
    assert (await records.turns.get(turn.id)).state is TurnState.OPEN  # type: ignore[union-attr]
    second = await records.executions.launch(a_launch())
    assert (await records.turns.get(turn.id)).state is TurnState.ABANDONED  # type: ignore[union-attr]
    assert second.session_state is SessionState.WAITING_FOR_INPUT


async def test_a_session_that_was_over_waits_for_input_when_it_is_launched_again(records: Records) -> None:
    executor = await records.executions.launch(a_launch())
    state = SessionState.COMPLETED
    await records.executions.ended("session-1", executor.agent_execution_id, session_state=state)
    session = await records.sessions.get("session-1")
    assert session is not None
    assert (session.state, session.task_state) == (SessionState.COMPLETED, TaskState.REVIEW)
    again = await records.executions.launch(a_launch())
    assert again.session_state is SessionState.WAITING_FOR_INPUT


async def test_seeing_an_instance_moves_the_time_of_live_rows_only(records: Records) -> None:
    live = await records.executions.launch(a_launch())
    dead = await records.executions.launch(a_launch("session-2"))
    await records.executions.ended("session-2", dead.agent_execution_id)
    await records.executions.touch([live.agent_execution_id, dead.agent_execution_id])
    after = [await records.inventory.of_session(name) for name in ("session-1", "session-2")]
    assert after[0] is not None
    assert after[0].last_seen_at > live.last_seen_at
    assert after[1] is not None
    assert after[1].last_seen_at == dead.last_seen_at


async def test_seeing_instances_waits_for_nobody(
    records: Records, postgres_server: PostgresServer, database_url: str
) -> None:
    before = [await records.executions.launch(a_launch(name)) for name in ("session-1", "session-2")]
    holder = await postgres_server.connect(database_url.rsplit("/", 1)[1])
    await holder.execute(
        "BEGIN; SELECT 1 FROM tenure.executors_running WHERE session_id = 'session-1' FOR UPDATE"
    )
    await records.executions.touch([executor.agent_execution_id for executor in before])
    await holder.execute("ROLLBACK")
    await holder.close()
    after = {executor.session_id: executor.last_seen_at for executor in await records.inventory.live()}
    assert after["session-1"] == before[0].last_seen_at
    assert after["session-2"] > before[1].last_seen_at


@pytest.mark.parametrize(
    "values",
    [
        {"task_id": "another"},
        {"agent_execution_id": ""},
        {"grace_seconds": -1},
        {"workspace_path": "canary\0"},
        {"agent_profile": "canary\udc00"},
        {"metadata": {"canary": "x" * 70_000}},
        {"metadata": {"canary": float("nan")}},
        {"metadata": {"canary": object}},
    ],
    ids=str,
)
async def test_a_launch_that_no_table_takes_is_refused_without_quoting_it(
    records: Records, values: dict[str, Any]
) -> None:
    old = await records.executions.launch(a_launch())
    await records.executions.ended("session-1", old.agent_execution_id)
    with pytest.raises(EntryRefused) as caught:
        await records.executions.launch(a_launch(**values))
    assert "canary" not in str(caught.value)
    assert caught.value.__context__ is None
    assert await records.inventory.live() == (), "nothing of it is left"


async def test_without_an_answer_a_launch_ends_within_its_limit(own_postgres: PostgresServer) -> None:
    url = Masked(await own_postgres.fresh_database())
    records = Records(url, namespace="team-a", limit=0.5)
    with pytest.raises(DatabaseUnavailable, match="run `tenure migrate`"):
        await records.executions.launch(a_launch())
    own_postgres.freeze()
    try:
        with pytest.raises(DatabaseUnavailable):
            await asyncio.wait_for(records.executions.launch(a_launch()), 10)
    finally:
        own_postgres.thaw()
    await records.aclose()


def test_records_without_a_namespace_do_not_exist() -> None:
    with pytest.raises(ValueError, match="namespace"):
        Records(Masked("postgresql://nowhere/x"), namespace="")


async def test_a_named_database_keeps_records_of_its_own_namespaces_and_only_as_the_store(
    records: Records, database_url: str
) -> None:
    url = Masked(database_url)
    await records.executions.launch(a_launch())
    store = Database("default", url, namespaces=frozenset({"team-a"}), store=True)
    assert [session.id for session in await store.records("team-a").sessions.newest()] == ["session-1"]
    await store.aclose()
    for database, namespace in ((store, "team-b"), (Database("research", url), "team-a")):
        with pytest.raises(ValueError, match="keeps no records"):
            database.records(namespace)


async def test_a_launch_that_names_no_profile_and_no_environment_can_be_taken_over_all_the_same(
    records: Records,
) -> None:
    named = await records.executions.launch(a_launch(agent_profile="", task_id="task-1"))
    assert (named.agent_profile, named.task_environment_id) == (DEFAULT_PROFILE, "task-1")
    await records.executions.ended("session-1", named.agent_execution_id)
    other = await records.executions.launch(a_launch(task_id="task-1", task_environment_id="env-1"))
    assert (other.agent_profile, other.task_environment_id) == ("coder", "env-1")
    await records.executions.ended("session-1", other.agent_execution_id)
    kept = await records.executions.launch(a_launch(task_id="task-1"))
    assert kept.task_environment_id == "env-1"
