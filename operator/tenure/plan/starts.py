"""Whether a new instance is due, and what it still waits for."""

from dataclasses import dataclass
from typing import assert_never

from tenure.model.ids import ordinal_of
from tenure.model.pods import PodView
from tenure.model.reasons import DesiredState, OnExternalStop, StopOrigin
from tenure.model.resources import AgentProcess
from tenure.model.status import Status
from tenure.plan.ends import will_restart
from tenure.plan.observation import Observation


@dataclass(frozen=True, slots=True)
class StartVerdict:
    """``due``: an instance is wanted. ``ordinal``: it may be created now, under this number. ``waiting``: for what."""

    due: bool = False
    ordinal: int | None = None
    waiting: str = ""
    backing_off: bool = False
    retry_in: float | None = None


def judge_start(observation: Observation, status: Status) -> StartVerdict:
    """Only for an object whose last instance, if there was one, has ended and is recorded so."""
    resource = observation.resource
    if not wanted(resource, status):
        return StartVerdict()
    rejection = observation.memory.rejection
    if rejection is not None and rejection.namespace_terminating:
        return StartVerdict()
    lingering = [pod for pod in observation.pods if not pod.over]
    if lingering:
        return StartVerdict(due=True, waiting=f"pod {lingering[0].name} has not ended yet")
    left = _backoff_left(observation, status)
    if left > 0:
        return StartVerdict(due=True, waiting="backing off", backing_off=True, retry_in=left)
    if rejection is not None and rejection.generation == resource.metadata.generation:
        left = rejection.retry_at - observation.clock
        if left > 0:
            return StartVerdict(due=True, waiting="the API server refused the pod", retry_in=left)
    return StartVerdict(due=True, ordinal=next_ordinal(resource, status, observation.pods))


def _backoff_left(observation: Observation, status: Status) -> float:
    """Seconds. A wait longer than any that is ever written comes of a clock that was set, or of an edited status: it
    would hold the agent down for as long as the clock was wrong."""
    if status.backoff is None or status.backoff.until is None:
        return 0.0
    left = (status.backoff.until - observation.now).total_seconds()
    return left if left <= observation.resource.spec.backoff.max_seconds else 0.0


def wanted(resource: AgentProcess, status: Status) -> bool:
    """Whether the desired state and the way the last instance ended call for another one."""
    if resource.deleting or resource.spec.desired_state is not DesiredState.RUNNING:
        return False
    if status.instance is None or not status.instance.id or status.stop is None:
        return True
    if status.instance.restart_token != resource.spec.restart_token:
        return True
    origin = status.stop.origin
    match origin:
        case StopOrigin.RESOURCE | StopOrigin.REPLACEMENT | StopOrigin.DISRUPTION:
            return True
        case StopOrigin.TABLE:
            return resource.spec.on_external_stop is OnExternalStop.RESTART
        case StopOrigin.DELETION:
            return False
        case None:
            return will_restart(resource.spec.restart_policy, status.stop.exit_code)
    assert_never(origin)


def next_ordinal(resource: AgentProcess, status: Status, pods: tuple[PodView, ...]) -> int:
    """One more than every ordinal that status or a pod of this object shows: no name recurs."""
    seen = (ordinal_of(pod.name, resource.name, resource.uid) or 0 for pod in pods)
    recorded = status.instance.ordinal if status.instance is not None else 0
    return 1 + max(recorded, *seen, 0)
