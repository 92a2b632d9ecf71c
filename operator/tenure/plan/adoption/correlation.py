"""Which instance is which session's: by the session identity that the server itself reports, and by nothing else.

``correlate`` decides about all sessions at once, each for itself; ``settle`` says what the stops that follow amount to.
Every live instance is either tracked or stopped, unless its session's fate is not ours to decide.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from tenure.model.adoption import NotRetracked, StopReason
from tenure.plan.adoption.guards import InventoryRow

ENDED = "stopped"
"""The status of an instance whose agent has ended; it stays readable until it is deleted."""


@dataclass(frozen=True, slots=True)
class Seen:
    """An enumerated instance, as far as correlation goes: no environment, no command."""

    id: str
    session_id: str
    status: str

    @property
    def live(self) -> bool:
        """Whether its agent may be running. A status that this program does not know counts as running."""
        return self.status != ENDED


@dataclass(frozen=True, slots=True)
class Stop:
    """An instance to be stopped, and why."""

    instance: str
    why: StopReason


@dataclass(frozen=True, slots=True)
class Retrack:
    """One instance is the session's. ``losers`` are stopped first."""

    row: InventoryRow
    instance: str
    losers: tuple[Stop, ...] = ()


@dataclass(frozen=True, slots=True)
class LeaveToRepair:
    """The session has no instance that could be tracked; ``stops`` are those that could not be told apart, or may not
    be tracked. ``ended`` are instances without an agent, whose outcome may still be read before they are deleted."""

    row: InventoryRow
    why: NotRetracked
    stops: tuple[Stop, ...] = ()
    ended: tuple[str, ...] = ()


Decision = Retrack | LeaveToRepair


@dataclass(frozen=True, slots=True)
class Correlation:
    """A decision for each live row, and the instances that belong to none."""

    decisions: tuple[Decision, ...] = ()
    strays: tuple[Stop, ...] = ()
    ended_strays: tuple[str, ...] = ()
    """Without an agent and without a record: only deleted."""


def correlate(
    instances: tuple[Seen, ...],
    rows: tuple[InventoryRow, ...],
    server: frozenset[str],
    tracked: frozenset[str] = frozenset(),
) -> Correlation:
    """Decide about every live row of the inventory and every instance of one successful enumeration.

    ``rows`` are read after the enumeration: a launch writes its row before it makes its instance, so an instance
    without a row is one that nobody is launching. (Guards are taken from an earlier reading.) ``server`` holds the
    names under which rows know the server that was enumerated: its pod's UID, and its identity, which is all that the
    backend library knows. A row of another server is never matched here, for its own agent may be running there.
    ``tracked`` are sessions already in the execution store: they, and their instances, are left alone.
    """
    live = {row.session_id: row for row in rows if row.live}
    by_session: dict[str, list[Seen]] = {}
    for instance in instances:
        by_session.setdefault(instance.session_id, []).append(instance)
    decisions = tuple(
        _decide(row, tuple(by_session.get(row.session_id, ())), server)
        for row in rows
        if live.get(row.session_id) is row and row.session_id not in tracked
    )
    known = {i.session_id for i in instances if i.session_id in live or i.session_id in tracked}
    foreign = tuple(i for i in instances if i.session_id not in known)
    return Correlation(
        decisions=decisions,
        strays=tuple(Stop(i.id, StopReason.NO_RECORD) for i in foreign if i.live),
        ended_strays=tuple(i.id for i in foreign if not i.live),
    )


def _decide(row: InventoryRow, mine: tuple[Seen, ...], server: frozenset[str]) -> Decision:
    live = tuple(i.id for i in mine if i.live)
    ended = tuple(i.id for i in mine if not i.live)
    if row.passthrough is True:
        stops = tuple(Stop(i, StopReason.PASSTHROUGH) for i in live)
        return LeaveToRepair(row, NotRetracked.PASSTHROUGH, stops, ended)
    if row.unstopped:
        # Decided in this incarnation already, by an operator that died since. Another try to stop it can only help.
        stops = tuple(Stop(i, StopReason.DUPLICATE_UNSTOPPED) for i in live)
        return LeaveToRepair(row, NotRetracked.DUPLICATE_UNSTOPPED, stops, ended)
    if row.container_identity and row.container_identity not in server:
        # Whatever it is, it is not the execution on record.
        stops = tuple(Stop(i, StopReason.NO_RECORD) for i in live)
        return LeaveToRepair(row, NotRetracked.OTHER_SERVER, stops, ended)
    if not live:
        return LeaveToRepair(row, NotRetracked.NO_INSTANCE, (), ended)
    if len(live) == 1:
        return Retrack(row, live[0])
    matching = [i for i in live if i == row.agent_execution_id]
    if len(matching) != 1:
        stops = tuple(Stop(i, StopReason.AMBIGUOUS) for i in live)
        return LeaveToRepair(row, NotRetracked.AMBIGUOUS, stops, ended)
    losers = tuple(Stop(i, StopReason.DUPLICATE) for i in live if i != matching[0])
    return Retrack(row, matching[0], losers)


