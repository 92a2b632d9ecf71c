"""Words of the durable records: every state that a row of the schema ``tenure`` may be in.

The CHECK constraints of ``storage/sql`` spell the same words, and a test compares the two.
"""

from enum import StrEnum


class ExecutorStatus(StrEnum):
    """What is known of an execution in the recovery inventory."""

    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


LIVE = frozenset({ExecutorStatus.RUNNING, ExecutorStatus.STOPPING})
"""An execution that may have an agent. Its row is the guard: no second launch of its session."""


class ExecutorRuntime(StrEnum):
    """What hosts an execution."""

    STANDALONE = "standalone"


DEFAULT_PROFILE = "default"
"""The profile of a launch that names none. Without any an agent that survives could not be continued."""


class SessionState(StrEnum):
    """What a session is doing, as people are told."""

    CREATED = "created"
    RUNNING = "running"
    WAITING_FOR_INPUT = "waiting_for_input"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


SESSION_OVER = frozenset({SessionState.COMPLETED, SessionState.FAILED, SessionState.CANCELLED})
"""A session that nothing but a new launch brings back."""


class TurnState(StrEnum):
    """How far one prompt has come. All but ``open`` are terminal: such a turn never changes again."""

    OPEN = "open"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ABANDONED = "abandoned"


class TaskState(StrEnum):
    """Where the work stands that sessions are for."""

    TODO = "todo"
    IN_PROGRESS = "in_progress"
    REVIEW = "review"
    DONE = "done"


class SurvivalEffective(StrEnum):
    """Whether agents outlive their backend, after the platform had its say."""

    ENABLED = "Enabled"
    DISABLED = "Disabled"
    UNAVAILABLE = "Unavailable"
