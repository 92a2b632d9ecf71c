"""Deeds of recovery: each runs in the background, for a peer is asked in it; and what is owed to the server."""

from collections.abc import Awaitable, Callable

from tenure.operator.servers.adopting import said_of
from tenure.operator.servers.attempts import Memory
from tenure.operator.servers.background import Work
from tenure.operator.servers.ports import Recovering
from tenure.operator.servers.sight import Sight
from tenure.operator.servers.tools import Tools, Went, incarnation_of, records_of
from tenure.ownership.errors import ControlError, NotAccepted
from tenure.plan.adoption import steps
from tenure.plan.adoption.state import Recovery


class Resuming:
    """Carries them out."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    def recover(
        self,
        step: steps.Enumerate | steps.DecideRecords | steps.PublishSet | steps.ReconcileSessions,
        sight: Sight,
        memory: Memory,
    ) -> Went:
        incarnation = incarnation_of(sight)
        about = step.pod if isinstance(step, steps.Enumerate | steps.DecideRecords) else step.about
        recovering = self._tools.recovering(sight, memory, about)
        if about in sight.pods and recovering.server is None:
            return Went.WAIT  # its pod has no address at the moment

        async def work() -> None:
            match step:
                case steps.Enumerate():
                    await self._ask_details(sight, recovering, memory)
                    stage = await self._tools.recoverer.enumerate(recovering)
                case steps.DecideRecords():
                    await self._tools.recoverer.decide(recovering)
                    stage = Recovery.DECIDED
                case steps.PublishSet():
                    await self._tools.recoverer.publish(recovering)
                    stage = Recovery.PUBLISHED
                case steps.ReconcileSessions():
                    await self._tools.recoverer.reconcile(recovering)
                    stage = Recovery.RECONCILED
            memory.learn(incarnation, recovering=about, recovery=stage)

        self._tools.background.start(
            sight.key, type(step).__name__, incarnation, self._watched(work, sight, memory)
        )
        return Went.WAIT

    @staticmethod
    async def _ask_details(sight: Sight, recovering: Recovering, memory: Memory) -> None:
        """What a server tells of itself, for the status: nothing depends on it."""
        server = recovering.server
        if server is None or memory.said.diagnostic_output:
            return
        custody = sight.pods[server.pod_uid].custody
        try:
            async with server.client(recovering.budget) as client:
                told = await client.details()
        except NotAccepted:
            raise
        except ControlError:
            return
        memory.said = said_of(custody.capabilities if custody is not None else (), told)

    def _watched(
        self, work: Callable[[], Awaitable[None]], sight: Sight, memory: Memory
    ) -> Callable[[], Work]:
        """The same work, which notices when the server is somebody else's by now."""
        incarnation = incarnation_of(sight)

        async def watched() -> None:
            try:
                await work()
            except NotAccepted as error:
                if not error.superseded:
                    raise
                self._tools.lose(sight, memory, incarnation)

        return watched

    async def recovered(self, step: steps.RecordRecovered, sight: Sight, memory: Memory) -> Went:
        await records_of(sight).servers.set_recovered(
            sight.installation_id, step.incarnation, adopted_by=step.expected
        )
        return Went.ON

    def finished(self, sight: Sight, memory: Memory) -> None:
        """The record says that the recovery that was carried out here is over: it may be told of, which it is once."""
        record, owner, attempt = sight.state.record, sight.state.owner, memory.attempt
        if record is None or owner is None or record.recovered_by != owner.incarnation:
            return
        if attempt.incarnation == owner.incarnation and attempt.recovery is Recovery.RECONCILED:
            self._tools.recoverer.finished(self._tools.recovering(sight, memory, attempt.recovering))

    async def confirm(self, owed: steps.Confirm, sight: Sight, memory: Memory) -> None:
        server, incarnation = sight.owned(), incarnation_of(sight)
        if server is None:
            return
        try:
            async with server.client(sight.budget) as client:
                await client.confirm(owed.rotation_id)
        except NotAccepted as error:
            if error.superseded:
                self._tools.lose(sight, memory, incarnation)
            raise
        await records_of(sight).servers.confirm_rotation(sight.installation_id, incarnation, owed.rotation_id)
