"""Act: carry out one action of a plan, with a precondition, and say in a type what became of it."""

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, assert_never

import structlog

from tenure.cluster.errors import (
    AlreadyExists,
    Conflict,
    NamespaceTerminating,
    NotFound,
    Refused,
)
from tenure.cluster.ports import AgentCluster, Json
from tenure.model.ids import child_name
from tenure.model.pods import read_pod
from tenure.model.resources import AgentProcess
from tenure.model.status import InstanceStatus, Status
from tenure.operator.cache import ObjectCache
from tenure.operator.passes.gone import still_owned
from tenure.operator.passes.ledger import StopWriter, entry_of
from tenure.operator.passes.sight import Recollection, Sight
from tenure.operator.passes.writing import write_status
from tenure.plan.actions import Action, CreatePod, DeletePod, MarkRow, Protect, RecordStop, WriteStatus
from tenure.plan.observation import Rejection
from tenure.plan.render import EVICTION_ANNOTATIONS, render_pod
from tenure.storage.errors import DatabaseUnavailable

REJECTION_FIRST, REJECTION_LONGEST = 2.0, 300.0
"""Seconds between two tries of a pod that the API server refuses; they double."""

log = structlog.stdlib.get_logger("tenure.pass")


class Done(Enum):
    """What became of an action."""

    CHANGED = auto()
    """Carried out, and the cache shows it: look again."""
    QUIET = auto()
    """Carried out; nothing that a plan sees has changed yet."""
    STALE = auto()
    """The world was not as observed: nothing was done, look again."""
    LATER = auto()
    """Could not be done now; whoever can say when it can, wakes the key."""


