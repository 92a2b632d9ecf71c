"""Whatever happens, in whatever order, with the operator dying anywhere: the promises hold."""

from hypothesis import given
from hypothesis import strategies as st

from tenure.model.reasons import DesiredState, LivenessMode, Phase, StopOrigin
from tests.properties.story import ADVANCES, HAPPENINGS, SPECS, Event, Story, story

EVENTS = st.one_of(
    st.sampled_from(ADVANCES).map(lambda seconds: ("wait", seconds)),
    st.integers(0, len(SPECS) - 1).map(lambda index: ("spec", index)),
    st.sampled_from(HAPPENINGS).map(lambda name: (name,)),
)
LAST = st.sampled_from(((), (), (), (("delete",),)))
STORIES = st.tuples(st.lists(EVENTS, max_size=14), LAST).map(lambda both: [("wait", 4.0), *both[0], *both[1]])
CRASHES = st.dictionaries(
    st.integers(0, 25), st.sampled_from(("crash before", "crash after", "no answer", "conflict")), min_size=1
)
FAULTS = st.dictionaries(
    st.integers(0, 25),
    st.sampled_from(("crash before", "crash after", "conflict", "lost", "no answer")),
    max_size=4,
)


def comes_to_rest(told: Story) -> None:
    """What must be true when nothing is broken any more and every wait is over."""
    world = told.world
    status, spec = world.resource.status, world.resource.spec
    unended = [pod for pod in world.pods.values() if not pod.ended]
    assert len(unended) <= 1
    assert all(stop.recorded and stop.instance in world.ledger for stop in status.stops)
    nothing_changes_by_time_alone(told)
    if world.resource.deleting:
        assert not unended, "an agent outlived its object"
        return
    if spec.desired_state is DesiredState.STOP_REQUESTED:
        assert not unended, "a stop asked for was lost"
        assert status.phase is Phase.STOPPED
        assert status.stop is None or status.stop.origin is StopOrigin.RESOURCE
    if unended:
        assert status.instance is not None
        assert status.instance.id == unended[0].uid
        assert status.phase is Phase.RUNNING
        table = spec.liveness.mode is LivenessMode.TABLE
        assert not (table and unended[0].marked_by_people), "a stop asked for through the table was lost"


def nothing_changes_by_time_alone(told: Story) -> None:
    """Neither a quarter of an hour nor another operator makes a difference to what is at rest."""
    before = told.world.writes
    told.wait(900)
    told.operator.restart()
    told.operator.run()
    assert told.world.writes == before


@given(STORIES, FAULTS)
def test_whatever_happens_every_promise_holds_and_the_end_is_at_rest(
    events: list[Event], faults: dict[int, str]
) -> None:
    comes_to_rest(story(faults).tell(events).calm())


def without(*names: str) -> st.SearchStrategy[list[Event]]:
    """Stories in which these things do not happen."""
    return STORIES.map(lambda events: [event for event in events if event[0] not in names])


def outcome(told: Story) -> tuple[object, ...]:
    """What a user sees in the end."""
    status = told.world.resource.status
    stop = status.stop
    return (
        status.phase,
        [pod.uid.split("-")[2] for pod in told.world.pods.values() if not pod.ended],
        (stop.origin, stop.graceful, stop.exit_code, stop.requested_at, stop.finished_at) if stop else None,
        [(record.origin, record.graceful, record.exit_code) for record in status.stops],
        status.restarts,
        [(c.type, c.status, c.reason) for c in status.conditions],
    )


# Patience with a silent agent begins anew with each operator, on purpose.
@given(without("hang", "operator", "unreachable"), CRASHES)
def test_an_operator_that_dies_anywhere_ends_where_one_that_lives_does(
    events: list[Event], crashes: dict[int, str]
) -> None:
    assert outcome(story(crashes).tell(events).calm()) == outcome(story().tell(events).calm())
