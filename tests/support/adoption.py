"""Builders of what plans of adoption and recovery are made of."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tenure.model.adoption import AgentSurvival
from tenure.model.masked import Masked
from tenure.model.records import ExecutorStatus, SurvivalEffective
from tenure.plan.adoption.backend import BackendPod, MainContainer
from tenure.plan.adoption.correlation import Seen
from tenure.plan.adoption.gates import Advertised, Contact, Granted, HomeDirectory, Stored
from tenure.plan.adoption.guards import InventoryRow
from tenure.plan.adoption.liveness import Enumeration, PodLife, View
from tenure.plan.adoption.reads import Got
from tenure.plan.adoption.reconstruction import Profile, Sources
from tenure.plan.adoption.state import (
    Attempt,
    Gate,
    HandOver,
    Owner,
    PodPhase,
    Record,
    ServerPod,
    ServerSecret,
    State,
)
from tenure.plan.adoption.survival import Survival
from tenure.protocol.frames import Event
from tenure.protocol.outcome import TurnOutcome

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
HOME = "/home/of/installation"
POD = "pod-1"
SERVER = frozenset({POD, "server-1"})
"""The names under which rows know the server of ``POD``."""
OURS = Advertised("server-1", frozenset({"agent-survival.v1", "agent-delivery.v1"}))
CREDENTIAL = Masked("ab" * 32)


def ago(seconds: float) -> datetime:
    """So long before now."""
    return NOW - timedelta(seconds=seconds)


def contact(**facts: Any) -> Contact:
    """A server that has not been asked anything yet."""
    return Contact(**{"recorded_identity": "server-1", "home_dir": HOME, "credential_usable": True, **facts})


def proven(**facts: Any) -> Contact:
    """A server that has proven to be ours."""
    return contact(**{"identity": OURS, "proven": True, **facts})


def rotated(**facts: Any) -> Contact:
    """One that has rotated and told its home directory."""
    return proven(**{"rotation": Granted(3), "details": HomeDirectory(HOME), **facts})


def adopted(**facts: Any) -> Contact:
    """One of which everything is stored."""
    return rotated(**{"secret": Stored.DONE, "record": Stored.DONE, **facts})


def row(session: str = "s1", **facts: Any) -> InventoryRow:
    """A live row of a session on ``POD``, with everything that an execution is rebuilt from."""
    whole: dict[str, Any] = {
        "id": f"row-of-{session}",
        "session_id": session,
        "task_id": "task-1",
        "status": ExecutorStatus.RUNNING,
        "agent_execution_id": f"instance-of-{session}",
        "container_identity": POD,
        "created_by": "old",
        "updated_at": ago(3600),
        "workspace_path": "/work/one",
        "runtime": "standalone",
        "instance_port": 8443,
        "metadata": (("secondary_profile", "office"),),
        "agent_profile": "coder",
        "passthrough": False,
    }
    return InventoryRow(**{**whole, **facts})


def seen(instance: str = "instance-of-s1", session: str = "s1", status: str = "running") -> Seen:
    """An enumerated instance."""
    return Seen(instance, session, status)


def sources(**facts: Any) -> Sources:
    """Sources that have every value."""
    environment: Mapping[str, Masked] = {"PROVIDER_KEY": Masked("hush"), "TENURE_RUN_ID": Masked("run-7")}
    whole: dict[str, Any] = {
        "row": row(),
        "task_environment": Got("environment-1"),
        "source_roots": Got(("/src",)),
        "environment": Got(environment),
        "provider_session": Got("provider-1"),
        "profiles": {"coder": Profile(("agent", "--work"), ("--continue",), "full")},
    }
    return Sources(**{**whole, **facts})


def outcome(turn_id: int = 7, type: str = "complete", **fields: Any) -> TurnOutcome:
    """How a turn ended."""
    event = Event.model_validate({"type": type, "control_turn_id": turn_id, **fields})
    return TurnOutcome(turn_id, event)


def view(**facts: Any) -> View:
    """What recovery knows in step 8, on an adopted server with the instance of ``s1``."""
    seen_now = Enumeration(SERVER, frozenset({"instance-of-s1"}), frozenset({"s1"}), NOW, settled=True)
    whole: dict[str, Any] = {
        "incarnation": "new",
        "survival": True,
        "enumeration": seen_now,
        "recovered": False,
        "in_recovery": True,
        "pods": {POD: PodLife.RUNNING},
    }
    return View(**{**whole, **facts})


def backend_pod(uid: str = "b1", age: float = 100, **facts: Any) -> BackendPod:
    """A running pod of a backend."""
    whole: dict[str, Any] = {
        "created_at": ago(age),
        "revision": "r1",
        "main": MainContainer.RUNNING,
        "container_id": "c1",
        "containers_ready": True,
    }
    return BackendPod(uid=uid, **{**whole, **facts})


def secret(rotation_id: int = 2, adopted_by: str = "new", **facts: Any) -> ServerSecret:
    """The Secret of the server on record."""
    whole = ServerSecret("server-1", CREDENTIAL, rotation_id, adopted_by)
    return replace(whole, **facts)


def server_pod(uid: str = POD, ordinal: int = 1, **facts: Any) -> ServerPod:
    """The pod of the server on record."""
    whole: dict[str, Any] = {"vacancy": "older ", "phase": PodPhase.REACHABLE, "secret": secret()}
    return ServerPod(uid, ordinal, **{**whole, **facts})


def record(**facts: Any) -> Record:
    """The record of a server that incarnation ``new`` has adopted and recovered."""
    whole: dict[str, Any] = {
        "identity": "server-1",
        "pod_uid": POD,
        "rotation_id": 2,
        "rotation_confirmed": True,
        "adopted_by": "new",
        "recovered_by": "new",
        "survival": SurvivalEffective.ENABLED,
    }
    return Record(**{**whole, **facts})


def survival(
    effective: SurvivalEffective = SurvivalEffective.ENABLED, *, server_possible: bool = True
) -> Survival:
    """The flag, resolved."""
    return Survival(AgentSurvival.ENABLED, effective, server_possible=server_possible)


def attempt(**facts: Any) -> Attempt:
    """What the process knows of incarnation ``new``, whose guards are taken."""
    return Attempt(**{"incarnation": "new", "guarded": True, **facts})


def state(**facts: Any) -> State:
    """An installation that is up to date."""
    whole: dict[str, Any] = {
        "lease": True,
        "survival": survival(),
        "owner": Owner("new", "backend-2", Gate.SET),
        "record": record(),
        "pods": (server_pod(),),
        "next_ordinal": 2,
        "hand_over": HandOver("server-1", 2, "backend-2"),
        "attempt": attempt(),
    }
    return State(**{**whole, **facts})