@dataclass(slots=True)
class Actor:
    """Carries out actions. ``ApiError`` other than those an action expects goes to the caller, who tries again."""

    cluster: AgentCluster
    cache: ObjectCache
    ledger: StopWriter

    async def do(self, action: Action, sight: Sight, kept: Recollection) -> Done:
        """Carry out one action."""
        match action:
            case WriteStatus():
                return await self._write(action.status, sight)
            case CreatePod():
                return await self._create(action, sight, kept)
            case DeletePod():
                return await self._delete(action, sight)
            case MarkRow():
                return await _mark(action, sight)
            case Protect():
                return await self._protect(action, sight)
            case RecordStop():
                return await self._record(action, sight)
        assert_never(action)

    async def _write(self, status: Status, sight: Sight) -> Done:
        raw = await write_status(self.cluster, self.cache, sight.raw, status)
        if raw is None:
            return Done.STALE
        sight.raw, sight.status = raw, status
        return Done.CHANGED

    async def _create(self, action: CreatePod, sight: Sight, kept: Recollection) -> Done:
        resource, ordinal = sight.observation.resource, action.ordinal
        if not await self._previous_is_gone(resource):
            return Done.STALE
        if kept.unsettled and not await self._settle(action, sight, kept):
            return Done.CHANGED
        body = render_pod(resource, ordinal, sight.observation.template_hash)
        try:
            pod = await self.cluster.create_pod(resource.namespace, body)
        except AlreadyExists:
            # A name of ours that we do not know of: settle it by a live look, as after a lost answer.
            kept.unsettled = True
            return Done.STALE
        except NamespaceTerminating as refusal:
            return _rejected(sight, kept, refusal.message, namespace_terminating=True)
        except (Refused, NotFound, Conflict) as refusal:
            return _rejected(sight, kept, refusal.message)
        except BaseException:
            # No answer, or cancelled while waiting for one: whether there is a pod now is not known.
            kept.unsettled = True
            raise
        kept.memory = replace(kept.memory, rejection=None)
        self.cache.put_pod(pod, wake=False)
        log.info(
            "a pod was created",
            namespace=resource.namespace,
            name=resource.name,
            pod=body["metadata"]["name"],
        )
        return Done.CHANGED

    async def _previous_is_gone(self, resource: AgentProcess) -> bool:
        """Absence from a cache is no evidence: ask for the recorded pod before another one is created."""
        instance = resource.status.instance
        if instance is None or not instance.pod_name:
            return True
        found = await self.cluster.get_pod(resource.namespace, instance.pod_name)
        if found is None or found["metadata"].get("uid") != instance.id or not _owned_by(found, resource):
            return True
        self.cache.found_pod(found, wake=False)
        # What is there decides, not what the cache makes of it.
        return read_pod(found).over

    async def _settle(self, action: CreatePod, sight: Sight, kept: Recollection) -> bool:
        """Whether the name may be used as it is. Else the world was changed: a pod was taken, or a number given up."""
        resource, ordinal = sight.observation.resource, action.ordinal
        name = child_name(resource.name, resource.uid, ordinal)
        found = await self.cluster.get_pod(resource.namespace, name)
        if found is not None and _owned_by(found, resource):
            self.cache.found_pod(found, wake=False)
            kept.unsettled = False
            return False
        # The first status of all may be this one, and has to have every condition.
        status = action.status or sight.status
        instance = status.instance or InstanceStatus()
        raised = status.model_copy(update={"instance": instance.model_copy(update={"ordinal": ordinal})})
        if await self._write(raised, sight) is Done.CHANGED and found is None:
            kept.unsettled = False
        return False

    async def _delete(self, action: DeletePod, sight: Sight) -> Done:
        namespace = sight.observation.resource.namespace
        owner = sight.observation.resource.uid
        former = (p for p in sight.observation.pods if p.uid == action.uid and p.owner_uid != owner)
        for pod in former:
            # An earlier object of the name may have been told to leave its pod behind.
            if not await still_owned(self.cluster, self.cache, pod, wake=False):
                return Done.STALE
        try:
            left = await self.cluster.delete_pod(
                namespace, action.name, uid=action.uid, grace_seconds=action.grace_seconds
            )
        except (NotFound, Conflict):
            left = None
        if left is None:
            self.cache.drop_pod_uid(action.uid, wake=False)
        else:
            self.cache.put_pod(left, wake=False)
        return Done.CHANGED

    async def _protect(self, action: Protect, sight: Sight) -> Done:
        wanted: dict[str, str | None] = {
            name: value if action.on else None for name, value in EVICTION_ANNOTATIONS.items()
        }
        namespace = sight.observation.resource.namespace
        try:
            pod = await self.cluster.annotate_pod(namespace, action.name, uid=action.uid, annotations=wanted)
        except (NotFound, Conflict):
            return Done.QUIET
        self.cache.put_pod(pod, wake=False)
        return Done.QUIET

    async def _record(self, action: RecordStop, sight: Sight) -> Done:
        resource = sight.observation.resource
        entry = entry_of(resource, action.stop, action.grace_seconds, action.task_id)
        if not await self.ledger.record(entry):
            return Done.LATER
        if action.stop.finished_at is None:
            return Done.QUIET
        stops = tuple(
            s.model_copy(update={"recorded": True}) if s.instance == action.stop.instance else s
            for s in sight.status.stops
        )
        return await self._write(sight.status.model_copy(update={"stops": stops}), sight)


async def _mark(action: MarkRow, sight: Sight) -> Done:
    if sight.table is None:
        return Done.QUIET
    try:
        await sight.table.request_agent_stop(action.instance_id)
    except DatabaseUnavailable:
        return Done.LATER
    return Done.QUIET


def _owned_by(pod: Json, resource: AgentProcess) -> bool:
    owners: list[dict[str, Any]] = (pod.get("metadata") or {}).get("ownerReferences") or []
    return any(o.get("controller") is True and o.get("uid") == resource.uid for o in owners)


def _rejected(sight: Sight, kept: Recollection, message: str, *, namespace_terminating: bool = False) -> Done:
    resource, before = sight.observation.resource, kept.memory.rejection
    generation = resource.metadata.generation
    attempts = before.attempts + 1 if before is not None and before.generation == generation else 1
    wait = min(REJECTION_LONGEST, REJECTION_FIRST * 2 ** min(attempts - 1, 10))
    rejection = Rejection(
        generation=generation,
        message=message[:1000],
        attempts=attempts,
        retry_at=sight.observation.clock + wait,
        namespace_terminating=namespace_terminating,
    )
    kept.memory = replace(kept.memory, rejection=rejection)
    return Done.STALE
