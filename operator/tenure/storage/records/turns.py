"""Turns: opened before a prompt is sent, bound to the server's number, ended exactly once."""

from dataclasses import dataclass

from tenure.model.records import ExecutorStatus, SessionState, TurnState
from tenure.storage.errors import StorageError
from tenure.storage.pool import Connection
from tenure.storage.records.effects import LockedSession, lock_session, settle
from tenure.storage.records.errors import TurnConflict, TurnRefusal, TurnRefused
from tenure.storage.records.reading import TURN_COLUMNS, turn_from
from tenure.storage.records.transactions import Rows
from tenure.storage.records.types import Applied, Outcome, Turn

# Taken apart from the transaction: a call whose answer was lost finds its own turn by it.
NEXT_ID = "SELECT nextval('tenure.turns_id_seq')"

EXECUTION = """
SELECT status FROM tenure.executors_running WHERE namespace = $1 AND session_id = $2 AND agent_execution_id = $3
"""

OPEN_TURN_OF = "SELECT id FROM tenure.turns WHERE namespace = $1 AND session_id = $2 AND state = 'open'"

INSERT_TURN = "INSERT INTO tenure.turns (namespace, id, session_id, server_identity) VALUES ($1, $2, $3, $4)"

# Work goes on, so nothing is interrupted any more.
SESSION_RUNS = """
UPDATE tenure.sessions SET state = 'running', interrupted_at = NULL, updated_at = now()
 WHERE namespace = $1 AND id = $2
"""
TASK_RUNS = """
UPDATE tenure.tasks SET state = 'in_progress', interrupted_at = NULL, updated_at = now()
 WHERE namespace = $1 AND id = $2
"""

_TURN = f"SELECT {TURN_COLUMNS} FROM tenure.turns WHERE namespace = $1 AND "  # noqa: S608 - our own words
TURN = _TURN + "id = $2"
TURN_BY_SERVER = _TURN + "server_identity = $2 AND control_turn_id = $3"
# The turn that a server's number must belong to when no turn has that number: the session's one open turn, whose
# prompt was sent by a process that died before it wrote the answer down. A server's numbers only increase, so one
# below any that the session has already is not this turn's.
TURN_UNBOUND = (
    _TURN
    + """
    session_id = $2 AND state = 'open' AND control_turn_id IS NULL AND coalesce(server_identity, $3) = $3
    AND NOT EXISTS (SELECT FROM tenure.turns o WHERE o.namespace = $1 AND o.session_id = $2
                       AND o.server_identity = $3 AND o.control_turn_id > $4)
"""
)
TURNS_OF_SESSION = _TURN + "session_id = $2 ORDER BY id DESC LIMIT $3"

BIND = """
UPDATE tenure.turns SET server_identity = $3, control_turn_id = $4, updated_at = now()
 WHERE namespace = $1 AND id = $2
"""

# The last word about a turn. Its session is locked, and the state asked for once more all the same.
FINISH = """
UPDATE tenure.turns SET state = $3, outcome = $4, updated_at = now(), finished_at = now()
 WHERE namespace = $1 AND id = $2 AND state = 'open'
RETURNING 1
"""


@dataclass(frozen=True, slots=True)
class TurnName:
    """Every way in which a turn may be named; what is given must fit together.

    ``turn``: our own id. ``server_identity`` with ``control_turn_id``: the server's number, under its identity.
    ``session_id``: whose turn it is; with a server's number that no turn has, the session's open turn is meant.
    """

    turn: int | None = None
    session_id: str | None = None
    server_identity: str | None = None
    control_turn_id: int | None = None

    def __post_init__(self) -> None:
        if (self.server_identity is None) != (self.control_turn_id is None):
            raise ValueError("a server's number comes with the server's identity")
        if self.turn is None and self.control_turn_id is None:
            raise ValueError("a turn is named by its id or by a server's number")