def to_drain(decisions: tuple[Decision, ...], gone: frozenset[str]) -> tuple[Retrack, ...]:
    """The sessions to be re-tracked only to be drained and stopped: a live read has shown that their AgentProcess
    (``gone``: UIDs) was deleted while nobody looked."""
    return tuple(d for d in decisions if isinstance(d, Retrack) and d.row.agent_process_uid in gone)


class StopResult(StrEnum):
    """What became of a stop, after its retries."""

    STOPPED = "stopped"
    """Or it was absent already."""
    FAILED = "failed"
    IN_FLIGHT = "in_flight"


@dataclass(frozen=True, slots=True)
class StopNow:
    """These have to be stopped before anything else is decided about the session."""

    stops: tuple[Stop, ...]


@dataclass(frozen=True, slots=True)
class Proceed:
    """The instance is the only one: reconstruct it."""

    row: InventoryRow
    instance: str


@dataclass(frozen=True, slots=True)
class Decided:
    """The session is not re-tracked, and nothing more is to be stopped for it.

    ``unstopped`` names instances that could not be stopped. With any of them the row is flagged and stays live: the
    session is guarded for this incarnation's lifetime, and launches are refused for good, because a launch would add
    an agent beside one that nobody could stop.
    """

    row: InventoryRow
    why: NotRetracked
    unstopped: tuple[str, ...] = ()

    @property
    def guarded_for_good(self) -> bool:
        """Whether the session stays refused as long as this incarnation lives."""
        return bool(self.unstopped) or self.row.unstopped


@dataclass(frozen=True, slots=True)
class Wait:
    """A stop is in flight: its retries finish, and until then the session keeps its guard."""

    row: InventoryRow


Settled = StopNow | Proceed | Decided | Wait


def settle(decision: Decision, results: Mapping[str, StopResult]) -> Settled:
    """What to do about a session, given what became of the stops so far (by instance).

    A winner is worth nothing beside a loser that lives on: its session would have two agents. It is stopped, too.
    """
    match decision:
        case Retrack(row, winner, losers):
            pending = _pending(losers, results)
            if pending is not None:
                return pending if pending.stops else Wait(row)
            if not _failed(losers, results):
                return Proceed(row, winner)
            both = (*losers, Stop(winner, StopReason.DUPLICATE_UNSTOPPED))
            return _after(row, NotRetracked.DUPLICATE_UNSTOPPED, both, results)
        case LeaveToRepair(row, why, stops):
            return _after(row, why, stops, results)
    assert_never(decision)


def given_up(row: InventoryRow, stop: Stop, why: NotRetracked, results: Mapping[str, StopResult]) -> Settled:
    """The same for a session whose only instance could not be tracked after all: it is stopped."""
    return _after(row, why, (stop,), results)


def _after(
    row: InventoryRow, why: NotRetracked, stops: tuple[Stop, ...], results: Mapping[str, StopResult]
) -> Settled:
    pending = _pending(stops, results)
    if pending is not None:
        return pending if pending.stops else Wait(row)
    return Decided(row, why, _failed(stops, results))


def _pending(stops: tuple[Stop, ...], results: Mapping[str, StopResult]) -> StopNow | None:
    """The stops that have not begun, none of them if all have, but some are in flight; None when all are over."""
    new = tuple(stop for stop in stops if stop.instance not in results)
    if new:
        return StopNow(new)
    if any(results[stop.instance] is StopResult.IN_FLIGHT for stop in stops):
        return StopNow(())
    return None


def _failed(stops: tuple[Stop, ...], results: Mapping[str, StopResult]) -> tuple[str, ...]:
    return tuple(stop.instance for stop in stops if results[stop.instance] is StopResult.FAILED)
