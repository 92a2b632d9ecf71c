"""A database that swallows questions costs its own agents their answers, and nobody else the workers."""

import asyncio
from typing import Any, cast

import pytest

from tenure.operator.databases import Gate, Table
from tenure.operator.tables import TableWatch
from tenure.storage.database import Database
from tenure.storage.errors import DatabaseUnavailable
from tenure.storage.snapshot import RowLookup

LOOKUP = RowLookup(instance_ids=("uid",), hostname="", process_kind="critic")


class Silent:
    """Answers when it is told to."""

    name = "default"

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[Any]] = []

    async def lookup(self, lookup: RowLookup) -> Any:
        self.asked.append(asyncio.get_running_loop().create_future())
        return await self.asked[-1]

    request_agent_stop = lookup


def made() -> tuple[Silent, Table]:
    database = Silent()
    return database, Table(cast("Database", database), cast("TableWatch", None))


async def ask(table: Table, call: str) -> "asyncio.Task[Any]":
    task: asyncio.Task[Any] = asyncio.create_task(getattr(table, call)(LOOKUP))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return task


@pytest.mark.accept("L-15")
@pytest.mark.parametrize("call", ["lookup", "request_agent_stop"])
async def test_while_it_is_silent_one_question_waits_and_the_others_are_answered_at_once(call: str) -> None:
    database, table = made()
    first, second = await ask(table, call), await ask(table, call)
    assert len(database.asked) == 2, "a database that is well is asked side by side"
    for question in database.asked:
        question.set_exception(DatabaseUnavailable("default", "no answer within the time limit"))
    await asyncio.gather(first, second, return_exceptions=True)
    trial = await ask(table, call)
    assert len(database.asked) == 3
    for _ in range(100):
        with pytest.raises(DatabaseUnavailable, match="no answer"):
            await getattr(table, call)(LOOKUP)
    assert len(database.asked) == 3
    database.asked[-1].set_result(True)
    assert await trial
    third, fourth = await ask(table, call), await ask(table, call)
    assert len(database.asked) == 5, "and again when it is back"
    for question in database.asked[3:]:
        question.set_result(True)
    await asyncio.gather(third, fourth)


async def test_a_trial_that_is_cut_off_makes_room_for_the_next() -> None:
    database, table = made()
    failed = await ask(table, "lookup")
    database.asked[-1].set_exception(DatabaseUnavailable("default", "not reachable"))
    await asyncio.gather(failed, return_exceptions=True)
    cut = await ask(table, "lookup")
    cut.cancel()
    await asyncio.gather(cut, return_exceptions=True)
    again = await ask(table, "lookup")
    database.asked[-1].set_result(True)
    assert await again


async def test_every_live_call_that_fails_is_counted() -> None:
    failures: list[None] = []

    async def silent() -> None:
        raise DatabaseUnavailable("default", "does not answer")

    gate = Gate(lambda: failures.append(None))
    for _ in range(2):
        with pytest.raises(DatabaseUnavailable):
            await gate.run(silent)
    assert len(failures) == 2
