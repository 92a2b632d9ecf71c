"""Retention: bounded, ordered, and never losing an event."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.protocol import retention
from tenure.protocol.retention import Offer, Retention


def offered(state: Retention[int], *events: int) -> Retention[int]:
    for event in events:
        state, answer = retention.offer(state, event)
        assert answer is Offer.TAKEN
    return state


def test_a_hundred_events_are_kept_by_default_and_the_next_one_pauses() -> None:
    state = offered(Retention(), *range(100))
    assert state.full
    after, answer = retention.offer(state, 100)
    assert (after, answer) == (state, Offer.PAUSE)


@pytest.mark.parametrize("limit", [0, -1, 10_001])
def test_a_limit_outside_of_1_to_10000_is_refused_with_a_sentence(limit: int) -> None:
    with pytest.raises(ValueError, match="from 1 to 10,000"):
        retention.check_limit(limit)
    with pytest.raises(ValueError, match="from 1 to 10,000"):
        Retention[int](limit)


def test_the_smallest_and_the_largest_limit_are_allowed() -> None:
    assert [retention.check_limit(limit) for limit in (1, 10_000)] == [1, 10_000]


def test_production_goes_on_when_somebody_takes_an_event() -> None:
    state = offered(Retention(2), 1, 2)
    assert retention.offer(state, 3)[1] is Offer.PAUSE
    assert offered(retention.delivered(state), 3).waiting == (2, 3)


def test_what_a_broken_stream_did_not_take_waits_for_the_next_one() -> None:
    state = retention.delivered(offered(Retention(5), 1, 2, 3), 1)
    assert state.waiting == (2, 3)
    with pytest.raises(ValueError, match="no more"):
        retention.delivered(state, 3)


def test_stopping_releases_whoever_waits_and_whoever_comes_later() -> None:
    full = offered(Retention(1), 1)
    stopped = retention.stopped(full)
    assert retention.offer(stopped, 2) == (stopped, Offer.RELEASED)
    assert retention.offer(retention.delivered(stopped), 3)[1] is Offer.RELEASED
    assert stopped.waiting == (1,)


@given(st.integers(1, 8), st.lists(st.booleans(), max_size=80))
def test_every_event_comes_out_once_and_in_order_whatever_the_pace(limit: int, steps: list[bool]) -> None:
    state: Retention[int] = Retention(limit)
    produced, out = 0, []
    for produce in steps:
        if produce:
            state, answer = retention.offer(state, produced)
            assert (answer is Offer.PAUSE) == (produced - len(out) == limit)
            produced += answer is Offer.TAKEN
        elif state.waiting:
            out.append(state.waiting[0])
            state = retention.delivered(state)
        assert len(state.waiting) <= limit
    assert out + list(state.waiting) == list(range(produced))


def test_the_five_seconds_of_an_announcement_run_only_while_attached() -> None:
    waiting = retention.announce(0.0, attached=True)
    assert retention.seconds_left(waiting, 2.0) == 3.0
    waiting = retention.detached(waiting, 2.0)
    assert retention.seconds_left(waiting, 1e9) is None
    waiting = retention.attached(retention.detached(waiting, 1e9), 1e9)
    assert retention.seconds_left(waiting, 1e9 + 1) == 2.0
    waiting = retention.attached(waiting, 1e9 + 2)
    assert retention.seconds_left(waiting, 1e9 + 3) == 0.0


def test_an_announcement_that_begins_detached_waits_without_limit() -> None:
    waiting = retention.announce(0.0, attached=False)
    assert retention.seconds_left(waiting, 1e6) is None
    assert retention.seconds_left(retention.attached(waiting, 1e6), 1e6) == 5.0
