"""Agents whose AgentProcess was deleted before this operator's eyes: they are drained and stopped at once. Passes over
servers find those that were deleted while nobody looked (``servers.orphans``).
"""

from collections.abc import Callable
from dataclasses import dataclass

import structlog

from tenure.model.adoption import HistorySetting, PermissionPolicy
from tenure.model.control_server import ControlServer
from tenure.model.records import ExecutorStatus, SessionState, TurnState
from tenure.operator.hosted.clients import Clients
from tenure.operator.hosted.driver import Orders
from tenure.operator.hosted.drivers import Drivers
from tenure.operator.hosted.executions import execution_of
from tenure.operator.hosted.losses import Losses
from tenure.operator.servers.orphans import Gone
from tenure.operator.servers.ports import OwnedServer, Recovering, ServerKey
from tenure.operator.servers.rows import row_of
from tenure.ownership.errors import ControlError
from tenure.plan.hosted.observation import turns_before
from tenure.storage.records import Executor, Records

AGAIN = 1.0
"""Seconds until an agent that drains is looked at again."""
UNKNOWN = 3.0
"""... and one of which nothing is known: its ControlServer was deleted, too, and its pod may still be there."""

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """A ControlServer, with what is known of it."""

    key: ServerKey
    control: ControlServer
    records: Records


class Departed:
    """``place`` finds a ControlServer by its name, as last seen; None: it is not looked after. ``records_of`` finds the
    records of a namespace; None: there are none."""

    def __init__(
        self,
        gone: Gone,
        clients: Clients,
        drivers: Drivers,
        losses: Losses,
        place: Callable[[ServerKey], Place | None],
        records_of: Callable[[str], Records | None],
    ) -> None:
        self._gone = gone
        self._clients = clients
        self._drivers = drivers
        self._losses = losses
        self._place_of = place
        self._records_of = records_of

    def tend(self, recovering: Recovering, row: Executor) -> None:
        """A pass over a server drains it: its turn goes on, and somebody has to take its events and its outcome."""
        if recovering.server is not None and recovering.resource.spec.backend is None:
            place = Place(recovering.key, recovering.resource, recovering.records)
            self._drive(place, row, recovering.server)

    async def sweep(self, key: ServerKey, session: str) -> float | None:
        """See out the session's agent, if its resource is gone: the seconds until the next look, or None when nothing
        is left. Raises ``ApiError`` and ``StorageError``."""
        place, records = self._place_of(key), self._records_of(key.namespace)
        if records is None:
            return None
        row = await records.inventory.of_session(session)
        if row is None or not row.live or not await self._gone(key.namespace, row):
            return None
        if place is None or place.control.effective_installation_id != row.installation_id:
            return await self._bury(key.namespace, records, row)
        try:
            return await self._see_out(place, row)
        except ControlError as error:
            log.info("an agent is not stopped yet", session=session, error=str(error))
            return AGAIN

    async def _bury(self, namespace: str, records: Records, row: Executor) -> float | None:
        """Both are deleted, its ControlServer and its AgentProcess: no pass over either will look after the row."""
        if not await self._losses.lost(namespace, records, row):
            return UNKNOWN
        buried = await self._losses.bury(namespace, records, row.installation_id)
        for session in buried:
            await self._drivers.release(namespace, session)
        return 0.05 if row.session_id in buried else UNKNOWN

    async def _see_out(self, place: Place, row: Executor) -> float | None:
        records = place.records
        if row.status is not ExecutorStatus.STOPPING:
            log.info("the resource of an agent is gone; it is drained", session=row.session_id)
            await records.executions.stopping(row.session_id, row.agent_execution_id)
            return 0.05
        contact = self._clients.get(place.key)
        if contact is None or contact[0].object_uid != place.control.uid:
            return AGAIN
        server, client = contact
        if row.container_identity not in (server.pod_uid, server.identity):
            # Another server's: whoever looks after rows finds out whether it lives.
            return None
        turns = await records.turns.of_session(row.session_id, limit=1)
        turn = turns[0] if turns and turns[0].state is TurnState.OPEN else None
        if turn is not None and not await self._grace_is_over(records, row):
            if place.control.spec.backend is None:
                self._drive(place, row, server)
            return AGAIN
        await self._drivers.release(place.key.namespace, row.session_id)
        execution = execution_of(records, server, client, row)
        words = place.control.spec.backend is None
        # Without a backend the session was for one prompt: it is over when that is done, whoever heard of it.
        done = words and bool(turns) and turns[0].state is TurnState.COMPLETED
        ended = await execution.finish(
            state=SessionState.COMPLETED if done else None,
            failed=False,
            last_words=words,
            cut=turn.id if turn is not None else None,
        )
        log.info("an agent whose resource is gone was stopped", session=row.session_id, ended=ended)
        return None

    @staticmethod
    async def _grace_is_over(records: Records, row: Executor) -> bool:
        """By the database's clock, since the row was marked: no adoption in between begins it anew."""
        spent = (await records.inventory.now() - row.updated_at).total_seconds()
        return row.grace_seconds is None or spent >= row.grace_seconds

    def _drive(self, place: Place, row: Executor, server: OwnedServer) -> None:
        """Its turn goes on, and somebody has to take its events and its outcome."""
        profile = place.control.spec.profile(row.agent_profile)
        orders = Orders(
            server=place.key,
            identity=server.identity,
            incarnation=server.incarnation,
            session=row.session_id,
            instance=row.agent_execution_id,
            records=place.records,
            turns_before=turns_before(row_of(row, row.created_by, None)),
            prompt=None,
            resume_token=row.resume_token or "",
            history=profile.history if profile is not None else HistorySetting.LOAD,
            permissions=profile.permissions if profile is not None else PermissionPolicy.DENY,
        )
        self._drivers.ensure(orders, lambda: None)
