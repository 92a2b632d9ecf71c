"""Launches and stops: the life of a session's row in the recovery inventory.

The live row is the guard. Whoever launches, in whatever process, goes through ``launch``; whoever ends an
execution names it by the instance's id, so that nobody ends a later one.
"""

import contextlib
import json
from collections.abc import Collection

from tenure.model.adoption import LaunchRefusal
from tenure.model.records import DEFAULT_PROFILE, SESSION_OVER, ExecutorStatus, SessionState
from tenure.storage.errors import EntryRefused
from tenure.storage.pool import Connection
from tenure.storage.records.effects import LockedSession, abandon_turns, lock_session, settle
from tenure.storage.records.errors import LaunchRefused
from tenure.storage.records.reading import EXECUTOR_OF_SESSION, executor_from
from tenure.storage.records.transactions import Rows
from tenure.storage.records.types import Executor, LaunchRequest

INSERT_TASK = "INSERT INTO tenure.tasks (namespace, id) VALUES ($1, $2) ON CONFLICT DO NOTHING"

INSERT_SESSION = """
INSERT INTO tenure.sessions (namespace, id, task_id, installation_id, task_environment_id, passthrough)
VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING
"""

# What a launch brings is new; what the work needs to go on (resume token, worktree) stays.
INSERT_OR_REVIVE = """
INSERT INTO tenure.executors_running AS e
    (namespace, session_id, task_id, installation_id, agent_execution_id, created_by, agent_profile, workspace_path,
     container_identity, worktree_id, agent_process_uid, grace_seconds, metadata, status)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, 'running')
ON CONFLICT (namespace, session_id) DO UPDATE SET
    task_id = EXCLUDED.task_id, installation_id = EXCLUDED.installation_id,
    agent_execution_id = EXCLUDED.agent_execution_id, created_by = EXCLUDED.created_by,
    agent_profile = EXCLUDED.agent_profile, workspace_path = EXCLUDED.workspace_path,
    container_identity = EXCLUDED.container_identity,
    worktree_id = coalesce(e.worktree_id, EXCLUDED.worktree_id),
    agent_process_uid = EXCLUDED.agent_process_uid, grace_seconds = EXCLUDED.grace_seconds,
    metadata = EXCLUDED.metadata, status = 'running', last_seen_at = now(), updated_at = now()
"""

# A session that was over waits for input again.
LAUNCHED_SESSION = """
UPDATE tenure.sessions
   SET installation_id = $3, passthrough = $4, state = $5, updated_at = now(),
       task_environment_id = coalesce(nullif($6, ''), nullif(task_environment_id, ''), task_id)
 WHERE namespace = $1 AND id = $2
"""

# Whether the incarnation that owns the installation's server has decided about the live rows.
RECOVERY = "SELECT adopted_by, recovered_by FROM tenure.control_servers WHERE namespace = $1 AND installation_id = $2"

# Here and below: ``updated_at`` of a row that is stopping is when that began. Its grace counts from there, and whoever
# writes to the row meanwhile (an adoption above all) does not begin it anew.
SEEN = """
UPDATE tenure.executors_running
   SET last_seen_at = now(), updated_at = CASE status WHEN 'stopping' THEN updated_at ELSE now() END,
       container_identity = coalesce($4, container_identity), resume_token = coalesce($5, resume_token),
       worktree_id = coalesce($6, worktree_id),
       metadata = CASE WHEN $7::boolean AND octet_length(metadata::text) < 65000
                       THEN metadata || '{"tenure_began_anew": "true"}' ELSE metadata END
 WHERE namespace = $1 AND session_id = $2 AND agent_execution_id = $3 AND status IN ('running', 'stopping')
RETURNING 1
"""

# Waits for nobody: a row that somebody changes at this moment is passed over, and so is one that is no longer live.
TOUCH = """
UPDATE tenure.executors_running SET last_seen_at = now()
 WHERE namespace = $1
   AND id IN (SELECT id FROM tenure.executors_running
               WHERE namespace = $1 AND agent_execution_id = ANY ($2::text[]) AND status IN ('running', 'stopping')
                 FOR NO KEY UPDATE SKIP LOCKED)
"""

