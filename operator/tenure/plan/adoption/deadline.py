"""What the one deadline of recovery makes of every record, in whichever phase it elapses.

It decides each record's outcome and cancels nothing: an adoption, a rotation and the retries of a stop go on to their
end. What finishes late publishes nothing, because reconciliation has spoken by then.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from tenure.model.adoption import AdoptionOutcome, NotRetracked, StopReason
from tenure.plan.adoption.correlation import Stop
from tenure.plan.adoption.gates import Deadline, Verdict
from tenure.plan.adoption.guards import InventoryRow


class Phase(StrEnum):
    """How far recovery as a whole had come."""

    ADOPTING = "adopting"
    """No verdict yet, or a fresh server is being made."""
    ENUMERATING = "enumerating"
    """The server is ours; which instances it has is not known."""
    DECIDING = "deciding"
    """Enumerated and correlated."""


class Progress(StrEnum):
    """How far one record had come."""

    UNDECIDED = "undecided"
    STOPPING = "stopping"
    """A stop that its outcome needs is in flight."""
    STOP_FAILED = "stop_failed"
    NOT_RETRACKED = "not_retracked"
    """Decided, with nothing left to stop."""
    PUBLISHED = "published"


@dataclass(frozen=True, slots=True)
class Standing:
    """One record when the deadline elapses. ``instances``: the live instances of its session, as far as enumerated,
    that no stop has been sent to yet."""

    row: InventoryRow
    progress: Progress
    instances: tuple[str, ...] = ()


class GuardFate(StrEnum):
    """What becomes of the guard of a session."""

    RELEASED = "released"
    UNTIL_STOPPED = "until_stopped"
    """Kept until the stops in flight have ended."""
    FOR_GOOD = "for_good"
    """Kept for the incarnation's lifetime."""


@dataclass(frozen=True, slots=True)
class Elapsed:
    """What the deadline makes of one record. ``why`` None: it was decided in time, and stays so."""

    row: InventoryRow
    why: NotRetracked | None
    stops: tuple[Stop, ...] = ()
    guard: GuardFate = GuardFate.RELEASED

    @property
    def counted(self) -> bool:
        """Whether it counts as not re-tracked because the deadline elapsed."""
        return self.why is NotRetracked.DEADLINE_ELAPSED


def at_deadline(phase: Phase, standings: tuple[Standing, ...]) -> tuple[Elapsed, ...]:
    """An outcome for every record.

    Only what was enumerated is stopped: before that nobody knows what runs, and stopping what cannot be seen would
    destroy work.
    """
    return tuple(_elapsed(phase, standing) for standing in standings)


def _elapsed(phase: Phase, standing: Standing) -> Elapsed:
    row = standing.row
    match standing.progress:
        case Progress.PUBLISHED | Progress.NOT_RETRACKED:
            return Elapsed(row, None)
        case Progress.STOP_FAILED:
            # The winner of a loser that lives on: it goes, too.
            rest = _stops(phase, standing)
            return Elapsed(row, NotRetracked.DUPLICATE_UNSTOPPED, rest, GuardFate.FOR_GOOD)
        case Progress.STOPPING:
            # Its retries finish: only whether an agent is left running depends on them.
            rest = _stops(phase, standing)
            return Elapsed(row, NotRetracked.DEADLINE_ELAPSED, rest, GuardFate.UNTIL_STOPPED)
        case Progress.UNDECIDED:
            stops = _stops(phase, standing)
            guard = GuardFate.UNTIL_STOPPED if stops else GuardFate.RELEASED
            return Elapsed(row, NotRetracked.DEADLINE_ELAPSED, stops, guard)
    assert_never(standing.progress)


def _stops(phase: Phase, standing: Standing) -> tuple[Stop, ...]:
    if phase is not Phase.DECIDING:
        return ()
    return tuple(Stop(i, StopReason.DEADLINE_ELAPSED) for i in standing.instances)


def may_publish(deadline: Deadline) -> bool:
    """Whether a session that has just been rebuilt may be published. Asked in the same breath as publishing."""
    return deadline is not Deadline.ELAPSED


@dataclass(frozen=True, slots=True)
class LateAdoption:
    """What an adoption that finished after the deadline is good for.

    ``ours``: the server becomes ours, its instances are listed as untracked, and none is stopped or published; else a
    fresh server is begun now, and no sooner.
    """

    ours: bool


def late(verdict: Verdict) -> LateAdoption:
    """Judge an adoption that was in flight when the deadline elapsed."""
    return LateAdoption(ours=verdict.outcome is AdoptionOutcome.ADOPTED)
