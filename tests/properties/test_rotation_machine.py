"""Two owners, every operation, and answers that are lost, repeated and reordered: the promises of ownership hold."""

import os
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tenure.protocol.rotation import Operation
from tests.properties.owners import World

DEEP = os.environ.get("TENURE_HYPOTHESIS") == "search"
STEPS = 100_000 if DEEP else 10_000
WHICH = st.integers(0, 1)
PLACE = st.integers(0, 5)


class Ownership(RuleBasedStateMachine):
    """Hypothesis chooses what happens; ``World`` says what it does."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @rule(which=WHICH, stages=st.integers(1, 5))
    def hurry(self, which: int, stages: int) -> None:
        self.world.hurry(which, stages)

    @rule(which=WHICH)
    def act(self, which: int) -> None:
        self.world.act(which)

    @rule(which=WHICH)
    def crash(self, which: int) -> None:
        self.world.crash(which)

    @rule(place=PLACE, repeat=st.booleans())
    def deliver(self, place: int, repeat: bool) -> None:
        self.world.deliver(place, repeat)

    @rule(place=PLACE, repeat=st.booleans())
    def receive(self, place: int, repeat: bool) -> None:
        self.world.receive(place, repeat)

    @rule(place=PLACE, answers=st.booleans())
    def lose(self, place: int, answers: bool) -> None:
        self.world.lose(place, answers=answers)

    @rule(place=st.integers(0, 12), operation=st.sampled_from(Operation))
    def stranger(self, place: int, operation: Operation) -> None:
        self.world.stranger(place, operation)

    @rule(rotation_id=st.integers(-1, 4))
    def confused(self, rotation_id: int) -> None:
        self.world.confused(rotation_id)

    @rule(seconds=st.sampled_from((1.0, 15.0, 59.0)), order=st.booleans(), lost=st.integers(0, 2))
    def end(self, seconds: float, order: bool, lost: int) -> None:
        """Time passes, or somebody orders the end of a server; one that ended is followed by another."""
        if self.world.server.shutting_down:
            self.world.fresh_server(lost)
        elif order:
            self.world.shut_down(lost % 2)
        else:
            self.world.pass_time(seconds)

    @invariant()
    def promises(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        self.world.end_well()


@pytest.mark.accept("O-002.8")
class TestOwnership(Ownership.TestCase):
    """At most two acceptable credentials, one owner, increasing ids, and always a way back in."""

    settings = settings(max_examples=300 if DEEP else 60, stateful_step_count=60)


@pytest.mark.accept("O-002.8")
def test_a_long_life_of_a_server_keeps_every_promise_and_meets_every_situation() -> None:
    chance = random.Random(20)
    world = World()
    for step in range(STEPS):
        happen(world, chance)
        world.check()
        if step % 500 == 499:
            world.end_well()
            world.check()
    unseen = {what for what, times in world.seen.items() if times < 5}
    assert not unseen, f"the walk is too tame: {world.seen}"


def happen(world: World, chance: random.Random) -> None:
    """One thing happens; the likely ones are those that lead somewhere."""
    which, place, repeat = chance.randrange(2), chance.randrange(6), chance.random() < 0.2
    match chance.choices(range(10), (20, 3, 24, 22, 4, 6, 3, 3, 0.15, 8))[0]:
        case 0:
            world.act(which)
        case 1:
            world.crash(which)
        case 2:
            world.deliver(place, repeat)
        case 3:
            world.receive(place, repeat)
        case 4:
            world.lose(place, answers=repeat)
        case 5:
            world.stranger(chance.randrange(12), chance.choice(list(Operation)))
        case 6:
            world.confused(chance.randrange(-1, 9))
        case 7:
            world.pass_time(chance.choice((1.0, 15.0, 40.0)))
        case 8:
            world.shut_down(which)
        case _:
            if world.server.shutting_down:
                world.fresh_server(place % 3)
