"""The status of a ControlServer: what the operator has seen and done. The record in the database decides."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from tenure.model.adoption import AgentSurvival, SurvivalCode
from tenure.model.reasons import ConditionStatus, ServerPhase
from tenure.model.records import SurvivalEffective
from tenure.model.status import Condition, Name, Uid
from tenure.model.wire import Moment, Sentence, WireModel, Word, cut_to

INSTANCES_KEPT = 100
"""Instances that a status names at most; what stands behind them is in the database."""
ADJUSTMENTS_KEPT = 64
CAPABILITIES_KEPT = 64

_Path = Annotated[str, cut_to(4096), Field(max_length=4096)]
_Count = Annotated[int, Field(ge=0)]
_MOST = 2**53


def _within(value: object) -> object:
    """A server's number, brought into what an API server stores."""
    return min(max(value, 0), _MOST) if isinstance(value, int) else value


_Milliseconds = Annotated[int, BeforeValidator(_within), Field(ge=0)]


class ServerPodStatus(WireModel):
    """The pod of the control server, which is one lifetime of the server."""

    name: Name | None = None
    """The name of the pod."""

    uid: Uid | None = None
    """The UID of the pod."""

    ordinal: _Count = 0
    """The number of the pod. It only ever grows, so no pod name recurs."""


class BackendStatus(WireModel):
    """The backend whose turn it is."""

    pod_name: Word | None = None
    """The name of its pod."""

    incarnation: Word | None = None
    """This lifetime of its main container: the UID of the pod and the id of the container."""


class SurvivalStatus(WireModel):
    """Whether agents outlive their backend."""

    requested: AgentSurvival | None = None
    """What spec.agentSurvival asks for."""

    effective: SurvivalEffective | None = None
    """What holds for the present incarnation of the backend. Unavailable behaves as Disabled."""

    reason_code: SurvivalCode | None = None
    """Why it is unavailable; absent where it is not."""


class RecoveryStatus(WireModel):
    """The latest recovery."""

    started_at: Moment | None = None
    """When it began."""

    finished_at: Moment | None = None
    """When every record had its outcome and sessions were reconciled."""

    retracked: _Count = 0
    """Sessions whose agents go on as if nothing had happened."""

    not_retracked: _Count = 0
    """Sessions whose agents were lost. They wait for input."""

    refused: _Count = 0
    """Instances that were refused because something was missing that they cannot do without. They are among
    the stopped."""

    stopped: _Count = 0
    """Instances that were stopped."""


class InstanceMention(WireModel):
    """An instance of the server that somebody has to know about."""

    id: Annotated[str, Field(max_length=128)]
    """The id of the instance."""

    session_id: Word | None = Field(default=None, alias="sessionID")
    """The session that the instance reports."""

    reason: Sentence = ""
    """Why it is here, in a sentence."""


class AdjustmentStatus(WireModel):
    """A setting that the server did not take as it was given."""

    setting: Word
    """The setting, in the server's words."""

    requested_milliseconds: _Milliseconds = 0
    """What it was given, in milliseconds."""

    effective_milliseconds: _Milliseconds = 0
    """What it keeps to, in milliseconds."""

    reason: Sentence = ""
    """Why."""


class ServerCondition(Condition):
    """One aspect of the control server's state, as of observedGeneration."""

    type: Annotated[str, Field(max_length=316)]
    """The aspect: Ready, Adopted, Recovered, SurvivalAvailable, Stalled, BackendOverlap or OwnershipLost."""

    status: ConditionStatus
    """True, False or Unknown."""


_INSTANCES = Field(
    max_length=INSTANCES_KEPT,
    json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"]},
)


class ServerStatus(WireModel):
    """What the operator has seen and done. Nothing is decided by it: the server's Secret and the record in the
    database are."""

    observed_generation: _Count | None = None
    """The generation of the spec that this status is about."""

    phase: ServerPhase | None = None
    """A summary for people; programs read the conditions."""

    installation_id: Word | None = Field(default=None, alias="installationID")
    """The id of the installation: spec.installationID, or else the object's UID."""

    server_identity: Word | None = None
    """The identity of the server in use. Every pod has one of its own."""

    endpoint: Word | None = None
    """Where the server in use is reached. Shown, never trusted: connections go by the pod."""

    pod: ServerPodStatus | None = None
    """The pod of the server in use, or of the one that is being made."""

    backend: BackendStatus | None = None
    """The backend whose turn it is; absent while there is none."""

    adopted_by: Word | None = None
    """The incarnation of the backend that owns the server in use."""

    recovered_by: Word | None = None
    """The incarnation of the backend for which recovery has finished. Launches wait for that."""

    survival: SurvivalStatus | None = None
    """Whether agents outlive their backend."""

    capabilities: Annotated[tuple[Word, ...], Field(max_length=CAPABILITIES_KEPT)] = ()
    """What the server in use can do, by the names of the protocol."""

    diagnostic_output: _Path | None = None
    """The file on the server's volume that it writes its log to. The same is in the log of its pod."""

    recovery: RecoveryStatus | None = None
    """The latest recovery."""

    unstopped_instances: Annotated[tuple[InstanceMention, ...], _INSTANCES] = ()
    """Instances that could not be stopped. No agent is started for their sessions while they may live."""

    untracked_instances: Annotated[tuple[InstanceMention, ...], _INSTANCES] = ()
    """Instances of a server whose adoption was finished only after the deadline of the recovery. Nobody drives
    them; they end by themselves when they have been idle for long enough."""

    adjustments: Annotated[tuple[AdjustmentStatus, ...], Field(max_length=ADJUSTMENTS_KEPT)] = ()
    """Settings that the server did not take as they were given."""

    conditions: Annotated[
        tuple[ServerCondition, ...],
        Field(
            max_length=16,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
        ),
    ] = ()
    """Ready, Adopted, Recovered, SurvivalAvailable, Stalled, BackendOverlap and OwnershipLost: all are there from
    the first status on, and none disappears."""
