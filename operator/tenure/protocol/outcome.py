"""The turns of one instance: which prompt is which turn, and the last terminal outcome until acknowledged.

Turn ids are given by the server, which counts them over all of its instances: a record names a turn by server
identity and turn id.
"""

from dataclasses import dataclass, replace

from tenure.protocol.errors import ProtocolViolation
from tenure.protocol.frames import Event
from tenure.protocol.messages import OutcomeAnswer

REMEMBERED_KEYS = 1024
"""How many turn keys an instance remembers; a retry comes within moments of the first try."""


@dataclass(frozen=True, slots=True)
class TurnOutcome:
    """How a turn ended. The event names the turn itself, too."""

    turn_id: int
    event: Event


@dataclass(frozen=True, slots=True)
class Turns:
    """``newest`` is 0 before the first prompt; ``running`` while it has no terminal event."""

    newest: int = 0
    running: bool = False
    retained: TurnOutcome | None = None
    keys: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Prompted:
    """``fresh`` is false when the key was seen before: the prompt must not be given to the agent again."""

    turn_id: int
    fresh: bool


def prompted(turns: Turns, key: str, next_id: int) -> tuple[Turns, Prompted]:
    """A prompt arrives. A known key is the turn that it named, and changes nothing, not even the outcome that
    waits. A new key, or none, begins the turn ``next_id`` and clears the slot.

    Raises ``ValueError`` when ``next_id`` is not above every earlier one.
    """
    known = dict(turns.keys).get(key) if key else None
    if known is not None:
        return turns, Prompted(known, fresh=False)
    if next_id <= turns.newest:
        raise ValueError("turn ids only increase")
    keys = (*turns.keys, (key, next_id))[-REMEMBERED_KEYS:] if key else turns.keys
    return Turns(next_id, True, None, keys), Prompted(next_id, fresh=True)


def finished(turns: Turns, turn_id: int, event: Event) -> tuple[Turns, Event]:
    """A terminal event of a turn, attached or not: the new state, and the event as it is delivered, with its
    turn's id in it.

    The slot is filled by the newest turn's first terminal event. A later one of the same turn (its agent
    crashes after it was done) does not turn a success into a failure, and the late end of an older turn does
    not pass for the end of the one that runs; both are delivered all the same.
    """
    stamped = event.model_copy(update={"control_turn_id": turn_id})
    if turn_id != turns.newest or not turns.running:
        return turns, stamped
    return replace(turns, running=False, retained=TurnOutcome(turn_id, stamped)), stamped


def acknowledged(turns: Turns, turn_id: int) -> Turns:
    """Discard the outcome of this turn, if it is the one retained. Any other id changes nothing."""
    if turns.retained is None or turns.retained.turn_id != turn_id:
        return turns
    return replace(turns, retained=None)


def outcome_answer(turns: Turns) -> OutcomeAnswer:
    """What a read of the slot is answered. Reading never discards."""
    if turns.retained is None:
        return OutcomeAnswer(retained=False)
    return OutcomeAnswer(retained=True, turn_id=turns.retained.turn_id, event=turns.retained.event)


def read_outcome(answer: OutcomeAnswer) -> TurnOutcome | None:
    """The outcome that a server retains, or None for none.

    Raises ``ProtocolViolation`` when it says that it retains one and does not say which, or one that ends no
    turn: to publish a session as running, or a turn as over, on such an answer would be a guess.
    """
    if not answer.retained:
        return None
    if not answer.turn_id or answer.event is None or not answer.event.terminal:
        raise ProtocolViolation("OutcomeAnswer", "it retains an outcome without turn_id or terminal event")
    if answer.event.control_turn_id not in (None, answer.turn_id):
        raise ProtocolViolation("OutcomeAnswer", "its event names another turn")
    return TurnOutcome(answer.turn_id, answer.event)
