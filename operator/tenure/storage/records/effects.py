"""What happens to a session, its turns and its task: the statements that several transactions share.

Each runs inside a transaction that holds the session's row (``lock_session``).
"""

from dataclasses import dataclass

from tenure.model.records import SessionState, TaskState
from tenure.plan.adoption.repair import SessionRepair, SessionView
from tenure.storage.pool import Connection

# Whatever happens to one session happens one after another. NO KEY: a foreign key check need not wait.
LOCK_SESSION = """
SELECT task_id, state, passthrough FROM tenure.sessions WHERE namespace = $1 AND id = $2 FOR NO KEY UPDATE
"""

# A session that is over stays what it is: its row in the inventory may end later than the session.
SETTLE_SESSION = """
UPDATE tenure.sessions SET state = $3, updated_at = now()
 WHERE namespace = $1 AND id = $2 AND state IN ('created', 'running', 'waiting_for_input')
"""

# Before the question below: of two last turns that end at once, the second must see that the first has ended.
LOCK_TASK = "SELECT 1 FROM tenure.tasks WHERE namespace = $1 AND id = $2 FOR NO KEY UPDATE"

# People look at a task when nobody works on it any more: another session's open turn keeps it in progress. What
# people called done stays done.
SETTLE_TASK = """
UPDATE tenure.tasks t SET state = 'review', updated_at = now()
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

VIEW = """
SELECT t.state,
       EXISTS (SELECT FROM tenure.sessions s
                 JOIN tenure.turns o ON o.namespace = s.namespace AND o.session_id = s.id AND o.state = 'open'
                WHERE s.namespace = t.namespace AND s.task_id = t.id AND s.id <> $3) AS busy,
       ARRAY (SELECT o.id FROM tenure.turns o
               WHERE o.namespace = t.namespace AND o.session_id = $3 AND o.state = 'open' ORDER BY o.id) AS turns
  FROM tenure.tasks t WHERE t.namespace = $1 AND t.id = $2
"""

REPAIR_SESSION = """
UPDATE tenure.sessions
   SET state = coalesce($3, state), interrupted_at = CASE WHEN $4 THEN now() ELSE interrupted_at END, updated_at = now()
 WHERE namespace = $1 AND id = $2
"""

REPAIR_TASK = """
UPDATE tenure.tasks
   SET state = coalesce($3, state), interrupted_at = CASE WHEN $4 THEN now() ELSE interrupted_at END, updated_at = now()
 WHERE namespace = $1 AND id = $2
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


async def settle(connection: Connection, session: LockedSession, state: SessionState) -> None:
    """The session gets ``state`` unless it is over, and its task goes to review unless another session works on
    it."""
    await connection.execute(SETTLE_SESSION, session.namespace, session.id, state)
    await connection.execute(LOCK_TASK, session.namespace, session.task_id)
    await connection.execute(SETTLE_TASK, session.namespace, session.task_id)


async def abandon_turns(connection: Connection, session: LockedSession) -> tuple[int, ...]:
    """End every open turn of the session without an outcome; returns their ids."""
    rows = await connection.fetch(ABANDON_TURNS, session.namespace, session.id)
    return tuple(row["id"] for row in rows)


async def view_of(connection: Connection, session: LockedSession) -> SessionView:
    """The session and what hangs on it. Its task is locked from here on: of two sessions that are repaired at once, the
    second must see that the first works on it no more."""
    await connection.execute(LOCK_TASK, session.namespace, session.task_id)
    row = await connection.fetchrow(VIEW, session.namespace, session.task_id, session.id)
    return SessionView(
        id=session.id,
        state=session.state,
        open_turns=tuple(row["turns"]),
        task=TaskState(row["state"]),
        task_busy_elsewhere=row["busy"],
    )


async def write_repair(
    connection: Connection, session: LockedSession, view: SessionView, repair: SessionRepair
) -> None:
    """What was decided by ``view``, but for the row. A task that people called done, or that another session works
    on, was not interrupted."""
    if repair.abandon:
        await abandon_turns(connection, session)
    if repair.state is not None or repair.interrupted:
        values = (session.id, repair.state, repair.interrupted)
        await connection.execute(REPAIR_SESSION, session.namespace, *values)
    stamped = repair.interrupted and view.task is not TaskState.DONE and not view.task_busy_elsewhere
    if repair.task is not None or stamped:
        await connection.execute(REPAIR_TASK, session.namespace, session.task_id, repair.task, stamped)
