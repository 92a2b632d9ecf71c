"""Whatever happens, in whatever order, with the operator dying anywhere: the promises hold."""

from hypothesis import given
from hypothesis import strategies as st

from tenure.model.reasons import DesiredState, Phase, StopOrigin
from tests.properties.story import ADVANCES, HAPPENINGS, SPECS, Event, Story, story

EVENTS = st.one_of(
    st.sampled_from(ADVANCES).map(lambda seconds: ("wait", seconds)),
    st.integers(0, len(SPECS) - 1).map(lambda index: ("spec", index)),
    st.sampled_from(HAPPENINGS).map(lambda name: (name,)),
)
STORIES = st.lists(EVENTS, max_size=14).map(lambda events: [("wait", 4.0), *events])
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
    if spec.desired_state is DesiredState.STOP_REQUESTED:
        assert not unended, "a stop asked for was lost"
        assert status.phase is Phase.STOPPED
        assert status.stop is None or status.stop.origin is StopOrigin.RESOURCE
    if unended:
        assert status.instance is not None
        assert status.instance.id == unended[0].uid
        assert status.phase is Phase.RUNNING
        assert not unended[0].marked_by_people, "a stop asked for through the table was lost"
    assert {stop.instance for stop in status.stops} <= world.ledger | {
        stop.instance for stop in status.stops if not stop.recorded
    }
    assert all(stop.recorded for stop in status.stops)


@given(STORIES, FAULTS)
def test_whatever_happens_every_promise_holds_and_the_end_is_at_rest(
    events: list[Event], faults: dict[int, str]
) -> None:
    comes_to_rest(story(faults).tell(events).calm())
