"""The records under row-level security: a backend works in its own namespaces and sees nothing of another's."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import asyncpg
import pytest
from tests.integration.storage.test_migrations_and_grants import granted
from tests.support.postgres import PostgresServer
from tests.support.records import DONE, INCARNATION, INSTALLATION, SERVER, a_launch, a_server

from tenure.model.masked import Masked
from tenure.storage.records import (
    Applied,
    DatabaseUnavailable,
    LaunchRefused,
    Records,
    TurnConflict,
    TurnName,
    TurnRefused,
)

TABLES = ("control_servers", "executors_running", "sessions", "turns", "tasks")


@dataclass
class Tenants:
    """One database of two tenants. The backend's role is granted the namespace team-a only."""

    server: PostgresServer
    url: str
    backend_url: str
    operator: Records
    operator_b: Records
    backend: Records

    def as_backend(self, namespace: str) -> Records:
        return Records(Masked(self.backend_url), namespace=namespace)


@pytest.fixture
async def tenants(database_url: str, postgres_server: PostgresServer) -> AsyncIterator[Tenants]:
    roles = await granted(postgres_server, database_url)
    operator_url = postgres_server.as_role(database_url, roles.operator)
    backend_url = postgres_server.as_role(database_url, roles.backend)
    operator = Records(Masked(operator_url), namespace="team-a")
    operator_b = Records.over(operator._pool, "team-b")
    backend = Records(Masked(backend_url), namespace="team-a")
    yield Tenants(postgres_server, database_url, backend_url, operator, operator_b, backend)
    await operator.aclose()
    await backend.aclose()


async def test_operator_and_backend_do_all_their_work_with_the_printed_grants(tenants: Tenants) -> None:
    operator, backend = tenants.operator, tenants.backend
    await operator.servers.ensure(INSTALLATION, "workers")
    await operator.servers.record(INSTALLATION, a_server(), adopted_by=None, incarnation=INCARNATION)
    await operator.servers.confirm_rotation(INSTALLATION, INCARNATION, 1)
    await operator.servers.begin_recovery(INSTALLATION, adopted_by=INCARNATION)
    await operator.servers.set_recovered(INSTALLATION, INCARNATION, adopted_by=INCARNATION)
    for records in (backend, operator):
        first = await records.executions.launch(a_launch())
        await records.executions.launched("session-1", first.agent_execution_id, resume_token="provider-7")
        await records.executions.touch([first.agent_execution_id])
        turn = await records.turns.open("session-1", first.agent_execution_id)
        await records.turns.bind(turn.id, SERVER, turn.id)
        name = TurnName(server_identity=SERVER, control_turn_id=turn.id)
        assert await records.turns.apply(name, DONE) is Applied.APPLIED
        with pytest.raises(LaunchRefused):
            await records.executions.launch(a_launch())
        await records.executions.stopping("session-1", first.agent_execution_id)
        assert await records.executions.ended("session-1", first.agent_execution_id)
    lost = await backend.executions.launch(a_launch())
    assert await backend.inventory.retracked(lost, "of another name")
    for records in (backend, operator):
        assert await records.inventory.retracked_together([(lost, "of another name")]) == {lost.id}
    assert len(await backend.inventory.repair(await backend.inventory.live())) == 1
    again = await operator.executions.launch(a_launch())
    await operator.inventory.flag_unstopped("session-1", again.agent_execution_id, INCARNATION)
    await operator.inventory.clear_unstopped("session-1")
    await operator.inventory.retracked(again, "winner")
    assert len(await operator.inventory.repair(await operator.inventory.live())) == 1
    await operator.servers.vacate(INSTALLATION, adopted_by=INCARNATION, incarnation="next", pod_uid="pod-1")
    assert (await backend.servers.get(INSTALLATION)) is not None


async def test_a_backend_sees_and_touches_nothing_of_another_namespace(tenants: Tenants) -> None:
    theirs = await tenants.operator_b.executions.launch(a_launch())
    turn = await tenants.operator_b.turns.open("session-1", theirs.agent_execution_id)
    await tenants.operator_b.servers.ensure(INSTALLATION, "workers")
    before = await _seen(tenants.operator_b, turn.id)
    intruder = tenants.as_backend("team-b")
    try:
        assert await intruder.inventory.live() == ()
        assert await intruder.sessions.newest() == ()
        assert await intruder.sessions.task(theirs.task_id) is None
        assert await intruder.servers.get(INSTALLATION) is None
        assert await intruder.turns.get(turn.id) is None
        assert await intruder.turns.abandon(turn.id) is Applied.UNKNOWN
        assert not await intruder.executions.ended("session-1", theirs.agent_execution_id)
        await intruder.executions.touch([theirs.agent_execution_id])
        with pytest.raises(TurnRefused):
            await intruder.turns.open("session-1", theirs.agent_execution_id)
        with pytest.raises(DatabaseUnavailable, match="permission denied"):
            await intruder.executions.launch(a_launch())
    finally:
        await intruder.aclose()
    assert await _seen(tenants.operator_b, turn.id) == before


