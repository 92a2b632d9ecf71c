"""What stands beside a server: drains kept away while it hosts, an outdated one replaced when empty."""

import pytest
from tests.integration.servers.test_ownership import recovered
from tests.integration.servers.world import WITHIN, World
from tests.support.wait import eventually

from tenure.operator.servers import recovery

pytestmark = pytest.mark.timeout(180)

BUDGETS = "/apis/policy/v1/namespaces/{}/poddisruptionbudgets"
SPARED = "cluster-autoscaler.kubernetes.io/safe-to-evict"


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator looks after servers in use once a second."""
    monkeypatch.setattr(recovery, "UPKEEP_SECONDS", 1.0)


def pod_of(world: World, uid: str) -> dict[str, object] | None:
    return next((p for p in world.server_pods() if p["metadata"]["uid"] == uid), None)


async def test_a_server_that_hosts_is_kept_from_drains_and_from_its_own_spec(world: World) -> None:
    async def budget() -> bool:
        return bool(await world.api.list(BUDGETS.format(world.namespace)))

    def spared(uid: str) -> bool:
        pod = next(p for p in world.server_pods() if p["metadata"]["uid"] == uid)
        return SPARED in (pod["metadata"].get("annotations") or {})

    async with world.operator():
        await world.set_up()
        record = await recovered(world)
        uid = record["pod_uid"]
        assert not await budget()
        await world.launched("s-1")
        await eventually(budget, within=WITHIN, what="a disruption budget")
        await eventually(lambda: spared(uid), within=WITHIN, what="autoscalers spare the pod")
        await world.change(idleTimeoutSeconds=1234)
        await world.condition("Ready", "True", "ServerOutdated")
        world.evidence.end("s-1")
        await eventually(
            lambda: pod_of(world, uid) is None, within=WITHIN, what="the empty server is replaced"
        )
        await world.server_pod(other_than=[uid])
        await world.condition("Ready", "True", "Serving")
