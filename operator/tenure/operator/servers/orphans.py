"""Sessions hosted for an AgentProcess that has gone: no finalizer waits for them, so each look after a server asks.

They are drained as any other: no turn is opened any more, the one in hand may end within the resource's grace, then the
instance is stopped. A backend that drives such a session learns of it from the row.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta

import structlog

from tenure.cluster.errors import ApiError
from tenure.cluster.server_ports import ServerCluster
from tenure.model.records import ExecutorStatus, SessionState, TurnState
from tenure.operator.servers.ports import Recovering
from tenure.operator.servers.publishing import Publisher
from tenure.ownership.client import ControlClient
from tenure.ownership.errors import ControlError, NotAccepted
from tenure.plan.adoption.correlation import Decision, to_drain
from tenure.storage.records import Executor

log = structlog.stdlib.get_logger(__name__)

AGENT_PROCESS_KEY = "agent_process"
"""Where a row's metadata holds the name of the AgentProcess: its UID alone asks no API server."""

Gone = Callable[[str, Executor], Awaitable[bool]]
"""Whether the AgentProcess of a row in this namespace was deleted, by a live read. Raises ``ApiError``."""


Tend = Callable[[Recovering, Executor], None]
"""Sees to it that somebody takes the events of an agent at work, without which it would come to a halt."""


def tend_nothing(recovering: Recovering, executor: Executor) -> None:
    """Somebody else does."""


async def never_gone(namespace: str, executor: Executor) -> bool:
    """Where nobody can be asked: when in doubt, nothing is stopped."""
    return False


def gone_by(cluster: ServerCluster) -> Gone:
    """Ask the API server, by the name in the row and the UID that the object of this name must have."""

    async def gone(namespace: str, executor: Executor) -> bool:
        name = executor.metadata.get(AGENT_PROCESS_KEY)
        if not isinstance(name, str) or not name or executor.agent_process_uid is None:
            return False
        found = await cluster.get_agent_process(namespace, name)
        return found is None or found["metadata"]["uid"] != executor.agent_process_uid

    return gone


async def mark_departed(
    recovering: Recovering, decisions: Iterable[Decision], executors: Mapping[str, Executor], gone: Gone
) -> None:
    """Right after correlation: whose AgentProcess has gone is re-tracked only to be drained. No turn is opened from
    here on, whoever finds the session re-tracked. An API server that does not answer is asked again after recovery."""
    decided = tuple(decisions)
    departed = set()
    for decision in decided:
        executor = executors[decision.row.id]
        with suppress(ApiError):
            if executor.agent_process_uid is not None and await gone(recovering.key.namespace, executor):
                departed.add(executor.agent_process_uid)
    for each in to_drain(decided, frozenset(departed)):
        executor = executors[each.row.id]
        await recovering.records.executions.stopping(executor.session_id, executor.agent_execution_id)


class Orphans:
    """Of one server. Raises like ``ports.Recoverer``."""

    def __init__(
        self,
        recovering: Recovering,
        client: ControlClient,
        publisher: Publisher,
        gone: Gone,
        tend: Tend = tend_nothing,
    ) -> None:
        self._tend = tend
        self._recovering = recovering
        self._client = client
        self._publisher = publisher
        self._gone = gone

    async def drain(self, rows: tuple[Executor, ...]) -> int:
        """Do what can be done now; how many are left to be waited for."""
        left = 0
        for row in rows:
            if row.agent_process_uid is None or row.unstopped_by == self._recovering.incarnation:
                continue
            if not self._is_here(row):
                # Another server's: this one has no such instance, and that says nothing about its agent.
                continue
            # One that drains while its AgentProcess is there is drained by that one's own passes.
            if await self._gone(self._recovering.key.namespace, row):
                left += not await self._drain(row)
        return left

    async def _drain(self, row: Executor) -> bool:
        records = self._recovering.records
        if row.status is not ExecutorStatus.STOPPING:
            await records.executions.stopping(row.session_id, row.agent_execution_id)
            row = await records.inventory.of_session(row.session_id) or row
        turn = await self._turn_in_hand(row)
        if turn is not None and not await self._grace_is_over(row):
            self._tend(self._recovering, row)
            return False
        return await self._stop(row, turn)

    def _is_here(self, row: Executor) -> bool:
        server = self._recovering.server
        return server is not None and row.container_identity in (server.pod_uid, server.identity)

    async def _turn_in_hand(self, row: Executor) -> int | None:
        turns = await self._recovering.records.turns.of_session(row.session_id)
        return next((turn.id for turn in turns if turn.state is TurnState.OPEN), None)

    async def _grace_is_over(self, row: Executor) -> bool:
        """By the database's clock, since the row was marked."""
        waited = await self._recovering.records.inventory.now() - row.updated_at
        return waited >= timedelta(seconds=row.grace_seconds or 0)

    async def _stop(self, row: Executor, turn: int | None) -> bool:
        """Its last words are heard, then it goes, then its row says so: a crash in between begins again. A turn that
        outlasts the grace is abandoned before: how its agent ends is our doing, and no outcome of the turn."""
        try:
            await self._publisher.hear_last_words(row, row.agent_execution_id)
            if turn is not None:
                await self._recovering.records.turns.abandon(turn)
            await self._client.delete(row.agent_execution_id)
        except NotAccepted:
            raise
        except ControlError as error:
            log.warning("an instance did not stop", session=row.session_id, error=str(error))
            return False
        await self._recovering.records.executions.ended(
            row.session_id, row.agent_execution_id, session_state=await self._over(row)
        )
        return True

    async def _over(self, row: Executor) -> SessionState | None:
        """Without a backend the session was for one prompt: it is over when that is done, whoever heard of it."""
        if self._recovering.resource.spec.backend is not None:
            return None
        turns = await self._recovering.records.turns.of_session(row.session_id, limit=1)
        done = bool(turns) and turns[0].state is TurnState.COMPLETED
        return SessionState.COMPLETED if done else None
