"""Deeds that make a fresh server: bootstrap Secret, pod, handshake, the server's Secret, record."""

from tenure.cluster.errors import AlreadyExists, Conflict, NamespaceTerminating, Refused
from tenure.cluster.server_ports import SecretObject
from tenure.operator.servers.adopting import Greeting, facts_of
from tenure.operator.servers.attempts import Memory
from tenure.operator.servers.pods import read_server_pod
from tenure.operator.servers.rendering import blank_custody, bootstrap_secret
from tenure.operator.servers.secrets import endpoint_of
from tenure.operator.servers.sight import Sight
from tenure.operator.servers.tools import Tools, Went, records_of
from tenure.plan.adoption import steps
from tenure.plan.adoption.state import PodPhase
from tenure.plan.servers import names


class Making:
    """Carries them out."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    async def create_bootstrap(self, step: steps.CreateBootstrap, sight: Sight, memory: Memory) -> Went:
        ended = [p for p in sight.pods.values() if p.plan.phase is PodPhase.ENDED]
        crashed = memory.crashed or any(p.facts.vacancy == step.vacancy for p in ended)
        if crashed and memory.start_wait(self._tools.clock.monotonic()) > 0:
            return Went.WAIT
        secret = bootstrap_secret(sight.resource, step.ordinal, step.vacancy, self._tools.clock.now())
        try:
            await self._tools.cluster.create_secret(sight.key.namespace, secret)
        except Refused as error:
            return _refused(memory, error)
        except AlreadyExists:
            found = await self._tools.cluster.get_secret(sight.key.namespace, secret.name)
            if found is not None and found.owner_uid != sight.uid:
                memory.foreign = secret.name
                memory.top_ordinal = max(memory.top_ordinal, step.ordinal)
        return Went.ON

    async def create_pod(self, step: steps.CreatePod, sight: Sight, memory: Memory) -> Went:
        namespace = sight.key.namespace
        for kind, body in self._tools.rendering.companions(sight.resource):
            try:
                await self._tools.cluster.ensure(kind, namespace, body)
            except Conflict:
                memory.foreign = body["metadata"]["name"]
                return Went.WAIT
            except Refused as error:
                return _refused(memory, error)
        pod = self._tools.rendering.pod(sight.resource, step.ordinal, step.vacancy)
        try:
            made = await self._tools.cluster.create_pod(namespace, pod)
        except AlreadyExists:
            found = await self._tools.cluster.get_pod(namespace, pod["metadata"]["name"])
            if found is not None and read_server_pod(found).owner_uid != sight.uid:
                memory.foreign = pod["metadata"]["name"]
                memory.top_ordinal = max(memory.top_ordinal, step.ordinal)
            elif found is not None:
                self._tools.cache.put_pod(found, found=True)
            return Went.ON
        except Refused as error:
            return _refused(memory, error)
        memory.started(self._tools.clock.monotonic())
        memory.top_ordinal = max(memory.top_ordinal, step.ordinal)
        self._tools.cache.put_pod(made, found=True)
        return Went.ON

    async def delete_pod(self, step: steps.DeletePod, sight: Sight) -> Went:
        """Its bootstrap Secret first: no nonce is given out twice."""
        seen = sight.pods[step.pod]
        await self._delete_bootstrap(sight, seen.bootstrap)
        left = await self._tools.cluster.delete_pod(
            sight.key.namespace, seen.facts.name, uid=step.pod, grace_seconds=None
        )
        if left is None:
            self._tools.cache.drop_pod_uid(step.pod)
        else:
            self._tools.cache.put_pod(left)
        return Went.ON

    def handshake(self, step: steps.Handshake, sight: Sight, memory: Memory) -> Went:
        seen = sight.pods[step.pod]
        blank = None if seen.bootstrap is None else blank_custody(seen.bootstrap, step.incarnation)
        endpoint = None if blank is None else endpoint_of(blank[0], seen.facts.address)
        if blank is None or endpoint is None:
            memory.learn(step.incarnation, nonce_used=memory.attempt.nonce_used | {step.pod})
            return Went.ON
        custody, nonce = blank
        greeting = Greeting(
            cluster=self._tools.cluster,
            namespace=sight.key.namespace,
            pod_name=seen.facts.name,
            labels=names.secret_labels(sight.resource),
            owner=names.pod_owner(seen.facts.name, seen.facts.uid),
            endpoint=endpoint,
            blank=custody,
            nonce=nonce,
            budget=sight.budget,
            over=lambda: self._is_over(sight.uid, step.pod),
        )

        async def work() -> None:
            if not await greeting.run():
                memory.learn(step.incarnation, nonce_used=memory.attempt.nonce_used | {step.pod})

        self._tools.background.start(sight.key, "handshake", step.incarnation, work, finishes=True)
        return Went.WAIT

    def _is_over(self, owner_uid: str, pod_uid: str) -> bool:
        """As far as is known without asking. Whoever waits for it keeps the pod that follows it waiting."""
        found = next((pod for pod in self._tools.cache.pods_of(owner_uid) if pod.uid == pod_uid), None)
        return found is None or found.terminating or found.phase is PodPhase.ENDED

    async def delete_bootstrap(self, owed: steps.DeleteBootstrap, sight: Sight) -> None:
        """That of this ordinal, whether its pod exists or not."""
        of_pods = (seen.bootstrap for seen in sight.pods.values() if seen.ordinal == owed.ordinal)
        await self._delete_bootstrap(sight, next(of_pods, None) or sight.bootstraps.get(owed.ordinal))

    async def _delete_bootstrap(self, sight: Sight, found: SecretObject | None) -> None:
        if found is not None:
            await self._tools.cluster.delete_secret(sight.key.namespace, found.name, uid=found.uid)

    async def store_record(self, step: steps.StoreRecord, sight: Sight) -> Went:
        seen = sight.pods[step.pod]
        assert seen.custody is not None
        await records_of(sight).servers.record(
            sight.installation_id,
            facts_of(seen.custody, step.pod, seen.facts.name, seen.facts.address),
            adopted_by=step.expected,
            incarnation=step.adopted_by,
            survival=step.survival,
        )
        return Went.ON


def _refused(memory: Memory, error: Refused) -> Went:
    """The API server takes nothing of ours as it is: a person is needed, or another namespace."""
    memory.refused = error.message or error.reason
    memory.namespace_terminating = isinstance(error, NamespaceTerminating)
    return Went.WAIT
