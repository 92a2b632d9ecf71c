"""The invariants: what must hold of every single write, whoever crashed before it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tenure.model.ids import template_hash
from tenure.model.reasons import (
    ConditionReason,
    ConditionType,
    DesiredState,
    LivenessMode,
    OnExternalStop,
    RestartPolicy,
    StopOrigin,
)
from tenure.model.status import Status, StopStatus

if TYPE_CHECKING:
    from tests.properties.world import Pod, World


@dataclass
class Judge:
    """Raises ``AssertionError`` at the write that breaks an invariant."""

    names: set[str] = field(default_factory=set)
    status_writes: int = 0
    operator_since: float = 0.0

    def create(self, world: World, name: str, *, late: bool) -> None:
        """No name recurs, never two at once, and nothing starts that has been asked to stay stopped."""
        assert name not in self.names, f"{name} recurs"
        self.names.add(name)
        if late:
            return
        unended = [p.name for p in world.pods.values() if not p.ended]
        assert not unended, f"{name} is created beside {unended}"
        resource, stop = world.resource, world.resource.status.stop
        assert resource.spec.desired_state is DesiredState.RUNNING, "a start that nobody wants"
        assert not resource.deleting, "a start for an object that is being deleted"
        instance = resource.status.instance
        if stop is None or instance is None or instance.restart_token != resource.spec.restart_token:
            return
        assert stop.finished_at is not None, "a start before the last end was recorded"
        if stop.origin is StopOrigin.TABLE:
            assert resource.spec.on_external_stop is OnExternalStop.RESTART, "a table stop was undone"
        if stop.origin is None:
            policy = resource.spec.restart_policy
            assert policy is not RestartPolicy.NEVER
            assert stop.exit_code != 0 or policy is RestartPolicy.ALWAYS, (
                "a completed agent was started again"
            )
            until = resource.status.backoff.until if resource.status.backoff else None
            assert until is None or until <= world.now, "a start before the back-off was over"

    def delete(self, world: World, pod: Pod) -> None:
        """No agent is ended without a durable word about who asked for it."""
        if pod.ended:
            return
        status = world.resource.status
        another = status.instance is not None and status.instance.id not in (None, pod.uid)
        if another and (pod.late or any(p.late and not p.ended for p in world.pods.values())):
            return
        stop = status.stop
        assert stop is not None, f"{pod.name} is deleted without a recorded stop"
        assert stop.instance == pod.uid, f"{pod.name} is deleted without a recorded stop"
        assert stop.origin not in (None, StopOrigin.DISRUPTION), f"deleted for {stop.origin}"

    def mark(self, world: World, instance_id: str) -> None:
        """A row is marked only for a stop that is durable, and never for a disruption."""
        stop = world.resource.status.stop
        assert stop is not None, "a mark without a recorded stop"
        assert stop.instance == instance_id, "a mark without a recorded stop"
        assert stop.origin not in (None, StopOrigin.DISRUPTION), f"marked for {stop.origin}"

    def status(self, world: World, old: Status, new: Status) -> None:
        """What may change in a status."""
        self.status_writes += 1
        assert new != old, "a status was written that says nothing new"
        assert Status.model_validate(new.to_wire()) == new, "the status does not survive the API server"
        self._conditions(old, new)
        before = old.instance.ordinal if old.instance else 0
        assert new.instance is None or new.instance.ordinal >= before, "ordinals only grow"
        assert old.instance is None or new.instance is not None, "the instance was forgotten"
        assert new.restarts >= old.restarts
        if old.stop is not None and new.stop is not None and old.stop.instance == new.stop.instance:
            self._same_stop(world, old.stop, new.stop)
        self._end(world, old.stop, new.stop)
        if old.stop is not None and new.stop is None and new.instance == old.instance:
            assert old.stop.origin is StopOrigin.DISRUPTION, f"a stop by {old.stop.origin} was forgotten"
            assert old.stop.finished_at is None
        self._replacement(world, old, new)

    def _conditions(self, old: Status, new: Status) -> None:
        assert [c.type for c in new.conditions] == [str(t) for t in ConditionType]
        before = {c.type: c for c in old.conditions}
        for condition in new.conditions:
            assert condition.reason in set(ConditionReason)
            assert condition.message
            assert condition.observed_generation is not None
            known = before.get(condition.type)
            if known is not None and known.status is condition.status:
                assert known.last_transition_time == condition.last_transition_time

    def _same_stop(self, world: World, old: StopStatus, new: StopStatus) -> None:
        if old.finished_at is not None:
            assert new.finished_at == old.finished_at, "an end was recorded twice"
            assert (new.exit_code, new.graceful) == (old.exit_code, old.graceful)
        if new.origin is old.origin or old.origin is StopOrigin.DISRUPTION:
            return
        rewritten = new.origin is StopOrigin.RESOURCE and old.finished_at is not None
        wanted = world.resource.spec.desired_state is DesiredState.STOP_REQUESTED
        assert rewritten, f"the origin became {new.origin} after {old.origin}"
        assert wanted, "Resource was written though the resource asks for nothing"

    def _end(self, world: World, old: StopStatus | None, new: StopStatus | None) -> None:
        """What is said of an end is what somebody who saw everything would say."""
        known = old if old is not None and new is not None and old.instance == new.instance else None
        if new is None or new.finished_at is None or (known is not None and known.finished_at is not None):
            return
        pod = world.pods[new.instance]
        assert pod.ended, "an end was recorded of an agent that lives"
        assert new.exit_code in (pod.exit_code, None)
        assert new.graceful is not True or pod.exit_code in (0, None), "a kill was called graceful"
        deleted = pod.deleted is not None and (pod.finished is None or pod.deleted < pod.finished)
        table = world.resource.spec.liveness.mode is LivenessMode.TABLE
        row = world.rows.get(pod.uid)
        if deleted or pod.disrupted or (table and row is not None and row.marked):
            assert new.origin is not None, "an end that somebody asked for was recorded as a crash"
        elif known is None and not pod.gone:
            assert new.origin is None, f"nobody asked, and yet it was {new.origin}"

    def _replacement(self, world: World, old: Status, new: Status) -> None:
        """Nobody is replaced for a silence that an outage or a restart of the operator explains."""
        stop = new.stop
        if stop is None or stop.origin is not StopOrigin.REPLACEMENT or old.stop == stop:
            return
        if old.stop is not None and old.stop.origin is StopOrigin.REPLACEMENT:
            return
        spec, instance = world.resource.spec, new.instance
        assert instance is not None
        changed = instance.template_hash != template_hash(spec.template)
        if changed or instance.restart_token != spec.restart_token:
            return
        patience = spec.hung.after_intervals * 30
        known_since = max(world.database_up_since, self.operator_since)
        assert world.database_up, "judged as hung with the database down"
        assert world.time - known_since >= patience, "judged as hung before its time"
