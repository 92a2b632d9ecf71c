"""What one pass has seen of one hosted AgentProcess: frozen, with absence and Unknown as values."""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from tenure.model.reasons import ConditionReason
from tenure.model.records import SessionState, TurnState
from tenure.model.resources import AgentProcess
from tenure.plan.adoption.guards import InventoryRow

TOKEN_KEY = "restart_token"  # noqa: S105 - the name of a field
"""Where the row's metadata holds the restart token that this launch is for."""
TURNS_KEY = "turns_before"
"""... and the newest turn of the session before this launch: each later one is this execution's."""


class InstanceView(StrEnum):
    """What the control server says of the instance."""

    LIVE = "live"
    ENDED = "ended"
    """Its agent has ended; it is readable until it is deleted."""
    ABSENT = "absent"
    UNREAD = "unread"
    """No answer, or there was nobody to be asked."""


@dataclass(frozen=True, slots=True)
class Wanting:
    """Why the server cannot be launched into. ``stalled``: until somebody does something about it."""

    reason: ConditionReason
    sentence: str
    stalled: bool = False


@dataclass(frozen=True, slots=True)
class ServerView:
    """The ControlServer, as far as this agent goes."""

    name: str
    wanting: Wanting | None = None
    """None: it is ours, and its recovery is over."""
    incarnation: str = ""
    """Of the backend for which it is owned, or was at last."""
    recovered_by: str | None = None
    names: frozenset[str] = frozenset()
    """How rows call the server in use: its pod's UID and its identity. Empty: there is none in use."""
    backend: bool = False
    """A backend drives it: its turns and outcomes are that one's."""
    profiles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TurnView:
    """A turn of the session."""

    id: int
    state: TurnState


@dataclass(frozen=True, slots=True)
class Rejection:
    """A launch that cannot be granted as it was asked for. ``retry_at`` is monotonic."""

    generation: int
    wanting: Wanting
    attempts: int
    retry_at: float


@dataclass(frozen=True, slots=True)
class Memory:
    """What need not survive the operator; times are monotonic."""

    rejection: Rejection | None = None
    ended_since: float | None = None
    """Since when the agent of the living execution is seen ended, with a turn that has no outcome yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Everything that the plan of one hosted AgentProcess is made of."""

    resource: AgentProcess
    server: ServerView
    row: InventoryRow | None = None
    """The session's row, whosever it is; None: the session was never launched."""
    row_read: bool = True
    """False: the database does not answer, and nothing is known of row, turns and session."""
    session: SessionState | None = None
    newest_turn: TurnView | None = None
    instance: InstanceView = InstanceView.UNREAD
    drained_for: float | None = None
    """Seconds since the row was marked as stopping, by the database's clock; None: it is not marked."""
    began_anew: bool = False
    """The agent of the execution in the row was to load what was said in its session, and did not."""
    server_gone: bool = False
    """The server of the execution in the row is gone for good, as read just now: its ControlServer, and its pod."""
    now: datetime
    clock: float
    memory: Memory = field(default_factory=Memory)

    @property
    def mine(self) -> bool:
        """Whether the row is of a launch for this very object."""
        return self.row is not None and self.row.agent_process_uid == self.resource.uid

    @property
    def turn(self) -> TurnView | None:
        """The newest turn of the execution in the row."""
        newest = self.newest_turn
        return newest if newest is not None and newest.id > turns_before(self.row) else None

    @property
    def turn_open(self) -> bool:
        """Whether the session has a turn without an outcome."""
        return self.newest_turn is not None and self.newest_turn.state is TurnState.OPEN


def turns_before(row: InventoryRow | None) -> int:
    """The newest turn of the session before the row's launch; 0: none."""
    text = fact(row, TURNS_KEY)
    return int(text) if text.isascii() and text.isdigit() else 0


def fact(row: InventoryRow | None, key: str) -> str:
    """A text of the row's metadata; empty: there is none."""
    return dict(row.metadata or ()).get(key, "") if row is not None else ""
