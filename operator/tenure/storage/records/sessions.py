"""Sessions and tasks, to be read."""

from tenure.storage.pool import Connection
from tenure.storage.records.reading import session_from, task_from
from tenure.storage.records.transactions import Rows
from tenure.storage.records.types import Session, Task

_SESSIONS = """
SELECT s.id, s.task_id, t.state AS task_state, s.installation_id, s.task_environment_id, s.state, s.passthrough,
       s.interrupted_at, s.created_at, s.updated_at
  FROM tenure.sessions s JOIN tenure.tasks t ON t.namespace = s.namespace AND t.id = s.task_id
 WHERE s.namespace = $1
"""
SESSION = _SESSIONS + " AND s.id = $2"
NEWEST = _SESSIONS + " ORDER BY s.created_at DESC, s.id LIMIT $2"

TASK = """
SELECT id, state, interrupted_at, created_at, updated_at FROM tenure.tasks WHERE namespace = $1 AND id = $2
"""


class Sessions(Rows):
    """The sessions and tasks of one namespace."""

    async def get(self, session_id: str) -> Session | None:
        """One session."""

        async def body(connection: Connection) -> Session | None:
            row = await connection.fetchrow(SESSION, self._namespace, session_id)
            return None if row is None else session_from(row)

        return await self._transact(body)

    async def newest(self, *, limit: int = 100) -> tuple[Session, ...]:
        """The sessions made last, newest first."""

        async def body(connection: Connection) -> tuple[Session, ...]:
            return tuple(session_from(row) for row in await connection.fetch(NEWEST, self._namespace, limit))

        return await self._transact(body)

    async def task(self, task_id: str) -> Task | None:
        """One task."""

        async def body(connection: Connection) -> Task | None:
            row = await connection.fetchrow(TASK, self._namespace, task_id)
            return None if row is None else task_from(row)

        return await self._transact(body)