STOPPING = """
UPDATE tenure.executors_running
   SET status = 'stopping', updated_at = CASE status WHEN 'stopping' THEN updated_at ELSE now() END
 WHERE namespace = $1 AND session_id = $2 AND agent_execution_id = $3 AND status IN ('running', 'stopping')
RETURNING 1
"""

# One that could not be stopped is not released by whoever says that it has: see ``Inventory.clear_unstopped``.
ENDED = """
UPDATE tenure.executors_running
   SET status = CASE WHEN status IN ('running', 'stopping') THEN $4 ELSE status END, updated_at = now()
 WHERE namespace = $1 AND session_id = $2 AND agent_execution_id = $3 AND unstopped_by IS NULL
RETURNING 1
"""


class Executions(Rows):
    """Launches and stops in one namespace."""

    async def launch(self, request: LaunchRequest) -> Executor:
        """Take the session: insert its inventory row or revive it, with task and session where they are missing.

        Comes before the control server is asked for the instance. A repeated call with the same instance id and
        incarnation finds its own row. Turns that an earlier execution left open are abandoned. Raises
        ``LaunchRefused`` while the row is live, ``EntryRefused`` when the session is of another task.
        """

        metadata = _json(request)

        async def body(connection: Connection) -> Executor:
            session = await self._session_of_launch(connection, request)
            found = await self._executor(connection, request.session_id)
            if found is not None and found.live:
                if _same_launch(found, request):
                    return found
                if not session.passthrough:
                    raise LaunchRefused(await self._refusal(connection, found))
            await self._take(connection, request, session, metadata)
            taken = await self._executor(connection, request.session_id)
            assert taken is not None
            return taken

        return await self._transact(body)

    async def launched(
        self,
        session_id: str,
        agent_execution_id: str,
        *,
        container_identity: str | None = None,
        resume_token: str | None = None,
        worktree_id: str | None = None,
        began_anew: bool = False,
    ) -> bool:
        """The instance runs, and this is what is known of it by now; None changes nothing. May be said at any
        time, as often as something is learnt. False: the row is not this execution's any more, or not live.
        ``began_anew``: see ``Executor.began_anew``; it stays until the session is launched again."""

        async def body(connection: Connection) -> bool:
            what = (container_identity, resume_token, worktree_id, began_anew)
            values = (session_id, agent_execution_id, *what)
            return await connection.fetchval(SEEN, self._namespace, *values) is not None

        return await self._transact(body)

    async def touch(self, agent_execution_ids: Collection[str]) -> None:
        """These instances were seen alive just now. Best effort: it waits for no other writer."""

        async def body(connection: Connection) -> None:
            await connection.execute(TOUCH, self._namespace, sorted(agent_execution_ids))

        await self._transact(body)

    async def rolled_back(self, session_id: str, agent_execution_id: str) -> bool:
        """The launch came to nothing, and no instance is left of it: the row is free. False: it is somebody
        else's."""
        return await self.ended(session_id, agent_execution_id, failed=True)

    async def stopping(
        self, session_id: str, agent_execution_id: str, *, session_state: SessionState | None = None
    ) -> bool:
        """A stop has begun: no turn is opened from now on. ``Executor.updated_at`` says when, and saying it again does
        not change that. ``session_state``: what the session becomes now, unless it is over, whoever finishes the stop.
        False: not this execution's any more, or not live."""

        async def body(connection: Connection) -> bool:
            session = await lock_session(connection, self._namespace, session_id)
            if session is None:
                return False
            found = await connection.fetchval(STOPPING, self._namespace, session_id, agent_execution_id)
            if found is not None and session_state is not None:
                await settle(connection, session, session_state)
            return found is not None

        return await self._transact(body)

    async def ended(
        self,
        session_id: str,
        agent_execution_id: str,
        *,
        failed: bool = False,
        abandon: bool = True,
        session_state: SessionState | None = None,
    ) -> bool:
        """The instance is gone: its row is ``stopped``, or ``failed``, and guards no more. May be repeated.

        ``abandon``: an open turn ends without outcome, the session waits for input, its task goes to review; leave
        it out where the outcome is still to be applied. ``session_state``: what the session becomes unless it is
        over. False, and nothing done: the row is another execution's, or flagged as one that cannot be stopped.
        """
        status = ExecutorStatus.FAILED if failed else ExecutorStatus.STOPPED

        async def body(connection: Connection) -> bool:
            session = await lock_session(connection, self._namespace, session_id)
            if session is None:
                return False
            ours = await connection.fetchval(ENDED, self._namespace, session_id, agent_execution_id, status)
            if ours is None:
                return False
            abandoned = await abandon_turns(connection, session) if abandon else ()
            if session_state is not None or abandoned:
                await settle(connection, session, session_state or SessionState.WAITING_FOR_INPUT)
            return True

        return await self._transact(body)

    async def _session_of_launch(self, connection: Connection, request: LaunchRequest) -> LockedSession:
        """The locked session; made if need be."""
        await connection.execute(INSERT_TASK, self._namespace, request.task_id)
        await connection.execute(
            INSERT_SESSION,
            self._namespace,
            request.session_id,
            request.task_id,
            request.installation_id,
            request.task_environment_id or request.task_id,
            request.passthrough,
        )
        session = await lock_session(connection, self._namespace, request.session_id)
        if session is None or session.task_id != request.task_id:
            raise EntryRefused("the session belongs to another task")
        return session

    async def _take(
        self, connection: Connection, request: LaunchRequest, session: LockedSession, metadata: str
    ) -> None:
        await connection.execute(
            INSERT_OR_REVIVE,
            self._namespace,
            request.session_id,
            request.task_id,
            request.installation_id,
            request.agent_execution_id,
            request.created_by,
            request.agent_profile or DEFAULT_PROFILE,
            request.workspace_path,
            request.container_identity,
            request.worktree_id,
            request.agent_process_uid,
            request.grace_seconds,
            metadata,
        )
        left_open = await abandon_turns(connection, session)
        waits = left_open or session.state in SESSION_OVER
        await connection.execute(
            LAUNCHED_SESSION,
            self._namespace,
            request.session_id,
            request.installation_id,
            request.passthrough,
            SessionState.WAITING_FOR_INPUT if waits else session.state,
            request.task_environment_id,
        )

    async def _executor(self, connection: Connection, session_id: str) -> Executor | None:
        row = await connection.fetchrow(EXECUTOR_OF_SESSION, self._namespace, session_id)
        return None if row is None else executor_from(row)

    async def _refusal(self, connection: Connection, found: Executor) -> LaunchRefusal | None:
        """Why a live row refuses. Without a record nobody recovers: the session is simply in use."""
        record = await connection.fetchrow(RECOVERY, self._namespace, found.installation_id)
        recovered_by = None if record is None else record["recovered_by"]
        # The deadline may end a recovery before the server is adopted: then it is the latest that the record names.
        latest = recovered_by or (None if record is None else record["adopted_by"])
        # The flag is of one incarnation: the next one tries the stop again, and decides anew.
        if found.unstopped_by is not None and latest in (None, found.unstopped_by):
            return LaunchRefusal.UNSTOPPED_AGENT
        if record is not None and recovered_by is None:
            return LaunchRefusal.RECOVERY_IN_PROGRESS
        return None


def _same_launch(found: Executor, request: LaunchRequest) -> bool:
    """Whether the live row is what this very call wrote, before its answer was lost."""
    ours = (request.agent_execution_id, request.created_by, ExecutorStatus.RUNNING)
    return (found.agent_execution_id, found.created_by, found.status) == ours


def _json(request: LaunchRequest) -> str:
    with contextlib.suppress(TypeError, ValueError, RecursionError):
        return json.dumps(dict(request.metadata), allow_nan=False)
    # Out here, so that the value's own words are not even its context.
    raise EntryRefused("the metadata of a launch is no JSON object")
