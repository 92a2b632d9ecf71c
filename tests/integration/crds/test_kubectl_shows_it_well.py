"""What somebody at a terminal sees of the CRD."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.control_plane import ControlPlane
from tests.support.agent_manifests import Manifest, manifest
from tests.support.api import AdminClient, path
from tests.support.cluster import CRDS, apply, kubectl
from tests.support.server_manifests import server_manifest

from tenure.model.reasons import (
    ConditionStatus,
    Phase,
    ServerConditionReason,
    ServerConditionType,
    ServerPhase,
    StopOrigin,
)
from tenure.model.records import SurvivalEffective

WIDTH = 100


def _longest(words: type[StrEnum]) -> str:
    return max((str(word) for word in words), key=len)


async def _shown(api: AdminClient, namespace: str, name: str) -> None:
    await api.create(path("agentprocesses", namespace), manifest(name))
    ready = {"type": "Ready", "lastTransitionTime": "2026-11-30T12:00:00Z", "reason": "Draining"}
    status = {
        "phase": _longest(Phase),
        "restarts": 9999,
        "currentTask": {"id": 2**31 - 1},
        "stop": {"instance": "8d1c", "origin": _longest(StopOrigin)},
        "conditions": [{**ready, "status": _longest(ConditionStatus)}],
        "instance": {"podName": f"{name}-0a1b2c3d-17"},
    }
    await api.patch(
        path("agentprocesses", namespace, name, "status"), {"status": status}, fieldValidation="Strict"
    )


async def test_the_columns_fit_a_hundred_characters(
    api: AdminClient, namespace: str, plane: ControlPlane
) -> None:
    await _shown(api, namespace, "n" * 30)
    header, line = kubectl(plane, "get", "ap", "--namespace", namespace).splitlines()
    assert header.split() == ["NAME", "PHASE", "READY", "TASK", "STOP", "RESTARTS", "AGE"]
    assert line.split()[1:6] == [_longest(Phase), "Unknown", "2147483647", _longest(StopOrigin), "9999"]
    assert max(len(header), len(line)) <= WIDTH


async def test_wide_output_tells_why(api: AdminClient, namespace: str, plane: ControlPlane) -> None:
    await _shown(api, namespace, "reviewer")
    header, line = kubectl(plane, "get", "ap", "--namespace", namespace, "--output=wide").splitlines()
    assert header.split()[7:] == ["DESIRED", "ALIVE", "REASON", "POD"]
    assert "reviewer-0a1b2c3d-17" in line


async def test_agents_are_found_by_category_and_by_phase(
    api: AdminClient, namespace: str, plane: ControlPlane
) -> None:
    await _shown(api, namespace, "shown")
    assert "shown" in kubectl(plane, "get", "tenure", "--namespace", namespace)
    found = ["get", "ap", "--namespace", namespace, "--output=name", "--field-selector"]
    assert (
        kubectl(plane, *found, f"status.phase={_longest(Phase)}").strip() == "agentprocess.tenure.dev/shown"
    )
    assert kubectl(plane, *found, "spec.desiredState=StopRequested").strip() == ""


async def _server_shown(api: AdminClient, namespace: str, name: str) -> None:
    await api.create(path("controlservers", namespace), server_manifest(name))
    word = _longest(ServerConditionReason)
    common = {
        "lastTransitionTime": "2026-11-30T12:00:00Z",
        "reason": word,
        "status": _longest(ConditionStatus),
    }
    status = {
        "phase": _longest(ServerPhase),
        "survival": {"effective": _longest(SurvivalEffective)},
        "recovery": {"retracked": 10_000},
        "conditions": [{**common, "type": kind} for kind in ServerConditionType],
        "pod": {"name": f"{name}-0a1b2c3d-17"},
        "backend": {"podName": "backend-7d9f8b6c5d-x2x4z"},
    }
    await api.patch(
        path("controlservers", namespace, name, "status"), {"status": status}, fieldValidation="Strict"
    )


async def test_the_columns_of_servers_fit_a_hundred_characters(
    api: AdminClient, namespace: str, plane: ControlPlane
) -> None:
    await _server_shown(api, namespace, "n" * 30)
    header, line = kubectl(plane, "get", "csrv", "--namespace", namespace).splitlines()
    assert header.split() == ["NAME", "PHASE", "READY", "SURVIVAL", "ADOPTED", "RETRACKED", "AGE"]
    assert line.split()[1:6] == [_longest(ServerPhase), "Unknown", "Unavailable", "Unknown", "10000"]
    assert max(len(header), len(line)) <= WIDTH


async def test_wide_output_names_the_pods_of_server_and_backend(
    api: AdminClient, namespace: str, plane: ControlPlane
) -> None:
    await _server_shown(api, namespace, "main")
    header, line = kubectl(plane, "get", "csrv", "--namespace", namespace, "--output=wide").splitlines()
    assert header.split()[7:] == ["RECOVERED", "REASON", "SERVER", "BACKEND"]
    assert line.split()[-2:] == ["main-0a1b2c3d-17", "backend-7d9f8b6c5d-x2x4z"]


async def test_servers_are_found_by_category_by_phase_and_by_survival(
    api: AdminClient, namespace: str, plane: ControlPlane
) -> None:
    await _server_shown(api, namespace, "main")
    assert "controlserver.tenure.dev/main" in kubectl(
        plane, "get", "tenure", "--namespace", namespace, "-oname"
    )
    found = ["get", "csrv", "--namespace", namespace, "--output=name", "--field-selector"]
    for selector in (f"status.phase={_longest(ServerPhase)}", "spec.agentSurvival=Disabled"):
        assert kubectl(plane, *found, selector).strip() == "controlserver.tenure.dev/main"
    assert kubectl(plane, *found, "spec.agentSurvival=Enabled").strip() == ""


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("ap", "One long-running agent, in a pod of its own or hosted by a ControlServer"),
        ("ap.spec.session", "an instance in a ControlServer"),
        ("ap.spec.drain", "may finish the task that it holds"),
        ("ap.spec.drain.gracePeriodSeconds", "After that it is killed"),
        ("ap.spec.template.spec", "carried to the pod as it is written here"),
        ("ap.status.stops", "The last ten stops"),
        ("csrv", "outlives the backend which drives them"),
        ("csrv.spec.agentSurvival", "takes effect at the next start of the backend"),
        ("csrv.spec.recovery.deadlineSeconds", "From 1 to 300"),
        ("csrv.spec.backend.selector", "in this namespace"),
        ("csrv.spec.server.template.spec.containers", "the control server"),
        ("csrv.spec.agentProfiles.env.value", "Secrets come from valueFrom"),
        ("csrv.status.endpoint", "never trusted"),
    ],
)
def test_kubectl_explains_a_field(field: str, words: str, plane: ControlPlane) -> None:
    assert words in " ".join(kubectl(plane, "explain", field).split())


KINDS = pytest.mark.parametrize("definition", sorted(CRDS.glob("*.yaml")), ids=lambda file: file.stem)


def _served(plane: ControlPlane, definition: Path) -> Any:
    name = yaml.safe_load(definition.read_text())["metadata"]["name"]
    return json.loads(kubectl(plane, "get", "customresourcedefinition", name, "--output=json"))


@KINDS
def test_an_unchanged_definition_changes_nothing(definition: Path, plane: ControlPlane) -> None:
    before = _served(plane, definition)["metadata"]
    apply(plane, definition)
    after = _served(plane, definition)["metadata"]
    assert (after["resourceVersion"], after["generation"]) == (
        before["resourceVersion"],
        before["generation"],
    )


@pytest.mark.parametrize("least", [manifest("same"), server_manifest("same")], ids=["ap", "cs"])
def test_an_unchanged_resource_applied_again_changes_nothing(
    least: Manifest, namespace: str, plane: ControlPlane
) -> None:
    lines = [
        kubectl(plane, "apply", "--namespace", namespace, "--filename=-", stdin=json.dumps(least)).strip()
        for _ in range(2)
    ]
    kind = f"{least['kind'].lower()}.tenure.dev/same"
    assert lines == [f"{kind} created", f"{kind} unchanged"]


def test_apply_replaces_one_kind_of_storage_by_the_other(namespace: str, plane: ControlPlane) -> None:
    for storage in ({"emptyDir": {}}, {"volumeClaimTemplate": {"spec": {}}}, {"emptyDir": {}}):
        body = json.dumps(server_manifest(storage=storage))
        kubectl(plane, "apply", "--namespace", namespace, "--filename=-", stdin=body)
        read = kubectl(plane, "get", "csrv", "main", "--namespace", namespace, "--output=json")
        assert json.loads(read)["spec"]["storage"] == storage


@KINDS
def test_the_api_server_finds_the_schema_structural(definition: Path, plane: ControlPlane) -> None:
    found = _served(plane, definition)["status"]["conditions"]
    conditions = {condition["type"]: condition["status"] for condition in found}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}


@KINDS
def test_the_definition_is_what_was_applied_and_nothing_was_added(
    definition: Path, plane: ControlPlane
) -> None:
    diff = kubectl(plane, "diff", "--server-side", "--filename", str(definition))
    assert diff == ""
