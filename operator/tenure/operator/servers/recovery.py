"""Recovery, carried out: ``tenure.plan.adoption`` decides, this reads, stops, publishes and writes.

Each deed may be done again, by this process or by the next. What is known between two deeds is a ``Round``, in memory.
"""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

import structlog

from tenure.model.adoption import NotRetracked
from tenure.model.server_status import InstanceMention
from tenure.operator.servers.deciding import Deciding
from tenure.operator.servers.executions import ExecutionStore
from tenure.operator.servers.orphans import Gone, Orphans, Tend, never_gone, tend_nothing
from tenure.operator.servers.ports import OwnedServer, Recovering, RecoveryReport, ServerKey
from tenure.operator.servers.publishing import Publisher
from tenure.operator.servers.reconciling import Look, look, settle_rows
from tenure.operator.servers.rounds import Round, Tally
from tenure.operator.servers.rows import row_of
from tenure.operator.servers.telling import Telling
from tenure.ownership.errors import ControlError, NotAccepted
from tenure.plan.adoption.deadline import Phase, Progress, Standing, at_deadline
from tenure.plan.adoption.gates import Deadline
from tenure.plan.adoption.liveness import RowVerdict, judge_row
from tenure.plan.adoption.state import Recovery as Stage
from tenure.storage.records import Executor

log = structlog.stdlib.get_logger(__name__)

UPKEEP_SECONDS = 30.0
"""Between two looks at the rows of a server that is ours; a row has to be dead at two of them."""

DRAIN_SECONDS = 2.0
"""The same while sessions of a resource that has gone are drained."""


