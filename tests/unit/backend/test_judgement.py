"""Which of the instances that report a session is the record's."""

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from tenure.backend.recovering import judge
from tenure.model.records import ExecutorRuntime, ExecutorStatus, SessionState
from tenure.protocol.messages import Instance
from tenure.storage.records import Executor

NOW = datetime(2026, 5, 1, tzinfo=UTC)


def a_record(**values: Any) -> Executor:
    defaults: dict[str, Any] = {
        "id": uuid4(),
        "session_id": "s",
        "task_id": "t",
        "installation_id": "local",
        "runtime": ExecutorRuntime.STANDALONE,
        "status": ExecutorStatus.RUNNING,
        "agent_execution_id": "named",
        "agent_profile": "",
        "container_identity": "",
        "workspace_path": "/w",
        "worktree_id": None,
        "resume_token": None,
        "metadata": {},
        "agent_process_uid": None,
        "grace_seconds": None,
        "unstopped_by": None,
        "created_by": "before",
        "last_seen_at": NOW,
        "created_at": NOW,
        "updated_at": NOW,
        "task_environment_id": "",
        "session_state": SessionState.RUNNING,
        "passthrough": False,
    }
    return Executor(**(defaults | values))


def an_instance(name: str, status: str = "running") -> Instance:
    return Instance(id=name, port=1, status=status, workspace_path="/w", created_at=NOW, session_id="s")


@pytest.mark.parametrize(
    ("instances", "winner"),
    [
        ({}, None),
        ({"named": "running"}, "named"),
        ({"other": "running"}, "other"),
        ({"other": "running", "named": "running"}, "named"),
        ({"other": "running", "another": "starting"}, None),
        ({"named": "stopped"}, "named"),
        ({"named": "stopped", "other": "running"}, "other"),
        ({"other": "stopped"}, None),
        ({"named": "stopping"}, "named"),
    ],
)
def test_one_wins_and_the_others_are_to_be_stopped(instances: dict[str, str], winner: str | None) -> None:
    found = judge(a_record(), [an_instance(name, status) for name, status in instances.items()])
    assert (found.instance.id if found.instance else None) == winner
    assert {one.id for one in found.stop} == set(instances) - {winner}


def test_a_passthrough_session_is_never_kept() -> None:
    found = judge(a_record(passthrough=True), [an_instance("named")])
    assert found.instance is None
    assert [one.id for one in found.stop] == ["named"]
