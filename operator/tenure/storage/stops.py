"""The ledger of stops, ``tenure.agent_stops``: one row per stopped instance, final once finished."""

from dataclasses import dataclass
from datetime import datetime

from tenure.storage.errors import EntryRefused, refuses_values
from tenure.storage.pool import BoundedPool, Connection

# A finished stop is history: nothing changes it any more, whoever writes again.
UPSERT_STOP = """
INSERT INTO tenure.agent_stops AS s
    (namespace, pod_uid, name, instance_id, origin, requested_at, finished_at, graceful, exit_code,
    grace_seconds, task_id_at_request)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
ON CONFLICT (namespace, pod_uid) DO UPDATE SET
    name = EXCLUDED.name, instance_id = EXCLUDED.instance_id, origin = EXCLUDED.origin,
    requested_at = EXCLUDED.requested_at, finished_at = EXCLUDED.finished_at, graceful = EXCLUDED.graceful,
    exit_code = EXCLUDED.exit_code, grace_seconds = EXCLUDED.grace_seconds,
    task_id_at_request = coalesce(EXCLUDED.task_id_at_request, s.task_id_at_request)
WHERE s.finished_at IS NULL
"""


@dataclass(frozen=True, slots=True)
class StopEntry:
    """One stop of one standalone instance. Times are aware. ``graceful`` None is Unknown; ``finished_at``
    None is pending.

    ``origin`` is one of Resource, Table, Deletion, Replacement, Disruption. ``name`` is the AgentProcess's.
    """

    namespace: str
    pod_uid: str
    name: str
    instance_id: str
    origin: str
    requested_at: datetime
    finished_at: datetime | None = None
    graceful: bool | None = None
    exit_code: int | None = None
    grace_seconds: int | None = None
    task_id_at_request: int | None = None


class StopLedger:
    """Writes stops to the store. Every write may be repeated."""

    def __init__(self, pool: BoundedPool) -> None:
        self._pool = pool

    async def record(self, entry: StopEntry) -> None:
        """Insert or update the entry; a finished one stays as it is.

        Raises ``DatabaseUnavailable``, and ``EntryRefused`` for an entry that no ledger takes.
        """
        values = (
            entry.namespace,
            entry.pod_uid,
            entry.name,
            entry.instance_id,
            entry.origin,
            entry.requested_at,
            entry.finished_at,
            entry.graceful,
            entry.exit_code,
            entry.grace_seconds,
            entry.task_id_at_request,
        )

        async def work(connection: Connection) -> None:
            refused = False
            try:
                await connection.execute(UPSERT_STOP, *values)
            except Exception as error:
                if not (refused := refuses_values(error)):
                    raise
            if refused:
                # Out here, so that the server's words are not even its context.
                raise EntryRefused("the ledger does not take this stop")

        await self._pool.run(work)