async def test_the_same_names_in_two_namespaces_are_two_things(tenants: Tenants) -> None:
    ours = await tenants.backend.executions.launch(a_launch())
    theirs = await tenants.operator_b.executions.launch(a_launch())
    turn = await tenants.backend.turns.open("session-1", ours.agent_execution_id)
    other = await tenants.operator_b.turns.open("session-1", theirs.agent_execution_id)
    await tenants.operator_b.turns.bind(other.id, SERVER, 7)
    await tenants.backend.turns.bind(turn.id, SERVER, 7)
    with pytest.raises(TurnConflict):
        await tenants.backend.turns.bind(other.id, SERVER, 8)
    assert await tenants.backend.turns.abandon(other.id) is Applied.UNKNOWN
    assert await tenants.operator_b.turns.get(turn.id) is None
    assert await tenants.operator_b.inventory.repair([ours]) == ()
    assert [row.id for row in await tenants.operator_b.inventory.live()] == [theirs.id]


@pytest.mark.parametrize("table", TABLES)
async def test_row_level_security_holds_without_our_own_filter(tenants: Tenants, table: str) -> None:
    await _one_of_each(tenants)
    connection = await asyncpg.connect(tenants.backend_url)
    try:
        query = f"SELECT DISTINCT namespace FROM tenure.{table}"
        assert [row[0] for row in await connection.fetch(query)] == ["team-a"]
    finally:
        await connection.close()


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO tenure.tasks (namespace, id) VALUES ('team-b', 'planted')",
        "INSERT INTO tenure.sessions (namespace, id, task_id, installation_id) "
        "VALUES ('team-b', 'planted', 'task-of-session-1', 'i')",
        "INSERT INTO tenure.turns (namespace, session_id) VALUES ('team-b', 'session-1')",
        "UPDATE tenure.tasks SET namespace = 'team-b'",
        "UPDATE tenure.sessions SET id = 'x'",
        "UPDATE tenure.executors_running SET session_id = 'x'",
        "UPDATE tenure.executors_running SET unstopped_by = NULL",
        "UPDATE tenure.turns SET session_id = 'x'",
        "UPDATE tenure.control_servers SET recovered_by = 'me'",
        "UPDATE tenure.control_servers SET endpoint = 'https://elsewhere'",
        "INSERT INTO tenure.control_servers (namespace, installation_id, name) VALUES ('team-a', 'i', 'n')",
        *(f"DELETE FROM tenure.{table}" for table in TABLES),
        *(f"TRUNCATE tenure.{table} CASCADE" for table in TABLES),
    ],
)
async def test_a_backend_can_do_no_more_than_its_work(tenants: Tenants, statement: str) -> None:
    await _one_of_each(tenants)
    connection = await asyncpg.connect(tenants.backend_url)
    try:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(statement)
    finally:
        await connection.close()


@pytest.mark.parametrize("table", TABLES)
async def test_the_operator_deletes_no_record_and_no_agent_reads_one(
    tenants: Tenants, table: str, database_url: str
) -> None:
    agent = tenants.server.as_role(database_url, database_url.rsplit("/", 1)[1] + "_agent")
    for url, statement in (
        (tenants.operator._pool._url.reveal(), f"DELETE FROM tenure.{table}"),
        (agent, f"SELECT * FROM tenure.{table}"),
    ):
        connection = await asyncpg.connect(url)
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(statement)
        await connection.close()


async def _one_of_each(tenants: Tenants) -> None:
    """A row of each table in both namespaces."""
    for records in (tenants.operator, tenants.operator_b):
        await records.servers.ensure(INSTALLATION, "workers")
        executor = await records.executions.launch(a_launch())
        await records.turns.open("session-1", executor.agent_execution_id)


async def _seen(records: Records, turn: int) -> tuple[object, ...]:
    """Everything of the session as it is now."""
    executor, session = (
        await records.inventory.of_session("session-1"),
        await records.sessions.get("session-1"),
    )
    assert executor is not None
    return executor, session, await records.sessions.task(executor.task_id), await records.turns.get(turn)
