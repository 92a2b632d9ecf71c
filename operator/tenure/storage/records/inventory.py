"""The recovery inventory: which executions were live, what recovery decided about each, and repair.

Nothing here decides (``plan.adoption`` does); it makes decisions durable. Each record is one transaction of its own, or
one of many in a statement that leaves out what it cannot write: so the failure of one never affects another.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from uuid import UUID

from tenure.plan.adoption.guards import InventoryRow
from tenure.plan.adoption.liveness import RowVerdict
from tenure.plan.adoption.repair import RowRepair, SessionRepair, SessionView, reconcile
from tenure.storage.errors import EntryRefused
from tenure.storage.pool import Connection
from tenure.storage.records.effects import lock_session, view_of, write_repair
from tenure.storage.records.reading import EXECUTOR_OF_SESSION, EXECUTORS, executor_from
from tenure.storage.records.transactions import Rows
from tenure.storage.records.types import Executor, Repaired

LIVE = EXECUTORS + (
    " AND e.status IN ('running', 'stopping') AND e.installation_id = coalesce($2, e.installation_id) ORDER BY e.id"
)

# Durable, so that a restarted operator refuses as the one before; of this incarnation, because the next tries anew.
FLAG = """
UPDATE tenure.executors_running
   SET unstopped_by = $4, updated_at = CASE status WHEN 'stopping' THEN updated_at ELSE now() END
 WHERE namespace = $1 AND session_id = $2 AND agent_execution_id = $3 AND status IN ('running', 'stopping')
RETURNING 1
"""

CLEAR = """
UPDATE tenure.executors_running
   SET unstopped_by = NULL, updated_at = CASE status WHEN 'stopping' THEN updated_at ELSE now() END
 WHERE namespace = $1 AND session_id = $2 AND unstopped_by IS NOT NULL
