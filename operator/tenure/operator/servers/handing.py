"""Deeds towards the backend: the hand-over Secret, and the readiness gate of its pod."""

from tenure.cluster.errors import AlreadyExists
from tenure.cluster.server_ports import NewSecret
from tenure.model.masked import Masked
from tenure.operator.servers.attempts import Memory
from tenure.operator.servers.pods import RECOVERED_CONDITION, read_backend
from tenure.operator.servers.sight import Sight
from tenure.operator.servers.tools import Tools, Went
from tenure.plan.adoption import steps
from tenure.plan.servers import names
from tenure.protocol import handover


class HandingOver:
    """Carries them out."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    async def write(self, step: steps.WriteHandOver, sight: Sight, memory: Memory) -> Went:
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

    async def empty(self, sight: Sight) -> Went:
        assert sight.hand_over is not None
        empty = NewSecret(
            names.handover_name(sight.key.name),
            names.secret_labels(sight.resource),
            names.owner(sight.resource),
            {key.value: Masked("") for key in handover.Key},
        )
        await self._tools.cluster.replace_secret(
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
            await self._tools.cluster.replace_secret(
                namespace, new, uid=old.uid, resource_version=old.resource_version
            )
            return Went.ON
        try:
            await self._tools.cluster.create_secret(namespace, new)
        except AlreadyExists:
            found = await self._tools.cluster.get_secret(namespace, name)
            if found is not None and found.owner_uid != sight.uid:
                memory.foreign = name
                return Went.WAIT
        return Went.ON

    async def set_readiness(self, step: steps.SetReadiness, sight: Sight) -> Went:
        namespace = sight.key.namespace
        name = sight.backend.name if sight.backend is not None else ""
        raw = await self._tools.cluster.get_pod(namespace, name) if name else None
        if raw is None or raw["metadata"]["uid"] != step.backend_pod_uid:
            self._tools.cache.drop_pod_uid(step.backend_pod_uid)
            return Went.WAIT
        facts = read_backend(raw)
        written = await self._tools.cluster.set_pod_condition(
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
                "lastTransitionTime": self._tools.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
            },
        )
        self._tools.cache.put_pod(written, found=True)
        return Went.ON
