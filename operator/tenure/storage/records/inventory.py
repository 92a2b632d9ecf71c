"""The recovery inventory: which executions were live, what recovery decided about each, and repair.

Nothing here decides; it makes decisions durable. Each record is one transaction of its own, so that the failure of
one never affects another.
"""

from collections.abc import Iterable
from uuid import UUID

from tenure.model.records import SessionState
from tenure.storage.pool import Connection
from tenure.storage.records.effects import abandon_turns, lock_session, settle
from tenure.storage.records.reading import EXECUTOR_OF_SESSION, EXECUTORS, executor_from
from tenure.storage.records.transactions import Rows
from tenure.storage.records.types import Executor, Repaired

LIVE = EXECUTORS + (
    " AND e.status IN ('running', 'stopping') AND e.installation_id = coalesce($2, e.installation_id) ORDER BY e.id"
)

# Durable, so that a restarted operator refuses as the one before; of this incarnation, because the next tries anew.
FLAG = """
UPDATE tenure.executors_running SET unstopped_by = $4, updated_at = now()
 WHERE namespace = $1 AND session_id = $2 AND agent_execution_id = $3 AND status IN ('running', 'stopping')
RETURNING 1
"""

CLEAR = """
UPDATE tenure.executors_running SET unstopped_by = NULL, updated_at = now()
 WHERE namespace = $1 AND session_id = $2 AND unstopped_by IS NOT NULL
RETURNING 1
"""

# The winner of a correlation may have another id than the record.
RETRACKED = """
UPDATE tenure.executors_running SET agent_execution_id = $4, last_seen_at = now(), updated_at = now()
 WHERE namespace = $1 AND id = $2 AND agent_execution_id IN ($3, $4) AND status IN ('running', 'stopping')
RETURNING 1
"""

# Only the execution that was judged: its session may have been launched again since. Resume token and worktree stay.
REPAIR = """
UPDATE tenure.executors_running SET status = 'stopped', unstopped_by = NULL, updated_at = now()
 WHERE namespace = $1 AND id = $2 AND agent_execution_id = $3 AND status IN ('running', 'stopping')
   AND (unstopped_by IS NULL OR $4)
RETURNING 1
"""


class Inventory(Rows):
    """The recovery inventory of one namespace."""

    async def live(self, installation_id: str | None = None) -> tuple[Executor, ...]:
        """Every live execution, of one installation or of all, with its session's mode and state."""

        async def body(connection: Connection) -> tuple[Executor, ...]:
            rows = await connection.fetch(LIVE, self._namespace, installation_id)
            return tuple(executor_from(row) for row in rows)

        return await self._transact(body)

    async def of_session(self, session_id: str) -> Executor | None:
        """The session's row, live or not; None when it was never launched."""

        async def body(connection: Connection) -> Executor | None:
            row = await connection.fetchrow(EXECUTOR_OF_SESSION, self._namespace, session_id)
            return None if row is None else executor_from(row)

        return await self._transact(body)

    async def flag_unstopped(self, session_id: str, agent_execution_id: str, incarnation: str) -> bool:
        """Its agent could not be stopped: launches are refused for good while ``incarnation`` owns the server.
        May be repeated. False: the row is not this execution's any more, or not live."""

        async def body(connection: Connection) -> bool:
            if await lock_session(connection, self._namespace, session_id) is None:
                return False
            values = (session_id, agent_execution_id, incarnation)
            return await connection.fetchval(FLAG, self._namespace, *values) is not None

        return await self._transact(body)

    async def clear_unstopped(self, session_id: str) -> bool:
        """It could be stopped after all, or another incarnation decides anew: the row may end like any other.
        False: it was not flagged."""

        async def body(connection: Connection) -> bool:
            if await lock_session(connection, self._namespace, session_id) is None:
                return False
            return await connection.fetchval(CLEAR, self._namespace, session_id) is not None

        return await self._transact(body)

    async def retracked(self, executor: Executor, agent_execution_id: str) -> bool:
        """Publish: the row is the instance ``agent_execution_id``'s from now on, and nothing else changes: session,
        turns and task go on as they are. May be repeated. False: the row is not as it was judged."""

        async def body(connection: Connection) -> bool:
            if await lock_session(connection, self._namespace, executor.session_id) is None:
                return False
            ids = (executor.id, executor.agent_execution_id, agent_execution_id)
            return await connection.fetchval(RETRACKED, self._namespace, *ids) is not None

        return await self._transact(body)

    async def repair(
        self, executors: Iterable[Executor], *, even_unstopped: bool = False
    ) -> tuple[Repaired, ...]:
        """Their agents are gone, or left to themselves: session waiting for input and stamped interrupted, open
        turns abandoned, task to review and stamped, row stopped with resume token and worktree kept.

        Takes the rows as they were judged; one that has ended, or is another launch's by now, is passed over, so
        repeating it changes nothing. ``even_unstopped``: flagged ones too, whose pod is provably gone. Returns what
        was repaired. Stops at the first record that cannot be written; those before it stay repaired.
        """
        done = [await self._repair(executor, even_unstopped) for executor in executors]
        return tuple(repaired for repaired in done if repaired is not None)

    async def _repair(self, executor: Executor, even_unstopped: bool) -> Repaired | None:
        async def body(connection: Connection) -> Repaired | None:
            session = await lock_session(connection, self._namespace, executor.session_id)
            if session is None:
                return None
            judged: tuple[UUID, str] = (executor.id, executor.agent_execution_id)
            if await connection.fetchval(REPAIR, self._namespace, *judged, even_unstopped) is None:
                return None
            abandoned = await abandon_turns(connection, session)
            await settle(connection, session, SessionState.WAITING_FOR_INPUT, interrupted=True)
            return Repaired(executor.id, executor.session_id, abandoned)

        return await self._transact(body)
