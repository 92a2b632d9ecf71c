"""Carrying from look to look what only elapsed time can tell: since when a row is expired, an agent idle."""

from dataclasses import replace

from tenure.model.pods import PodView
from tenure.plan.observation import Memory, Observation, Rows
from tenure.plan.rows import RowVerdict


def remember(observation: Observation, pod: PodView | None, row: RowVerdict) -> Memory:
    """The memory after this observation of the current instance.

    An unreadable reading, another instance or an operator's restart begins each count anew: an outage makes every
    row stale at once, and nobody may be judged by that.
    """
    memory, clock = observation.memory, observation.clock
    if pod is None or memory.instance != pod.uid:
        memory = Memory(instance=pod.uid if pod else "", rejection=memory.rejection)
    if pod is not None and memory.rejection is not None:
        # Whatever was refused, a pod is there now.
        memory = replace(memory, rejection=None)
    if pod is not None and pod.agent.running and memory.running_since is None:
        # By the kubelet's clock, so that an operator's restart does not make every silent agent start anew.
        ran = (observation.now - pod.agent.started_at).total_seconds() if pod.agent.started_at else 0.0
        memory = replace(memory, running_since=clock - max(0.0, ran))
    if not isinstance(observation.rows, Rows):
        return replace(memory, fresh_at=None, expired_since=None, idle_since=None)
    idle_since = None if row.busy else (clock if memory.idle_since is None else memory.idle_since)
    if row.row is None:
        return replace(memory, fresh_at=None, expired_since=None, idle_since=idle_since)
    if row.alive:
        return replace(memory, fresh_at=clock, expired_since=None, idle_since=idle_since)
    expired_since = clock if memory.expired_since is None else memory.expired_since
    return replace(memory, expired_since=expired_since, idle_since=idle_since)


def hung_in(observation: Observation, memory: Memory, row: RowVerdict) -> float | None:
    """Seconds until the running instance counts as hung if nothing is heard of it; 0 when it does; None: no matter."""
    if row.row is None or row.alive or memory.expired_since is None:
        return None
    patience = observation.resource.spec.hung.after_intervals * row.row.liveness_interval_s
    return max(0.0, patience - (observation.clock - memory.expired_since))
