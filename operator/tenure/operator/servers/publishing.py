"""One session: rebuilt, its outcome applied, published, and only then acknowledged.

In this order, each durable before the next: whoever dies in between leaves an outcome that is still retained and a row
that is re-tracked again, and neither changes anything the second time.
"""

from asyncio import Semaphore
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import assert_never

import structlog

from tenure.model.adoption import NotRetracked, StopReason
from tenure.model.records import SessionState
from tenure.operator.servers.batches import Batches
from tenure.operator.servers.executions import ExecutionStore
from tenure.operator.servers.ports import OwnedServer, Recovering
from tenure.operator.servers.rounds import Refused, Round
from tenure.operator.servers.rows import profiles_of
from tenure.ownership.client import ControlClient
from tenure.ownership.errors import ControlError, ForeignServer, NotAccepted, ShuttingDown
from tenure.ownership.errors import Refused as RefusedByServer
from tenure.plan.adoption.deadline import may_publish
from tenure.plan.adoption.guards import InventoryRow
from tenure.plan.adoption.outcomes import (
    ApplyThenPublish,
    AsWithoutInstance,
    KnownTurn,
    OutcomeRead,
    PublishAsItIs,
    Retained,
    StopIt,
    judge_outcome,
)
from tenure.plan.adoption.reads import ABSENT, EXHAUSTED, Got, Read
from tenure.plan.adoption.reconstruction import (
    Execution,
    NotReadable,
    Profile,
    Rebuilt,
    RefusedMissing,
    Sources,
    exhausted_reads,
    reconstruct,
)
from tenure.plan.adoption.repair import SessionRepair
from tenure.protocol.messages import InstanceWithEnvironment
from tenure.storage.records import Executor, TurnConflict, TurnName, outcome_of

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class NotPublished:
    """The session is not re-tracked. ``stop``: why its instance has to be stopped; None: there is nothing to stop, or
    whoever decided before has seen to it."""

    why: NotRetracked
    stop: StopReason | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """It is re-tracked."""


@dataclass(frozen=True, slots=True)
class TooLate:
    """The deadline has decided about it, or is about to."""


