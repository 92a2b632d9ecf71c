"""``DecideRecords``: every record gets its outcome, by the deadline at the latest.

Sessions are decided at the same time and each for itself: what fails for one is told of that one, after all others.
"""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, assert_never

import structlog

from tenure.model.adoption import NotRetracked
from tenure.model.server_status import InstanceMention
from tenure.operator.servers.executions import ExecutionStore
from tenure.operator.servers.orphans import Gone, mark_departed, never_gone
from tenure.operator.servers.ports import OwnedServer, Recovering
from tenure.operator.servers.publishing import NotPublished, Publisher
from tenure.operator.servers.rounds import Round
from tenure.operator.servers.rows import row_of
from tenure.operator.servers.telling import Telling
from tenure.ownership.client import ControlClient
from tenure.plan.adoption.correlation import (
    Correlation,
    Decided,
    Decision,
    LeaveToRepair,
    Proceed,
    Retrack,
    Seen,
    Settled,
    Stop,
    StopNow,
    StopResult,
    Wait,
    correlate,
    given_up,
    settle,
)
from tenure.plan.adoption.deadline import Elapsed, GuardFate, Phase, Progress, Standing, at_deadline
from tenure.plan.adoption.gates import Deadline
from tenure.protocol.messages import InstanceWithEnvironment
from tenure.storage.errors import StorageError
from tenure.storage.records import Executor

log = structlog.stdlib.get_logger(__name__)

AT_ONCE = 16
"""Sessions that are read at a time."""
LOOK_SECONDS = 0.05
"""How often the deadline is looked at."""
FLAG_AGAIN_SECONDS = 1.0


