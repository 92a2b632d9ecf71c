"""The operator's pass in small: observe, plan, act, with the same order and the same questions as the real one."""

from dataclasses import dataclass, field, replace

from tenure.model.ids import child_name, template_hash
from tenure.model.pods import PodView
from tenure.model.reasons import LivenessMode
from tenure.model.status import InstanceStatus
from tenure.plan.actions import Action, CreatePod, DeletePod, MarkRow, Protect, RecordStop, WriteStatus
from tenure.plan.agent_process import Verdict, plan_agent_process
from tenure.plan.instances import end_recorded, own_pods, with_instance
from tenure.plan.observation import Memory, NoTable, Observation, Rejection, Rows, RowsReading, Unreadable
from tenure.plan.render import EVICTION_ANNOTATIONS
from tests.properties.world import Conflict, NoAnswer, OperatorCrashed, World

LOOKS = 8


@dataclass
class Operator:
    """One lifetime of the operator."""

    world: World
    memory: Memory = field(default_factory=Memory)
    seen: dict[str, PodView] = field(default_factory=dict)
    """The last sight of each pod, by UID."""
    unsettled: bool = True
    wake_at: float | None = 0.0

    def restart(self) -> None:
        """Die, and be followed by one that remembers nothing."""
        self.memory, self.seen, self.unsettled = Memory(), {}, True
        self.world.judge.operator_since = self.world.time

    def run(self) -> None:
        """Passes, until one has come to rest; whatever fails is tried again."""
        for _ in range(40):
            try:
                self._pass()
            except OperatorCrashed:
                self.restart()
                continue
            except NoAnswer:
                continue
            leftover = [a for a in self.look().plan.actions if not isinstance(a, MarkRow | RecordStop)]
            assert not leftover, f"a plan that was carried out wants more: {leftover}"
            return
        raise AssertionError("the operator never comes to rest")

    def _pass(self) -> None:
        for _ in range(LOOKS + len(self.world.faults)):
            verdict = self.look()
            self.memory = verdict.memory
            self.wake_at = None
            if verdict.plan.wake_in is not None:
                assert verdict.plan.wake_in > 0
                # A little later, as clocks are: the limit is then certainly over.
                self.wake_at = self.world.time + verdict.plan.wake_in + 0.001
            if not self._carry_out(verdict.plan.actions):
                self._forget()
                return
        raise AssertionError(f"livelock: {verdict.plan.actions}")

    def look(self) -> Verdict:
        """One observation and its plan."""
        return plan_agent_process(self.observe())

    def observe(self) -> Observation:
        """A snapshot of the world."""
        world, resource = self.world, self.world.resource
        for pod in world.pods.values():
            if not pod.gone or pod.uid in self.seen:
                self.seen[pod.uid] = world.view(pod)
        pods = tuple(self.seen.values())
        status = with_instance(resource, own_pods(resource, pods), world.now)
        instance = status.instance
        known = instance is not None and bool(instance.id)
        pod_seen = self.seen.get(instance.id or "") if instance is not None else None
        vanished = known and not end_recorded(status) and pod_seen is None
        ended = known and not end_recorded(status) and (vanished or (pod_seen is not None and pod_seen.ended))
        reading = self._reading()
        return Observation(
            resource=resource,
            template_hash=template_hash(resource.spec.template),
            pods=pods,
            rows=reading,
            now=world.now,
            clock=world.clock,
            memory=self.memory,
            final_rows=reading if ended else None,
            vanished=vanished,
            ledger=world.database_up,
        )

    def _reading(self) -> RowsReading:
        world = self.world
        if world.resource.spec.liveness.mode is LivenessMode.POD:
            return NoTable()
        if not world.database_up:
            return Unreadable(since=world.clock, reason="down")
        return Rows(now=world.now, taken_at=world.clock, rows=world.records())

    def _carry_out(self, actions: tuple[Action, ...]) -> bool:
        again = False
        version = self.world.version
        for action in actions:
            try:
                again = self._do(action, version) or again
            except Conflict:
                return True
            if isinstance(action, WriteStatus):
                version = self.world.version
        return again

    def _do(self, action: Action, version: int) -> bool:
        world = self.world
        match action:
            case WriteStatus():
                world.write_status(action.status, version)
                return True
            case CreatePod():
                return self._create(action, version)
            case DeletePod():
                world.delete(action.uid, action.grace_seconds)
                return True
            case MarkRow():
                world.mark(action.instance_id)
            case Protect():
                world.annotate(action.uid, dict(EVICTION_ANNOTATIONS), action.on)
            case RecordStop() if action.stop.finished_at is None:
                return False
            case RecordStop():
                world.record_stop(action.stop.instance)
                stops = tuple(
                    s.model_copy(update={"recorded": True}) if s.instance == action.stop.instance else s
                    for s in world.resource.status.stops
                )
                world.write_status(world.resource.status.model_copy(update={"stops": stops}), version)
                return True
        return False

    def _create(self, action: CreatePod, version: int) -> bool:
        world, resource, ordinal = self.world, self.world.resource, action.ordinal
        if world.refusing:
            generation = resource.metadata.generation
            retry_at = world.clock + 60
            self.memory = replace(self.memory, rejection=Rejection(generation, "quota", 1, retry_at))
            return True
        name = child_name(resource.name, resource.uid, ordinal)
        found = next((p for p in world.pods.values() if p.name == name and not p.gone), None)
        if self.unsettled:
            if found is not None:
                self.unsettled = False
                return True
            instance = resource.status.instance or InstanceStatus()
            raised = instance.model_copy(update={"ordinal": ordinal})
            told = action.status or resource.status
            world.write_status(told.model_copy(update={"instance": raised}), version)
            self.unsettled = False
            return True
        if found is not None:
            self.unsettled = True
            return True
        try:
            world.create(ordinal)
        except NoAnswer:
            self.unsettled = True
            raise
        self.memory = replace(self.memory, rejection=None)
        return True

    def _forget(self) -> None:
        status = self.world.resource.status
        instance = status.instance
        unrecorded = instance.id if instance is not None and not end_recorded(status) else None
        for uid in [u for u, view in self.seen.items() if view.departed and u != unrecorded]:
            del self.seen[uid]
