"""What the records take and give: frozen, validated by the database, with times by its clock."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from tenure.model.records import (
    LIVE,
    ExecutorRuntime,
    ExecutorStatus,
    SessionState,
    SurvivalEffective,
    TaskState,
    TurnState,
)
from tenure.protocol.frames import Event

HISTORY_KEY = "tenure_history"
"""Where a row's metadata says, by ``HistorySetting.DISCARD``, that its agent is not to load what was said in the
session before; without it, it is."""
BEGAN_ANEW_KEY = "tenure_began_anew"
"""... and, by ``true``, that its agent was to load it and did not: it began anew."""

_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]{0,63}")


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """What a launch records before the control server is asked for anything.

    ``agent_execution_id`` is the instance's id, chosen by the launcher, new for each launch: by it a repeated call
    recognises its own row. ``created_by`` is the incarnation that launches. ``agent_process_uid`` and
    ``grace_seconds`` are of the AgentProcess that hosts the session, None for a launch by the library. ``metadata``
    is small and JSON: the secondary profile, no content of a workspace, no environment. An empty ``agent_profile`` is
    recorded as ``DEFAULT_PROFILE``, an empty ``task_environment_id`` as the one that the session has, or as its task's
    name: without either no agent could be taken over.
    """

    session_id: str
    task_id: str
    installation_id: str
    agent_execution_id: str
    created_by: str
    agent_profile: str = ""
    workspace_path: str = ""
    container_identity: str = ""
    task_environment_id: str = ""
    worktree_id: str | None = None
    agent_process_uid: str | None = None
    grace_seconds: int | None = None
    passthrough: bool = False
    metadata: Mapping[str, object] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Executor:
    """A row of the recovery inventory, with what of its session decides about guards. ``updated_at`` of one that is
    stopping is when its stop began."""

    id: UUID
    session_id: str
    task_id: str
    installation_id: str
    runtime: ExecutorRuntime
    status: ExecutorStatus
    agent_execution_id: str
    agent_profile: str
    container_identity: str
    workspace_path: str
    worktree_id: str | None
    resume_token: str | None
    metadata: Mapping[str, object] = field(hash=False)
    agent_process_uid: str | None
    grace_seconds: int | None
    unstopped_by: str | None
    created_by: str
    last_seen_at: datetime
    created_at: datetime
    updated_at: datetime
    task_environment_id: str
    session_state: SessionState
    passthrough: bool

    @property
    def live(self) -> bool:
        """Whether it may have an agent, and so guards its session."""
        return self.status in LIVE

    @property
    def began_anew(self) -> bool:
        """Whether its agent was to load what was said in the session before, and did not."""
        return self.metadata.get(BEGAN_ANEW_KEY) == "true"


@dataclass(frozen=True, slots=True)
class Session:
    """A session. ``interrupted_at``: it was lost with its server, and no turn was opened since."""

    id: str
    task_id: str
    task_state: TaskState
    installation_id: str
    task_environment_id: str
    state: SessionState
    passthrough: bool
    interrupted_at: datetime | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Task:
    """What sessions work on."""

    id: str
    state: TaskState
    interrupted_at: datetime | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Turn:
    """One prompt. ``key`` is its turn key in the protocol; ``outcome`` holds words only."""

    id: int
    session_id: str
    state: TurnState
    server_identity: str | None
    control_turn_id: int | None
    outcome: Mapping[str, str] | None = field(hash=False)
    created_at: datetime
    finished_at: datetime | None

    @property
    def key(self) -> str:
        """What travels as ``turn_key``."""
        return str(self.id)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a turn ended, reduced to words: ``type`` is ``complete`` or ``error``, the others may be empty."""

    type: str
    stop_reason: str = ""
    code: str = ""

    @property
    def state(self) -> TurnState:
        """The state that it gives its turn."""
        if self.type != "complete":
            return TurnState.FAILED
        return TurnState.CANCELLED if self.stop_reason == "cancelled" else TurnState.COMPLETED

    def to_json(self) -> str:
        """What is stored."""
        words = {"type": self.type, "stop_reason": self.stop_reason, "code": self.code}
        return json.dumps({key: value for key, value in words.items() if value})


def outcome_of(event: Event) -> Outcome:
    """The outcome that a terminal event tells. A reason or code that is no plain word is left out: it would be an
    agent's text in a row. Raises ``ValueError`` for an event that ends no turn."""
    if not event.terminal:
        raise ValueError("only a terminal event is an outcome")
    return Outcome(event.type, _word(event.fields.get("stop_reason")), _word(event.fields.get("code")))


def _word(value: object) -> str:
    return value if isinstance(value, str) and _WORD.fullmatch(value) else ""


class Applied(StrEnum):
    """What became of an outcome. ``ALREADY``: the turn was over before, by this outcome or another end; nothing
    changed. ``UNKNOWN``: no such turn is recorded. After a lost connection a call may say ``ALREADY`` of its own
    first attempt."""

    APPLIED = "applied"
    ALREADY = "already"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What the record keeps of one control server. ``credential_secret`` is a Secret's name, never a credential."""

    server_identity: str
    endpoint: str
    pod_uid: str | None
    credential_secret: str | None
    capabilities: tuple[str, ...]
    unowned_period_ms: int
    rotation_id: int | None = None
    rotation_confirmed: bool = False
    diagnostic_output: str | None = None


@dataclass(frozen=True, slots=True)
class ControlServerRecord:
    """The one record of an installation. Vacant: make or finish a fresh server."""

    installation_id: str
    name: str
    endpoint: str | None
    server_identity: str | None
    pod_uid: str | None
    credential_secret: str | None
    capabilities: tuple[str, ...]
    diagnostic_output: str | None
    unowned_period_ms: int | None
    rotation_id: int | None
    rotation_confirmed: bool
    adopted_by: str | None
    recovered_by: str | None
    survival_effective: SurvivalEffective
    updated_at: datetime

    @property
    def vacant(self) -> bool:
        """Whether it names no server."""
        return self.server_identity is None

    @property
    def recovered(self) -> bool:
        """Whether the incarnation that adopted has finished recovery."""
        return self.recovered_by is not None and self.recovered_by == self.adopted_by


@dataclass(frozen=True, slots=True)
class Repaired:
    """One record that was repaired. ``abandoned`` are the turns that were open."""

    record: UUID
    session_id: str
    abandoned: tuple[int, ...]
