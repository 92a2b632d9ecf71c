"""The durable records of sessions: control servers, executions, sessions, turns, tasks.

    records = Records(url, namespace="team-a")
    executor = await records.executions.launch(LaunchRequest(...))     # before the instance is asked for
    turn = await records.turns.open(session_id, executor.agent_execution_id)
    ...                                                                # prompt, with turn.key as turn_key
    await records.turns.bind(turn.id, server_identity, control_turn_id)
    await records.turns.apply(TurnName(server_identity=..., control_turn_id=...), outcome_of(event))
    await records.executions.ended(session_id, executor.agent_execution_id)

Every call is one transaction, safe to repeat, and ends within the limit. Every read and write is of one namespace.
"""

from tenure.model.masked import Masked
from tenure.storage.errors import DatabaseUnavailable, EntryRefused
from tenure.storage.pool import DEFAULT_LIMIT, BoundedPool
from tenure.storage.records.errors import LaunchRefused, RecordMoved, TurnConflict, TurnRefusal, TurnRefused
from tenure.storage.records.executions import Executions
from tenure.storage.records.inventory import Inventory
from tenure.storage.records.servers import ControlServers, Vacated
from tenure.storage.records.sessions import Sessions
from tenure.storage.records.turns import TurnName, Turns
from tenure.storage.records.types import (
    HISTORY_KEY,
    Applied,
    ControlServerRecord,
    Executor,
    LaunchRequest,
    Outcome,
    Repaired,
    ServerFacts,
    Session,
    Task,
    Turn,
    outcome_of,
)

__all__ = [
    "HISTORY_KEY",
    "Applied",
    "ControlServerRecord",
    "DatabaseUnavailable",
    "EntryRefused",
    "Executor",
    "LaunchRefused",
    "LaunchRequest",
    "Outcome",
    "RecordMoved",
    "Records",
    "Repaired",
    "ServerFacts",
    "Session",
    "Task",
    "Turn",
    "TurnConflict",
    "TurnName",
    "TurnRefusal",
    "TurnRefused",
    "Vacated",
    "outcome_of",
]


class Records:
    """The records of one namespace in one database. Connects when first needed, and again by itself.

    Every method raises ``DatabaseUnavailable`` within ``limit`` seconds, connecting included, and ``EntryRefused``
    for values that the tables do not take.
    """

    def __init__(
        self,
        url: Masked,
        *,
        namespace: str,
        name: str = "store",
        limit: float = DEFAULT_LIMIT,
        size: int = 4,
        application: str = "tenure-backend",
    ) -> None:
        pool = BoundedPool(name, url, limit=limit, size=size, application=application)
        self._set(pool, namespace)

    @classmethod
    def over(cls, pool: BoundedPool, namespace: str) -> "Records":
        """The records of a namespace behind a pool that others use too, and close."""
        records = cls.__new__(cls)
        records._set(pool, namespace)
        return records

    def _set(self, pool: BoundedPool, namespace: str) -> None:
        if not namespace:
            raise ValueError("records are of one namespace")
        self._pool = pool
        self.namespace = namespace
        self.executions = Executions(pool, namespace)
        self.turns = Turns(pool, namespace)
        self.servers = ControlServers(pool, namespace)
        self.inventory = Inventory(pool, namespace)
        self.sessions = Sessions(pool, namespace)

    def __repr__(self) -> str:
        return f"Records(namespace={self.namespace!r})"

    async def aclose(self) -> None:
        """Close the connections; a later call opens new ones."""
        await self._pool.aclose()
