"""Deeds about a server that was left: guards, contact, dismissal, stop, and giving it up."""

from tenure.model.errors import TenureError
from tenure.operator.servers.adopting import Adoption, Target, dismiss, order_shutdown
from tenure.operator.servers.attempts import Memory
from tenure.operator.servers.ports import ServerSaid
from tenure.operator.servers.sight import SeenPod, Sight, owned_server
from tenure.operator.servers.tools import Tools, Went, incarnation_of, records_of
from tenure.plan.adoption import steps
from tenure.plan.adoption.gates import FollowUp, LookAgain, Survivor, verdict_of
from tenure.plan.servers import names


class StopFailed(TenureError):
    """An own server could not be stopped, after all retries."""


class Inheriting:
    """Carries them out."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    async def take_guards(self, step: steps.TakeGuards, sight: Sight, memory: Memory) -> Went:
        records, incarnation = records_of(sight), incarnation_of(sight)
        if sight.record is not None:
            await records.servers.begin_recovery(
                sight.installation_id, adopted_by=step.expected, incarnation=incarnation
            )
        about = sight.state.record.about if sight.state.record is not None else ""
        if not await self._tools.recoverer.take_guards(self._tools.recovering(sight, memory, about)):
            return Went.WAIT
        memory.learn(incarnation, guarded=True)
        return Went.ON

    def contact(self, step: steps.Contact, sight: Sight, memory: Memory) -> Went:
        incarnation = incarnation_of(sight)
        if not sight.pods[step.pod].facts.address:
            return Went.WAIT  # its node says nothing of it at the moment, and that is no answer
        adoption = Adoption(
            cluster=self._tools.cluster,
            records=records_of(sight),
            target=self._target(sight, sight.pods[step.pod]),
            incarnation=incarnation,
            survival=sight.state.survival.effective,
            budget=sight.budget,
            # Another incarnation has begun since: this one's attempt ends what it is at, and repeats nothing. Else it
            # would hold up the next one's for as long as the server fails, for that one's deadline has not begun.
            deadline=lambda: memory.deadline_of(incarnation, self._tools.clock.monotonic()),
        )

        async def work() -> None:
            try:
                found = await adoption.run()
            finally:
                memory.learn(incarnation, contacting="")
            if isinstance(found, LookAgain):
                return
            if memory.attempt.incarnation == incarnation:
                memory.said, memory.verdict = adoption.said, found
                if found.follow_up is FollowUp.STOP_FIRST and adoption.credential is not None:
                    memory.credentials[step.pod] = adoption.credential
            memory.learn(incarnation, judged=step.pod, verdict=found)
            if found.follow_up is FollowUp.OURS:
                # Durable already. Any other verdict is told when the record says so: by ``Vacate``.
                self._tools.hooks.adoption_ended(
                    sight.key, sight.resource, found.outcome.value, found.reason.value
                )

        # Whoever renewed before would present what the rotation makes worthless.
        self._tools.keeper.release(sight.key)
        if not self._tools.background.start(sight.key, "adoption", incarnation, work, finishes=True):
            return Went.WAIT
        self._tools.hooks.adoption_attempted(sight.key, sight.resource)
        memory.contact(self._tools.clock.monotonic())
        memory.learn(incarnation, contacting=step.pod)
        return Went.ON

    def dismiss(self, step: steps.DismissSurvivor, sight: Sight, memory: Memory) -> Went:
        incarnation = memory.attempt.incarnation
        target, budget = self._target(sight, sight.pods[step.pod]), sight.budget
        turn = sight.state.owner.incarnation if sight.state.owner is not None else ""

        async def work() -> None:
            survivor, told = await dismiss(target, budget)
            if survivor is Survivor.GONE and not turn:
                # Nobody waits for a server in its place, and its pod runs: it may only have been slow to answer.
                raise StopFailed("the server did not answer when it was to shut down")
            failed = survivor is Survivor.STOP and not told
            memory.learn(
                incarnation,
                judged=step.pod,
                survivor=survivor,
                unstoppable=step.pod if failed else memory.attempt.unstoppable,
            )
            if failed:
                raise StopFailed("the server did not take the order to shut down")

        self._tools.keeper.release(sight.key)
        self._tools.background.start(sight.key, "dismissal", turn, work)
        memory.contact(self._tools.clock.monotonic())
        return Went.WAIT

    def stop(self, step: steps.StopServer, sight: Sight, memory: Memory) -> Went:
        incarnation, seen = incarnation_of(sight), sight.pods[step.pod]
        owned = None if seen.custody is None else owned_server(sight.uid, seen, seen.custody)
        credential = memory.credentials.get(step.pod)
        if owned is None:
            memory.learn(incarnation, unstoppable=step.pod)
            return Went.ON

        async def work() -> None:
            async with owned.client(sight.budget) as client:
                if credential is not None:
                    client.use(credential)
                told = await order_shutdown(client)
            fact = "stopped" if told else "unstoppable"
            memory.learn(incarnation, **{fact: step.pod})

        self._tools.background.start(sight.key, "stop", incarnation, work)
        return Went.WAIT

    async def vacate(self, step: steps.Vacate, sight: Sight, memory: Memory) -> Went:
        records, record = records_of(sight), sight.state.record
        mine = record is not None and not record.vacant and record.adopted_by == step.incarnation
        memory.vacating = (step, mine)
        await records.servers.vacate(
            sight.installation_id,
            adopted_by=step.expected,
            incarnation=step.incarnation,
            pod_uid=record.pod_uid if record is not None else None,
            name=sight.key.name,
            reason=step.reason,
            recovered_by=step.recovered_by,
            survival=step.survival,
        )
        return Went.ON

    def vacated(self, sight: Sight, memory: Memory) -> bool:
        """The record was vacated: what follows from that, once; also when the answer to the write was lost."""
        record = sight.state.record
        if memory.vacating is None or not sight.state.record_read:
            return False
        step, mine = memory.vacating
        memory.vacating = None
        if record is None or not record.vacant or record.adopted_by != step.incarnation:
            return False
        if mine:
            memory.restart()
            memory.crashed = step.reason is None
        memory.said = ServerSaid()
        if step.reason is not None:
            memory.verdict = verdict_of(step.reason)
            outcome = memory.verdict.outcome
            self._tools.hooks.adoption_ended(sight.key, sight.resource, outcome.value, step.reason.value)
        return True

    def _target(self, sight: Sight, seen: SeenPod) -> Target:
        assert sight.record is not None
        return Target(
            namespace=sight.key.namespace,
            installation_id=sight.installation_id,
            pod_uid=seen.facts.uid,
            pod_name=seen.facts.name,
            address=seen.facts.address,
            recorded_identity=sight.record.server_identity or "",
            adopted_by=sight.record.adopted_by,
            secret=seen.secret,
            custody=seen.custody,
            labels=names.secret_labels(sight.resource),
            owner=names.pod_owner(seen.facts.name, seen.facts.uid),
        )
