"""What the operator reads and writes: one bounded query for all agents, whatever the table holds."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from tests.support.liveness import a_record
from tests.support.postgres import PostgresServer
from tests.support.wait import eventually

from tenure.model.masked import Masked
from tenure.storage import snapshot as snapshots
from tenure.storage import statements
from tenure.storage.database import Database, DatabaseUnavailable
from tenure.storage.liveness import HeartbeatClock
from tenure.storage.migrations import migrate_schema
from tenure.storage.postgres import PostgresLivenessStorage
from tenure.storage.snapshot import RowLookup
from tenure.storage.stops import StopEntry


@pytest.fixture
async def agents(database_url: str) -> AsyncIterator[PostgresLivenessStorage]:
    """The table as agents write it."""
    storage = PostgresLivenessStorage(Masked(database_url))
    await storage.migrate()
    yield storage
    await storage.aclose()


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """The same database as the operator has it."""
    made = Database("default", Masked(database_url))
    yield made
    await made.aclose()


async def test_rows_are_found_by_id_and_by_host_name_and_kind_in_one_answer(
    agents: PostgresLivenessStorage, database: Database
) -> None:
    for record in (
        a_record("uid-1", hostname="pod-1"),
        a_record("own-id", hostname="pod-2"),
        a_record("other-kind", hostname="pod-2", process_kind="pipeline"),
        a_record("nobody-asked", hostname="pod-3"),
    ):
        await agents.upsert_agent_liveness(record, clock=HeartbeatClock.DATABASE)

    found = await database.snapshot(
        [RowLookup(("uid-1",), "", "critic"), RowLookup(("uid-2",), "pod-2", "critic")]
    )

    assert {row.instance_id for row in found.rows} == {"uid-1", "own-id"}
    assert abs(found.now - datetime.now(UTC)) < timedelta(seconds=5)
    assert found.unreadable == ()


@pytest.mark.accept("L-14")
async def test_a_kind_and_a_host_name_of_two_different_agents_find_no_third(
    agents: PostgresLivenessStorage, database: Database
) -> None:
    await agents.upsert_agent_liveness(
        a_record("crossed", hostname="pod-2", process_kind="critic"), clock=HeartbeatClock.DATABASE
    )
    found = await database.snapshot([RowLookup((), "pod-1", "critic"), RowLookup((), "pod-2", "pipeline")])
    assert found.rows == ()


async def test_an_ended_row_is_found_by_the_lookup_of_a_single_pod_only(
    agents: PostgresLivenessStorage, database: Database
) -> None:
    await agents.upsert_agent_liveness(a_record("own-id", hostname="pod-2"), clock=HeartbeatClock.EPOCH)
    lookup = RowLookup(("uid-2",), "pod-2", "critic")
    assert (await database.snapshot([lookup])).rows == ()
    found = await database.lookup(lookup)
    assert [row.instance_id for row in found.rows] == ["own-id"]
    assert found.rows[0].ended_gracefully
    assert (await database.lookup(RowLookup((), "no-such-pod", "critic"))).rows == ()
    by_id = await database.lookup(RowLookup(("own-id",), "", "critic"))
    assert [row.instance_id for row in by_id.rows] == ["own-id"]


async def test_with_much_history_only_indexes_are_read(
    agents: PostgresLivenessStorage, database_url: str, postgres_server: PostgresServer
) -> None:
    connection = await postgres_server.connect(database_url.rsplit("/", 1)[1])
    try:
        await connection.execute(
            "INSERT INTO cks_agent_liveness SELECT 'old-' || n, 'critic', 'pod-' || n, 1, 30, "
            "now() - interval '9 days', CASE WHEN n % 2 = 0 THEN now() - interval '9 days' ELSE 'epoch' END "
            "FROM generate_series(1, 200000) n"
        )
        await connection.execute(
            "INSERT INTO cks_agent_liveness SELECT 'new-' || n, 'critic', 'now-' || n, 1, 30, now(), now() "
            "FROM generate_series(1, 3000) n"
        )
        await connection.execute("ANALYZE cks_agent_liveness")
        ids = [f"new-{n}" for n in range(1500)]
        hosts = [f"now-{n}" for n in range(1500, 3000)]
        plan = await connection.fetchval(
            "EXPLAIN (ANALYZE, FORMAT JSON) " + snapshots.snapshot_sql(), ids, ["critic"], hosts
        )
    finally:
        await connection.close()
    scans = [node for node in _nodes(json.loads(plan)[0]["Plan"]) if "Scan" in node["Node Type"]]
    assert not [node for node in scans if node["Node Type"] == "Seq Scan"], scans
    assert {node["Index Name"] for node in scans if "Index Name" in node} == {
        "cks_agent_liveness_pkey",
        "idx_agent_liveness_kind",
    }
    touched = sum(node["Actual Rows"] + node.get("Rows Removed by Filter", 0) for node in scans)
    assert touched < 12_000, "history was read"


def _nodes(plan: dict[str, object]) -> list[dict]:  # type: ignore[type-arg]
    inner = [node for child in plan.get("Plans", []) for node in _nodes(child)]  # type: ignore[attr-defined]
    return [plan, *inner]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("last_heartbeat_at", "'infinity'"),
        ("last_heartbeat_at", "'-infinity'"),
        ("started_at", "'0044-03-15 12:00:00 BC'"),
        ("started_at", "'99999-01-01'"),
        ("liveness_interval_s", "'NaN'"),
        ("liveness_interval_s", "'Infinity'"),
        ("liveness_interval_s", "0"),
        ("liveness_interval_s", "-30"),
    ],
)
async def test_a_forged_row_is_reported_by_its_id_and_spoils_no_other(
    agents: PostgresLivenessStorage, database: Database, database_url: str, postgres_server: PostgresServer,
    column: str, value: str,
) -> None:  # fmt: skip
    for name in ("good", "bad"):
        await agents.upsert_agent_liveness(a_record(name), clock=HeartbeatClock.DATABASE)
    await postgres_server.execute(
        f"UPDATE cks_agent_liveness SET {column} = {value} WHERE instance_id = 'bad'",
        database=database_url.rsplit("/", 1)[1],
    )
    found = await database.snapshot([RowLookup(("good",), "", ""), RowLookup(("bad",), "", "")])
    assert [row.instance_id for row in found.rows] == ["good"]
    assert found.unreadable == ("bad",)


async def test_odd_but_harmless_values_are_read_as_they_are(
    agents: PostgresLivenessStorage, database: Database, database_url: str, postgres_server: PostgresServer
) -> None:
    await agents.upsert_agent_liveness(a_record("odd"), clock=HeartbeatClock.DATABASE)
    await postgres_server.execute(
        "UPDATE cks_agent_liveness SET pid = -1, desired_state = E'\\x01\"{}', current_task_type = repeat('x', 9000)",
        database=database_url.rsplit("/", 1)[1],
    )
    (row,) = (await database.snapshot([RowLookup(("odd",), "", "")])).rows
    assert not row.stop_requested
    assert row.pid == -1


async def test_names_that_no_database_takes_do_not_fail_the_query_for_all(
    agents: PostgresLivenessStorage, database: Database
) -> None:
    await agents.upsert_agent_liveness(a_record("good"), clock=HeartbeatClock.DATABASE)
    odd = RowLookup(("nul\0", "\ud800"), "host\0", "kind\ud800")
    found = await database.snapshot([odd, RowLookup(("good",), "", "")])
    assert [row.instance_id for row in found.rows] == ["good"]
    assert (await database.lookup(odd)).rows == ()


async def test_a_table_without_the_column_is_read_as_asking_for_no_stop(
    database: Database, database_url: str, postgres_server: PostgresServer
) -> None:
    from tests.integration.storage.conftest import OLD_TABLE

    name = database_url.rsplit("/", 1)[1]
    await postgres_server.execute(OLD_TABLE.format(real="DOUBLE PRECISION", time="TEXT"), database=name)
    await postgres_server.execute(
        "INSERT INTO cks_agent_liveness VALUES ('one', 'critic', 'pod-1', 1, 30, "
        "'2026-01-01T00:00:00+00:00', to_char(now(), 'YYYY-MM-DD\"T\"HH24:MI:SSOF'))",
        database=name,
    )
    (row,) = (await database.snapshot([RowLookup((), "pod-1", "critic")])).rows
    assert row.desired_state is None
    assert row.instance_id == "one"


@pytest.mark.accept("L-15")
async def test_a_frozen_server_costs_a_call_its_limit_and_no_more_and_heals(
    own_postgres: PostgresServer,
) -> None:
    url = await own_postgres.fresh_database()
    agents = PostgresLivenessStorage(Masked(url))
    await agents.migrate()
    await agents.upsert_agent_liveness(a_record("one"), clock=HeartbeatClock.DATABASE)
    await agents.aclose()
    database = Database("default", Masked(url), limit=0.7)
    lookups = [RowLookup(("one",), "", "")]
    assert (await database.snapshot(lookups)).rows

    own_postgres.freeze()
    try:
        for _ in range(2):  # once on a pooled connection, once while connecting
            began = time.monotonic()
            with pytest.raises(DatabaseUnavailable, match="no answer within the time limit"):
                await database.snapshot(lookups)
            assert time.monotonic() - began < 5
        began = time.monotonic()
        answers = await asyncio.gather(
            *(database.request_agent_stop("one") for _ in range(60)), return_exceptions=True
        )
        assert {type(answer) for answer in answers} == {DatabaseUnavailable}
        assert time.monotonic() - began < 6, "calls queued behind one another"
    finally:
        own_postgres.thaw()
    assert (await database.snapshot(lookups)).rows
    await database.aclose()


@pytest.mark.accept("L-15")
async def test_a_restarted_server_is_found_again_without_one_failing_call(
    own_postgres: PostgresServer,
) -> None:
    url = await own_postgres.fresh_database()
    agents = PostgresLivenessStorage(Masked(url))
    await agents.migrate()
    await agents.aclose()
    database = Database("default", Masked(url), limit=2)
    await asyncio.gather(*(database.snapshot([RowLookup(("one",), "", "")]) for _ in range(4)))
    own_postgres.stop()
    with pytest.raises(DatabaseUnavailable, match="not reachable"):
        await database.snapshot([])
    own_postgres.start()
    await database.snapshot([])
    own_postgres.stop()
    own_postgres.start()
    await database.snapshot([])  # its pooled connection is dead, which nobody has to know
    await database.aclose()


async def test_a_server_that_turned_read_only_is_left_for_the_next_one(own_postgres: PostgresServer) -> None:
    url = await own_postgres.fresh_database()
    agents = PostgresLivenessStorage(Masked(url))
    await agents.migrate()
    await agents.upsert_agent_liveness(a_record("one"))
    database = Database("default", Masked(url))
    assert await database.request_agent_stop("one")
    first = await _backends(own_postgres, "tenure-operator")
    assert first
    await own_postgres.execute("ALTER SYSTEM SET default_transaction_read_only = on; ")
    await own_postgres.execute("SELECT pg_reload_conf()")
    with pytest.raises(DatabaseUnavailable, match="read-only"):
        await eventually(lambda: _still_writable(database), within=5)
    # The server ends a session when it gets to it, which the client does not wait for.
    await eventually(
        lambda: _ended(own_postgres, first), within=10, what="the session that writes nothing is given up"
    )
    own_postgres.stop()
    (own_postgres.data / "postgresql.auto.conf").unlink()
    own_postgres.start()
    await eventually(lambda: _works(database), within=5)
    await database.aclose()
    await agents.aclose()


async def test_behind_a_pooler_that_swaps_sessions_no_call_fails(
    agents: PostgresLivenessStorage, database: Database
) -> None:
    await agents.upsert_agent_liveness(a_record("one"))
    for _ in range(3):
        assert await database.request_agent_stop("one")
        # What the next client of the same pooler finds: a session that knows none of its statements.
        await database._pool.run(lambda connection: connection.execute("DEALLOCATE ALL"))
    assert await database.request_agent_stop("one")


async def _still_writable(database: Database) -> bool:
    """False until the server has read its new settings; then the call raises."""
    await database.request_agent_stop("one")
    return False


async def _works(database: Database) -> bool:
    try:
        return await database.request_agent_stop("one")
    except DatabaseUnavailable:
        return False


async def _ended(server: PostgresServer, sessions: set[int]) -> bool:
    return not sessions & await _backends(server, "tenure-operator")


async def _backends(server: PostgresServer, application: str) -> set[int]:
    connection = await server.connect()
    rows = await connection.fetch("SELECT pid FROM pg_stat_activity WHERE application_name = $1", application)
    await connection.close()
    return {row["pid"] for row in rows}


@pytest.mark.accept("M-2")
@pytest.mark.parametrize("wrong", ["password", "database", "port", "scheme", "host"])
async def test_no_error_shows_the_url_or_the_servers_words(
    postgres_server: PostgresServer, wrong: str
) -> None:
    canary = "canary-s3cret"
    good = postgres_server.url("postgres", user="canary-user", password=canary)
    url = {
        "password": good,
        "database": postgres_server.url("canary-database"),
        "port": good.replace(f":{postgres_server.port}/", ":1/"),
        "scheme": good.replace("postgresql://", "canary://"),
        "host": good.replace("127.0.0.1", "[canary"),
    }[wrong]
    database = Database("main", Masked(url), limit=3)
    with pytest.raises(DatabaseUnavailable) as caught:
        await database.snapshot([])
    error: BaseException | None = caught.value
    while error is not None:
        for shown in (str(error), repr(error), repr(error.args), repr(vars(error))):
            assert "canary" not in shown
            assert postgres_server.password not in shown
        error = error.__cause__ or error.__context__
    assert caught.value.name == "main"
    assert "canary" not in repr(database) + str(vars(database))
    await database.aclose()


STOP = StopEntry(
    namespace="team-a",
    pod_uid="uid-1",
    name="critic",
    instance_id="uid-1",
    origin="Resource",
    requested_at=datetime(2026, 3, 1, tzinfo=UTC),
    grace_seconds=600,
    task_id_at_request=2**40,
)


async def test_a_finished_stop_is_final_and_a_pending_one_is_completed(
    database_url: str, database: Database, postgres_server: PostgresServer
) -> None:
    await migrate_schema(Masked(database_url))
    finished = StopEntry(
        **{name: getattr(STOP, name) for name in STOP.__slots__}
        | {"finished_at": datetime(2026, 3, 2, tzinfo=UTC), "graceful": True, "exit_code": 0}
    )
    forged = StopEntry(
        **{name: getattr(STOP, name) for name in STOP.__slots__}
        | {"finished_at": datetime(2026, 3, 3, tzinfo=UTC), "graceful": False, "exit_code": 137}
    )
    await database.record_stop(STOP)
    await database.record_stop(finished)
    await database.record_stop(forged)
    await database.record_stop(STOP)
    connection = await postgres_server.connect(database_url.rsplit("/", 1)[1])
    rows = await connection.fetch("SELECT * FROM tenure.agent_stops")
    await connection.close()
    assert [StopEntry(**dict(row)) for row in rows] == [finished]


async def test_the_same_pod_in_another_namespace_is_another_stop(
    database_url: str, database: Database, postgres_server: PostgresServer
) -> None:
    await migrate_schema(Masked(database_url))
    for namespace in ("team-a", "team-b"):
        values = {name: getattr(STOP, name) for name in STOP.__slots__} | {"namespace": namespace}
        await database.record_stop(StopEntry(**values))
    connection = await postgres_server.connect(database_url.rsplit("/", 1)[1])
    count = await connection.fetchval("SELECT count(*) FROM tenure.agent_stops")
    await connection.close()
    assert count == 2


async def test_the_operators_stop_marks_one_row_and_reports_a_missing_one(
    agents: PostgresLivenessStorage, database: Database
) -> None:
    await agents.upsert_agent_liveness(a_record("one"))
    assert await database.request_agent_stop("one") is True
    assert await database.request_agent_stop("two") is False
    row = await agents.get_agent_liveness("one")
    assert row is not None
    assert row.stop_requested
    assert len(await agents.list_agent_liveness()) == 1


def test_a_namespace_is_allowed_only_where_it_is_listed() -> None:
    anybody = Database("default", Masked("postgresql://x"))
    some = Database("default", Masked("postgresql://x"), namespaces=frozenset({"team-a"}))
    assert anybody.allows("team-b")
    assert some.allows("team-a")
    assert not some.allows("team-b")


def test_the_snapshot_is_one_statement() -> None:
    assert snapshots.snapshot_sql().count(";") == 0
    assert statements.SNAPSHOT_BY_KEY.count(";") == 0