class Deciding:
    """One run. ``instances`` were enumerated before; rows are read now."""

    def __init__(
        self,
        recovering: Recovering,
        server: OwnedServer,
        round_: Round,
        client: ControlClient,
        store: ExecutionStore,
        telling: Telling,
        gone: Gone = never_gone,
    ) -> None:
        self._gone = gone
        self._recovering = recovering
        self._server = server
        self._round = round_
        self._client = client
        self._store = store
        self._telling = telling
        self._publisher = Publisher(recovering, server, round_, client, store)
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._instances: dict[str, InstanceWithEnvironment] = {i.id: i for i in round_.instances or ()}
        self._executors: dict[str, Executor] = {}

    async def run(self) -> None:
        """Raises the first failure of a session when all others are decided: the step is then done again, for those
        that have no outcome yet."""
        found = await self._correlate()
        await mark_departed(self._recovering, found.decisions, self._executors, self._gone)
        decisions = {d.row.id: d for d in found.decisions if d.row.id not in self._round.fates}
        jobs = [self._job(self._decide(decision), decision.row.session_id) for decision in decisions.values()]
        jobs += [self._job(self._strays(found), "strays")]
        try:
            # Asked once more at the end: a session that was rebuilt too late has no outcome yet.
            if not await self._in_time(jobs) or self._recovering.deadline() is Deadline.ELAPSED:
                self._elapse(decisions)
        except BaseException:
            await self._round.stops.cancel()
            raise
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.wait(jobs)
        self._raise_first(jobs)

    def _job(self, work: Coroutine[Any, Any, None], what: str) -> asyncio.Task[None]:
        return asyncio.create_task(work, name=f"recovery of {what}")

    def _raise_first(self, jobs: list[asyncio.Task[None]]) -> None:
        errors = [e for job in jobs if not job.cancelled() and (e := job.exception()) is not None]
        for error in errors[1:]:
            log.warning("a session could not be decided about", error=type(error).__name__)
        if errors:
            raise errors[0]

    async def _correlate(self) -> Correlation:
        recovering, identity = self._recovering, self._server.identity
        rows = await recovering.records.inventory.live(recovering.installation_id)
        self._executors = {str(executor.id): executor for executor in rows}
        port = self._server.endpoint.port
        found = correlate(
            tuple(Seen(i.id, i.session_id, i.status) for i in self._instances.values()),
            tuple(row_of(executor, recovering.incarnation, port) for executor in rows),
            frozenset({self._server.pod_uid, identity}),
            self._store.sessions(recovering.key, recovering.incarnation, identity),
        )
        ambiguous = [
            d
            for d in found.decisions
            if isinstance(d, LeaveToRepair)
            and d.why is NotRetracked.AMBIGUOUS
            and d.row.id not in self._round.fates
        ]
        self._round.tally.ambiguous += len(ambiguous)
        return found

    async def _in_time(self, jobs: list[asyncio.Task[None]]) -> bool:
        """Whether all ended before the deadline. An outcome that comes later is none."""
        # One future: a look at hundreds takes longer the more there are, and there are more looks, too.
        ended = asyncio.gather(*jobs, return_exceptions=True)
        while not ended.done():
            if self._recovering.deadline() is Deadline.ELAPSED:
                return False
            await asyncio.wait((ended,), timeout=LOOK_SECONDS)
        return True

    # One session

    async def _decide(self, decision: Decision) -> None:
        settled = await self._settle(decision)
        if isinstance(settled, Decided):
            await self._leave(settled, decision)
            return
        executor, seen = self._executors[settled.row.id], self._instances[settled.instance]
        published = await self._publisher.publish(executor, settled.row, seen, self._slots)
        if not isinstance(published, NotPublished):
            return
        if published.stop is None:
            self._close(settled.row.id, published.why)
            return
        stop = Stop(settled.instance, published.stop)
        left = await self._give_up(settled, stop, published.why)
        await self._leave(left, decision)

    async def _settle(self, decision: Decision) -> Proceed | Decided:
        while True:
            settled = settle(decision, self._round.stops.results)
            if isinstance(settled, Proceed | Decided):
                return settled
            failed = self._failed(_involved(decision))
            if failed:
                # Before its winner is stopped: else whoever comes after a crash finds the loser alone, and takes it for
                # the session's own.
                await self._flag(self._executors[decision.row.id], failed)
            await self._pursue(settled, _involved(decision))

    def _failed(self, instances: Iterable[str]) -> tuple[str, ...]:
        return tuple(i for i in instances if self._round.stops.results.get(i) is StopResult.FAILED)

    async def _give_up(self, settled: Proceed, stop: Stop, why: NotRetracked) -> Decided:
        while True:
            left = given_up(settled.row, stop, why, self._round.stops.results)
            if isinstance(left, Decided):
                return left
            await self._pursue(left, (stop.instance,))

    async def _pursue(self, settled: Settled, involved: Iterable[str]) -> None:
        match settled:
            case StopNow(stops):
                for stop in stops:
                    self._round.stops.begin(self._client, stop)
                await self._round.stops.settled(stop.instance for stop in stops)
            case Wait():
                await self._round.stops.settled(involved)
            case Proceed() | Decided():
                raise AssertionError("there is nothing to wait for")
            case _:
                assert_never(settled)

    async def _leave(self, decided: Decided, decision: Decision) -> None:
        """It is not re-tracked."""
        executor = self._executors[decided.row.id]
        if decided.unstopped:
            await self._flag(executor, decided.unstopped)
        elif isinstance(decision, LeaveToRepair) and not decided.row.unstopped:
            async with self._slots:
                for instance in decision.ended:
                    await self._publisher.last_words(executor, instance)
        self._close(decided.row.id, decided.why)

    def _close(self, row: str, why: NotRetracked) -> None:
        self._round.fates.setdefault(row, why)

    async def _flag(self, executor: Executor, instances: tuple[str, ...]) -> None:
        """Durably, so that a restarted operator refuses launches, too."""
        inventory, incarnation = self._recovering.records.inventory, self._recovering.incarnation
        await inventory.flag_unstopped(executor.session_id, executor.agent_execution_id, incarnation)
        for instance in instances:
            if instance in self._round.unstopped:
                continue
            mention = InstanceMention(
                id=instance, session_id=executor.session_id, reason="it did not stop, after all retries"
            )
            self._round.unstopped[instance] = mention
            self._telling.stop_failed(self._recovering.resource, instance, executor.session_id)

    async def _strays(self, found: Correlation) -> None:
        for stop in found.strays:
            self._round.stops.begin(self._client, stop)
        for instance in found.ended_strays:
            await self._publisher.delete_ended(instance)
        await self._round.stops.settled(stop.instance for stop in found.strays)
        for stop in found.strays:
            if self._round.stops.results.get(stop.instance) is StopResult.FAILED:
                session = self._instances[stop.instance].session_id
                reason = "it is of no session on record, and did not stop"
                self._round.unstopped[stop.instance] = InstanceMention(
                    id=stop.instance, session_id=session or None, reason=reason
                )
                self._telling.stop_failed(self._recovering.resource, stop.instance, session)

    # The deadline

    def _elapse(self, decisions: dict[str, Decision]) -> None:
        """Every record without an outcome gets one in this very moment; what has to be stopped is, from here on."""
        open_ = [d for row, d in decisions.items() if row not in self._round.fates]
        self._round.deadline_elapsed = self._round.deadline_elapsed or bool(open_)
        for elapsed in at_deadline(Phase.DECIDING, tuple(self._standing(d) for d in open_)):
            if elapsed.why is None:
                continue
            self._round.fates[elapsed.row.id] = elapsed.why
            self._round.tally.deadline_elapsed += elapsed.counted
            if elapsed.guard is not GuardFate.RELEASED:
                self._finish_later(elapsed)

    def _standing(self, decision: Decision) -> Standing:
        results = self._round.stops.results
        live = self._live_of(decision)
        known = [results[i] for i in live if i in results]
        progress = Progress.UNDECIDED
        if StopResult.FAILED in known:
            progress = Progress.STOP_FAILED
        elif StopResult.IN_FLIGHT in known:
            progress = Progress.STOPPING
        return Standing(decision.row, progress, tuple(i for i in live if i not in results))

    def _live_of(self, decision: Decision) -> tuple[str, ...]:
        session = decision.row.session_id
        seen = (Seen(i.id, i.session_id, i.status) for i in self._instances.values())
        return tuple(i.id for i in seen if i.session_id == session and i.live)

    def _finish_later(self, elapsed: Elapsed) -> None:
        executor = self._executors[elapsed.row.id]
        session = elapsed.row.session_id
        involved = [i.id for i in self._instances.values() if i.session_id == session]
        for stop in elapsed.stops:
            self._round.stops.begin(self._client, stop)
        self._round.stopping.add(elapsed.row.id)

        async def finish() -> None:
            await self._round.stops.settled(involved)
            failed = self._failed(involved)
            while failed:
                try:
                    await self._flag(executor, failed)
                    break
                except StorageError:
                    await asyncio.sleep(FLAG_AGAIN_SECONDS)
            self._round.stopping.discard(elapsed.row.id)

        self._round.later(finish, f"stops of {session}")


def _involved(decision: Decision) -> tuple[str, ...]:
    match decision:
        case Retrack(_, winner, losers):
            return (*(stop.instance for stop in losers), winner)
        case LeaveToRepair(_, _, stops):
            return tuple(stop.instance for stop in stops)
    assert_never(decision)
