"""An API server that is busy, or whose answers are lost, at every write: the operator needs longer, that is all."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pytest
from tests.integration.servers.history import incarnation
from tests.integration.servers.test_operator_crashes import in_order
from tests.integration.servers.test_ownership import running
from tests.integration.servers.world import WITHIN, World
from tests.integration.servers.wrapping import Wrapping
from tests.support.wait import eventually

from tenure.cluster.errors import Conflict, Unavailable

pytestmark = pytest.mark.timeout(240)


class Way(StrEnum):
    """How a write fails."""

    NOT_DONE = "it is not done"
    REFUSED_AS_STALE = "somebody else has written"
    ANSWER_LOST = "it is done and the answer is lost"


@dataclass
class Unlucky(Wrapping):
    """A ``ServerCluster`` of which the first write of each kind fails, and does so again after ``calls.clear()``."""

    way: Way
    calls: Counter[str] = field(default_factory=Counter)

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self.inner, name)

        async def call(*arguments: Any, **options: Any) -> Any:
            self.calls[name] += 1
            if name.startswith("get_") or name == "create_event" or self.calls[name] > 1:
                return await inner(*arguments, **options)
            if self.way is Way.NOT_DONE:
                raise Unavailable(500, "InternalError", "etcdserver: request timed out")
            if self.way is Way.REFUSED_AS_STALE:
                raise Conflict(409, "Conflict", "the object has been modified")
            await inner(*arguments, **options)
            raise Unavailable(0, "NoAnswer", "the connection was closed")

        return call


@pytest.mark.accept("K-1", "M-1")
@pytest.mark.parametrize("way", Way)
async def test_every_kind_of_write_may_fail(world: World, way: Way) -> None:
    unlucky = Unlucky(way)
    async with world.operator(wrap_servers=unlucky) as operator:
        backend = await world.set_up("s-1", "s-2")
        await world.attached(backend)
        agents = world.evidence.living("s-1"), world.evidence.living("s-2")
        await world.working("s-1")
        unlucky.calls.clear()
        life = world.kill_backend(backend)
        second = await world.backend(other_than=[life], within=2 * WITHIN)
        await world.attached(second, sessions=["s-1", "s-2"], within=2 * WITHIN)
        world.open_gate("s-1")
        await world.evidence.outcomes("s-1", 1)
        record = await in_order(world, second)
        assert (record["rotation_id"], record["adopted_by"]) == (1, incarnation(second))
        assert (world.evidence.living("s-1"), world.evidence.living("s-2")) == agents
        assert await world.turns("s-1") == ["completed"]
        counted = {
            (s.labels["outcome"], s.labels["reason"]): s.value
            for m in operator.contexts[-1].metrics.registry.collect()
            for s in m.samples
            if s.name == "tenure_adoptions_total" and s.value
        }
        assert counted == {("no_server", "no_record"): 1, ("adopted", "none"): 1}
        assert operator.metric("tenure_instances_retracked_total") == 2

        def confirmed() -> bool:
            return operator.metric("tenure_unconfirmed_rotations") == 0

        await eventually(confirmed, within=WITHIN, what="the rotation is confirmed")
        await world.condition("Ready", "True", "Serving")


@dataclass
class Unread(Wrapping):
    """A ``ServerCluster`` that does not tell of a bootstrap Secret the first times, once its pod is there."""

    times: int
    made: bool = False

    async def create_pod(self, *arguments: Any) -> Any:
        self.made = True
        return await self.inner.create_pod(*arguments)

    async def get_secret(self, namespace: str, name: str) -> Any:
        if self.made and self.times and name.endswith("-bootstrap"):
            self.times -= 1
            raise Unavailable(429, "TooManyRequests", "the server has received too many requests")
        return await self.inner.get_secret(namespace, name)


async def test_a_fresh_pod_whose_bootstrap_secret_is_not_read_at_once_is_kept(world: World) -> None:
    unread = Unread(times=3)
    async with world.operator(wrap_servers=unread):
        await world.create()
        await world.alone()
        record = await in_order(world, await running(world))
    assert unread.times == 0
    assert record["credential_secret"].endswith("-1"), "no second pod was needed"
