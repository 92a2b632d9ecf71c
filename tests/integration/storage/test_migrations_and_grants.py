"""The schema ``tenure``, the roles, and tables whose owner is somebody else."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import asyncpg
import pytest
from tests.integration.storage.conftest import OLD_TABLE
from tests.support.liveness import a_record
from tests.support.postgres import PostgresServer
from typer import Typer
from typer.testing import CliRunner

from tenure.cli.migrate import migrate
from tenure.model.masked import Masked
from tenure.model.reasons import StopOrigin
from tenure.storage.database import Database, DatabaseUnavailable
from tenure.storage.errors import EntryRefused, MigrationRefused, StorageError
from tenure.storage.grants import Roles, grants_sql
from tenure.storage.liveness import HeartbeatClock
from tenure.storage.migrations import Migration, migrate_schema, shipped_migrations
from tenure.storage.postgres import PostgresLivenessStorage
from tenure.storage.snapshot import RowLookup
from tenure.storage.stops import StopEntry

STOP = StopEntry("team-a", "uid-1", "critic", "uid-1", "Table", datetime(2026, 3, 1, tzinfo=UTC))


async def test_the_schema_is_made_once_and_by_many_at_once(database_url: str) -> None:
    url = Masked(database_url)
    results = await asyncio.gather(*(migrate_schema(url) for _ in range(6)))
    expected = tuple(f"{migration.number:04}_{migration.name}" for migration in shipped_migrations())
    assert sorted(results, reverse=True) == [expected, *[()] * 5]
    assert await migrate_schema(url) == ()


async def test_migrations_are_numbered_without_gaps() -> None:
    numbers = [migration.number for migration in shipped_migrations()]
    assert numbers == list(range(1, len(numbers) + 1))


async def test_a_later_migration_is_added_and_a_changed_one_refused(database_url: str) -> None:
    url, shipped = Masked(database_url), shipped_migrations()
    await migrate_schema(url)
    later = Migration(len(shipped) + 1, "later", "CREATE TABLE tenure.later (x INT)")
    assert await migrate_schema(url, migrations=[*shipped, later]) == (f"{later.number:04}_later",)
    with pytest.raises(MigrationRefused, match="newer version"):
        await migrate_schema(url)
    changed = replace(shipped[0], sql=shipped[0].sql + "-- a remark")
    with pytest.raises(MigrationRefused, match="another text"):
        await migrate_schema(url, migrations=[changed, *shipped[1:], later])


async def test_a_failing_migration_leaves_nothing_behind(
    database_url: str, postgres_server: PostgresServer
) -> None:
    url, shipped = Masked(database_url), shipped_migrations()
    broken = Migration(len(shipped) + 1, "broken", "CREATE TABLE tenure.half (x INT); SELECT 1/0")
    with pytest.raises(DatabaseUnavailable):
        await migrate_schema(url, migrations=[*shipped, broken])
    connection = await postgres_server.connect(database_url.rsplit("/", 1)[1])
    assert await connection.fetchval("SELECT to_regnamespace('tenure')") is None
    await connection.close()


async def test_the_ledger_takes_exactly_the_origins_that_the_code_knows(database_url: str) -> None:
    await migrate_schema(Masked(database_url))
    database = Database("store", Masked(database_url), store=True)
    for number, origin in enumerate(StopOrigin):
        await database.record_stop(replace(STOP, pod_uid=f"uid-{number}", origin=origin.value))
    with pytest.raises(EntryRefused):
        await database.record_stop(replace(STOP, origin="Whim"))
    await database.aclose()


async def granted(server: PostgresServer, url: str, *, namespaces: tuple[str, ...] = ("team-a",)) -> Roles:
    """Both tables made by the owner, four roles of this database's own, and the printed grants applied."""
    owner = PostgresLivenessStorage(Masked(url))
    await owner.migrate()
    await owner.aclose()
    await migrate_schema(Masked(url))
    prefix = url.rsplit("/", 1)[1]
    roles = Roles(*(f"{prefix}_{name}" for name in ("operator", "agent", "backend", "stopper")), namespaces)
    for role in (roles.operator, roles.agent, roles.backend, roles.stopper):
        await server.create_role(role)
    for _ in range(2):  # printed grants may be applied again
        await server.execute(grants_sql(roles), database=prefix)
    return roles


