"""Rows of the database as the frozen types of ``types``."""

import json
from typing import Any

from tenure.model.records import (
    ExecutorRuntime,
    ExecutorStatus,
    SessionState,
    SurvivalEffective,
    TaskState,
    TurnState,
)
from tenure.storage.records.types import ControlServerRecord, Executor, Session, Task, Turn

EXECUTORS = """
SELECT e.id, e.session_id, e.task_id, e.installation_id, e.runtime, e.status, e.agent_execution_id, e.agent_profile,
       e.container_identity, e.workspace_path, e.worktree_id, e.resume_token, e.metadata, e.agent_process_uid,
       e.grace_seconds, e.unstopped_by, e.created_by, e.last_seen_at, e.created_at, e.updated_at,
       s.task_environment_id, s.state AS session_state, s.passthrough
  FROM tenure.executors_running e
  JOIN tenure.sessions s ON s.namespace = e.namespace AND s.id = e.session_id
 WHERE e.namespace = $1
"""
"""Inventory rows of one namespace ($1), with what of their sessions decides about guards; to be continued by AND."""

EXECUTOR_OF_SESSION = EXECUTORS + " AND e.session_id = $2"

TURN_COLUMNS = "id, session_id, state, server_identity, control_turn_id, outcome, created_at, finished_at"


def executor_from(row: Any) -> Executor:
    """A row of ``EXECUTORS``."""
    return Executor(
        **{
            **row,
            "runtime": ExecutorRuntime(row["runtime"]),
            "status": ExecutorStatus(row["status"]),
            "session_state": SessionState(row["session_state"]),
            "metadata": json.loads(row["metadata"]),
        }
    )


def session_from(row: Any) -> Session:
    """A session with the state of its task."""
    return Session(**{**row, "state": SessionState(row["state"]), "task_state": TaskState(row["task_state"])})


def task_from(row: Any) -> Task:
    """A task."""
    return Task(**{**row, "state": TaskState(row["state"])})


def turn_from(row: Any) -> Turn:
    """A row of ``TURN_COLUMNS``."""
    outcome = None if row["outcome"] is None else json.loads(row["outcome"])
    return Turn(**{**row, "state": TurnState(row["state"]), "outcome": outcome})


def server_from(row: Any) -> ControlServerRecord:
    """A control-server record."""
    return ControlServerRecord(
        **{
            **row,
            "capabilities": tuple(row["capabilities"]),
            "survival_effective": SurvivalEffective(row["survival_effective"]),
        }
    )
