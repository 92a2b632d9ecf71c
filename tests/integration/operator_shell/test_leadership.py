"""The Lease itself: who may take it and when, by our own clock and by compare-and-set."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.support.api import AdminClient, Object, path
from tests.support.cluster import delete_namespace, new_namespace
from tests.support.wait import eventually

from tenure.cluster.calls import PODS, Verb
from tenure.cluster.client import KubernetesClient
from tenure.cluster.errors import Unavailable
from tenure.cluster.lease import LeaseLost, LeaseSlot, Standing
from tenure.operator.leader import Leadership

NAME = "tenure-operator"
LIMIT = 5.0


class Contender:
    """A ``Leadership`` whose work is to be seen working."""

    def __init__(self, client: KubernetesClient, name: str, *namespaces: str, seconds: int = 30) -> None:
        self.changes: list[bool] = []
        self.working = False
        self.leadership = Leadership(
            client,
            namespaces=namespaces,
            name=NAME,
            identity=name,
            seconds=seconds,
            on_change=self.changes.append,
            overrun=lambda: self.changes.append(True),
        )

    async def work(self) -> None:
        self.working = True
        try:
            await asyncio.sleep(float("inf"))
        finally:
            self.working = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Contender"]:
        task = asyncio.create_task(self.leadership.lead(self.work))
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class HandClock:
    """A monotonic clock that a test turns."""

    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


def slot(client: KubernetesClient, namespace: str, identity: str, clock: HandClock) -> LeaseSlot:
    return LeaseSlot(client, namespace=namespace, name=NAME, identity=identity, seconds=15, monotonic=clock)


def foreign_lease(holder: str, seconds: object, renewed: str) -> Object:
    return {
        "metadata": {"name": NAME, "labels": {"kept": "yes"}},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": seconds, "renewTime": renewed},
    }


@pytest.mark.accept("O-002.4")
async def test_of_two_contenders_one_works_and_the_other_writes_nothing(
    client: KubernetesClient, api: AdminClient, namespace: str
) -> None:
    async with Contender(client, "first", namespace).running() as first:
        await eventually(lambda: first.working, within=10)
        lease = await api.get(path("leases", namespace, NAME))
        async with Contender(client, "second", namespace).running() as second:
            await eventually(lambda: second.leadership.readable, within=10)
            began = time.monotonic()
            await eventually(lambda: time.monotonic() - began > 2.5, within=5)
            assert not second.working
            assert not second.leadership.leading
        assert await api.get(path("leases", namespace, NAME)) == lease
        assert first.working


async def test_a_released_lease_is_taken_at_once(
    client: KubernetesClient, api: AdminClient, namespace: str
) -> None:
    second = Contender(client, "second", namespace, seconds=300)
    async with Contender(client, "first", namespace, seconds=300).running() as first:
        await eventually(lambda: first.working, within=10)
        waiting = asyncio.create_task(second.leadership.lead(second.work))
        await eventually(lambda: second.leadership.readable, within=10)
    try:
        assert not first.working
        await eventually(lambda: second.working, within=10)
        lease = await api.get(path("leases", namespace, NAME))
        assert lease["spec"]["holderIdentity"] == "second"
        assert lease["spec"]["leaseTransitions"] == 1
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.parametrize("renewed", ["2001-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z"])
async def test_a_foreign_claim_runs_out_by_our_clock_whatever_time_it_carries(
    client: KubernetesClient, api: AdminClient, namespace: str, renewed: str
) -> None:
    await api.create(path("leases", namespace), foreign_lease("somebody", 20, renewed))
    clock = HandClock()
    ours = slot(client, namespace, "ours", clock)
    assert await ours.look(LIMIT) is Standing.HELD
    clock.at += 19.9
    assert await ours.look(LIMIT) is Standing.HELD
    clock.at += 0.2
    assert await ours.look(LIMIT) is Standing.EXPIRED
    await ours.claim(LIMIT)
    lease = await api.get(path("leases", namespace, NAME))
    assert lease["spec"]["holderIdentity"] == "ours"
    assert lease["spec"]["leaseTransitions"] == 1
    assert lease["metadata"]["labels"] == {"kept": "yes"}


async def test_a_renewal_by_its_holder_begins_the_wait_anew(client: KubernetesClient, namespace: str) -> None:
    clock = HandClock()
    theirs, ours = slot(client, namespace, "theirs", clock), slot(client, namespace, "ours", clock)
    await theirs.look(LIMIT)
    await theirs.claim(LIMIT)
    assert await ours.look(LIMIT) is Standing.HELD
    clock.at += 14
    await theirs.renew(LIMIT)
    assert await ours.look(LIMIT) is Standing.HELD
    clock.at += 14
    assert await ours.look(LIMIT) is Standing.HELD
    clock.at += 2
    assert await ours.look(LIMIT) is Standing.EXPIRED


async def test_of_two_who_saw_it_run_out_one_gets_it(client: KubernetesClient, namespace: str) -> None:
    clock = HandClock()
    dead, one, other = (slot(client, namespace, name, clock) for name in ("dead", "one", "other"))
    await dead.look(LIMIT)
    await dead.claim(LIMIT)
    for each in (one, other):
        await each.look(LIMIT)
    clock.at += 16
    for each in (one, other):
        assert await each.look(LIMIT) is Standing.EXPIRED
    await one.claim(LIMIT)
    with pytest.raises(LeaseLost):
        await other.claim(LIMIT)
    with pytest.raises(LeaseLost):
        await dead.renew(LIMIT)
    await dead.release(LIMIT)
    assert await one.look(LIMIT) is Standing.OURS


async def test_a_deleted_lease_keeps_its_holders_claim_for_those_who_saw_it(
    client: KubernetesClient, api: AdminClient, namespace: str
) -> None:
    clock = HandClock()
    theirs, ours = slot(client, namespace, "theirs", clock), slot(client, namespace, "ours", clock)
    await theirs.look(LIMIT)
    await theirs.claim(LIMIT)
    await ours.look(LIMIT)
    await api.delete(path("leases", namespace, NAME))
    assert await ours.look(LIMIT) is Standing.HELD
    await theirs.renew(LIMIT)
    assert await ours.look(LIMIT) is Standing.HELD
    clock.at += 16
    assert await ours.look(LIMIT) is Standing.EXPIRED


@pytest.mark.parametrize("seconds", [1, 2147483647])
async def test_the_holders_own_duration_counts(
    client: KubernetesClient, api: AdminClient, namespace: str, seconds: int
) -> None:
    await api.create(
        path("leases", namespace), foreign_lease("somebody", seconds, "2026-01-01T00:00:00.000000Z")
    )
    clock = HandClock()
    ours = slot(client, namespace, "ours", clock)
    assert await ours.look(LIMIT) is Standing.HELD
    clock.at += 16
    assert await ours.look(LIMIT) is (Standing.EXPIRED if seconds == 1 else Standing.HELD)


async def test_a_leader_whose_lease_was_given_to_another_stops_at_its_next_renewal(
    client: KubernetesClient, api: AdminClient, namespace: str
) -> None:
    async with Contender(client, "robbed", namespace, seconds=3).running() as robbed:
        await eventually(lambda: robbed.working, within=10)
        robbery = {"spec": {"holderIdentity": "robber", "leaseDurationSeconds": 300}}
        await api.patch(path("leases", namespace, NAME), robbery)
        await eventually(lambda: not robbed.working, within=10)
        assert robbed.leadership.lost.is_set()
        assert robbed.changes == [True, False]
        lease = await api.get(path("leases", namespace, NAME))
        assert lease["spec"]["holderIdentity"] == "robber"


async def test_a_person_who_labels_the_lease_takes_nothing_away(
    client: KubernetesClient, api: AdminClient, namespace: str
) -> None:
    async with Contender(client, "first", namespace, seconds=3).running() as first:
        await eventually(lambda: first.working, within=10)
        await api.patch(path("leases", namespace, NAME), {"metadata": {"labels": {"seen": "yes"}}})
        began = time.monotonic()
        await eventually(lambda: time.monotonic() - began > 3.5, within=5)
        assert first.changes == [True]
        lease = await api.get(path("leases", namespace, NAME))
        assert lease["metadata"]["labels"] == {"seen": "yes"}


async def test_work_that_fails_gives_the_lease_up_and_says_why(
    client: KubernetesClient, api: AdminClient, namespace: str
) -> None:
    contender = Contender(client, "first", namespace)

    async def fail() -> None:
        raise LookupError("a bug")

    with pytest.raises(LookupError, match="a bug"):
        await contender.leadership.lead(fail)
    assert contender.changes == [True, False]
    lease = await api.get(path("leases", namespace, NAME))
    assert lease["spec"]["holderIdentity"] == ""


@pytest.mark.accept("O-002.4", "K-10")
async def test_one_lease_in_every_watched_namespace_or_none(
    client: KubernetesClient, api: AdminClient, namespace: str
) -> None:
    other = await new_namespace(api)
    try:
        async with Contender(client, "both", namespace, other).running() as both:
            async with Contender(client, "one", max(namespace, other)).running() as one:
                await eventually(lambda: both.working or one.working, within=10)
            # "one" has released by now, whoever was first.
            await eventually(lambda: both.working, within=10)
            for each in (namespace, other):
                lease = await api.get(path("leases", each, NAME))
                assert lease["spec"]["holderIdentity"] == "both"
        for each in (namespace, other):
            lease = await api.get(path("leases", each, NAME))
            assert lease["spec"]["holderIdentity"] == ""
    finally:
        await delete_namespace(api, other)


async def test_while_one_namespace_is_held_by_another_none_is_claimed(
    client: KubernetesClient, api: AdminClient, namespace: str
) -> None:
    other = await new_namespace(api)
    free, held = sorted((namespace, other))
    try:
        async with Contender(client, "one", held).running() as one:
            await eventually(lambda: one.working, within=10)
            async with Contender(client, "both", free, held).running() as both:
                await eventually(lambda: both.leadership.readable, within=10)
                began = time.monotonic()
                await eventually(lambda: time.monotonic() - began > 2.5, within=5)
                assert not both.working
                assert await api.find(path("leases", free, NAME)) is None
    finally:
        await delete_namespace(api, other)


async def test_behind_the_fence_of_a_lost_lease_nothing_is_written(
    client: KubernetesClient, namespace: str
) -> None:
    contender = Contender(client, "first", namespace)
    client.fence = lambda: contender.leadership.leading
    async with contender.running():
        await eventually(lambda: contender.working, within=10)
        body = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "a", "image": "none.example/a"}]}}
        await client.request(Verb.CREATE, PODS, namespace=namespace, body=body)
    with pytest.raises(Unavailable, match="does not hold the Lease"):
        await client.request(Verb.DELETE, PODS, namespace=namespace, name="a", body={})