async def test_each_role_can_do_its_work_with_the_printed_grants(
    database_url: str, postgres_server: PostgresServer
) -> None:
    roles = await granted(postgres_server, database_url)
    agent = PostgresLivenessStorage(Masked(postgres_server.as_role(database_url, roles.agent)))
    assert (await agent.migrate()).changed == ()
    for clock in HeartbeatClock:
        await agent.upsert_agent_liveness(a_record("one"), clock=clock)
    assert await agent.get_agent_liveness("one") is not None
    operator = Database("default", Masked(postgres_server.as_role(database_url, roles.operator)))
    assert (await operator.snapshot([RowLookup(("one",), "pod", "critic")])).rows
    assert await operator.request_agent_stop("one")
    await operator.record_stop(STOP)
    await operator.record_stop(replace(STOP, finished_at=datetime(2026, 3, 2, tzinfo=UTC), graceful=True))
    stopper = PostgresLivenessStorage(Masked(postgres_server.as_role(database_url, roles.stopper)))
    assert await stopper.request_agent_stop("one")
    assert len(await stopper.list_agent_liveness()) == 1
    await asyncio.gather(agent.aclose(), operator.aclose(), stopper.aclose())


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        ("agent", "UPDATE cks_agent_liveness SET desired_state = 'stop_requested'"),
        ("agent", "UPDATE cks_agent_liveness SET desired_state = NULL"),
        ("agent", "UPDATE cks_agent_liveness SET hostname = 'other'"),
        ("agent", "DELETE FROM cks_agent_liveness"),
        ("agent", "SELECT * FROM tenure.agent_stops"),
        ("operator", "UPDATE cks_agent_liveness SET last_heartbeat_at = now()"),
        ("operator", "DELETE FROM tenure.agent_stops"),
        ("stopper", "UPDATE cks_agent_liveness SET last_heartbeat_at = now()"),
        ("stopper", "SELECT * FROM tenure.agent_stops"),
        ("backend", "SELECT * FROM cks_agent_liveness"),
        ("backend", "INSERT INTO tenure.agent_stops SELECT * FROM tenure.agent_stops"),
        ("backend", "UPDATE tenure.agent_stops SET graceful = true"),
    ],
)
async def test_no_role_can_do_more(
    database_url: str, postgres_server: PostgresServer, role: str, statement: str
) -> None:
    roles = await granted(postgres_server, database_url)
    connection = await asyncpg.connect(postgres_server.as_role(database_url, getattr(roles, role)))
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(statement)
    finally:
        await connection.close()


@pytest.mark.parametrize(("namespaces", "seen"), [(("team-a",), 1), (("team-a", "team-b"), 2), ((), 0)])
async def test_a_backend_sees_the_ledger_of_its_own_namespaces_only(
    database_url: str, postgres_server: PostgresServer, namespaces: tuple[str, ...], seen: int
) -> None:
    roles = await granted(postgres_server, database_url, namespaces=namespaces)
    operator = Database("store", Masked(postgres_server.as_role(database_url, roles.operator)))
    for namespace in ("team-a", "team-b", "team-c"):
        await operator.record_stop(replace(STOP, namespace=namespace))
    await operator.aclose()
    connection = await asyncpg.connect(postgres_server.as_role(database_url, roles.backend))
    assert await connection.fetchval("SELECT count(*) FROM tenure.agent_stops") == seen
    await connection.close()


