"""Renewal against servers: it keeps a server owned, follows rotations, and stops for good when it is over."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from tests.integration.ownership.site import Site, agentctl
from tests.support.impostors import Impostor, echo
from tests.support.wait import eventually

from tenure.model.masked import Masked
from tenure.ownership.endpoint import ReadBudget
from tenure.ownership.errors import ControlError
from tenure.ownership.renewal import Ended, Renewal, Renewed

ONCE = ReadBudget(timeout=5.0, retries=0)


class Running:
    """A renewal that runs in short steps, whatever the period: what it does at each step is what is looked at."""

    def __init__(self, site: Site, credential: Masked | None) -> None:
        self.credential = credential
        self.attempts: list[Renewed] = []
        self.ends: list[Ended] = []
        self.client = site.client(credential, budget=ONCE)
        self.renewal = Renewal(
            self.client,
            lambda: self.credential,
            on_attempt=self.attempts.append,
            on_end=self.ends.append,
            sleep=self._rest,
        )
        self._resting, self._goes_on = asyncio.Event(), asyncio.Event()
        self._goes_on.set()
        self.task = asyncio.create_task(self.renewal.run())

    async def _rest(self, seconds: float) -> None:
        self._resting.set()
        await asyncio.sleep(0.02)
        await self._goes_on.wait()
        self._resting.clear()

    @contextlib.asynccontextmanager
    async def at_rest(self) -> AsyncIterator[None]:
        """Between two attempts: none presents anything meanwhile."""
        self._goes_on.clear()
        await self._resting.wait()
        yield
        self._goes_on.set()

    async def renewed(self) -> None:
        """Wait for two more attempts that succeed: the first may have begun before."""
        before = len(self.attempts)
        await eventually(lambda: sum(a.error is None for a in self.attempts[before:]) >= 2, within=60)


@contextlib.asynccontextmanager
async def renewing(site: Site, credential: Masked | None) -> AsyncIterator[Running]:
    running = Running(site, credential)
    try:
        yield running
    finally:
        running.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running.task
        await running.client.aclose()


async def test_renewal_follows_a_rotation_and_learns_the_servers_own_period(site: Site) -> None:
    async with await site.owned() as owner, renewing(site, owner._calls.credential) as running:
        await running.renewed()
        assert running.renewal.period_ms == (await owner.identity()).unowned_period_ms
        # The order of an owner that rotates: it stores the replacement, and presents it from then on. An attempt that
        # came between the two would be the end.
        async with running.at_rest():
            rotated = await owner.rotate()
            running.credential = rotated.credential
        owner.use(rotated.credential)
        await owner.confirm(rotated.rotation_id)
        await running.renewed()
        assert not running.ends


@pytest.mark.accept("O-002.3")
@pytest.mark.parametrize("confirmed", [False, True])
async def test_renewal_stops_for_good_when_somebody_else_has_rotated(site: Site, confirmed: bool) -> None:
    async with await site.owned() as other, renewing(site, other._calls.credential) as running:
        await running.renewed()
        rotated = await other.rotate()
        other.use(rotated.credential)
        if confirmed:
            await other.confirm(rotated.rotation_id)
        assert await asyncio.wait_for(running.task, 10) is Ended.SUPERSEDED
        assert running.ends == [Ended.SUPERSEDED]
        await other.claim()


async def test_renewal_stops_for_good_when_the_server_shuts_down() -> None:
    async with (
        agentctl() as site,
        await site.owned() as owner,
        renewing(site, owner._calls.credential) as running,
    ):
        await running.renewed()
        await owner.shutdown()
        assert await asyncio.wait_for(running.task, 10) is Ended.SHUTTING_DOWN


@pytest.mark.accept("O-003.2")
async def test_the_claim_of_a_server_with_a_short_period_is_kept_by_the_loops_own_timing() -> None:
    async with agentctl() as site:
        assert site.double is not None
        site.double.period_ms = 800
        async with await site.owned() as owner, site.client(owner._calls.credential, budget=ONCE) as client:
            renewal = Renewal(client, lambda: owner._calls.credential)
            task = asyncio.create_task(renewal.run())
            await eventually(lambda: site.double is not None and site.double.renewals >= 6, within=20)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@pytest.mark.accept("K-7")
async def test_renewal_sends_nothing_to_whoever_took_over_the_address() -> None:
    async with (
        agentctl() as site,
        await site.owned() as owner,
        renewing(site, owner._calls.credential) as running,
    ):
        assert site.double is not None
        await running.renewed()
        await site.double.__aexit__(None, None, None)
        credential = site.double.latest
        async with Impostor(echo(), port=site.double.port) as impostor:
            await eventually(lambda: len(impostor.requests) >= 3, within=60)
            assert not impostor.saw(credential)
        assert isinstance(running.attempts[-1].error, ControlError)
