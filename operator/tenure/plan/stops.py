"""Who asks a living instance to stop, and what the operator then has to do about it."""

from datetime import datetime

from tenure.model.pods import PodView
from tenure.model.reasons import DesiredState, HungPolicy, StopOrigin
from tenure.model.resources import AgentProcess
from tenure.model.status import InstanceStatus, StopStatus
from tenure.plan.actions import Action, DeletePod, MarkRow
from tenure.plan.rows import RowVerdict


def asked_by(
    resource: AgentProcess, template_hash: str, instance: InstanceStatus, row: RowVerdict, *, hung: bool
) -> StopOrigin | None:
    """Who asks for a stop of this instance now, the first that applies; disruptions are the pod's to tell."""
    if resource.deleting:
        return StopOrigin.DELETION
    if resource.spec.desired_state is DesiredState.STOP_REQUESTED:
        return StopOrigin.RESOURCE
    # A pod that does not say from which template it was made is not replaced on a guess.
    known = instance.template_hash is not None
    changed = (
        known and instance.template_hash != template_hash
    ) or instance.restart_token != resource.spec.restart_token
    if changed or (hung and resource.spec.hung.policy is HungPolicy.RESTART):
        return StopOrigin.REPLACEMENT
    return StopOrigin.TABLE if row.marked else None


def next_stop(
    stop: StopStatus | None, asked: StopOrigin | None, pod: PodView, row: RowVerdict, now: datetime
) -> StopStatus | None:
    """The stop of this instance as status has to show it; ``stop`` is the one recorded for it, if any.

    The first origin stays, so that the operator's own mark in the row is never taken for somebody else's. Under a
    disruption the operator marks nothing, so there a mark is somebody's.
    """
    disrupted = pod.terminating or pod.disrupted
    if stop is None:
        origin = asked or (StopOrigin.DISRUPTION if disrupted else None)
        if origin is None:
            return None
        since = pod.terminating_since if origin is StopOrigin.DISRUPTION else None
        return StopStatus(instance=pod.uid, origin=origin, requested_at=since or now)
    if stop.origin is not StopOrigin.DISRUPTION:
        return stop
    if row.marked:
        return stop.model_copy(update={"origin": StopOrigin.TABLE})
    if not pod.terminating and asked is not None:
        return stop.model_copy(update={"origin": asked})
    # An eviction that was announced and then called off: the agent just goes on.
    return stop if disrupted else None


def stop_actions(resource: AgentProcess, stop: StopStatus, pod: PodView, row: RowVerdict) -> list[Action]:
    """The second and third write of a stop, as far as they are not done yet."""
    if stop.origin is StopOrigin.DISRUPTION:
        return []
    actions: list[Action] = []
    # Whoever deletes the object gets the grace that the pod was made with, as with background deletion.
    grace = None if stop.origin is StopOrigin.DELETION else resource.spec.drain.grace_period_seconds
    shorter = grace is not None and pod.grace_seconds is not None and grace < pod.grace_seconds
    if not pod.terminating or shorter:
        actions.append(DeletePod(name=pod.name, uid=pod.uid, grace_seconds=grace))
    if row.row is not None and not row.marked and not row.epoch:
        actions.append(MarkRow(instance_id=row.row.instance_id))
    return actions