Outcome = Published | NotPublished | TooLate


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What a publication needs. ``turn``: whose outcome has been applied, to be acknowledged afterwards."""

    execution: Execution = field(repr=False)
    turn: int | None


class Publisher:
    """Publishes sessions of one recovery. Raises like ``ports.Recoverer``."""

    def __init__(
        self,
        recovering: Recovering,
        server: OwnedServer,
        round_: Round,
        client: ControlClient,
        store: ExecutionStore,
    ) -> None:
        self._recovering = recovering
        self._server = server
        self._round = round_
        self._client = client
        self._store = store
        self._batches = Batches(recovering.records)
        self._profiles: Mapping[str, Profile] = profiles_of(recovering.resource)

    async def publish(
        self, executor: Executor, row: InventoryRow, seen: InstanceWithEnvironment, slots: Semaphore
    ) -> Outcome:
        """Rebuild the execution of ``seen``, the session's only instance, and publish the session. Holds one of
        ``slots`` while it reads; others are read while its row is written."""
        with self._batches.coming():
            async with slots:
                prepared = await self._prepare(executor, row, seen)
        if isinstance(prepared, NotPublished):
            return prepared
        published = await self._retrack(executor, row, prepared.execution)
        if isinstance(published, Published) and prepared.turn is not None:
            async with slots:
                await self._acknowledge(seen.id, prepared.turn)
        return published

    async def last_words(self, executor: Executor, instance: str) -> None:
        """Hear an instance whose agent has ended, and have it gone. Best effort: it is no agent."""
        await self.hear_last_words(executor, instance)
        await self.delete_ended(instance)

    async def hear_last_words(self, executor: Executor, instance: str) -> None:
        """Apply the outcome that an instance retains, if it does, and acknowledge it."""
        read = await self.read_outcome(instance)
        if isinstance(read, Retained):
            turns = await self._turns(executor.session_id)
            judged = judge_outcome(read, self._server.identity, executor.session_state, turns)
            assert isinstance(judged, ApplyThenPublish)
            if await self._apply(executor, read, judged):
                await self._acknowledge(instance, judged.control_turn_id)

    async def delete_ended(self, instance: str) -> None:
        """Have an instance without an agent gone."""
        try:
            await self._client.delete(instance)
        except ControlError as error:
            _raise_if_final(error)

    async def read_outcome(self, instance: str) -> Retained | OutcomeRead:
        """The slot of an instance."""
        try:
            found = await self._client.outcome(instance)
        except RefusedByServer as error:
            return OutcomeRead.NO_INSTANCE if error.status == 404 else OutcomeRead.UNREADABLE
        except ControlError as error:
            _raise_if_final(error)
            return OutcomeRead.UNREADABLE
        return Retained(found) if found is not None else OutcomeRead.NONE

    # How

    async def _prepare(
        self, executor: Executor, row: InventoryRow, seen: InstanceWithEnvironment
    ) -> _Prepared | NotPublished:
        rebuilt = await self._rebuild(executor, row, seen)
        if isinstance(rebuilt, NotPublished):
            return rebuilt
        read = await self.read_outcome(seen.id)
        turns = await self._turns(executor.session_id) if isinstance(read, Retained) else ()
        judged = judge_outcome(read, self._server.identity, executor.session_state, turns)
        match judged:
            case ApplyThenPublish():
                assert isinstance(read, Retained)
                if not await self._apply(executor, read, judged):
                    judged = StopIt()
            case PublishAsItIs() | AsWithoutInstance() | StopIt():
                pass
            case _:
                assert_never(judged)
        if isinstance(judged, AsWithoutInstance):
            return NotPublished(judged.why)
        if isinstance(judged, StopIt):
            self._round.tally.exhausted[judged.read] += 1
            return NotPublished(judged.why, judged.stop)
        return _Prepared(rebuilt, judged.control_turn_id if isinstance(judged, ApplyThenPublish) else None)

    async def _rebuild(
        self, executor: Executor, row: InventoryRow, seen: InstanceWithEnvironment
    ) -> Execution | NotPublished:
        sources = Sources(
            row=row,
            task_environment=Got(executor.task_environment_id) if executor.task_environment_id else ABSENT,
            source_roots=Got(seen.workspace_source_roots),
            environment=Got(seen.env),
            provider_session=await self._provider_session(seen),
            profiles=self._profiles,
        )
        for read in exhausted_reads(sources):
            self._round.tally.exhausted[read] += 1
        found = reconstruct(sources, seen.id)
        match found:
            case Rebuilt(execution):
                return execution
            case RefusedMissing(missing):
                self._round.tally.refused.append(Refused(seen.id, row.session_id, missing))
                return NotPublished(NotRetracked.MISSING_INPUT, StopReason.MISSING_INPUT)
            case NotReadable():
                return NotPublished(NotRetracked.READS_EXHAUSTED, StopReason.READS_EXHAUSTED)
        assert_never(found)

    async def _provider_session(self, seen: InstanceWithEnvironment) -> Read[str]:
        """From the enumeration; asked for again where that has none, for an agent may just have been starting."""
        if seen.provider_session_id:
            return Got(seen.provider_session_id)
        try:
            now = await self._client.instance(seen.id)
        except RefusedByServer as error:
            return ABSENT if error.status == 404 else EXHAUSTED
        except ControlError as error:
            _raise_if_final(error)
            return EXHAUSTED
        return Got(now.provider_session_id) if now.provider_session_id else ABSENT

    async def _turns(self, session: str) -> tuple[KnownTurn, ...]:
        turns = await self._recovering.records.turns.of_session(session)
        return tuple(KnownTurn(t.id, t.state, t.server_identity, t.control_turn_id) for t in turns)

    async def _apply(self, executor: Executor, read: Retained, judged: ApplyThenPublish) -> bool:
        """Durable when this returns. False: it names a turn that contradicts what is on record."""
        records, identity = self._recovering.records, self._server.identity
        name = TurnName(
            session_id=executor.session_id, server_identity=identity, control_turn_id=judged.control_turn_id
        )
        try:
            await records.turns.apply(name, outcome_of(read.outcome.event))
        except TurnConflict:
            log.error("a retained outcome contradicts what is on record", session=executor.session_id)
            return False
        if judged.turn is None and judged.state is not executor.session_state:
            # No turn on record is the one that has ended; the session has none in hand all the same.
            waits = SessionRepair(executor.session_id, state=SessionState.WAITING_FOR_INPUT)
            await records.inventory.reconcile(
                executor, lambda view: waits if not view.open_turns else _nothing(view.id)
            )
        return True

    async def _retrack(self, executor: Executor, row: InventoryRow, execution: Execution) -> Outcome:
        if self._over(row):
            return TooLate()
        records = self._recovering.records
        kept = await self._batches.retracked(executor, execution.instance_id)
        # In the same breath as what follows: the deadline may have passed while the row was written.
        if self._over(row):
            return TooLate()
        if not kept:
            # Ended meanwhile: then its instance is nobody's. Else somebody has written it who knows more.
            now = await records.inventory.of_session(executor.session_id)
            ended = now is None or not now.live
            return NotPublished(NotRetracked.NO_INSTANCE, StopReason.NO_RECORD if ended else None)
        self._store.put(self._recovering.key, self._recovering.incarnation, self._server.identity, execution)
        self._round.fates[row.id] = None
        self._round.tally.retracked += 1
        return Published()

    def _over(self, row: InventoryRow) -> bool:
        return row.id in self._round.fates or not may_publish(self._recovering.deadline())

    async def _acknowledge(self, instance: str, turn: int) -> None:
        """One that is lost costs nothing: the outcome stays, and applying it again changes nothing."""
        try:
            await self._client.acknowledge(instance, turn)
        except ControlError as error:
            _raise_if_final(error)


def _nothing(session: str) -> SessionRepair:
    return SessionRepair(session)


def _raise_if_final(error: ControlError) -> None:
    """Whether the server is not ours any more, or ends: then nothing more is asked of it."""
    if isinstance(error, NotAccepted | ShuttingDown) or (isinstance(error, ForeignServer) and error.certain):
        raise error
