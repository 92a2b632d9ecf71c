"""Which pods are an object's own, and which of them is its instance."""

from datetime import datetime

from tenure.model.ids import ordinal_of
from tenure.model.pods import PodView
from tenure.model.resources import AgentProcess
from tenure.model.status import InstanceStatus, Status
from tenure.plan.render import HASH_ANNOTATION, TOKEN_ANNOTATION


def ordinal(resource: AgentProcess, pod: PodView) -> int:
    """The pod's ordinal, or 0 for a pod that is not this very object's, or not named by its rules."""
    if pod.owner_uid != resource.uid:
        return 0
    return ordinal_of(pod.name, resource.name, resource.uid) or 0


def own_pods(resource: AgentProcess, pods: tuple[PodView, ...]) -> tuple[PodView, ...]:
    """The pods of this very object, in the order in which they were created."""
    mine = [pod for pod in pods if ordinal(resource, pod)]
    return tuple(sorted(mine, key=lambda pod: ordinal(resource, pod)))


def end_recorded(status: Status) -> bool:
    """Whether status says of its instance how it ended."""
    stop, instance = status.stop, status.instance
    if stop is None or instance is None:
        return False
    return stop.instance == instance.id and stop.finished_at is not None


def with_instance(resource: AgentProcess, own: tuple[PodView, ...], now: datetime) -> Status:
    """The status, with a pod that was created but not yet recorded taken as the instance.

    That is how a create becomes durable, whether the operator died after it or not.
    """
    status = resource.status
    recorded = status.instance.ordinal if status.instance is not None else 0
    known = status.instance.id if status.instance is not None else None
    if known and not end_recorded(status):
        # One after the other: what became of this one is recorded first, and beside it none may live.
        return status
    # A number given up for lost may still land: with no instance in its way, the pod is simply taken.
    new = [p for p in own if p.uid != known and (ordinal(resource, p) > recorded or not p.over)]
    if not new:
        return status
    newest = new[-1]
    instance = InstanceStatus(
        id=newest.uid,
        pod_name=newest.name,
        ordinal=max(recorded, ordinal(resource, newest)),
        started_at=newest.created_at or now,
        template_hash=newest.annotations[HASH_ANNOTATION][:64]
        if HASH_ANNOTATION in newest.annotations
        else None,
        restart_token=newest.annotations.get(TOKEN_ANNOTATION, resource.spec.restart_token)[:253],
    )
    return status.model_copy(update={"instance": instance, "stop": None, "current_task": None})
