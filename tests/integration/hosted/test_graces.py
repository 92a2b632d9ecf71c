"""The grace of a stop counts from its beginning, whoever adopts the server in between."""

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import pytest_asyncio
from tests.integration.hosted.hosting import Hosting
from tests.integration.servers.conftest import migrated_database
from tests.integration.servers.world import WITHIN
from tests.support.postgres import PostgresServer
from tests.support.records import a_launch
from tests.support.wait import eventually

from tenure.model.masked import Masked
from tenure.model.records import ExecutorStatus
from tenure.storage.records import Executor, Records

GRACE = 20
AWAY = 10
"""Seconds after the deletion until another operator adopts the server."""


@pytest_asyncio.fixture
async def records(postgres_server: PostgresServer) -> AsyncIterator[Records]:
    """The records of a namespace in a database of its own."""
    found = Records(Masked(await migrated_database(postgres_server)), namespace="team")
    yield found
    await found.aclose()


async def row(records: Records) -> Executor:
    found = await records.inventory.of_session("session-1")
    assert found is not None
    return found


async def test_nothing_but_its_end_moves_the_time_of_a_row_that_is_stopping(records: Records) -> None:
    launched = await records.executions.launch(a_launch())
    instance = launched.agent_execution_id
    await records.executions.launched("session-1", instance, resume_token="p-1")
    assert (await row(records)).updated_at > launched.updated_at
    await records.executions.stopping("session-1", instance)
    marked = await row(records)
    await records.executions.stopping("session-1", instance)
    await records.executions.launched("session-1", instance, resume_token="p-2")
    await records.inventory.flag_unstopped("session-1", instance, "operator/1")
    assert await records.inventory.retracked(await row(records), "another-name")
    found = await row(records)
    assert await records.inventory.retracked_together([(found, "a-third-name")]) == {found.id}
    await records.inventory.flag_unstopped("session-1", "a-third-name", "operator/2")
    await records.inventory.clear_unstopped("session-1")
    assert await records.inventory.retracked(await row(records), instance)
    after = await row(records)
    assert (after.status, after.resume_token) == (ExecutorStatus.STOPPING, "p-2")
    assert after.updated_at == marked.updated_at
    assert after.last_seen_at > marked.last_seen_at
    await records.executions.ended("session-1", instance)
    assert (await row(records)).updated_at > marked.updated_at


async def test_an_adoption_gives_a_deleted_agent_no_other_grace(hosting: Hosting) -> None:
    world = hosting.world
    async with world.operator():
        await hosting.server()
        await hosting.create(prompt="wait gate", drain={"gracePeriodSeconds": GRACE})
        await eventually(lambda: hosting.prompts() == 1, within=WITHIN, what="it was told")
        await hosting.delete()

        async def begun() -> datetime | None:
            [found] = await world.sql("SELECT status, updated_at FROM tenure.executors_running")
            return found["updated_at"] if found["status"] == "stopping" else None

        since = await eventually(begun, within=WITHIN, every=0.02, what="its drain begins")

    async def away() -> bool:
        [found] = await world.sql("SELECT extract(epoch FROM now() - $1::timestamptz) AS spent", since)
        return bool(found["spent"] >= AWAY)

    await eventually(away, within=2 * AWAY, what="the operator is away for a while")
    async with world.operator():

        async def over() -> dict[str, Any] | None:
            [found] = await world.sql("SELECT state, finished_at FROM tenure.turns")
            return found if found["state"] != "open" else None

        ended = await eventually(over, within=3 * GRACE, what="its turn is cut")
    spent = (ended["finished_at"] - since).total_seconds()
    assert ended["state"] == "abandoned"
    assert GRACE <= spent < GRACE + AWAY - 2
