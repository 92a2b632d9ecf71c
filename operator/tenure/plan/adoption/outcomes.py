"""The turn outcome of a surviving instance: what it means for the session, before the session is published.

An outcome is applied, then the session is published with the state that it produces, and only then, when both are
durable, is it acknowledged: whoever dies in between leaves an outcome that is still retained, and applying it again
changes nothing.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from tenure.model.adoption import NotRetracked, RecoveryRead, StopReason
from tenure.model.records import SESSION_OVER, SessionState, TurnState
from tenure.protocol.outcome import TurnOutcome


@dataclass(frozen=True, slots=True)
class Retained:
    """The server retains how a turn ended."""

    outcome: TurnOutcome


class OutcomeRead(StrEnum):
    """The other answers to a read of the slot."""

    NONE = "none"
    NO_INSTANCE = "no_instance"
    """404."""
    UNREADABLE = "unreadable"
    """No answer, or none that says which turn, after all retries."""


@dataclass(frozen=True, slots=True)
class KnownTurn:
    """A turn of the session on record; ``control_turn_id`` None: the server's number for it was never recorded."""

    id: int
    state: TurnState
    server_identity: str | None = None
    control_turn_id: int | None = None


@dataclass(frozen=True, slots=True)
class ApplyThenPublish:
    """Apply the outcome to ``turn`` (None: no turn on record is the one), publish the session in ``state``, make that
    durable, acknowledge ``control_turn_id``: in this order. ``bind``: record the server's number with it."""

    turn: int | None
    turn_state: TurnState
    state: SessionState
    control_turn_id: int
    bind: bool = False


@dataclass(frozen=True, slots=True)
class PublishAsItIs:
    """Publish it untouched: running stays running, open turns stay open."""


@dataclass(frozen=True, slots=True)
class AsWithoutInstance:
    """The instance has gone since it was enumerated: its record is left to repair."""

    why: NotRetracked = NotRetracked.NO_INSTANCE


@dataclass(frozen=True, slots=True)
class StopIt:
    """Neither running nor over can be said of it. A session that falsely runs is repaired by nothing, so it is stopped
    and not re-tracked. The read is counted as exhausted."""

    stop: StopReason = StopReason.OUTCOME_UNREADABLE
    why: NotRetracked = NotRetracked.OUTCOME_UNREADABLE
    read: RecoveryRead = RecoveryRead.TURN_OUTCOME


Publication = ApplyThenPublish | PublishAsItIs | AsWithoutInstance | StopIt


def judge_outcome(
    read: Retained | OutcomeRead,
    server_identity: str,
    session: SessionState,
    turns: tuple[KnownTurn, ...],
) -> Publication:
    """What a read of the slot means for its session, whose turns are all those on record."""
    if isinstance(read, Retained):
        return _apply(read.outcome, server_identity, session, turns)
    match read:
        case OutcomeRead.NONE:
            return PublishAsItIs()
        case OutcomeRead.NO_INSTANCE:
            return AsWithoutInstance()
        case OutcomeRead.UNREADABLE:
            return StopIt()
    assert_never(read)


def turn_state_of(outcome: TurnOutcome) -> TurnState:
    """How a turn with this outcome has ended."""
    if outcome.event.type != "complete":
        return TurnState.FAILED
    cancelled = outcome.event.fields.get("stop_reason") == "cancelled"
    return TurnState.CANCELLED if cancelled else TurnState.COMPLETED


def turn_of(
    outcome: TurnOutcome, server_identity: str, turns: tuple[KnownTurn, ...]
) -> tuple[KnownTurn | None, bool]:
    """The turn that the outcome ended, and whether the server's number is yet to be recorded with it.

    A backend that died between sending a prompt and recording the number leaves an open turn without one. An outcome
    that is newer than every number of this server for the session can only be that turn's: an older one's was recorded
    before the next prompt could be sent.
    """
    numbered = [t for t in turns if t.server_identity == server_identity and t.control_turn_id is not None]
    found = next((t for t in numbered if t.control_turn_id == outcome.turn_id), None)
    if found is not None:
        return found, False
    if any((t.control_turn_id or 0) > outcome.turn_id for t in numbered):
        return None, False
    waiting = [
        t
        for t in turns
        if t.state is TurnState.OPEN
        and t.control_turn_id is None
        and t.server_identity in (None, server_identity)
    ]
    return (waiting[0], True) if len(waiting) == 1 else (None, False)


def _apply(
    outcome: TurnOutcome, server_identity: str, session: SessionState, turns: tuple[KnownTurn, ...]
) -> ApplyThenPublish:
    turn, bind = turn_of(outcome, server_identity, turns)
    # Another turn that is still open is work in hand: an older outcome does not end it.
    other_open = any(t.state is TurnState.OPEN and t is not turn for t in turns)
    state = session
    if session not in SESSION_OVER and not other_open:
        state = SessionState.WAITING_FOR_INPUT
    return ApplyThenPublish(
        turn=turn.id if turn is not None else None,
        turn_state=turn_state_of(outcome),
        state=state,
        control_turn_id=outcome.turn_id,
        bind=bind,
    )
