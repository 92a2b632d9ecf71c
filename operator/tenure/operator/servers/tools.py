"""What all deeds work with, and what a pass does after one."""

from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from tenure.cluster.server_ports import ServerCluster
from tenure.operator.clock import Clock
from tenure.operator.servers.attempts import Memory
from tenure.operator.servers.background import Background
from tenure.operator.servers.cache import ServerCache
from tenure.operator.servers.elsewhere import Elsewhere
from tenure.operator.servers.keeper import Keeper
from tenure.operator.servers.ports import Hooks, Recoverer, Recovering
from tenure.operator.servers.rendering import Rendering
from tenure.operator.servers.sight import Sight
from tenure.plan.adoption.state import PodPhase
from tenure.storage.records import Records


class Went(StrEnum):
    """What a pass does after a deed."""

    ON = "on"
    """Look again."""
    WAIT = "wait"
    """Nothing more now: something will wake the key, or the wait that the memory asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The same for every deed of one scope."""

    cluster: ServerCluster
    cache: ServerCache
    background: Background
    keeper: Keeper
    recoverer: Recoverer
    hooks: Hooks
    clock: Clock
    rendering: Rendering
    elsewhere: Elsewhere

    def recovering(self, sight: Sight, memory: Memory, about: str) -> Recovering:
        """What a deed of recovery is given."""
        assert sight.records is not None
        return Recovering(
            key=sight.key,
            resource=sight.resource,
            installation_id=sight.installation_id,
            incarnation=sight.state.owner.incarnation if sight.state.owner is not None else "",
            about=about,
            records=sight.records,
            server=sight.owned() if about in sight.pods else None,
            budget=sight.budget,
            deadline=lambda: memory.deadline(self.clock.monotonic()),
            present=frozenset(sight.pods),
            elsewhere=partial(self.elsewhere.look, sight.key, sight.installation_id, frozenset(sight.pods)),
            ended=frozenset(u for u, p in sight.pods.items() if p.plan.phase is PodPhase.ENDED),
        )

    def lose(self, sight: Sight, memory: Memory, incarnation: str) -> None:
        """A server that was ours has refused us as superseded."""
        if memory.attempt.incarnation == incarnation and not memory.attempt.lost:
            memory.learn(incarnation, lost=True)
            self.keeper.release(sight.key)
            self.hooks.ownership_lost(sight.key, sight.resource)


def records_of(sight: Sight) -> Records:
    """The store, which is there wherever a step was planned."""
    assert sight.records is not None, "without a durable store the plan is to do nothing"
    return sight.records


def incarnation_of(sight: Sight) -> str:
    """Whose turn it is, where the step is one that needs somebody."""
    assert sight.state.owner is not None, "without a backend no such step is planned"
    return sight.state.owner.incarnation
