"""What an instance's end was: who asked for it, whether it was graceful, and what it costs in waiting."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from tenure.model.pods import PodView
from tenure.model.reasons import RestartPolicy, StopOrigin
from tenure.model.resources import AgentProcess
from tenure.model.status import STOPS_KEPT, BackoffStatus, Status, StopRecord, StopStatus
from tenure.plan.rows import RowVerdict

FORCED = "the agent did not end within its grace period and was killed"
KILLED = 137
"""The exit code of a process that a kubelet killed (128 + SIGKILL)."""
HEALTHY_RUN = timedelta(minutes=10)
"""Running for this long starts the count of failures anew."""


LAST_WORD_SECONDS = 5.0
"""How long a pod that was found gone is waited for: its last state, with the exit code, is on its way by the watch."""


def last_word_in(pod: PodView, clock: float) -> float:
    """Seconds for which the watch may still tell how this pod's agent ended; 0: nothing more is to be expected."""
    if not pod.departed or pod.missed_at is None or pod.seen_over:
        return 0.0
    return max(0.0, LAST_WORD_SECONDS - (clock - pod.missed_at))


@dataclass(frozen=True, slots=True)
class End:
    """The evidence of an end. ``pod`` None: it vanished unseen, and only its row may tell more."""

    pod: PodView | None
    row: RowVerdict

    @property
    def exit_code(self) -> int | None:
        """The agent's exit code, if it is known."""
        if self.pod is None:
            return None
        if self.never_started and self.pod.phase != "Succeeded":
            return None
        if self.pod.agent.exit_code is None and self.pod.phase == "Succeeded":
            return 0
        return self.pod.agent.exit_code

    @property
    def never_started(self) -> bool:
        """The agent's process never ran."""
        if self.pod is None or self.pod.agent.started:
            return False
        # A kubelet that ends a pod before its containers says 137 for them, without a start and without an id.
        unborn = self.pod.agent.reason == "ContainerStatusUnknown" and not self.pod.agent.container_id
        return self.pod.phase in ("Pending", "") or (unborn and self.pod.terminating)


def forced(pod: PodView | None) -> bool:
    """Whether the kubelet killed the agent because its grace was over."""
    if pod is None or not pod.terminating or pod.agent.exit_code != KILLED:
        return False
    return pod.agent.reason not in ("OOMKilled", "ContainerStatusUnknown")


def graceful(end: End) -> bool | None:
    """The first that applies; None is Unknown."""
    if end.exit_code == 0 or end.never_started:
        return True
    if forced(end.pod):
        return False
    if end.row.epoch:
        return True
    return False if end.exit_code is not None else None


def origin_of_end(recorded: StopOrigin | None, end: End) -> StopOrigin | None:
    """Who asked, judged after the end. For a pod already ended only Table or Disruption may still be found out."""
    if recorded is not None and recorded is not StopOrigin.DISRUPTION:
        return recorded
    if end.row.marked:
        return StopOrigin.TABLE
    if recorded is StopOrigin.DISRUPTION or _disrupted(end.pod):
        return StopOrigin.DISRUPTION
    return None


def _disrupted(pod: PodView | None) -> bool:
    if pod is None or pod.disrupted:
        return True
    if not pod.agent.ended:
        return pod.departed
    finished, asked = pod.agent.finished_at, pod.terminating_since
    # The kubelet's times have whole seconds: an end within the second of the request belongs to the request.
    return (
        pod.terminating
        and asked is not None
        and (finished is None or finished >= asked.replace(microsecond=0))
    )


def record_end(resource: AgentProcess, status: Status, end: End, now: datetime) -> Status:
    """The status with the end, its count and its waiting in it: one durable fact, written in one patch."""
    instance = status.instance
    assert instance is not None, "only a recorded instance can end"
    stop = status.stop if status.stop is not None and status.stop.instance == instance.id else None
    origin = origin_of_end(stop.origin if stop else None, end)
    finished = (end.pod.agent.finished_at if end.pod else None) or now
    requested = stop.requested_at if stop else None
    if requested is not None:
        # The kubelet's times have whole seconds: an end is never before the request that it answers.
        finished = max(finished, requested)
    if requested is None and origin is not None:
        requested = (end.pod.terminating_since if end.pod else None) or finished
    done = StopStatus(
        instance=instance.id or "",
        origin=origin,
        requested_at=requested,
        finished_at=finished,
        graceful=graceful(end),
        exit_code=end.exit_code,
        message=_sentence(end, origin),
    )
    update: dict[str, object] = {"stop": done, "current_task": None}
    if origin is not None:
        kept = (*status.stops, StopRecord(**done.model_dump(by_alias=False)))[-STOPS_KEPT:]
        update |= {"stops": kept, "backoff": None}
    else:
        update |= _count(resource, status, end, finished, now)
    return status.model_copy(update=update)


def _count(
    resource: AgentProcess, status: Status, end: End, finished: datetime, now: datetime
) -> dict[str, object]:
    if not will_restart(resource.spec.restart_policy, end.exit_code):
        return {"backoff": None}
    started = (end.pod.agent.started_at if end.pod else None) or (
        status.instance.started_at if status.instance else None
    )
    healthy = started is not None and finished - started >= HEALTHY_RUN
    before = 0 if healthy or status.backoff is None else status.backoff.failures
    backoff = resource.spec.backoff
    # The exponent is bounded so that a year of failures does not compute a number with a million digits.
    wait = min(backoff.max_seconds, backoff.initial_seconds * 2 ** min(before, 20))
    return {
        "backoff": BackoffStatus(failures=before + 1, until=now + timedelta(seconds=wait)),
        "restarts": status.restarts + 1,
    }


def will_restart(policy: RestartPolicy, exit_code: int | None) -> bool:
    """Whether an end that nobody asked for is followed by a new instance."""
    return policy is RestartPolicy.ALWAYS or (policy is RestartPolicy.ON_FAILURE and exit_code != 0)


def _sentence(end: End, origin: StopOrigin | None) -> str:
    if end.pod is None:
        return "the pod was gone before anybody saw how the agent ended"
    agent = end.pod.agent
    if end.never_started:
        return "the agent never started"
    if forced(end.pod):
        return FORCED
    code = "an unknown exit code" if end.exit_code is None else f"exit code {end.exit_code}"
    why = f" ({agent.reason})" if agent.reason and agent.reason not in ("Completed", "Error") else ""
    lead = "the agent ended by itself" if origin is None else "the agent ended after it was asked to"
    text = f"{lead}, with {code}{why}"
    return f"{text}: {end.pod.disruption}" if origin is StopOrigin.DISRUPTION and end.pod.disruption else text
