"""One deed for each step. What it writes has a precondition; what it learns goes into the memory of the attempt."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from tenure.cluster.errors import AlreadyExists, Conflict, NamespaceTerminating, Refused
from tenure.cluster.server_ports import NewSecret, ServerCluster
from tenure.model.errors import TenureError
from tenure.model.masked import Masked
from tenure.operator.clock import Clock
from tenure.operator.servers.adopting import (
    Adoption,
    Greeting,
    Target,
    dismiss,
    facts_of,
    order_shutdown,
    said_of,
)
from tenure.operator.servers.attempts import Memory
from tenure.operator.servers.background import Background, Work
from tenure.operator.servers.cache import ServerCache
from tenure.operator.servers.keeper import Keeper
from tenure.operator.servers.pods import RECOVERED_CONDITION, read_backend, read_server_pod
from tenure.operator.servers.ports import Hooks, Recoverer, Recovering, ServerSaid
from tenure.operator.servers.rendering import Rendering, blank_custody, bootstrap_secret
from tenure.operator.servers.sight import SeenPod, Sight, owned_server
from tenure.ownership.errors import ControlError, NotAccepted
from tenure.plan.adoption import steps
from tenure.plan.adoption.gates import FollowUp, LookAgain, Survivor, verdict_of
from tenure.plan.adoption.state import PodPhase, Recovery
from tenure.plan.servers import names
from tenure.protocol import handover
from tenure.storage.records import Records


class StopFailed(TenureError):
    """An own server could not be stopped, after all retries."""


class Went(StrEnum):
    """What a pass does after a deed."""

    ON = "on"
    """Look again."""
    WAIT = "wait"
    """Nothing more now: something will wake the key, or the wait that the memory asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deeds:
    """Carries out steps."""

    cluster: ServerCluster
    cache: ServerCache
    background: Background
    keeper: Keeper
    recoverer: Recoverer
    hooks: Hooks
    clock: Clock
    rendering: Rendering

    async def do(self, step: steps.Step, sight: Sight, memory: Memory) -> Went:
        """One step. Raises ``ApiError``, ``DatabaseUnavailable`` and ``RecordMoved``: the pass is then repeated."""
        match step:
            case steps.Nothing():
                return Went.WAIT
            case steps.EmptyHandOver():
                return await self._empty_hand_over(sight)
            case steps.TakeGuards():
                return await self._take_guards(step, sight, memory)
            case steps.Contact():
                return self._contact(step, sight, memory)
            case steps.DismissSurvivor():
                return self._dismiss(step, sight, memory)
            case steps.StopServer():
                return self._stop(step, sight, memory)
            case steps.RepairRecordsOf():
                await self.recoverer.repair(self.recovering(sight, memory, step.pod), step.pod)
                memory.learn(memory.attempt.incarnation, repaired=step.pod)
                return Went.ON
            case steps.Vacate():
                return await self._vacate(step, sight, memory)
            case steps.CreateBootstrap():
                return await self._create_bootstrap(step, sight, memory)
            case steps.CreatePod():
                return await self._create_pod(step, sight, memory)
            case steps.DeletePod():
                return await self.delete_pod(step, sight)
            case steps.Handshake():
                return self._handshake(step, sight, memory)
            case steps.StoreRecord():
                return await self._store_record(step, sight)
            case steps.Enumerate() | steps.DecideRecords() | steps.PublishSet() | steps.ReconcileSessions():
                return self._recover(step, sight, memory)
            case steps.RecordRecovered():
                return await self._recovered(step, sight, memory)
            case steps.WriteHandOver():
                return await self._write_hand_over(step, sight, memory)
            case steps.SetReadiness():
                return await self._set_readiness(step, sight)
        assert_never(step)

    async def owe(self, owed: steps.Owed, sight: Sight, memory: Memory) -> None:
        """Something beside the step. Raises like ``do``, and ``ControlError``."""
        match owed:
            case steps.Confirm():
                await self._confirm(owed, sight, memory)
            case steps.DeleteBootstrap():
                await self._delete_bootstrap(sight, sight.pods[owed.pod])
            case steps.DeletePod():
                await self.delete_pod(owed, sight)

    def recovering(self, sight: Sight, memory: Memory, about: str) -> Recovering:
        """What a deed of recovery is given."""
        assert sight.records is not None
        return Recovering(
            key=sight.key,
            resource=sight.resource,
            installation_id=sight.installation_id,
            incarnation=sight.state.owner.incarnation if sight.state.owner is not None else "",
            about=about,
            records=sight.records,
            server=sight.owned() if about in sight.pods else None,
            budget=sight.budget,
            deadline=lambda: memory.deadline(self.clock.monotonic()),
            present=frozenset(sight.pods),
            ended=frozenset(u for u, p in sight.pods.items() if p.plan.phase is PodPhase.ENDED),
        )

    # --- the server that was left

    async def _take_guards(self, step: steps.TakeGuards, sight: Sight, memory: Memory) -> Went:
        records, incarnation = _records(sight), _incarnation(sight)
        if sight.record is not None:
            await records.servers.begin_recovery(
                sight.installation_id, adopted_by=step.expected, incarnation=incarnation
            )
        about = sight.state.record.about if sight.state.record is not None else ""
        if not await self.recoverer.take_guards(self.recovering(sight, memory, about)):
            return Went.WAIT
        memory.learn(incarnation, guarded=True)
        return Went.ON

    def _contact(self, step: steps.Contact, sight: Sight, memory: Memory) -> Went:
        incarnation = _incarnation(sight)
        adoption = Adoption(
            cluster=self.cluster,
            records=_records(sight),
            target=self._target(sight, sight.pods[step.pod]),
            incarnation=incarnation,
            survival=sight.state.survival.effective,
            budget=sight.budget,
            deadline=lambda: memory.deadline(self.clock.monotonic()),
        )

        async def work() -> None:
            try:
                found = await adoption.run()
            finally:
                memory.learn(incarnation, contacting="")
            if isinstance(found, LookAgain):
                return
            memory.said = adoption.said
            if found.follow_up is FollowUp.STOP_FIRST and adoption.credential is not None:
                memory.credentials[step.pod] = adoption.credential
            memory.verdict = found
            memory.learn(incarnation, judged=step.pod, verdict=found)
            if found.follow_up is FollowUp.OURS:
                # Durable already. Any other verdict is told when the record says so: by ``Vacate``.
                self.hooks.adoption_ended(sight.key, sight.resource, found.outcome.value, found.reason.value)

        # Whoever renewed before would present what the rotation makes worthless.
        self.keeper.release(sight.key)
        if not self.background.start(sight.key, "adoption", incarnation, work, finishes=True):
            return Went.WAIT
        self.hooks.adoption_attempted(sight.key, sight.resource)
        memory.contact(self.clock.monotonic())
        memory.learn(incarnation, contacting=step.pod)
        return Went.ON

    def _dismiss(self, step: steps.DismissSurvivor, sight: Sight, memory: Memory) -> Went:
        incarnation = memory.attempt.incarnation
        target, budget = self._target(sight, sight.pods[step.pod]), sight.budget

        async def work() -> None:
            survivor, told = await dismiss(target, budget)
            failed = survivor is Survivor.STOP and not told
            memory.learn(
                incarnation,
                judged=step.pod,
                survivor=survivor,
                unstoppable=step.pod if failed else memory.attempt.unstoppable,
            )
            if failed:
                raise StopFailed("the server did not take the order to shut down")

        self.keeper.release(sight.key)
        self.background.start(sight.key, "dismissal", incarnation, work)
        memory.contact(self.clock.monotonic())
        return Went.WAIT

    def _stop(self, step: steps.StopServer, sight: Sight, memory: Memory) -> Went:
        incarnation, seen = _incarnation(sight), sight.pods[step.pod]
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

        self.background.start(sight.key, "stop", incarnation, work)
        return Went.WAIT

    async def _vacate(self, step: steps.Vacate, sight: Sight, memory: Memory) -> Went:
        records, record = _records(sight), sight.state.record
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
        if record is not None and not record.vacant and record.adopted_by == step.incarnation:
            memory.restart()
        memory.said = ServerSaid()
        if step.reason is not None:
            memory.verdict = verdict_of(step.reason)
            outcome = memory.verdict.outcome
            self.hooks.adoption_ended(sight.key, sight.resource, outcome.value, step.reason.value)
        return Went.ON

    # --- a fresh server

    async def _create_bootstrap(self, step: steps.CreateBootstrap, sight: Sight, memory: Memory) -> Went:
        secret = bootstrap_secret(sight.resource, step.ordinal, step.vacancy, self.clock.now())
        try:
            await self.cluster.create_secret(sight.key.namespace, secret)
        except AlreadyExists:
            found = await self.cluster.get_secret(sight.key.namespace, secret.name)
            if found is not None and found.owner_uid != sight.uid:
                memory.foreign = secret.name
                memory.top_ordinal = max(memory.top_ordinal, step.ordinal)
        return Went.ON

    async def _create_pod(self, step: steps.CreatePod, sight: Sight, memory: Memory) -> Went:
        namespace = sight.key.namespace
        for kind, body in self.rendering.companions(sight.resource):
            try:
                await self.cluster.ensure(kind, namespace, body)
            except Conflict:
                memory.foreign = body["metadata"]["name"]
                return Went.WAIT
        pod = self.rendering.pod(sight.resource, step.ordinal, step.vacancy)
        try:
            made = await self.cluster.create_pod(namespace, pod)
        except AlreadyExists:
            found = await self.cluster.get_pod(namespace, pod["metadata"]["name"])
            if found is not None and read_server_pod(found).owner_uid != sight.uid:
                memory.foreign = pod["metadata"]["name"]
                memory.top_ordinal = max(memory.top_ordinal, step.ordinal)
            elif found is not None:
                self.cache.put_pod(found, found=True)
            return Went.ON
        except Refused as error:
            memory.refused = error.message or error.reason
            memory.namespace_terminating = isinstance(error, NamespaceTerminating)
            return Went.WAIT
        memory.refused = memory.foreign = ""
        memory.namespace_terminating = False
        memory.top_ordinal = max(memory.top_ordinal, step.ordinal)
        self.cache.put_pod(made, found=True)
        return Went.ON

    async def delete_pod(self, step: steps.DeletePod, sight: Sight) -> Went:
        """Its bootstrap Secret first: no nonce is given out twice."""
        seen = sight.pods[step.pod]
        await self._delete_bootstrap(sight, seen)
        left = await self.cluster.delete_pod(
            sight.key.namespace, seen.facts.name, uid=step.pod, grace_seconds=None
        )
        if left is None:
            self.cache.drop_pod_uid(step.pod)
        else:
            self.cache.put_pod(left)
        return Went.ON

    def _handshake(self, step: steps.Handshake, sight: Sight, memory: Memory) -> Went:
        seen = sight.pods[step.pod]
        blank = None if seen.bootstrap is None else blank_custody(seen.bootstrap, step.incarnation)
        if blank is None:
            memory.learn(step.incarnation, nonce_used=memory.attempt.nonce_used | {step.pod})
            return Went.ON
        custody, nonce = blank
        greeting = Greeting(
            cluster=self.cluster,
            namespace=sight.key.namespace,
            pod_name=seen.facts.name,
            labels=names.secret_labels(sight.resource),
            owner=names.pod_owner(seen.facts.name, seen.facts.uid),
            endpoint=custody.endpoint(seen.facts.address),
            blank=custody,
            nonce=nonce,
            budget=sight.budget,
        )

        async def work() -> None:
            if not await greeting.run():
                memory.learn(step.incarnation, nonce_used=memory.attempt.nonce_used | {step.pod})

        self.background.start(sight.key, "handshake", step.incarnation, work, finishes=True)
        return Went.WAIT

    async def _delete_bootstrap(self, sight: Sight, seen: SeenPod) -> None:
        if seen.bootstrap is not None:
            name = names.bootstrap_name(seen.facts.name)
            await self.cluster.delete_secret(sight.key.namespace, name, uid=seen.bootstrap.uid)

    async def _store_record(self, step: steps.StoreRecord, sight: Sight) -> Went:
        seen = sight.pods[step.pod]
        assert seen.custody is not None
        await _records(sight).servers.record(
            sight.installation_id,
            facts_of(seen.custody, step.pod, seen.facts.name, seen.facts.address),
            adopted_by=step.expected,
            incarnation=step.adopted_by,
            survival=step.survival,
        )
        return Went.ON

    # --- recovery

    def _recover(
        self,
        step: steps.Enumerate | steps.DecideRecords | steps.PublishSet | steps.ReconcileSessions,
        sight: Sight,
        memory: Memory,
    ) -> Went:
        incarnation = _incarnation(sight)
        about = step.pod if isinstance(step, steps.Enumerate | steps.DecideRecords) else step.about
        recovering = self.recovering(sight, memory, about)
        if about in sight.pods and recovering.server is None:
            return Went.WAIT  # its pod has no address at the moment

        async def work() -> None:
            match step:
                case steps.Enumerate():
                    await self._ask_details(sight, recovering, memory)
                    stage = await self.recoverer.enumerate(recovering)
                case steps.DecideRecords():
                    await self.recoverer.decide(recovering)
                    stage = Recovery.DECIDED
                case steps.PublishSet():
                    await self.recoverer.publish(recovering)
                    stage = Recovery.PUBLISHED
                case steps.ReconcileSessions():
                    await self.recoverer.reconcile(recovering)
                    stage = Recovery.RECONCILED
            memory.learn(incarnation, recovering=about, recovery=stage)

        self.background.start(sight.key, type(step).__name__, incarnation, self._watched(work, sight, memory))
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
        incarnation = _incarnation(sight)

        async def watched() -> None:
            try:
                await work()
            except NotAccepted as error:
                if not error.superseded:
                    raise
                self.lose(sight, memory, incarnation)

        return watched

    def lose(self, sight: Sight, memory: Memory, incarnation: str) -> None:
        """A server that was ours has refused us as superseded."""
        if memory.attempt.incarnation == incarnation and not memory.attempt.lost:
            memory.learn(incarnation, lost=True)
            self.keeper.release(sight.key)
            self.hooks.ownership_lost(sight.key, sight.resource)

    async def _recovered(self, step: steps.RecordRecovered, sight: Sight, memory: Memory) -> Went:
        await _records(sight).servers.set_recovered(
            sight.installation_id, step.incarnation, adopted_by=step.expected
        )
        self.recoverer.finished(self.recovering(sight, memory, memory.attempt.recovering))
        return Went.ON

    async def _confirm(self, owed: steps.Confirm, sight: Sight, memory: Memory) -> None:
        server, incarnation = sight.owned(), _incarnation(sight)
        if server is None:
            return
        try:
            async with server.client(sight.budget) as client:
                await client.confirm(owed.rotation_id)
        except NotAccepted as error:
            if error.superseded:
                self.lose(sight, memory, incarnation)
            raise
        await _records(sight).servers.confirm_rotation(sight.installation_id, incarnation, owed.rotation_id)

    # --- the backend

    async def _write_hand_over(self, step: steps.WriteHandOver, sight: Sight, memory: Memory) -> Went:
        seen = sight.pods[step.pod]
        custody = seen.custody
        assert custody is not None
        content = handover.HandOver(
            endpoint=custody.endpoint(seen.facts.address).url,
            credential=custody.credential,
            server_identity=custody.identity,
            home_dir=custody.home_dir,
            rotation_id=custody.rotation_id,
            server_name=custody.server_name,
            certificate=custody.certificate,
            backend_pod_uid=step.backend_pod_uid,
        )
        data = {key: Masked(text) for key, text in handover.to_data(content).items()}
        return await self._put_hand_over(sight, memory, data)

    async def _empty_hand_over(self, sight: Sight) -> Went:
        assert sight.hand_over is not None
        empty = NewSecret(
            names.handover_name(sight.key.name),
            names.secret_labels(sight.resource),
            names.owner(sight.resource),
            {key.value: Masked("") for key in handover.Key},
        )
        await self.cluster.replace_secret(
            sight.key.namespace,
            empty,
            uid=sight.hand_over.uid,
            resource_version=sight.hand_over.resource_version,
        )
        return Went.ON

    async def _put_hand_over(self, sight: Sight, memory: Memory, data: dict[str, Masked]) -> Went:
        namespace, name = sight.key.namespace, names.handover_name(sight.key.name)
        owner = names.owner(sight.resource)
        new = NewSecret(name, names.secret_labels(sight.resource), owner, data)
        old = sight.hand_over
        if old is not None:
            await self.cluster.replace_secret(
                namespace, new, uid=old.uid, resource_version=old.resource_version
            )
            return Went.ON
        try:
            await self.cluster.create_secret(namespace, new)
        except AlreadyExists:
            found = await self.cluster.get_secret(namespace, name)
            if found is not None and found.owner_uid != sight.uid:
                memory.foreign = name
                return Went.WAIT
        return Went.ON

    async def _set_readiness(self, step: steps.SetReadiness, sight: Sight) -> Went:
        namespace = sight.key.namespace
        name = sight.backend.name if sight.backend is not None else ""
        raw = await self.cluster.get_pod(namespace, name) if name else None
        if raw is None or raw["metadata"]["uid"] != step.backend_pod_uid:
            self.cache.drop_pod_uid(step.backend_pod_uid)
            return Went.WAIT
        facts = read_backend(raw)
        written = await self.cluster.set_pod_condition(
            namespace,
            name,
            uid=facts.uid,
            resource_version=facts.resource_version,
            condition={
                "type": RECOVERED_CONDITION,
                "status": "True" if step.recovered else "False",
                "reason": "Recovered" if step.recovered else "RecoveryInProgress",
                "message": "recovery is over and the server was handed over"
                if step.recovered
                else "another container runs, for which recovery is not over yet",
                "lastTransitionTime": self.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
            },
        )
        self.cache.put_pod(written, found=True)
        return Went.ON

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


def _records(sight: Sight) -> Records:
    assert sight.records is not None, "without a durable store the plan is to do nothing"
    return sight.records


def _incarnation(sight: Sight) -> str:
    assert sight.state.owner is not None, "without a backend no such step is planned"
    return sight.state.owner.incarnation