@pytest.mark.accept("L-1")
async def test_a_role_that_may_not_alter_is_welcome_when_the_column_is_there_and_told_when_not(
    database_url: str, postgres_server: PostgresServer
) -> None:
    name = database_url.rsplit("/", 1)[1]
    await postgres_server.execute(
        OLD_TABLE.format(real="DOUBLE PRECISION", time="TIMESTAMPTZ"), database=name
    )
    await postgres_server.create_role(f"{name}_agent")
    await postgres_server.execute(
        f"GRANT SELECT, INSERT, UPDATE ON cks_agent_liveness TO {name}_agent", database=name
    )
    storage = PostgresLivenessStorage(Masked(postgres_server.as_role(database_url, f"{name}_agent")))

    with pytest.raises(StorageError, match="no column desired_state and this role may not add it"):
        await storage.migrate()
    await storage.upsert_agent_liveness(a_record("one"), clock=HeartbeatClock.DATABASE)
    assert await storage.get_agent_liveness("one") is not None, "it heartbeats all the same"

    await postgres_server.execute(
        "ALTER TABLE cks_agent_liveness ADD COLUMN desired_state TEXT", database=name
    )
    report = await storage.migrate()
    assert report.changed == ()
    assert not report.notify
    assert any("polling" in sentence for sentence in report.missing)
    await storage.aclose()


@pytest.mark.parametrize("obstacle", ["no right in the schema", "somebody else's function"])
async def test_an_owner_who_may_not_make_the_trigger_still_gets_the_column(
    database_url: str, postgres_server: PostgresServer, obstacle: str
) -> None:
    name = database_url.rsplit("/", 1)[1]
    owner = f"{name}_owner"
    await postgres_server.create_role(owner)
    await postgres_server.execute(
        OLD_TABLE.format(real="DOUBLE PRECISION", time="TIMESTAMPTZ")
        + f"; ALTER TABLE cks_agent_liveness OWNER TO {owner}; CREATE INDEX idx_agent_liveness_kind "
        "ON cks_agent_liveness (process_kind, last_heartbeat_at)",
        database=name,
    )
    if obstacle == "somebody else's function":
        await postgres_server.execute(f"GRANT CREATE ON SCHEMA public TO {owner}", database=name)
        await postgres_server.execute(
            "CREATE FUNCTION tenure_stop_notify() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
            database=name,
        )
    storage = PostgresLivenessStorage(Masked(postgres_server.as_role(database_url, owner)))
    report = await storage.migrate()
    assert report.changed == ("added the column desired_state",)
    assert not report.notify
    assert any("polling" in sentence for sentence in report.missing)
    await storage.aclose()


def test_the_command_migrates_and_says_what_it_did(database_url: str) -> None:
    app = Typer()
    app.command()(migrate)
    environment = {"TENURE_DATABASE_URL": database_url}
    first = CliRunner().invoke(app, [], env=environment)
    again = CliRunner().invoke(app, [], env=environment)
    assert first.exit_code == 0, first.output
    assert "made the table cks_agent_liveness" in first.output
    assert "applied 0001_agent_stops" in first.output
    assert again.exit_code == 0
    assert again.output == "liveness: up to date\nschema tenure: up to date\n"


@pytest.mark.accept("M-2")
def test_the_command_fails_with_a_sentence_and_no_secret(postgres_server: PostgresServer) -> None:
    app = Typer()
    app.command()(migrate)
    url = postgres_server.url("postgres", user="canary", password="canary-s3cret")
    result = CliRunner().invoke(app, ["--database-url", url], env={"COLUMNS": "200"})
    assert result.exit_code == 1
    assert result.output == "tenure migrate: the server refused the password\n"
    nothing = CliRunner().invoke(app, [], env={"TENURE_DATABASE_URL": ""})
    assert nothing.exit_code == 1
    assert "give --database-url" in nothing.output


def test_grants_are_printed_without_a_database() -> None:
    app = Typer()
    app.command()(migrate)
    result = CliRunner().invoke(app, ["--print-grants", "--agent-role", "my agents", "--liveness-only"])
    assert result.exit_code == 0, result.output
    assert 'TO "my agents";' in result.output
    assert "agent_stops" not in result.output
