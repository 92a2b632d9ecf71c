"""What happens to a session, its turns and its task: the statements that several transactions share.

Each runs inside a transaction that holds the session's row (``lock_session``).
"""

from dataclasses import dataclass

from tenure.model.records import SessionState
from tenure.storage.pool import Connection

# Whatever happens to one session happens one after another. NO KEY: a foreign key check need not wait.
LOCK_SESSION = """
SELECT task_id, state, passthrough FROM tenure.sessions WHERE namespace = $1 AND id = $2 FOR NO KEY UPDATE
"""

# A session that is over stays what it is: its row in the inventory may end later than the session.
SETTLE_SESSION = """
UPDATE tenure.sessions
   SET state = $3, updated_at = now(), interrupted_at = CASE WHEN $4 THEN now() ELSE interrupted_at END
 WHERE namespace = $1 AND id = $2 AND state IN ('created', 'running', 'waiting_for_input')
"""

# Before the question below: of two last turns that end at once, the second must see that the first has ended.
LOCK_TASK = "SELECT 1 FROM tenure.tasks WHERE namespace = $1 AND id = $2 FOR NO KEY UPDATE"

# People look at a task when nobody works on it any more: another session's open turn keeps it in progress. What
# people called done stays done.
SETTLE_TASK = """
UPDATE tenure.tasks t
   SET state = 'review', updated_at = now(), interrupted_at = CASE WHEN $3 THEN now() ELSE interrupted_at END
 WHERE t.namespace = $1 AND t.id = $2 AND t.state <> 'done'
   AND NOT EXISTS (SELECT FROM tenure.sessions s
                     JOIN tenure.turns o ON o.namespace = s.namespace AND o.session_id = s.id AND o.state = 'open'
                    WHERE s.namespace = t.namespace AND s.task_id = t.id)
"""

ABANDON_TURNS = """
UPDATE tenure.turns SET state = 'abandoned', updated_at = now(), finished_at = now()
 WHERE namespace = $1 AND session_id = $2 AND state = 'open'
RETURNING id
"""


@dataclass(frozen=True, slots=True)
class LockedSession:
    """What a transaction knows of the session that it holds."""

    namespace: str
    id: str
    task_id: str
    state: SessionState
    passthrough: bool


async def lock_session(connection: Connection, namespace: str, session_id: str) -> LockedSession | None:
    """Hold the session's row until the transaction ends; None when there is no such session."""
    row = await connection.fetchrow(LOCK_SESSION, namespace, session_id)
    if row is None:
        return None
    return LockedSession(
        namespace, session_id, row["task_id"], SessionState(row["state"]), row["passthrough"]
    )


async def settle(
    connection: Connection, session: LockedSession, state: SessionState, *, interrupted: bool = False
) -> None:
    """The session gets ``state`` unless it is over, and its task goes to review unless another session works on
    it. ``interrupted``: both are stamped."""
    await connection.execute(SETTLE_SESSION, session.namespace, session.id, state, interrupted)
    await connection.execute(LOCK_TASK, session.namespace, session.task_id)
    await connection.execute(SETTLE_TASK, session.namespace, session.task_id, interrupted)


async def abandon_turns(connection: Connection, session: LockedSession) -> tuple[int, ...]:
    """End every open turn of the session without an outcome; returns their ids."""
    rows = await connection.fetch(ABANDON_TURNS, session.namespace, session.id)
    return tuple(row["id"] for row in rows)