RETURNING 1
"""

# The winner of a correlation may have another id than the record. A stop that was begun goes on: the status stays.
# One statement, for hundreds of sessions are published at once; only the row is changed, so no session is locked.
_RETRACK = """
UPDATE tenure.executors_running
   SET agent_execution_id = $5, last_seen_at = now(),
       updated_at = CASE status WHEN 'stopping' THEN updated_at ELSE now() END"""
_AS_IT_WAS = """
 WHERE namespace = $1 AND session_id = $2 AND id = $3 AND agent_execution_id IN ($4, $5)
   AND status IN ('running', 'stopping')"""
RETRACKED = _RETRACK + _AS_IT_WAS + " AND unstopped_by IS NULL RETURNING 1"
# The flag of a former incarnation, by which the row was judged, goes: a flagged row never ends.
RETRACKED_UNFLAGGED = (
    f"{_RETRACK}, unstopped_by = NULL{_AS_IT_WAS} AND (unstopped_by IS NULL OR unstopped_by = $6) RETURNING 1"
)

# The same for many rows, and still no lock but theirs. One that somebody else holds is left out: the others would wait,
# and stay locked meanwhile.
RETRACKED_TOGETHER = """
WITH free AS (
    SELECT id FROM tenure.executors_running WHERE namespace = $1 AND id = ANY($2) FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE tenure.executors_running e
   SET agent_execution_id = judged.now, last_seen_at = now(),
       updated_at = CASE e.status WHEN 'stopping' THEN e.updated_at ELSE now() END
  FROM unnest($2::uuid[], $3::text[], $4::text[], $5::text[]) AS judged (id, session_id, was, now) JOIN free USING (id)
 WHERE e.namespace = $1 AND e.id = judged.id AND e.session_id = judged.session_id
   AND e.agent_execution_id IN (judged.was, judged.now) AND e.status IN ('running', 'stopping')
   AND e.unstopped_by IS NULL
RETURNING e.id
"""

# Only the execution that was judged: its session may have been launched again since. Resume token and worktree stay.
# The flag is not written where there is none: a backend's role may not, and repairs what it launched itself.
REPAIR = """
UPDATE tenure.executors_running SET status = 'stopped', updated_at = now()
 WHERE namespace = $1 AND id = $2 AND agent_execution_id = $3 AND status IN ('running', 'stopping')
   AND unstopped_by IS NULL
RETURNING 1
"""
REPAIR_FLAGGED = """
UPDATE tenure.executors_running SET status = 'stopped', unstopped_by = NULL, updated_at = now()
 WHERE namespace = $1 AND id = $2 AND agent_execution_id = $3 AND status IN ('running', 'stopping')
   AND unstopped_by IS NOT NULL
RETURNING 1
"""

AS_JUDGED = """
SELECT unstopped_by IS NOT NULL AS flagged FROM tenure.executors_running
 WHERE namespace = $1 AND id = $2 AND agent_execution_id = $3 AND status IN ('running', 'stopping')
   FOR NO KEY UPDATE
"""


class Inventory(Rows):
    """The recovery inventory of one namespace."""

    async def now(self) -> datetime:
        """The database's clock: every time in a row is by it."""

        async def body(connection: Connection) -> datetime:
            found: datetime = await connection.fetchval("SELECT now()")
            return found

        return await self._transact(body)

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
        turns and task go on as they are, and so does a stop that was begun. It still guards its session.

        May be repeated. A flag with which it was judged is another incarnation's, and goes. False, and nothing done:
        the row is not as it was judged: it has ended, was launched again, or flagged.
        """

        ids = (executor.session_id, executor.id, executor.agent_execution_id, agent_execution_id)
        if executor.unstopped_by is None:
            return await self._statement(RETRACKED, *ids) is not None
        return await self._statement(RETRACKED_UNFLAGGED, *ids, executor.unstopped_by) is not None

    async def retracked_together(self, found: Sequence[tuple[Executor, str]]) -> frozenset[UUID]:
        """``retracked`` for many rows, each with its instance, in one round trip; returns the ids of those published.

        Of any other nothing has been written: it is flagged, not as it was judged, or held by somebody else this
        moment, for whom nobody waits. ``retracked`` says which. ``EntryRefused``: nothing has been written at all.
        """
        columns = (
            [row.id for row, _ in found],
            [row.session_id for row, _ in found],
            [row.agent_execution_id for row, _ in found],
            [now for _, now in found],
        )

        async def body(connection: Connection) -> frozenset[UUID]:
            rows = await connection.fetch(RETRACKED_TOGETHER, self._namespace, *columns)
            return frozenset(row["id"] for row in rows)

        return await self._transact(body, single=True)

    async def repair(
        self, executors: Iterable[Executor], *, even_unstopped: bool = False
    ) -> tuple[Repaired, ...]:
        """Their agents are gone: each row is stopped, with resume token and worktree kept, and of its session becomes
        what ``plan.adoption.repair`` says of a dead one.

        Takes the rows as they were judged; one that has ended, or is another launch's by now, is passed over, so
        repeating it changes nothing. ``even_unstopped``: flagged ones too, whose pod is provably gone. Returns what
        was repaired. Stops at the first record that cannot be written; those before it stay repaired.
        """
        done = []
        for executor in executors:
            repair = await self._reconcile(executor, _dead(executor), even_unstopped, flagged_too=False)
            if repair is not None:
                done.append(Repaired(executor.id, executor.session_id, repair.abandon))
        return tuple(done)

    async def reconcile(
        self,
        executor: Executor,
        decide: Callable[[SessionView], SessionRepair],
        *,
        even_unstopped: bool = False,
        incarnation: str | None = None,
    ) -> SessionRepair | None:
        """Let ``decide`` say what becomes of the session and its row, as they are under lock, and write that.

        The session and its row are written together: so a row that is still live is all that a successor needs to find
        what is not done yet. ``decide`` may be called more than once. ``even_unstopped``: as for ``repair``; without it
        a flagged row stays live. ``incarnation``: for whom a row is flagged, where that is decided.

        None, and nothing done: the row has ended, is another launch's by now, or nothing was to be changed; so it may
        be repeated. Resume token and worktree stay.
        """
        repair = await self._reconcile(executor, decide, even_unstopped, incarnation=incarnation)
        return None if repair is None or repair.nothing else repair

    async def _reconcile(
        self,
        executor: Executor,
        decide: Callable[[SessionView], SessionRepair],
        even_unstopped: bool,
        *,
        incarnation: str | None = None,
        flagged_too: bool = True,
    ) -> SessionRepair | None:
        async def body(connection: Connection) -> SessionRepair | None:
            session = await lock_session(connection, self._namespace, executor.session_id)
            judged = (executor.id, executor.agent_execution_id)
            row = await connection.fetchrow(AS_JUDGED, self._namespace, *judged)
            if session is None or row is None:
                return None
            if row["flagged"] and not (even_unstopped or flagged_too):
                return None
            view = await view_of(connection, session)
            decided = decide(view)
            if decided.row is RowRepair.STOPPED:
                if row["flagged"] and even_unstopped:
                    await connection.execute(REPAIR_FLAGGED, self._namespace, *judged)
                await connection.execute(REPAIR, self._namespace, *judged)
            elif decided.row is RowRepair.FLAG:
                if incarnation is None:
                    raise EntryRefused("a row is flagged for an incarnation")
                flag = (executor.session_id, executor.agent_execution_id, incarnation)
                await connection.execute(FLAG, self._namespace, *flag)
            await write_repair(connection, session, view, decided)
            return decided

        return await self._transact(body)


def _dead(executor: Executor) -> Callable[[SessionView], SessionRepair]:
    row = InventoryRow(
        id=str(executor.id),
        session_id=executor.session_id,
        task_id=executor.task_id,
        status=executor.status,
        agent_execution_id=executor.agent_execution_id,
        container_identity=executor.container_identity,
        created_by=executor.created_by,
        updated_at=executor.updated_at,
    )
    return lambda session: reconcile(session, row, retracked=False, verdict=RowVerdict.DEAD)
