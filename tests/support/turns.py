"""A session with an open turn, seen past the storage: what was committed, and who waits for whom."""

from dataclasses import dataclass

from tenure.model.records import SessionState, TaskState, TurnState
from tenure.storage.records import Executor, Records, Turn, TurnName
from tests.support.postgres import PostgresServer
from tests.support.records import SERVER, a_launch
from tests.support.wait import eventually

COUNT_ENDS = """
CREATE TABLE public.ends (turn BIGINT, state TEXT);
CREATE FUNCTION public.count_ends() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.ends VALUES (NEW.id, NEW.state);
    RETURN NULL;
END $$;
CREATE TRIGGER count_ends AFTER UPDATE OF state ON tenure.turns FOR EACH ROW EXECUTE FUNCTION public.count_ends();
"""
"""Every end of a turn that was committed leaves a row."""

DIE_ONCE_AT_COMMIT = """
CREATE SEQUENCE public.deaths;
CREATE FUNCTION public.die_once() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('public.deaths') = 1 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER die_once AFTER UPDATE ON tenure.turns DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION public.die_once();
"""
"""The first transaction that changes a turn loses its connection while it commits, and nothing of it is kept."""

WAITING_PIDS = """
SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


@dataclass
class Scene:
    """A launched session with an open turn, and a way straight into the database."""

    records: Records
    executor: Executor
    turn: Turn
    server: PostgresServer
    database: str

    async def execute(self, sql: str) -> None:
        await self.server.execute(sql, database=self.database)

    async def ends(self) -> list[tuple[int, str]]:
        connection = await self.server.connect(self.database)
        try:
            return [tuple(row) for row in await connection.fetch("SELECT turn, state FROM public.ends")]
        finally:
            await connection.close()

    async def waiters(self, number: int = 1) -> list[int]:
        """The process ids of whoever waits for a lock, once there are so many. Asked outside of any transaction,
        which would see the same answer until its end."""
        connection = await self.server.connect(self.database)

        async def waiting() -> list[int] | None:
            rows = await connection.fetch(WAITING_PIDS)
            return [row["pid"] for row in rows] if len(rows) == number else None

        try:
            return await eventually(waiting, within=10, what=f"{number} wait for a lock")
        finally:
            await connection.close()

    async def states(self) -> tuple[TurnState, SessionState, TaskState]:
        turn = await self.records.turns.get(self.turn.id)
        session = await self.records.sessions.get("session-1")
        assert turn is not None
        assert session is not None
        return turn.state, session.state, session.task_state

    @classmethod
    async def begin(cls, records: Records, server: PostgresServer, database_url: str) -> "Scene":
        """Launch the session, open its turn, and count from now on what ends."""
        executor = await records.executions.launch(a_launch())
        turn = await records.turns.open("session-1", executor.agent_execution_id)
        database = database_url.rsplit("/", 1)[1]
        await server.execute(COUNT_ENDS, database=database)
        return cls(records, executor, turn, server, database)


RUNNING = (TurnState.OPEN, SessionState.RUNNING, TaskState.IN_PROGRESS)
WAITING = (TurnState.COMPLETED, SessionState.WAITING_FOR_INPUT, TaskState.REVIEW)


def by_number(number: int) -> TurnName:
    """A turn by the server's number alone."""
    return TurnName(server_identity=SERVER, control_turn_id=number)
