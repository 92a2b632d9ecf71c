"""What the deadline makes of every record, in each phase."""

import pytest
from tests.support.adoption import row

from tenure.model.adoption import AdoptionReason, NotRetracked, StopReason
from tenure.plan.adoption.correlation import Stop
from tenure.plan.adoption.deadline import (
    Elapsed,
    GuardFate,
    Phase,
    Progress,
    Standing,
    at_deadline,
    late,
    may_publish,
)
from tenure.plan.adoption.gates import Deadline, verdict_of

ELAPSED = NotRetracked.DEADLINE_ELAPSED


def elapsed(progress: Progress, phase: Phase = Phase.DECIDING, *instances: str) -> Elapsed:
    """What becomes of the record of ``s1``."""
    (found,) = at_deadline(phase, (Standing(row(), progress, instances),))
    return found


@pytest.mark.parametrize("phase", [Phase.ADOPTING, Phase.ENUMERATING])
def test_while_nothing_was_enumerated_every_record_is_not_re_tracked_and_nothing_is_stopped(
    phase: Phase,
) -> None:
    found = elapsed(Progress.UNDECIDED, phase)
    assert found == Elapsed(row(), ELAPSED, (), GuardFate.RELEASED)
    assert elapsed(Progress.UNDECIDED, phase, "seen-by-mistake").stops == ()


def test_a_record_without_an_outcome_is_not_re_tracked_and_its_instance_is_stopped() -> None:
    found = elapsed(Progress.UNDECIDED, Phase.DECIDING, "instance-of-s1")
    stops = (Stop("instance-of-s1", StopReason.DEADLINE_ELAPSED),)
    assert found == Elapsed(row(), ELAPSED, stops, GuardFate.UNTIL_STOPPED)
    assert found.counted


def test_a_record_without_an_instance_releases_its_guard() -> None:
    assert elapsed(Progress.UNDECIDED).guard is GuardFate.RELEASED


def test_a_stop_in_flight_goes_on_and_keeps_the_guard_until_it_has_ended() -> None:
    found = elapsed(Progress.STOPPING, Phase.DECIDING, "winner")
    assert (found.why, found.guard) == (ELAPSED, GuardFate.UNTIL_STOPPED)
    assert found.stops == (Stop("winner", StopReason.DEADLINE_ELAPSED),)


def test_a_stop_that_has_failed_keeps_the_guard_for_good() -> None:
    found = elapsed(Progress.STOP_FAILED, Phase.DECIDING, "winner")
    assert (found.guard, found.counted) == (GuardFate.FOR_GOOD, False)
    assert found.stops == (Stop("winner", StopReason.DEADLINE_ELAPSED),)


@pytest.mark.parametrize("progress", [Progress.PUBLISHED, Progress.NOT_RETRACKED])
def test_what_was_decided_in_time_stays_decided(progress: Progress) -> None:
    assert elapsed(progress, Phase.DECIDING, "instance-of-s1") == Elapsed(row(), None)


def test_every_record_gets_an_outcome_of_its_own() -> None:
    standings = tuple(Standing(row(f"s{n}"), progress, (f"i{n}",)) for n, progress in enumerate(Progress))
    together = at_deadline(Phase.DECIDING, standings)
    assert together == tuple(at_deadline(Phase.DECIDING, (one,))[0] for one in standings)


def test_a_re_tracking_that_finishes_late_publishes_nothing() -> None:
    assert may_publish(Deadline.RUNNING)
    assert may_publish(Deadline.NOT_STARTED)
    assert not may_publish(Deadline.ELAPSED)


@pytest.mark.parametrize("reason", AdoptionReason)
def test_an_adoption_that_finishes_late_makes_the_server_ours_and_any_other_end_begins_a_fresh_one(
    reason: AdoptionReason,
) -> None:
    assert late(verdict_of(reason)).ours is (reason is AdoptionReason.NONE)
