"""Claim arithmetic: elapsed time, the rules of the unowned period, and how often an owner renews."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.protocol import claims
from tenure.protocol.claims import PeriodChange, PeriodReason, Renewal, UnownedPeriod, effective_period
from tenure.protocol.messages import adjustments_of

MINUTE = 60_000
PERIODS = st.integers(1, 10**9)


def test_a_claim_expires_when_the_whole_period_has_passed_and_not_a_moment_before() -> None:
    claim = claims.started(10_000, now=100.0)
    assert not claims.expired(claim, 109.999)
    assert claims.expired(claim, 110.0)
    assert claims.expired(claim, 500.0)
    assert (claims.left(claim, 104.0), claims.left(claim, 500.0)) == (6.0, 0.0)


@pytest.mark.parametrize("by", list(Renewal))
def test_each_of_the_three_renewals_starts_the_period_anew(by: Renewal) -> None:
    claim = claims.renewed(claims.started(10_000, now=0.0), by, 9.0)
    assert not claims.expired(claim, 18.9)
    assert claims.expired(claim, 19.0)


def test_a_renewal_that_is_noted_late_does_not_shorten_a_claim() -> None:
    claim = claims.renewed(claims.started(10_000, now=0.0), Renewal.CLAIM, 9.0)
    assert claims.renewed(claim, Renewal.ROTATION, 5.0) == claim


def test_the_unowned_period_is_ten_minutes_by_default() -> None:
    assert effective_period(idle_timeout_ms=30 * MINUTE) == UnownedPeriod(10 * MINUTE)


def test_a_period_that_is_not_shorter_than_the_idle_timeout_becomes_half_of_it_and_is_told() -> None:
    for idle in (10 * MINUTE, 4 * MINUTE):
        period = effective_period(idle)
        assert period.ms == idle // 2
        assert period.changes == (PeriodChange(PeriodReason.IDLE_TIMEOUT, 10 * MINUTE, idle // 2),)
    assert effective_period(10 * MINUTE + 1).ms == 10 * MINUTE


@pytest.mark.accept("O-003.6")
def test_an_idle_timeout_of_0_lets_the_period_stand() -> None:
    for asked in (MINUTE, 10 * MINUTE, 10_000 * MINUTE):
        assert effective_period(0, asked) == UnownedPeriod(asked)


@pytest.mark.accept("O-003.7")
def test_the_floor_of_one_minute_comes_last_and_wins_over_the_idle_timeout() -> None:
    assert effective_period(MINUTE) == UnownedPeriod(
        MINUTE,
        (
            PeriodChange(PeriodReason.IDLE_TIMEOUT, 10 * MINUTE, MINUTE // 2),
            PeriodChange(PeriodReason.FLOOR, MINUTE // 2, MINUTE),
        ),
    )
    assert effective_period(0, 1) == UnownedPeriod(MINUTE, (PeriodChange(PeriodReason.FLOOR, 1, MINUTE),))
    assert effective_period(1, 10**9).ms == MINUTE


@given(st.integers(0, 10**8), PERIODS)
def test_a_period_is_never_below_a_minute_and_below_the_idle_timeout_wherever_the_floor_allows(
    idle: int, asked: int
) -> None:
    period = effective_period(idle, asked)
    assert period.ms >= MINUTE
    assert period.ms <= max(asked, MINUTE)
    assert idle == 0 or period.ms < idle or period.ms == MINUTE
    assert (period.ms == asked) == (not period.changes)


@pytest.mark.parametrize(("idle", "asked"), [(-1, MINUTE), (0, 0), (0, -5)])
def test_a_negative_timeout_or_an_empty_period_is_refused(idle: int, asked: int) -> None:
    with pytest.raises(ValueError, match="milliseconds"):
        effective_period(idle, asked)


def test_changes_of_the_period_are_told_in_details() -> None:
    told = adjustments_of(effective_period(MINUTE))
    assert [(one.setting, one.requested_ms, one.effective_ms, one.reason) for one in told] == [
        ("unowned_period", 10 * MINUTE, MINUTE // 2, "not_shorter_than_idle_timeout"),
        ("unowned_period", MINUTE // 2, MINUTE, "below_floor"),
    ]


@given(PERIODS)
def test_an_owner_renews_more_often_than_three_times_in_a_period(period_ms: int) -> None:
    assert 0 < claims.renewal_interval(period_ms) * 3 < period_ms / 1000
    assert 0 < claims.renewal_timeout(period_ms) < claims.renewal_interval(period_ms)


@given(PERIODS, st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_two_renewals_that_fail_after_any_wait_leave_the_third_in_time(
    period_ms: int, first: float, second: float, third: float
) -> None:
    limit = claims.renewal_timeout(period_ms)
    began = 0.0
    claim = claims.renewed(claims.started(period_ms, began), Renewal.CLAIM, began)
    for wait in (first, second):
        began = max(claims.next_renewal(began, period_ms), began + wait * limit)
        assert not claims.expired(claim, began + limit)
    began = max(claims.next_renewal(began, period_ms), began)
    assert not claims.expired(claim, began + third * limit), "the third arrived too late"