class Recovery:
    """``ports.Recoverer``."""

    def __init__(self, telling: Telling, store: ExecutionStore, gone: Gone = never_gone) -> None:
        self._gone = gone
        self.tend: Tend = tend_nothing
        """Set by whoever drives agents of servers without a backend."""
        self._telling = telling
        self._store = store
        self._rounds: dict[ServerKey, Round] = {}
        self._guards: dict[ServerKey, tuple[str, float, frozenset[str]]] = {}
        self._suspects: dict[ServerKey, frozenset[str]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    async def take_guards(self, recovering: Recovering) -> bool:
        """The live rows are the guards; which they are is remembered, for reconciliation is about them."""
        rows = await recovering.records.inventory.live(recovering.installation_id)
        names = frozenset(_name(row) for row in rows)
        self._guards[recovering.key] = (recovering.incarnation, time.monotonic(), names)
        return True

    async def enumerate(self, recovering: Recovering) -> Stage:
        """One enumeration with environments, which stay in memory."""
        server = _server(recovering)
        round_ = self._begin(recovering)
        try:
            async with server.client(recovering.budget) as client:
                round_.instances = await client.instances(environment=True)
        except NotAccepted:
            raise
        except ControlError as error:
            log.warning("the instances could not be enumerated", server=str(recovering.key), error=str(error))
            round_.enumeration_failed = True
            return Stage.ENUMERATION_FAILED
        round_.hosted = len(round_.instances)
        return Stage.ENUMERATED

    async def decide(self, recovering: Recovering) -> None:
        """Every record gets its outcome, by the deadline at the latest."""
        server, round_ = _server(recovering), self._round(recovering)
        client = server.client(recovering.budget)
        try:
            if round_.instances is None:
                round_.instances = await client.instances(environment=True)
            await Deciding(recovering, server, round_, client, self._store, self._telling, self._gone).run()
        finally:
            round_.close_later(client)
        round_.instances = None

    async def publish(self, recovering: Recovering) -> None:
        """The set is what the store of executions holds."""
        round_ = self._round(recovering)
        if recovering.server is not None:
            identity = recovering.server.identity
            round_.published = self._store.sessions(recovering.key, recovering.incarnation, identity)

    async def reconcile(self, recovering: Recovering) -> None:
        """Sessions that were not re-tracked, by one enumeration that is taken now."""
        round_ = self._round(recovering)
        found = await look(recovering, in_recovery=True, settled=True, stopping=frozenset(round_.stopping))
        rows = await self._concerned(recovering)
        self._outcomes_of_the_rest(recovering, round_, rows)
        tracked = self._tracked(recovering)
        left = [
            row for row in rows if round_.fates.get(str(row.id)) is not None and row.session_id not in tracked
        ]
        await settle_rows(recovering, left, found)
        self._remember(recovering, round_, found, rows)
        round_.finished_at = datetime.now(UTC)

    async def repair(self, recovering: Recovering, pod_uid: str) -> None:
        """The containers of this pod have ended, and its agents with them."""
        record = await recovering.records.servers.get(recovering.installation_id)
        names = {pod_uid}
        if record is not None and record.pod_uid == pod_uid and record.server_identity is not None:
            names.add(record.server_identity)
        rows = await recovering.records.inventory.live(recovering.installation_id)
        mine = [row for row in rows if row.container_identity in names]
        found = await look(_without_server(recovering), in_recovery=True, settled=True)
        await settle_rows(recovering, mine, found, dead_for_sure=True)

    async def upkeep(self, recovering: Recovering) -> float | None:
        """Repair rows whose agent is gone at two looks in a row: whoever drives it comes first."""
        stopping = frozenset(self._present(recovering).stopping)
        found = await look(recovering, in_recovery=False, settled=True, stopping=stopping)
        rows = await recovering.records.inventory.live(recovering.installation_id)
        before = self._suspects.get(recovering.key, frozenset())
        suspects = frozenset(_name(row) for row in _dead(recovering, rows, found))
        again = [row for row in rows if _name(row) in suspects & before]
        draining = await self._look_after(recovering, rows, again, found)
        for row in await settle_rows(recovering, again, found):
            self._store.remove(recovering.key, row.session_id)
        self._suspects[recovering.key] = suspects
        self._remember(recovering, self._present(recovering), found, rows)
        self._tell_late(recovering)
        return DRAIN_SECONDS if draining else UPKEEP_SECONDS

    def finished(self, recovering: Recovering) -> None:
        """Told once, with what is durable by now."""
        round_ = self._rounds.get(recovering.key)
        if round_ is None or round_.told or round_.incarnation != recovering.incarnation:
            return
        round_.told = True
        guards = self._guards.get(recovering.key)
        began = guards[1] if guards is not None and guards[0] == recovering.incarnation else round_.began
        self._telling.recovered(recovering.resource, round_.tally, time.monotonic() - began)
        round_.tally.stopped = []
        log.info(
            "recovery has finished",
            server=str(recovering.key),
            retracked=round_.tally.retracked,
            not_retracked=_lost(round_),
            deadline_elapsed=round_.deadline_elapsed,
        )

    def report(self, key: ServerKey) -> RecoveryReport:
        """For the status."""
        round_ = self._rounds.get(key)
        if round_ is None:
            return RecoveryReport()
        said = round_.said
        return RecoveryReport(
            started_at=round_.started_at,
            finished_at=round_.finished_at,
            retracked=said.retracked if said is not None else round_.tally.retracked,
            not_retracked=said.not_retracked if said is not None else _lost(round_),
            refused=said.refused if said is not None else len(round_.tally.refused),
            stopped=said.stopped if said is not None else round_.stops.stopped,
            hosted=round_.hosted,
            deadline_elapsed=round_.deadline_elapsed,
            enumeration_failed=round_.enumeration_failed,
            unstopped=tuple(round_.unstopped.values()),
            untracked=round_.untracked,
        )

    def forget(self, key: ServerKey) -> None:
        """Drop what is kept about it; stops in flight end."""
        self._store.drop(key)
        self._telling.stands(key, None, unconfirmed=False)
        self._guards.pop(key, None)
        self._suspects.pop(key, None)
        self._end(self._rounds.pop(key, None))

    async def aclose(self) -> None:
        """The Lease is lost, or the process ends: nothing more is sent to any server."""
        for key in list(self._rounds):
            self.forget(key)
        self._telling.leaves()
        if self._ending:
            await asyncio.wait(set(self._ending))

    async def quiet(self, key: ServerKey) -> None:
        """Wait until the stops that go on after the deadline have ended."""
        if key in self._rounds:
            await self._rounds[key].quiet()

    async def _look_after(
        self, recovering: Recovering, rows: tuple[Executor, ...], dead: list[Executor], found: Look
    ) -> int:
        """What needs the server: agents that have ended, and those of resources that have gone. How many drain."""
        hosted = tuple(row for row in rows if row.agent_process_uid is not None)
        ended = {i.session_id: i.id for i in found.instances or () if i not in found.live}
        last = [row for row in dead if row.session_id in ended]
        server = recovering.server
        if server is None or not (hosted or last):
            return 0
        async with server.client(recovering.budget) as client:
            publisher = Publisher(recovering, server, self._present(recovering), client, self._store)
            for row in last:
                await publisher.last_words(row, ended[row.session_id])
            return await Orphans(recovering, client, publisher, self._gone, self.tend).drain(hosted)

    # What is known

    def _begin(self, recovering: Recovering) -> Round:
        self._end(self._rounds.pop(recovering.key, None))
        round_ = self._rounds[recovering.key] = Round(recovering.incarnation, recovering.about)
        return round_

    def _round(self, recovering: Recovering) -> Round:
        """The present one; another recovery's is over."""
        return self._known(recovering) or self._begin(recovering)

    def _present(self, recovering: Recovering) -> Round:
        """The same when recovery is over: where this process has not carried it out, what was said of it holds."""
        found = self._known(recovering)
        if found is None:
            found = self._begin(recovering)
            found.go_on_from(recovering.resource.status)
        return found

    def _known(self, recovering: Recovering) -> Round | None:
        found = self._rounds.get(recovering.key)
        wanted = (recovering.incarnation, recovering.about)
        return found if found is not None and (found.incarnation, found.about) == wanted else None

    def _end(self, round_: Round | None) -> None:
        for task in round_.cancel() if round_ is not None else ():
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _tracked(self, recovering: Recovering) -> frozenset[str]:
        if recovering.server is None:
            return frozenset()
        return self._store.sessions(recovering.key, recovering.incarnation, recovering.server.identity)

    async def _concerned(self, recovering: Recovering) -> tuple[Executor, ...]:
        """The rows that recovery is about: those that were live when it began, and no launch since."""
        rows = await recovering.records.inventory.live(recovering.installation_id)
        guards = self._guards.get(recovering.key)
        known = guards[2] if guards is not None and guards[0] == recovering.incarnation else frozenset()
        return tuple(row for row in rows if row.created_by != recovering.incarnation or _name(row) in known)

    def _outcomes_of_the_rest(
        self, recovering: Recovering, round_: Round, rows: tuple[Executor, ...]
    ) -> None:
        """Records that nobody decided about, because it never came to that."""
        rest = [row for row in rows if str(row.id) not in round_.fates]
        elapsed = recovering.deadline() is Deadline.ELAPSED and not round_.enumeration_failed
        if not elapsed:
            why = NotRetracked.NOTHING_RECOVERED
            if round_.enumeration_failed:
                why = NotRetracked.ENUMERATION_FAILED
            round_.fates.update({str(row.id): why for row in rest})
            return
        round_.deadline_elapsed = True
        phase = Phase.ADOPTING if recovering.server is None else Phase.ENUMERATING
        standings = tuple(
            Standing(row_of(row, recovering.incarnation, None), Progress.UNDECIDED) for row in rest
        )
        for decided in at_deadline(phase, standings):
            round_.fates[decided.row.id] = decided.why
            round_.tally.deadline_elapsed += decided.counted

    def _remember(
        self, recovering: Recovering, round_: Round, found: Look, rows: tuple[Executor, ...]
    ) -> None:
        """What the status shows of the server."""
        if found.instances is not None:
            round_.hosted = len(found.instances)
            live = {instance.id for instance in found.live}
            round_.untracked = tuple(mention for mention in round_.untracked if mention.id in live)
            gone = [i for i in round_.unstopped if i not in live]
            for instance in gone:
                del round_.unstopped[instance]
        for row in rows:
            named = {mention.session_id for mention in round_.unstopped.values()}
            if row.unstopped_by == recovering.incarnation and row.session_id not in named:
                round_.unstopped[row.agent_execution_id] = InstanceMention(
                    id=row.agent_execution_id,
                    session_id=row.session_id,
                    reason="an agent of its session did not stop, after all retries",
                )
        if round_.deadline_elapsed and found.instances is not None and not round_.inherited:
            tracked = self._tracked(recovering)
            known = {row.session_id for row in rows if row.created_by == recovering.incarnation}
            round_.untracked = tuple(
                InstanceMention(
                    id=instance.id,
                    session_id=instance.session_id or None,
                    reason="its server was adopted only after the deadline of recovery",
                )
                for instance in found.live
                if instance.session_id not in tracked | known and instance.id not in round_.stops.results
            )

    def _tell_late(self, recovering: Recovering) -> None:
        round_ = self._rounds.get(recovering.key)
        if round_ is not None and round_.told and round_.tally.stopped:
            late = Tally(stopped=round_.tally.stopped)
            round_.tally.stopped = []
            self._telling.stopped_late(recovering.resource, late)


def _server(recovering: Recovering) -> OwnedServer:
    assert recovering.server is not None, "this deed is about a server"
    return recovering.server


def _without_server(recovering: Recovering) -> Recovering:
    """Its pod has ended: nobody is asked."""
    return replace(recovering, server=None)


def _name(row: Executor) -> str:
    """One execution: a launch of the same session is another."""
    return f"{row.id} {row.agent_execution_id}"


def _dead(recovering: Recovering, rows: Iterable[Executor], found: Look) -> list[Executor]:
    verdicts = ((row, judge_row(row_of(row, recovering.incarnation, None), found.view)) for row in rows)
    return [row for row, verdict in verdicts if verdict is RowVerdict.DEAD]


def _lost(round_: Round) -> int:
    return sum(why is not None for why in round_.fates.values())
