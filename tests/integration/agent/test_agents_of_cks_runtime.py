"""Tables and agents of the ``cks-runtime`` family, unmodified."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.integration.agent.processes import started
from tests.support.cks import agent_command
from tests.support.liveness import a_record
from tests.support.wait import eventually

from tenure.model.masked import Masked
from tenure.storage.database import Database
from tenure.storage.liveness import HeartbeatClock
from tenure.storage.postgres import PostgresLivenessStorage
from tenure.storage.snapshot import RowLookup


@pytest.fixture(scope="module")
def command() -> tuple[str, ...]:
    """How to run such an agent."""
    return agent_command()


@pytest.fixture
async def storage(database_url: str) -> AsyncIterator[PostgresLivenessStorage]:
    """Tenure's storage on that database; nothing is migrated yet."""
    made = PostgresLivenessStorage(Masked(database_url))
    yield made
    await made.aclose()


async def make(command: tuple[str, ...], url: str, how: str) -> None:
    async with started(*command, how, CKS_DATABASE_URL=url) as agent:
        assert await agent.ended(within=60) == 0, agent.lines


@pytest.mark.accept("L-1")
@pytest.mark.parametrize(("how", "added"), [("--make-tables", False), ("--make-old-table", True)])
async def test_a_table_made_by_cks_runtime_is_migrated_and_used(
    command: tuple[str, ...], database_url: str, storage: PostgresLivenessStorage, how: str, added: bool
) -> None:
    await make(command, database_url, how)
    report = await storage.migrate()
    assert ("added the column desired_state" in report.changed) is added
    assert "made the table cks_agent_liveness" not in report.changed
    assert report.notify
    await storage.upsert_agent_liveness(a_record("one"), clock=HeartbeatClock.DATABASE)
    assert await storage.request_agent_stop("one")
    row = await storage.get_agent_liveness("one")
    assert row is not None
    assert row.stop_requested


@pytest.mark.accept("L-1")
async def test_cks_runtime_migrates_a_table_of_ours_without_harm(
    command: tuple[str, ...], database_url: str, storage: PostgresLivenessStorage
) -> None:
    await storage.migrate()
    await storage.upsert_agent_liveness(a_record("one"))
    await make(command, database_url, "--make-tables")
    assert (await storage.migrate()).changed == ()
    assert [row.instance_id for row in await storage.list_agent_liveness()] == ["one"]


@pytest.mark.accept("L-21")
@pytest.mark.parametrize("trigger", [True, False], ids=["with our trigger", "their table as it is"])
async def test_an_unmodified_agent_is_found_by_its_pod_and_stopped_through_its_row(
    command: tuple[str, ...], database_url: str, storage: PostgresLivenessStorage, trigger: bool
) -> None:
    await make(command, database_url, "--make-tables")
    if trigger:
        await storage.migrate()
    database = Database("default", Masked(database_url))
    environ = {"CKS_DATABASE_URL": database_url, "CKS_INTERVAL": "0.5", "CKS_TASK_SECONDS": "1"}
    async with started(*command, **environ) as agent:
        await agent.said("ready", within=60)
        (row,) = await storage.list_agent_liveness()
        lookup = RowLookup(("pod-uid-that-it-does-not-know",), row.hostname, "critic")
        found = await database.snapshot([lookup])
        assert [r.instance_id for r in found.rows] == [row.instance_id]
        assert found.rows[0].alive(found.now)
        assert await database.request_agent_stop(row.instance_id)
        assert await agent.ended() == 0
        await eventually(lambda: agent.says("ended"), within=5)
    assert agent.lines[-2].startswith("finished"), "the task in hand was finished"
    last = await database.lookup(lookup)
    assert last.rows[0].ended_gracefully
    assert last.rows[0].stop_requested
    assert (await database.snapshot([lookup])).rows == (), "an ended row is no live one"
    await database.aclose()


async def test_two_such_agents_in_one_pod_name_are_told_apart_by_kind(
    command: tuple[str, ...], database_url: str, storage: PostgresLivenessStorage
) -> None:
    await make(command, database_url, "--make-tables")
    database = Database("default", Masked(database_url))
    environ = {"CKS_DATABASE_URL": database_url, "CKS_INTERVAL": "5"}
    async with (
        started(*command, **environ, CKS_KIND="critic") as one,
        started(*command, **environ, CKS_KIND="pipeline") as two,
    ):
        await asyncio.gather(one.said("ready", within=60), two.said("ready", within=60))
        host = (await storage.list_agent_liveness())[0].hostname
        found = await database.snapshot([RowLookup((), host, "pipeline")])
        assert [row.process_kind for row in found.rows] == ["pipeline"]
    await database.aclose()
