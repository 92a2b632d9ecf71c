"""What is done to one execution, whoever decides it: its last words, its end. Each may be repeated."""

from dataclasses import dataclass

import structlog

from tenure.model.records import SessionState, TurnState
from tenure.operator.servers.ports import OwnedServer
from tenure.ownership.client import ControlClient
from tenure.ownership.errors import BadAnswer, Refused
from tenure.protocol.frames import Event
from tenure.storage.records import Applied, Executor, Records, TurnConflict, TurnName, outcome_of

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Execution:
    """One agent of one session, on the server that hosts it. ``id`` is its instance's."""

    records: Records
    server: OwnedServer
    client: ControlClient
    session: str
    id: str

    async def apply(self, turn: int, event: Event) -> None:
        """A turn's outcome has come: apply it, and only when that is durable tell the server to forget it."""
        outcome = outcome_of(event)
        name = TurnName(session_id=self.session, server_identity=self.server.identity, control_turn_id=turn)
        completed = outcome.state is TurnState.COMPLETED
        try:
            applied = await self.records.turns.apply(name, outcome, completed=completed)
        except TurnConflict:
            log.error("an outcome contradicts what is on record", session=self.session)
            return
        if applied is Applied.UNKNOWN:
            log.warning("an outcome of a turn that nobody has opened", session=self.session)
        await self.client.acknowledge(self.id, turn)

    async def last_words(self) -> None:
        """Apply the outcome that the server retains, if it retains one. Raises ``ControlError``."""
        try:
            retained = await self.client.outcome(self.id)
        except Refused as error:
            if error.status != 404:
                raise
            return
        except BadAnswer:
            log.warning("a retained outcome cannot be read", session=self.session)
            return
        if retained is not None:
            await self.apply(retained.turn_id, retained.event)

    async def finish(
        self, *, state: SessionState | None, failed: bool, last_words: bool, cut: int | None = None
    ) -> bool:
        """Stop the instance if it is there, and end its row; an open turn is abandoned, ``cut`` before that. False: the
        row is not this execution's any more, or is flagged as one that cannot be stopped."""
        if last_words:
            await self.last_words()
        if cut is not None:
            await self.records.turns.abandon(cut)
        await self.client.delete(self.id)
        return await self.records.executions.ended(self.session, self.id, failed=failed, session_state=state)


def execution_of(
    records: Records, server: OwnedServer, client: ControlClient, executor: Executor
) -> Execution:
    """The execution in a row."""
    return Execution(records, server, client, executor.session_id, executor.agent_execution_id)
