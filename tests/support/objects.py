"""Builders of API objects as JSON, with as little in them as the API server would leave."""

from typing import Any

from tenure.model.pods import AGENT_ROLE, ROLE_LABEL


def agent_process(
    name: str = "critic",
    namespace: str = "agents",
    *,
    uid: str = "",
    version: int = 1,
    spec: dict[str, Any] | None = None,
    **meta: Any,
) -> dict[str, Any]:
    """An AgentProcess; ``meta`` goes into its metadata."""
    return {
        "apiVersion": "tenure.dev/v1alpha1",
        "kind": "AgentProcess",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid or f"uid-of-{name}",
            "resourceVersion": str(version),
            **meta,
        },
        "spec": spec if spec is not None else {"desiredState": "Running"},
    }


def running(started_at: str = "2026-11-30T10:00:01Z") -> dict[str, Any]:
    """The state of a container that runs."""
    return {"running": {"startedAt": started_at}}


def terminated(
    exit_code: int = 0, message: str = "", started_at: str = "2026-11-30T10:00:01Z"
) -> dict[str, Any]:
    """The state of a container that ended."""
    return {
        "terminated": {
            "exitCode": exit_code,
            "message": message,
            "reason": "Completed" if exit_code == 0 else "Error",
            "startedAt": started_at,
            "finishedAt": "2026-11-30T10:10:00Z",
        }
    }


def pod(
    name: str = "critic-0a1b2c3d-1",
    namespace: str = "agents",
    *,
    owner: str | None = "critic",
    uid: str = "",
    version: int = 1,
    phase: str = "Running",
    state: dict[str, Any] | None = None,
    grace: int = 600,
    **meta: Any,
) -> dict[str, Any]:
    """An agent's pod with one container; ``owner`` names its AgentProcess, ``meta`` is metadata."""
    references = [
        {
            "apiVersion": "tenure.dev/v1alpha1",
            "kind": "AgentProcess",
            "name": owner,
            "uid": f"uid-of-{owner}",
            "controller": True,
        }
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid or f"uid-of-{name}",
            "resourceVersion": str(version),
            "labels": {ROLE_LABEL: AGENT_ROLE},
            **({"ownerReferences": references} if owner else {}),
            **meta,
        },
        "spec": {
            "terminationGracePeriodSeconds": grace,
            "containers": [{"name": "agent", "image": "example"}],
        },
        "status": {
            "phase": phase,
            "containerStatuses": [{"name": "agent", "state": state if state is not None else running()}],
        },
    }
