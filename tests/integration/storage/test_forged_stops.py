"""The ledger, offered what a tenant may have written into a status."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from tenure.model.masked import Masked
from tenure.operator.passes.ledger import StopWriter
from tenure.storage.database import Database
from tenure.storage.errors import DatabaseUnavailable, EntryRefused
from tenure.storage.migrations import migrate_schema
from tenure.storage.stops import StopEntry

STOP = StopEntry(
    namespace="team-a",
    pod_uid="uid-1",
    name="critic",
    instance_id="uid-1",
    origin="Resource",
    requested_at=datetime(2026, 3, 1, tzinfo=UTC),
    finished_at=datetime(2026, 3, 2, tzinfo=UTC),
)
FORGED = [{"exit_code": 2**40}, {"origin": "None"}, {"pod_uid": "a\0b"}, {"pod_uid": ""}]


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    await migrate_schema(Masked(database_url))
    made = Database("default", Masked(database_url), store=True)
    yield made
    await made.aclose()


@pytest.mark.accept("K-9")
@pytest.mark.parametrize("values", FORGED, ids=str)
async def test_an_entry_that_no_ledger_takes_keeps_nobody_elses_stop_out(
    database: Database, values: dict[str, Any]
) -> None:
    writer = StopWriter(database)
    assert not await writer.record(replace(STOP, **values))
    assert writer.due(), "the database is well"
    assert await writer.record(replace(STOP, namespace="team-b"))


async def test_a_refused_entry_is_told_from_a_missing_ledger_and_quotes_nothing(database_url: str) -> None:
    database = Database("default", Masked(database_url), store=True)
    try:
        with pytest.raises(DatabaseUnavailable):
            await database.record_stop(STOP)
        await migrate_schema(Masked(database_url))
        with pytest.raises(EntryRefused) as caught:
            await database.record_stop(replace(STOP, origin="canary"))
        assert "canary" not in str(caught.value)
        assert caught.value.__context__ is None
    finally:
        await database.aclose()
