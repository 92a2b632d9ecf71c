"""Every name that Tenure shows: phases, origins, condition types and reasons, event reasons.

One place, so that the CRD, the status, the events, the metrics and the docs cannot drift apart.
"""

from enum import StrEnum


class DesiredState(StrEnum):
    """``spec.desiredState``."""

    RUNNING = "Running"
    STOP_REQUESTED = "StopRequested"


class OnExternalStop(StrEnum):
    """``spec.onExternalStop``: what follows a stop asked for through the table."""

    STAY = "Stay"
    RESTART = "Restart"


class RestartPolicy(StrEnum):
    """``spec.restartPolicy``: what follows an end that nobody asked for."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"


class HungPolicy(StrEnum):
    """``spec.hung.policy``."""

    REPORT = "Report"
    RESTART = "Restart"


class LivenessMode(StrEnum):
    """``spec.liveness.mode``."""

    TABLE = "Table"
    POD = "Pod"


class EvictionPolicy(StrEnum):
    """``spec.eviction``."""

    PROTECT_WHILE_BUSY = "ProtectWhileBusy"
    ALLOW = "Allow"


class Phase(StrEnum):
    """``status.phase``: a printed summary, the first that applies."""

    DRAINING = "Draining"
    UNKNOWN = "Unknown"
    HUNG = "Hung"
    STARTING = "Starting"
    RUNNING = "Running"
    PENDING = "Pending"
    FAILED = "Failed"
    STOPPED = "Stopped"


class StopOrigin(StrEnum):
    """Who asked for a stop."""

    DELETION = "Deletion"
    RESOURCE = "Resource"
    REPLACEMENT = "Replacement"
    TABLE = "Table"
    DISRUPTION = "Disruption"


class ConditionType(StrEnum):
    """Conditions of an AgentProcess; all are present from the first status write on."""

    READY = "Ready"
    ALIVE = "Alive"
    DRAINING = "Draining"
    STOPPED = "Stopped"
    STALLED = "Stalled"


class ConditionStatus(StrEnum):
    """The three values of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class ConditionReason(StrEnum):
    """Why a condition has its value."""

    # any condition, before the first observation
    NOT_OBSERVED = "NotObserved"
    # Ready, Stopped
    RUNNING = "Running"
    STARTING = "Starting"
    PENDING = "Pending"
    STOPPED_AS_ASKED = "StoppedAsAsked"
    COMPLETED = "Completed"
    FAILED = "Failed"
    BACKING_OFF = "BackingOff"
    HUNG = "Hung"
    DRAINING = "Draining"
    # Alive
    HEARTBEAT_FRESH = "HeartbeatFresh"
    HEARTBEAT_EXPIRED = "HeartbeatExpired"
    SETTLING = "Settling"
    TASK_STUCK = "TaskStuck"
    NOT_REPORTED = "NotReported"
    NOT_CONFIGURED = "NotConfigured"
    DATABASE_UNAVAILABLE = "DatabaseUnavailable"
    DATABASE_NOT_ALLOWED = "DatabaseNotAllowed"
    NO_INSTANCE = "NoInstance"
    POD_UNKNOWN = "PodUnknown"
    # Draining
    STOP_BY_RESOURCE = "StopByResource"
    STOP_BY_TABLE = "StopByTable"
    STOP_BY_DELETION = "StopByDeletion"
    STOP_BY_REPLACEMENT = "StopByReplacement"
    STOP_BY_DISRUPTION = "StopByDisruption"
    NOT_DRAINING = "NotDraining"
    # Stalled
    TEMPLATE_REJECTED = "TemplateRejected"
    NAMESPACE_TERMINATING = "NamespaceTerminating"
    INVALID_SPEC = "InvalidSpec"
    PROGRESSING = "Progressing"


class EventReason(StrEnum):
    """Reasons of Kubernetes Events, and of the structured log line that goes with each."""

    STOP_REQUESTED = "StopRequested"
    DRAINING = "Draining"
    STOPPED = "Stopped"
    STOP_FORCED = "StopForced"
    HEARTBEAT_EXPIRED = "HeartbeatExpired"
    RESTARTED = "Restarted"
    TEMPLATE_REJECTED = "TemplateRejected"