class Turns(Rows):
    """The turns of one namespace."""

    async def fresh_id(self) -> int:
        """An id for ``open``, and for no other turn: whoever keeps it finds out whether an attempt of which the
        answer was lost came through, by another one with it."""
        return int(await self._transact(lambda connection: connection.fetchval(NEXT_ID)))

    async def open(
        self,
        session_id: str,
        agent_execution_id: str,
        *,
        server_identity: str | None = None,
        turn_id: int | None = None,
    ) -> Turn:
        """Open a turn, before its prompt is sent with ``Turn.key``: session ``running``, task ``in_progress``.

        ``server_identity``: of the server that the prompt will go to. ``turn_id``: from ``fresh_id``; the turn that
        has it already is returned as it is. Raises ``TurnRefused`` while the execution is stopping or not live,
        or the session has an open turn.
        """
        if turn_id is None:
            turn_id = await self.fresh_id()

        async def body(connection: Connection) -> Turn:
            session = await lock_session(connection, self._namespace, session_id)
            if session is None:
                raise TurnRefused(TurnRefusal.NOT_LIVE)
            before = await connection.fetchrow(TURN, self._namespace, turn_id)
            if before is not None:
                return turn_from(before)
            await self._refuse(connection, session, agent_execution_id)
            await connection.execute(INSERT_TURN, self._namespace, turn_id, session_id, server_identity)
            await connection.execute(SESSION_RUNS, self._namespace, session_id)
            await connection.execute(TASK_RUNS, self._namespace, session.task_id)
            return turn_from(await connection.fetchrow(TURN, self._namespace, turn_id))

        return await self._transact(body)

    async def bind(self, turn: int, server_identity: str, control_turn_id: int) -> None:
        """Write down which number the server gave to the turn. May be repeated.

        Raises ``TurnConflict`` when the turn has another number, the number another turn, or there is no such
        turn.
        """
        name = TurnName(turn=turn, server_identity=server_identity, control_turn_id=control_turn_id)

        async def body(connection: Connection) -> None:
            if await self._locked(connection, name) is None:
                raise TurnConflict("there is no such turn")

        await self._transact(body, on_duplicate=_number_taken)

    async def apply(self, name: TurnName, outcome: Outcome, *, completed: bool = False) -> Applied:
        """Apply how a turn ended, together with what follows: session waiting for input (``completed``: completed),
        task to review. A turn that is over stays as it is, whoever says it again.

        Durable when it returns; the server is told (acknowledged) after. Raises ``TurnConflict`` when the names
        do not fit together.
        """
        state = SessionState.COMPLETED if completed else SessionState.WAITING_FOR_INPUT

        async def body(connection: Connection) -> Applied:
            found = await self._locked(connection, name)
            if found is None:
                return Applied.UNKNOWN
            turn, session = found
            return await self._finish(connection, turn, session, outcome.state, state, outcome.to_json())

        return await self._transact(body, on_duplicate=_number_taken)

    async def abandon(self, turn: int) -> Applied:
        """End a turn of which no outcome will come: session waiting for input, task to review."""

        async def body(connection: Connection) -> Applied:
            found = await self._locked(connection, TurnName(turn=turn))
            if found is None:
                return Applied.UNKNOWN
            waits = SessionState.WAITING_FOR_INPUT
            return await self._finish(connection, *found, TurnState.ABANDONED, waits, None)

        return await self._transact(body)

    async def get(self, turn: int) -> Turn | None:
        """One turn by its id."""

        async def body(connection: Connection) -> Turn | None:
            row = await connection.fetchrow(TURN, self._namespace, turn)
            return None if row is None else turn_from(row)

        return await self._transact(body)

    async def of_session(self, session_id: str, *, limit: int = 100) -> tuple[Turn, ...]:
        """The session's turns, newest first."""

        async def body(connection: Connection) -> tuple[Turn, ...]:
            rows = await connection.fetch(TURNS_OF_SESSION, self._namespace, session_id, limit)
            return tuple(turn_from(row) for row in rows)

        return await self._transact(body)

    async def _refuse(self, connection: Connection, session: LockedSession, agent_execution_id: str) -> None:
        status = await connection.fetchval(EXECUTION, self._namespace, session.id, agent_execution_id)
        if status == ExecutorStatus.STOPPING:
            raise TurnRefused(TurnRefusal.STOPPING)
        if status != ExecutorStatus.RUNNING:
            raise TurnRefused(TurnRefusal.NOT_LIVE)
        if await connection.fetchval(OPEN_TURN_OF, self._namespace, session.id) is not None:
            raise TurnRefused(TurnRefusal.TURN_OPEN)

    async def _locked(self, connection: Connection, name: TurnName) -> tuple[Turn, LockedSession] | None:
        """The turn that ``name`` means, its session locked, bound to the server's number if there is one.

        Without the session's name it is looked up twice: a turn's session never changes, so the first look says
        which session to lock, and the second is the one that counts. With it nothing is looked at before the lock:
        between a look for the number and one for the turn without a number, the turn may get its number.
        """
        session_id = name.session_id
        if session_id is None:
            first = await self._find(connection, name)
            if first is None:
                return None
            session_id = first.session_id
        session = await lock_session(connection, self._namespace, session_id)
        found = await self._find(connection, name)
        if session is None or found is None:
            return None
        if found.session_id != session.id:
            raise TurnConflict("the number was given to a turn of another session meanwhile")
        if name.control_turn_id is not None and found.control_turn_id is None:
            if found.server_identity not in (None, name.server_identity):
                raise TurnConflict("the turn was opened for another server")
            await connection.execute(
                BIND, self._namespace, found.id, name.server_identity, name.control_turn_id
            )
        return found, session

    async def _find(self, connection: Connection, name: TurnName) -> Turn | None:
        row = None
        if name.control_turn_id is not None:
            number = (name.server_identity, name.control_turn_id)
            row = await connection.fetchrow(TURN_BY_SERVER, self._namespace, *number)
        if row is None and name.turn is not None:
            row = await connection.fetchrow(TURN, self._namespace, name.turn)
        elif row is None and name.session_id is not None:
            row = await connection.fetchrow(
                TURN_UNBOUND, self._namespace, name.session_id, name.server_identity, name.control_turn_id
            )
        if row is None:
            return None
        found = turn_from(row)
        _refuse_misfit(found, name)
        return found

    async def _finish(
        self,
        connection: Connection,
        turn: Turn,
        session: LockedSession,
        turn_state: TurnState,
        session_state: SessionState,
        outcome: str | None,
    ) -> Applied:
        finished = await connection.fetchval(FINISH, self._namespace, turn.id, turn_state, outcome)
        if finished is None:
            return Applied.ALREADY
        await settle(connection, session, session_state)
        return Applied.APPLIED


def _refuse_misfit(found: Turn, name: TurnName) -> None:
    """Raises ``TurnConflict`` when what is recorded contradicts any part of the name."""
    if name.turn not in (None, found.id):
        raise TurnConflict("the server's number belongs to another turn")
    if name.session_id not in (None, found.session_id):
        raise TurnConflict("the turn belongs to another session")
    if name.control_turn_id is None or found.control_turn_id is None:
        return
    if (found.server_identity, found.control_turn_id) != (name.server_identity, name.control_turn_id):
        raise TurnConflict("the turn has another number")


def _number_taken() -> StorageError:
    return TurnConflict("the server's number was given to another turn at the same time")
