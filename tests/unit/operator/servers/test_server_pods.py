"""What a server's pod says of its end, or of what keeps it from starting."""

from typing import Any

import pytest
from tests.unit.operator.servers.test_memory import pod

from tenure.operator.servers.pods import read_server_pod
from tenure.operator.servers.secrets import url_of


def waiting(reason: str, message: str = "", name: str = "main") -> dict[str, Any]:
    return {"name": name, "state": {"waiting": {"reason": reason, "message": message}}}


def ended(code: int, reason: str = "Error", name: str = "main") -> dict[str, Any]:
    return {"name": name, "state": {"terminated": {"exitCode": code, "reason": reason, "message": "words"}}}


PULL = waiting("ErrImagePull", "not found")
UNSCHEDULED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
FETCH = waiting("ImagePullBackOff", "denied", "fetch")


@pytest.mark.parametrize(
    ("status", "reason", "detail"),
    [
        ({}, "", ""),
        ({"containerStatuses": [PULL]}, "ErrImagePull", "not found"),
        ({"containerStatuses": [waiting("ContainerCreating")]}, "ContainerCreating", ""),
        ({"containerStatuses": [ended(137, "OOMKilled")]}, "OOMKilled", ""),
        ({"conditions": [UNSCHEDULED]}, "Unschedulable", "0/1 nodes"),
        ({"conditions": [{**UNSCHEDULED, "status": "True"}]}, "", ""),
        (
            {
                "containerStatuses": [ended(137)],
                "phase": "Failed",
                "reason": "Evicted",
                "message": "The node was low on resource: memory.",
            },
            "Evicted",
            "The node was low on resource: memory.",
        ),
        (
            {"containerStatuses": [ended(137, "OOMKilled")], "phase": "Failed", "reason": "Evicted"},
            "OOMKilled",
            "",
        ),
        (
            {"containerStatuses": [waiting("PodInitializing")], "initContainerStatuses": [FETCH]},
            "ImagePullBackOff",
            "init container fetch: denied",
        ),
        (
            {
                "containerStatuses": [waiting("PodInitializing")],
                "initContainerStatuses": [ended(0, "Completed", "a"), ended(3, name="fetch")],
            },
            "Init:Error",
            "init container fetch failed",
        ),
    ],
)
def test_why_a_pod_has_ended_or_does_not_start(status: dict[str, Any], reason: str, detail: str) -> None:
    found = read_server_pod(pod(**status))
    assert (found.reason, found.detail) == (reason, detail)


def test_the_server_is_the_first_container_with_its_exit_code_and_last_words() -> None:
    found = read_server_pod(pod(containerStatuses=[ended(1, name="side"), ended(2)]))
    assert (found.exit_code, found.message) == (2, "words")


def test_texts_of_a_node_are_cut() -> None:
    found = read_server_pod(pod(containerStatuses=[waiting("x" * 1000, "y" * 100_000)]))
    assert (len(found.reason), len(found.detail)) == (64, 1024)


@pytest.mark.parametrize(
    ("address", "url"), [("10.0.0.7", "https://10.0.0.7:8443"), ("fd00::7", "https://[fd00::7]:8443")]
)
def test_a_server_is_called_at_its_pods_address_of_either_family(address: str, url: str) -> None:
    running = {"name": "main", "state": {"running": {}}}
    found = read_server_pod(pod(containerStatuses=[running], podIP=address))
    assert url_of(found.address, 8443) == url
