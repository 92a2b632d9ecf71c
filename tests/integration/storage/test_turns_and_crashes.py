"""Turns whose connection dies before, in and after the commit: each is opened once and ended once."""

import asyncio

import pytest
from tests.support.records import DONE, SERVER, Cutter, a_launch
from tests.support.turns import DIE_ONCE_AT_COMMIT, WAITING, Scene

from tenure.model.masked import Masked
from tenure.model.records import TurnState
from tenure.storage.records import Applied, Records, TurnName


@pytest.mark.accept("S-004.6")
async def test_an_outcome_whose_connection_dies_before_the_commit_is_applied_once(scene: Scene) -> None:
    await scene.execute(DIE_ONCE_AT_COMMIT)
    name = TurnName(turn=scene.turn.id, server_identity=SERVER, control_turn_id=7)
    assert await scene.records.turns.apply(name, DONE) is Applied.APPLIED
    assert await scene.ends() == [(scene.turn.id, "completed")]
    assert await scene.states() == WAITING


@pytest.mark.accept("S-004.6")
async def test_an_outcome_whose_connection_dies_after_the_commit_is_applied_once(
    scene: Scene, database_url: str
) -> None:
    async with Cutter.running(database_url) as cutter:
        cut_off = Records(Masked(cutter.proxied), namespace="team-a", size=1)
        await cut_off.sessions.newest()
        cutter.armed = True
        name = TurnName(turn=scene.turn.id, server_identity=SERVER, control_turn_id=7)
        assert await cut_off.turns.apply(name, DONE) is Applied.ALREADY
        assert cutter.cuts == 1
        await cut_off.aclose()
    assert await scene.ends() == [(scene.turn.id, "completed")]
    assert await scene.states() == WAITING


async def test_an_outcome_whose_connection_dies_in_the_middle_is_applied_once(scene: Scene) -> None:
    holder = await scene.server.connect(scene.database)
    await holder.execute("BEGIN; SELECT 1 FROM tenure.sessions FOR UPDATE")
    name = TurnName(turn=scene.turn.id, server_identity=SERVER, control_turn_id=7)
    applying = asyncio.create_task(scene.records.turns.apply(name, DONE))
    (pid,) = await scene.waiters()
    await holder.execute(f"SELECT pg_terminate_backend({pid})")
    await holder.execute("COMMIT")
    await holder.close()
    assert await applying is Applied.APPLIED
    assert await scene.ends() == [(scene.turn.id, "completed")]


async def test_a_turn_whose_answer_was_lost_is_the_one_that_is_open(
    records: Records, database_url: str
) -> None:
    executor = await records.executions.launch(a_launch())
    async with Cutter.running(database_url) as cutter:
        cut_off = Records(Masked(cutter.proxied), namespace="team-a", size=1)
        turns = cut_off.turns
        first = await turns.open("session-1", executor.agent_execution_id)
        await turns.abandon(first.id)
        # The second of the two commits that opening takes: the first only takes a number.
        next_id, turns_transact = iter([True, False]), turns._transact

        async def arming(body: object, **options: object) -> object:
            cutter.armed = not next(next_id)
            return await turns_transact(body, **options)  # type: ignore[arg-type]

        turns._transact = arming  # type: ignore[assignment, method-assign]
        turn = await turns.open("session-1", executor.agent_execution_id)
        assert cutter.cuts == 1
        await cut_off.aclose()
    assert (await records.turns.of_session("session-1"))[0] == turn
    assert turn.state is TurnState.OPEN


async def test_a_foreign_deadlock_is_tried_again(scene: Scene) -> None:
    """Somebody at a psql prompt locks in another order than ours."""
    other = await scene.server.connect(scene.database)
    # The victim is who looks first, and each looks once: ours, when the other has had time to wait, too.
    await scene.execute(f"ALTER DATABASE \"{scene.database}\" SET deadlock_timeout = '3s'")
    await other.execute("SET deadlock_timeout = '60s'; BEGIN; SELECT 1 FROM tenure.tasks FOR UPDATE")
    fresh = Records(scene.records._pool._url, namespace="team-a", limit=20)
    applying = asyncio.create_task(fresh.turns.apply(TurnName(turn=scene.turn.id), DONE))
    await scene.waiters()
    await other.execute("SELECT 1 FROM tenure.sessions FOR UPDATE; COMMIT")
    assert await applying is Applied.APPLIED
    assert await scene.ends() == [(scene.turn.id, "completed")]
    await asyncio.gather(other.close(), fresh.aclose())
