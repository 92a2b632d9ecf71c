"""Rows that name a server that no pass has seen: they live as long as some pod of it may."""

from collections.abc import Collection, Mapping
from typing import Any

import pytest
from tests.integration.servers.recovery.stage import KEY, Stage
from tests.support.server_manifests import stored_server

from tenure.cluster.calls import PODS, Resource
from tenure.cluster.client import Listing
from tenure.cluster.errors import Unavailable
from tenure.operator.servers.cache import ServerCache
from tenure.operator.servers.elsewhere import Elsewhere
from tenure.plan.adoption.liveness import PodLife
from tenure.plan.servers.names import VACANCY_ANNOTATION


@pytest.mark.accept("S-003.6")
@pytest.mark.parametrize("named", ["pod-0", "cs-of-pod-0"], ids=["by its pod", "by its identity"])
@pytest.mark.parametrize(
    ("found", "status"),
    [
        ({"pod-0": PodLife.RUNNING}, "running"),
        (None, "running"),
        ({"pod-0": PodLife.ENDED}, "stopped"),
        ({}, "stopped"),
    ],
    ids=["it runs", "nobody says", "it has ended", "it is nowhere"],
)
async def test_a_row_lives_as_long_as_its_pod_may_wherever_that_is(
    stage: Stage, named: str, found: Mapping[str, PodLife] | None, status: str
) -> None:
    await stage.row(container_identity=named)
    asked: list[Collection[str]] = []

    async def elsewhere(names: Collection[str]) -> Mapping[str, PodLife] | None:
        asked.append(names)
        return found

    operator = stage.operator()
    await operator.recover(elsewhere=elsewhere)
    assert asked == [{named}]
    assert (await stage.row_of()).status.value == status


async def test_nobody_is_asked_while_every_row_names_a_pod_that_was_seen(stage: Stage) -> None:
    await stage.session("s-1")
    await stage.session("s-2", container_identity=stage.server.identity)

    async def elsewhere(names: Collection[str]) -> Mapping[str, PodLife] | None:
        raise AssertionError(names)

    await stage.operator().recover(elsewhere=elsewhere)


def pod(uid: str, owner: str = "", *, made: bool = True, phase: str = "Running") -> dict[str, Any]:
    controller = {"kind": "ControlServer", "name": "main", "uid": owner, "controller": True}
    return {
        "metadata": {
            "name": uid,
            "namespace": KEY.namespace,
            "uid": uid,
            "annotations": {VACANCY_ANNOTATION: ""} if made else {},
            "ownerReferences": [controller] if owner else [],
        },
        "spec": {"containers": [{"name": "server"}]},
        "status": {"phase": phase},
    }


class Api:
    """Pods as an API server has them."""

    def __init__(self, *pods: dict[str, Any]) -> None:
        self.pods = {each["metadata"]["name"]: each for each in pods}
        self.failing = False

    async def list_objects(self, resource: Resource, namespace: str | None, label_selector: str) -> Listing:
        assert (resource, namespace, label_selector) == (PODS, KEY.namespace, "")
        if self.failing:
            raise Unavailable(503, "ServiceUnavailable", "not now")
        return Listing(tuple({"metadata": each["metadata"]} for each in self.pods.values()), "1")

    async def get_pod(self, namespace: str, name: str) -> Any:
        return self.pods.get(name)


async def test_every_pod_counts_that_may_be_a_server_of_this_installation() -> None:
    cache = ServerCache()
    cache.put_control_server(stored_server("main", "team", "uid-1", installationID="one"))
    cache.put_control_server(stored_server("other", "team", "uid-2", installationID="two"))
    api = Api(
        pod("seen", "uid-1"),
        pod("unlabelled", "uid-1"),
        pod("orphaned"),
        pod("of-a-former-object", "uid-0", phase="Failed"),
        pod("of-another-installation", "uid-2"),
        pod("somebody-else's", made=False),
        pod("named", "uid-2"),
    )
    elsewhere = Elsewhere(api, api, cache)  # type: ignore[arg-type]
    assert await elsewhere.look(KEY, "one", {"seen"}, {"named"}) == {
        "unlabelled": PodLife.RUNNING,
        "orphaned": PodLife.RUNNING,
        "of-a-former-object": PodLife.ENDED,
        "named": PodLife.RUNNING,
    }
    api.failing = True
    assert await elsewhere.look(KEY, "one", {"seen"}, {"named"}) is None
