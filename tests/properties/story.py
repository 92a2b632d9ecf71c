"""What can happen to an AgentProcess, as data, and the telling of it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tests.properties.operator import Operator
from tests.properties.world import World
from tests.support.builders import changed, deleting, template

Event = tuple[Any, ...]

SPECS: tuple[dict[str, Any], ...] = (
    {"desired_state": "Running"},
    {"desired_state": "StopRequested"},
    {"template": template("worker:1")},
    {"template": template("worker:2")},
    {"restart_token": "a"},
    {"restart_token": "b"},
    {"on_external_stop": "Stay"},
    {"on_external_stop": "Restart"},
    {"restart_policy": "Always"},
    {"restart_policy": "Never"},
    {"restart_policy": "OnFailure"},
    {"hung": {"policy": "Restart"}},
    {"hung": {"policy": "Report"}},
    {"drain": {"gracePeriodSeconds": 20}},
    {"drain": {"gracePeriodSeconds": 600}},
    {"liveness": {"mode": "Pod"}},
    {"liveness": {"mode": "Table"}},
)
ADVANCES = (1.0, 4.0, 35.0, 100.0, 400.0, 700.0)
HAPPENINGS = (
    "crash",
    "finish",
    "mark",
    "unmark",
    "kubectl delete",
    "force delete",
    "evict",
    "announce",
    "call off",
    "database",
    "hang",
    "deaf",
    "task",
    "unreachable",
    "refuse",
    "land",
    "operator",
)


@dataclass
class Story:
    """One run of a list of events."""

    world: World
    operator: Operator
    operator_up: bool = True

    def tell(self, events: list[Event]) -> "Story":
        """Let them happen, one after the other, the operator looking after each."""
        self.operator.run()
        for event in events:
            self._happen(event)
            self.operator.run()
        return self

    def calm(self, seconds: float = 1500.0) -> "Story":
        """Heal whatever is broken, and wait until every drain, back-off and patience is over."""
        world = self.world
        while world.pending_creates:
            self._happen(("land",))
        if not world.database_up:
            self._happen(("database",))
        world.hanging = world.deaf = world.refusing = False
        for pod in world.pods.values():
            pod.unreachable = False
            if pod.deleted is None:
                pod.disrupted = ""
        self.operator.run()
        self.wait(seconds)
        return self

    def wait(self, seconds: float) -> None:
        """Let time pass; the operator is woken when it asked for it, and by what happens."""
        self.world.advance(seconds, lambda: self.operator.wake_at, self.operator.run)

    def _happen(self, event: Event) -> None:
        world = self.world
        match event:
            case ("wait", seconds):
                self.wait(seconds)
            case ("spec", index):
                world.version += 1
                world.resource = changed(world.resource, **SPECS[index])
            case ("operator",):
                self.operator.restart()
            case ("database",):
                world.database_up = not world.database_up
                world.database_up_since = world.time
                world._beat()
            case ("hang",):
                world.hanging = not world.hanging
            case ("deaf",):
                world.deaf = not world.deaf
            case ("task",):
                world.task = None if world.task else 7
            case ("delete",):
                world.version += 1
                world.resource = deleting(world.resource)
            case ("refuse",):
                world.refusing = not world.refusing
            case ("land",):
                if world.pending_creates:
                    world._land(world.pending_creates.pop(0), late=True)
            case (name,):
                _HAPPENINGS_TO_PODS[name](world)


def _crash(world: World) -> None:
    pod = world.living()
    if pod is not None and pod.running and not pod.unreachable:
        world.end(pod, 1)


def _finish(world: World) -> None:
    pod = world.living()
    if pod is not None and pod.running and not pod.unreachable:
        world.end(pod, 0)


def _set_mark(world: World, marked: bool) -> None:
    pod = world.living()
    row = world.rows.get(pod.uid) if pod is not None else None
    if row is not None and pod is not None and world.database_up:
        row.marked = marked
        pod.marked_by_people = marked


def _kubectl_delete(world: World) -> None:
    pod = world.living()
    if pod is not None:
        world.delete_pod(pod, None)


def _force_delete(world: World) -> None:
    pod = world.living()
    if pod is not None:
        world.delete_pod(pod, 0)


def _evict(world: World) -> None:
    pod = world.living()
    if pod is not None:
        pod.disrupted = "EvictionByEvictionAPI"
        world.delete_pod(pod, None)


def _announce(world: World, disrupted: str) -> None:
    pod = world.living()
    if pod is not None and pod.deleted is None:
        pod.disrupted = disrupted


def _unreachable(world: World) -> None:
    pod = world.living()
    if pod is not None and pod.running:
        pod.unreachable = not pod.unreachable


_HAPPENINGS_TO_PODS: dict[str, Callable[[World], None]] = {
    "crash": _crash,
    "finish": _finish,
    "mark": lambda world: _set_mark(world, True),
    "unmark": lambda world: _set_mark(world, False),
    "kubectl delete": _kubectl_delete,
    "force delete": _force_delete,
    "evict": _evict,
    "announce": lambda world: _announce(world, "TaintManager"),
    "call off": lambda world: _announce(world, ""),
    "unreachable": _unreachable,
}


def story(faults: dict[int, str] | None = None, **world: Any) -> Story:
    """A new world and an operator in it."""
    made = World(faults=dict(faults or {}), **world)
    return Story(made, Operator(made))


__all__ = ["ADVANCES", "HAPPENINGS", "SPECS", "Event", "Story", "replace", "story"]
