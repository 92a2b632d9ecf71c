"""Every request and answer of the control server's routes. Source: the protocol page of the documentation."""

from typing import Annotated, ClassVar, Literal

from pydantic import AwareDatetime, Field

from tenure.protocol.claims import UnownedPeriod
from tenure.protocol.frames import Event
from tenure.protocol.proof import Credential
from tenure.protocol.wire import (
    HUGE,
    LARGE,
    MAX_ID,
    Body,
    CommandLine,
    Environment,
    FilePath,
    InstanceId,
    RotationId,
    Secret,
    TurnId,
    Word,
)

Name = Annotated[str, Field(min_length=1, max_length=253)]
Roots = Annotated[tuple[FilePath, ...], Field(max_length=256)]


class ErrorBody(Body):
    """Any answer of 400 and above."""

    error: Annotated[str, Field(max_length=4096)]
    """For a log of our own only after redaction: peers' bodies are not quoted."""


class Health(Body):
    """``GET /health``, 200."""

    status: Literal["ok"] = "ok"
    timestamp: AwareDatetime


class HandshakeRequest(Body):
    """``POST /auth/handshake``."""

    nonce: Secret


class HandshakeAnswer(Body):
    """200: the credential of a fresh server."""

    token: Credential


class Identity(Body):
    """``GET /identity``, 200: these three and nothing else.

    All three are required: a server that advertises no identity or no capabilities is a foreign one.
    """

    server_identity: Name
    capabilities: Annotated[tuple[Name, ...], Field(max_length=256)]
    unowned_period_ms: Annotated[int, Field(ge=1, le=MAX_ID)]


class ProveRequest(Body):
    """``POST /ownership/prove``."""

    challenge: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}$")]


class ProveAnswer(Body):
    """200: a proof for each acceptable credential, newest first. None at all before the handshake."""

    proofs: Annotated[tuple[Annotated[str, Field(max_length=128)], ...], Field(max_length=2)]


class RotateAnswer(Body):
    """``POST /api/v1/ownership/rotate``, 200."""

    rotation_id: RotationId
    credential: Credential


class ConfirmRequest(Body):
    """``POST /api/v1/ownership/confirm``."""

    rotation_id: RotationId


class ConfirmAnswer(Body):
    """200, whether or not it made a difference."""

    status: Literal["confirmed"] = "confirmed"


class ClaimAnswer(Body):
    """``POST /api/v1/ownership/claim``, 200."""

    status: Literal["claimed"] = "claimed"


class Adjustment(Body):
    """A setting that the server did not take as it was given."""

    setting: Word
    requested_ms: int
    effective_ms: int
    reason: Word


def adjustments_of(period: UnownedPeriod) -> tuple[Adjustment, ...]:
    """What the rules made of the unowned period, for ``Details``."""
    return tuple(
        Adjustment(
            setting="unowned_period",
            requested_ms=change.before_ms,
            effective_ms=change.after_ms,
            reason=change.reason.value,
        )
        for change in period.changes
    )


class Details(Body):
    """``GET /api/v1/ownership/details``, 200. agentctl knows no adjustments."""

    home_dir: FilePath
    diagnostic_log_path: FilePath = ""
    adjustments: Annotated[tuple[Adjustment, ...], Field(max_length=64)] = ()


class ShutdownAnswer(Body):
    """``POST /api/v1/ownership/shutdown``, 200, sent before the teardown ends."""

    status: Literal["shutting_down"] = "shutting_down"


class CreateRequest(Body):
    """``POST /api/v1/instances``."""

    max_bytes: ClassVar[int] = LARGE

    workspace_path: Annotated[FilePath, Field(min_length=1)]
    id: InstanceId | None = None
    agent_command: CommandLine = ""
    protocol: Word = "acp"
    agent_type: Word = ""
    env: Annotated[Environment, Field(repr=False, default_factory=dict)]
    auto_start: bool = False
    session_id: Word = ""
    task_id: Word = ""
    workspace_source_roots: Roots = ()


class CreateAnswer(Body):
    """201. ``port`` is the server's own where one port serves all instances."""

    id: InstanceId
    port: Annotated[int, Field(ge=0, le=65535)]


class Instance(Body):
    """An enumerated instance, as everybody reads it: **without** its environment, which is not even decoded.

    agentctl leaves out fields that are empty.
    """

    max_bytes: ClassVar[int] = LARGE

    id: InstanceId
    port: Annotated[int, Field(ge=0, le=65535)]
    status: Word
    workspace_path: FilePath
    agent_command: Annotated[CommandLine, Field(repr=False)] = ""
    created_at: AwareDatetime
    session_id: Word = ""
    task_id: Word = ""
    workspace_source_roots: Roots = ()
    provider_session_id: Word = ""


class InstanceWithEnvironment(Instance):
    """The same with provider credentials: only for whoever rebuilds an execution, in memory, from the answer
    that it has; and for the server, which sends it."""

    env: Annotated[Environment, Field(repr=False, default_factory=dict)]


class Instances(Body):
    """``GET /api/v1/instances``, 200. A bare array or a missing list is a violation: "none" must be said."""

    max_bytes: ClassVar[int] = HUGE

    instances: Annotated[tuple[Instance, ...], Field(max_length=10_000)]


class InstancesWithEnvironment(Body):
    """The same, environments decoded."""

    max_bytes: ClassVar[int] = HUGE

    instances: Annotated[tuple[InstanceWithEnvironment, ...], Field(max_length=10_000)]


class OutcomeAnswer(Body):
    """``GET /api/v1/instances/{id}/turn-outcome``, 200. Use ``outcome.outcome_answer`` and ``outcome.read_outcome``."""

    max_bytes: ClassVar[int] = LARGE + 1024

    retained: bool
    # agentctl sends 0 and an empty event when nothing is retained; they mean nothing then.
    turn_id: Annotated[int, Field(ge=0, le=MAX_ID)] | None = None
    event: Event | None = None


class AckRequest(Body):
    """``POST /api/v1/instances/{id}/turn-outcome/ack``; a ``turn_id`` that is absent or 0 is a 400."""

    turn_id: TurnId


class AckAnswer(Body):
    """200, also for an instance that nobody knows."""

    status: Literal["acked"] = "acked"
