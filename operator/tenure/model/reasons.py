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
    # Ready, Stalled: agents hosted by a control server
    CONTROL_SERVER_NOT_FOUND = "ControlServerNotFound"
    CONTROL_SERVER_NOT_READY = "ControlServerNotReady"
    NO_DURABLE_STORE = "NoDurableStore"
    AGENT_PROFILE_NOT_FOUND = "AgentProfileNotFound"
    PROMPT_NEEDS_NO_BACKEND = "PromptNeedsNoBackend"
    RECOVERY_IN_PROGRESS = "RecoveryInProgress"
    SESSION_IN_USE = "SessionInUse"
    UNSTOPPED_AGENT = "UnstoppedAgent"
    LAUNCH_REJECTED = "LaunchRejected"


class ServerPhase(StrEnum):
    """``status.phase`` of a ControlServer: a printed summary, the first that applies."""

    STALLED = "Stalled"
    LOST = "Lost"
    UNKNOWN = "Unknown"
    STOPPING = "Stopping"
    STARTING = "Starting"
    ADOPTING = "Adopting"
    RECOVERING = "Recovering"
    DETACHED = "Detached"
    PENDING = "Pending"
    RUNNING = "Running"


class ServerConditionType(StrEnum):
    """Conditions of a ControlServer; all are present from the first status write on."""

    READY = "Ready"
    ADOPTED = "Adopted"
    RECOVERED = "Recovered"
    SURVIVAL_AVAILABLE = "SurvivalAvailable"
    STALLED = "Stalled"
    BACKEND_OVERLAP = "BackendOverlap"
    OWNERSHIP_LOST = "OwnershipLost"


class ServerConditionReason(StrEnum):
    """Why a condition of a ControlServer has its value."""

    # any condition, before the first observation
    NOT_OBSERVED = "NotObserved"
    # Ready
    SERVING = "Serving"
    SERVER_OUTDATED = "ServerOutdated"
    NO_BACKEND = "NoBackend"
    SERVER_STARTING = "ServerStarting"
    SERVER_ENDING = "ServerEnding"
    SERVER_SILENT = "ServerSilent"
    # Ready, Recovered
    SERVER_ENDED = "ServerEnded"
    # Ready
    CREDENTIAL_LOST = "CredentialLost"
    DATABASE_UNAVAILABLE = "DatabaseUnavailable"
    # Ready, Adopted
    ADOPTION_IN_FLIGHT = "AdoptionInFlight"
    # Adopted: the outcome of the latest attempt
    ADOPTED = "Adopted"
    FRESH_SERVER = "FreshServer"
    SURVIVAL_OFF = "SurvivalOff"
    NO_RECORD = "NoRecord"
    NO_ANSWER = "NoAnswer"
    SHUTTING_DOWN = "ShuttingDown"
    IDENTITY_MISMATCH = "IdentityMismatch"
    CREDENTIAL_UNAVAILABLE = "CredentialUnavailable"
    AUTHENTICATION_FAILED = "AuthenticationFailed"
    CAPABILITY_INCOMPATIBLE = "CapabilityIncompatible"
    CREDENTIAL_ROTATION_FAILED = "CredentialRotationFailed"
    # Ready, Recovered
    RECOVERY_IN_PROGRESS = "RecoveryInProgress"
    # Recovered
    RECOVERED = "Recovered"
    NOTHING_TO_RECOVER = "NothingToRecover"
    DEADLINE_ELAPSED = "DeadlineElapsed"
    ENUMERATION_FAILED = "EnumerationFailed"
    # SurvivalAvailable
    AVAILABLE = "Available"
    PLATFORM_WINDOWS = "PlatformWindows"
    # SurvivalAvailable, Stalled
    NO_DURABLE_STORE = "NoDurableStore"
    NO_SECRET_ACCESS = "NoSecretAccess"  # noqa: S105 - a reason
    # Stalled
    PROGRESSING = "Progressing"
    INVALID_SPEC = "InvalidSpec"
    TEMPLATE_REJECTED = "TemplateRejected"
    NAMESPACE_TERMINATING = "NamespaceTerminating"
    FOREIGN_CHILD = "ForeignChild"
    # BackendOverlap
    ONE_BACKEND = "OneBackend"
    SEVERAL_BACKENDS = "SeveralBackends"
    # OwnershipLost
    OWNED = "Owned"
    NOT_OWNED = "NotOwned"
    SUPERSEDED = "Superseded"


class EventReason(StrEnum):
    """Reasons of Kubernetes Events, and of the structured log line that goes with each."""

    STOP_REQUESTED = "StopRequested"
    DRAINING = "Draining"
    STOPPED = "Stopped"
    STOP_FORCED = "StopForced"
    HEARTBEAT_EXPIRED = "HeartbeatExpired"
    RESTARTED = "Restarted"
    TEMPLATE_REJECTED = "TemplateRejected"
    ADOPTION_ATTEMPTED = "AdoptionAttempted"
    ADOPTED = "Adopted"
    ADOPTION_REFUSED = "AdoptionRefused"
    DETACHED = "Detached"
    UNOWNED_SHUTDOWN = "UnownedShutdown"
    SERVER_ENDED = "ServerEnded"
    INSTANCE_STOPPED = "InstanceStopped"
    INSTANCE_STOP_FAILED = "InstanceStopFailed"
    INSTANCE_DUPLICATE_STOPPED = "InstanceDuplicateStopped"
    LAUNCH_REFUSED = "LaunchRefused"
    RECOVERY_DEADLINE_ELAPSED = "RecoveryDeadlineElapsed"
    OWNERSHIP_LOST = "OwnershipLost"
