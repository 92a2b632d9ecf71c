"""Names of adoption and recovery that are shown: outcomes and reasons, as metric labels and in events.

The behaviours come with the control server; the names exist from the start, so that dashboards and alerts
can be written once.
"""

from enum import StrEnum


class AdoptionOutcome(StrEnum):
    """What became of an attempt to adopt a control server."""

    ADOPTED = "adopted"
    NO_SERVER = "no_server"
    REFUSED = "refused"


class AdoptionReason(StrEnum):
    """Why: exactly one for each attempt."""

    NONE = "none"
    NO_RECORD = "no_record"
    NO_ANSWER = "no_answer"
    SHUTTING_DOWN = "shutting_down"
    IDENTITY_MISMATCH = "identity_mismatch"
    CREDENTIAL_UNAVAILABLE = "credential_unavailable"
    AUTHENTICATION_FAILED = "authentication_failed"
    CAPABILITY_INCOMPATIBLE = "capability_incompatible"
    CREDENTIAL_ROTATION_FAILED = "credential_rotation_failed"


ADOPTION_PAIRS: tuple[tuple[AdoptionOutcome, AdoptionReason], ...] = (
    (AdoptionOutcome.ADOPTED, AdoptionReason.NONE),
    (AdoptionOutcome.NO_SERVER, AdoptionReason.NO_RECORD),
    (AdoptionOutcome.NO_SERVER, AdoptionReason.NO_ANSWER),
    (AdoptionOutcome.NO_SERVER, AdoptionReason.SHUTTING_DOWN),
    (AdoptionOutcome.REFUSED, AdoptionReason.IDENTITY_MISMATCH),
    (AdoptionOutcome.REFUSED, AdoptionReason.CREDENTIAL_UNAVAILABLE),
    (AdoptionOutcome.REFUSED, AdoptionReason.AUTHENTICATION_FAILED),
    (AdoptionOutcome.REFUSED, AdoptionReason.CAPABILITY_INCOMPATIBLE),
    (AdoptionOutcome.REFUSED, AdoptionReason.CREDENTIAL_ROTATION_FAILED),
)
"""The legal pairs; no other is ever counted."""


class ReconstructionInput(StrEnum):
    """What an execution is rebuilt from and cannot do without: legally empty values are not here."""

    SESSION = "session"
    TASK = "task"
    WORKSPACE_PATH = "workspace_path"
    CONTAINER_IDENTITY = "container_identity"
    RUNTIME = "runtime"
    INSTANCE_ID = "instance_id"
    INSTANCE_PORT = "instance_port"
    METADATA = "metadata"
    AGENT_PROFILE = "agent_profile"
    TASK_ENVIRONMENT = "task_environment"
    WORKSPACE_SOURCE_ROOTS = "workspace_source_roots"
    RUNTIME_ENVIRONMENT = "runtime_environment"
    PROVIDER_SESSION = "provider_session"
    AGENT_COMMAND = "agent_command"


class RecoveryRead(StrEnum):
    """What is read from an instance, or from another record, while it is rebuilt."""

    TASK_ENVIRONMENT = "task_environment"
    WORKSPACE_SOURCE_ROOTS = "workspace_source_roots"
    RUNTIME_ENVIRONMENT = "runtime_environment"
    PROVIDER_SESSION = "provider_session"
    TURN_OUTCOME = "turn_outcome"


class LaunchRefusal(StrEnum):
    """Why a launch was refused."""

    RECOVERY_IN_PROGRESS = "recovery_in_progress"
    UNSTOPPED_AGENT = "unstopped_agent"


class AgentSurvival(StrEnum):
    """``spec.agentSurvival``."""

    DISABLED = "Disabled"
    ENABLED = "Enabled"


class SurvivalCode(StrEnum):
    """Why survival is unavailable."""

    PLATFORM_WINDOWS = "platform_windows"
    NO_DURABLE_STORE = "no_durable_store"
    NO_SECRET_ACCESS = "no_secret_access"  # noqa: S105 - a code


class HandoverPolicy(StrEnum):
    """``spec.backend.handover``: when a new backend takes over from one that still runs."""

    ON_READY = "OnReady"
    ON_END = "OnEnd"


class PermissionPolicy(StrEnum):
    """``spec.agentProfiles[].permissions``: how requests of an agent are answered where there is no backend to ask."""

    DENY = "Deny"
    ALLOW_ONCE = "AllowOnce"


class HistorySetting(StrEnum):
    """``spec.agentProfiles[].history``: what an agent knows of its session when it is started again for it."""

    LOAD = "Load"
    DISCARD = "Discard"


class ReconstructionValue(StrEnum):
    """Everything that a usable execution is made of, with the values that may be empty or are derived."""

    SESSION = "session"
    TASK = "task"
    WORKSPACE_PATH = "workspace_path"
    CONTAINER_IDENTITY = "container_identity"
    RUNTIME = "runtime"
    INSTANCE_ID = "instance_id"
    INSTANCE_PORT = "instance_port"
    METADATA = "metadata"
    AGENT_PROFILE = "agent_profile"
    SECONDARY_PROFILE = "secondary_profile"
    TASK_ENVIRONMENT = "task_environment"
    WORKSPACE_SOURCE_ROOTS = "workspace_source_roots"
    RUNTIME_ENVIRONMENT = "runtime_environment"
    RUN_IDENTITY = "run_identity"
    PROVIDER_SESSION = "provider_session"
    AGENT_COMMAND = "agent_command"
    CONTINUE_ARGUMENTS = "continue_arguments"
    HISTORY = "history"


class ReconstructionSource(StrEnum):
    """Where a value comes from: each from one place only."""

    INVENTORY = "inventory"
    SESSION_RECORD = "session_record"
    INSTANCE = "instance"
    DERIVED = "derived"


class StopReason(StrEnum):
    """Why recovery stops an instance."""

    NO_RECORD = "no_record"
    PASSTHROUGH = "passthrough"
    DUPLICATE = "duplicate"
    AMBIGUOUS = "ambiguous"
    DUPLICATE_UNSTOPPED = "duplicate_unstopped"
    MISSING_INPUT = "missing_input"
    READS_EXHAUSTED = "reads_exhausted"
    OUTCOME_UNREADABLE = "outcome_unreadable"
    DEADLINE_ELAPSED = "deadline_elapsed"


class NotRetracked(StrEnum):
    """Why the record of a session was not re-tracked."""

    NO_INSTANCE = "no_instance"
    PASSTHROUGH = "passthrough"
    OTHER_SERVER = "other_server"
    AMBIGUOUS = "ambiguous"
    DUPLICATE_UNSTOPPED = "duplicate_unstopped"
    MISSING_INPUT = "missing_input"
    READS_EXHAUSTED = "reads_exhausted"
    OUTCOME_UNREADABLE = "outcome_unreadable"
    DEADLINE_ELAPSED = "deadline_elapsed"
    NOTHING_RECOVERED = "nothing_recovered"
    ENUMERATION_FAILED = "enumeration_failed"
