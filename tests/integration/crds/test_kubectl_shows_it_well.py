"""What somebody at a terminal sees of the CRD."""

import json

import pytest
from tests.cluster.control_plane import ControlPlane
from tests.support.agent_manifests import manifest
from tests.support.api import AdminClient, path
from tests.support.cluster import CRDS, apply, kubectl

from tenure.model.reasons import ConditionStatus, Phase, StopOrigin

WIDTH = 100


def _longest(words: type[Phase] | type[StopOrigin] | type[ConditionStatus]) -> str:
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


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("ap", "One long-running agent, in a pod of its own or hosted by a ControlServer"),
        ("ap.spec.session", "an instance in a ControlServer"),
        ("ap.spec.drain", "may finish the task that it holds"),
        ("ap.spec.drain.gracePeriodSeconds", "After that it is killed"),
        ("ap.spec.template.spec", "carried to the pod as it is written here"),
        ("ap.status.stops", "The last ten stops"),
    ],
)
def test_kubectl_explains_a_field(field: str, words: str, plane: ControlPlane) -> None:
    assert words in " ".join(kubectl(plane, "explain", field).split())


def test_an_unchanged_definition_changes_nothing(plane: ControlPlane) -> None:
    crd = ["get", "customresourcedefinition", "agentprocesses.tenure.dev", "--output=json"]
    before = json.loads(kubectl(plane, *crd))["metadata"]
    apply(plane, *sorted(CRDS.glob("*.yaml")))
    after = json.loads(kubectl(plane, *crd))["metadata"]
    assert (after["resourceVersion"], after["generation"]) == (
        before["resourceVersion"],
        before["generation"],
    )


def test_an_unchanged_resource_applied_again_changes_nothing(namespace: str, plane: ControlPlane) -> None:
    lines = [
        kubectl(
            plane, "apply", "--namespace", namespace, "--filename=-", stdin=json.dumps(manifest())
        ).strip()
        for _ in range(2)
    ]
    assert lines == ["agentprocess.tenure.dev/reviewer created", "agentprocess.tenure.dev/reviewer unchanged"]


def test_the_api_server_finds_the_schema_structural(plane: ControlPlane) -> None:
    crd = json.loads(
        kubectl(plane, "get", "customresourcedefinition", "agentprocesses.tenure.dev", "--output=json")
    )
    conditions = {condition["type"]: condition["status"] for condition in crd["status"]["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}


def test_the_definition_is_what_was_applied_and_nothing_was_added(plane: ControlPlane) -> None:
    diff = kubectl(plane, "diff", "--server-side", "--filename", str(CRDS / "agentprocess.yaml"))
    assert diff == ""
