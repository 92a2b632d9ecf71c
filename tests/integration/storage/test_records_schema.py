"""The tables of the records: their words are the code's, and a database of the first release gets them."""

import asyncio
import re
from enum import StrEnum
from pathlib import Path

import pytest
from tests.support.postgres import PostgresServer
from tests.support.records import a_launch

from tenure.model.masked import Masked
from tenure.model.records import (
    LIVE,
    SESSION_OVER,
    ExecutorRuntime,
    ExecutorStatus,
    SessionState,
    SurvivalEffective,
    TaskState,
    TurnState,
)
from tenure.storage.migrations import migrate_schema, shipped_migrations
from tenure.storage.records import Records

COLUMNS = [
    ("sessions", "state", SessionState),
    ("turns", "state", TurnState),
    ("tasks", "state", TaskState),
    ("executors_running", "status", ExecutorStatus),
    ("executors_running", "runtime", ExecutorRuntime),
    ("control_servers", "survival_effective", SurvivalEffective),
]
CHECKS = """
SELECT pg_get_constraintdef(c.oid) FROM pg_constraint c JOIN pg_attribute a ON a.attrelid = c.conrelid
 WHERE c.conrelid = $1::regclass AND c.contype = 'c' AND a.attname = $2 AND c.conkey = ARRAY[a.attnum]
"""
KEYS = """
SELECT c.conrelid::regclass::text || '.' || c.conname AS name, a.attname
  FROM pg_constraint c JOIN pg_attribute a ON a.attrelid = c.conrelid AND a.attnum = c.conkey[1]
 WHERE c.connamespace = 'tenure'::regnamespace AND c.contype IN ('p', 'u', 'f')
   AND c.conrelid <> 'tenure.migrations'::regclass
UNION ALL
SELECT i.indexrelid::regclass::text, a.attname
  FROM pg_index i JOIN pg_class t ON t.oid = i.indrelid
  JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
 WHERE t.relnamespace = 'tenure'::regnamespace AND t.relname <> 'migrations'
"""


@pytest.mark.parametrize(
    ("table", "column", "words"), COLUMNS, ids=lambda value: getattr(value, "__name__", value)
)
async def test_a_column_takes_exactly_the_words_that_the_code_knows(
    records: Records,
    postgres_server: PostgresServer,
    database_url: str,
    table: str,
    column: str,
    words: type[StrEnum],
) -> None:
    await records.sessions.newest()
    connection = await postgres_server.connect(database_url.rsplit("/", 1)[1])
    (check,) = await connection.fetch(CHECKS, f"tenure.{table}", column)
    await connection.close()
    assert set(re.findall(r"'([^']*)'", check[0])) == {word.value for word in words}


async def test_live_and_over_are_what_the_statements_spell(
    records: Records, postgres_server: PostgresServer, database_url: str
) -> None:
    connection = await postgres_server.connect(database_url.rsplit("/", 1)[1])
    partial = await connection.fetchval(
        "SELECT pg_get_expr(indpred, indrelid) FROM pg_index WHERE indexrelid = 'tenure.executors_live'::regclass"
    )
    await connection.close()
    assert set(re.findall(r"'([^']*)'", partial)) == {word.value for word in LIVE}
    assert set(SessionState) - SESSION_OVER == {
        SessionState.CREATED,
        SessionState.RUNNING,
        SessionState.WAITING_FOR_INPUT,
    }


async def test_every_key_and_index_begins_with_the_namespace(
    records: Records, postgres_server: PostgresServer, database_url: str
) -> None:
    connection = await postgres_server.connect(database_url.rsplit("/", 1)[1])
    keys = {row["name"]: row["attname"] for row in await connection.fetch(KEYS)}
    await connection.close()
    assert len(keys) > 12
    assert set(keys.values()) == {"namespace"}


async def test_a_database_of_the_first_release_is_upgraded_by_many_at_once(
    database_url: str, postgres_server: PostgresServer
) -> None:
    url, database = Masked(database_url), database_url.rsplit("/", 1)[1]
    await migrate_schema(url, migrations=shipped_migrations()[:1])
    await postgres_server.execute(
        "INSERT INTO tenure.agent_stops (namespace, pod_uid, name, instance_id, origin, requested_at) "
        "VALUES ('team-a', 'uid-1', 'critic', 'uid-1', 'Table', now())",
        database=database,
    )
    results = await asyncio.gather(*(migrate_schema(url) for _ in range(6)))
    assert sorted(results, reverse=True) == [("0002_records",), *[()] * 5]
    connection = await postgres_server.connect(database)
    assert await connection.fetchval("SELECT count(*) FROM tenure.agent_stops") == 1
    await connection.close()


async def test_the_questions_that_the_docs_teach_are_answered(
    records: Records, postgres_server: PostgresServer, database_url: str
) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "data-model.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```sql\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    questions = [question for question in block.split(";") if question.strip()]
    await records.servers.ensure("installation-1", "workers")
    executor = await records.executions.launch(a_launch())
    await records.inventory.flag_unstopped("session-1", executor.agent_execution_id, "incarnation-1")
    await records.turns.open("session-1", executor.agent_execution_id)
    connection = await postgres_server.connect(database_url.rsplit("/", 1)[1])
    answers = [len(await connection.fetch(question)) for question in questions]
    await records.inventory.repair(await records.inventory.live(), even_unstopped=True)
    later = [len(await connection.fetch(question)) for question in questions]
    await connection.close()
    # live, unstopped, interrupted, turns, servers
    assert (answers, later) == ([1, 1, 0, 1, 1], [0, 0, 1, 1, 1])
