"""The renewal loop on an injected clock, against a server that counts its own unowned period."""

import asyncio
from collections.abc import Callable

import pytest

from tenure.model.masked import Masked
from tenure.ownership.errors import Doubt, ForeignServer, NoAnswer, NotAccepted, ShuttingDown
from tenure.ownership.renewal import Ended, Renewal, Renewed
from tenure.protocol import claims
from tenure.protocol.messages import Identity

FIRST, SECOND = Masked("a1" * 32), Masked("b2" * 32)


class Clock:
    """Seconds that pass when somebody sleeps; ``until`` ends the test."""

    def __init__(self, until: float) -> None:
        self.now = 0.0
        self.until = until

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds
        await asyncio.sleep(0)
        if self.now >= self.until:
            raise asyncio.CancelledError


class Server:
    """A server with a claim; ``answers(n)`` raises, or not, for the n-th attempt, which takes ``takes`` seconds."""

    def __init__(self, clock: Clock, period_ms: int, answers: Callable[[int], None] = lambda n: None) -> None:
        self.clock, self.period_ms, self.answers = clock, period_ms, answers
        self.claim_ = claims.started(period_ms, 0.0)
        self.attempts: list[float] = []
        self.used: list[Masked | None] = []
        self.takes = 0.0
        self.expired = False

    def use(self, credential: Masked | None) -> None:
        self.used.append(credential)

    async def prove(self) -> Identity:
        return Identity(server_identity="s", capabilities=("c",), unowned_period_ms=self.period_ms)

    async def claim(self) -> None:
        self.attempts.append(self.clock())
        self.expired |= claims.expired(self.claim_, self.clock())
        self.clock.now += self.takes
        self.answers(len(self.attempts))
        self.claim_ = claims.renewed(self.claim_, claims.Renewal.CLAIM, self.clock())


async def run(
    server: Server, clock: Clock, credential: Callable[[], Masked | None] = lambda: FIRST
) -> tuple[Ended | None, list[Renewed], list[Ended]]:
    attempts: list[Renewed] = []
    ends: list[Ended] = []
    renewal = Renewal(
        server, credential, on_attempt=attempts.append, on_end=ends.append, clock=clock, sleep=clock.sleep
    )
    try:
        return await renewal.run(), attempts, ends
    except asyncio.CancelledError:
        return None, attempts, ends


def failing(*which: int, error: Exception | None = None) -> Callable[[int], None]:
    def answers(number: int) -> None:
        if number in which:
            raise error or NoAnswer("no")

    return answers


@pytest.mark.accept("O-003.2")
@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("period_ms", [60_000, 600_000, 90_001, 3_600_000])
async def test_the_interval_is_strictly_under_a_third_of_the_servers_own_period(
    period_ms: int, slow: bool
) -> None:
    clock = Clock(until=period_ms / 1000 * 5)
    server = Server(clock, period_ms)
    # From beginning to beginning, however long each one takes.
    server.takes = claims.renewal_timeout(period_ms) * 0.99 if slow else 0.0
    await run(server, clock)
    gaps = [later - earlier for earlier, later in zip(server.attempts, server.attempts[1:], strict=False)]
    assert gaps and all(gap < period_ms / 3000 for gap in gaps)
    assert not server.expired


@pytest.mark.accept("O-003.2")
@pytest.mark.parametrize("slow", [False, True])
async def test_two_failed_renewals_are_survived_also_when_each_takes_all_its_time(slow: bool) -> None:
    period_ms = 60_000
    clock = Clock(until=60 * 20)
    # Two of every three attempts fail, again and again.
    server = Server(clock, period_ms, lambda n: failing(n)(n) if n % 3 else None)
    server.takes = claims.renewal_timeout(period_ms) * 0.99 if slow else 0.0
    ended, attempts, _ = await run(server, clock)
    assert ended is None and not server.expired
    assert max(a.failures for a in attempts) == 2
    assert attempts[-1].began_at > 60 * 15


@pytest.mark.accept("O-003.2")
async def test_a_renewal_that_hangs_is_given_up_before_the_next_is_due() -> None:
    class Hanging(Server):
        async def claim(self) -> None:
            self.attempts.append(self.clock())
            if len(self.attempts) < 3:
                await asyncio.sleep(3600)

    clock = Clock(until=0.5)
    # A period so short that it is waited out: half an interval is 25 ms.
    server = Hanging(clock, 200)
    _, attempts, _ = await run(server, clock)
    assert [a.failures for a in attempts[:3]] == [1, 2, 0]
    assert isinstance(attempts[0].error, NoAnswer)


@pytest.mark.accept("O-002.3")
@pytest.mark.parametrize(
    ("error", "end"),
    [
        (NotAccepted(superseded=True), Ended.SUPERSEDED),
        (NotAccepted(superseded=False), Ended.SUPERSEDED),
        (ShuttingDown(), Ended.SHUTTING_DOWN),
    ],
)
async def test_a_superseded_owner_and_one_of_a_server_that_ends_stop_for_good(
    error: Exception, end: Ended
) -> None:
    clock = Clock(until=10_000)
    server = Server(clock, 600_000, failing(3, error=error))
    ended, attempts, ends = await run(server, clock)
    assert (ended, ends) == (end, [end])
    assert len(server.attempts) == len(attempts) == 3


async def test_everything_else_is_a_failed_renewal_and_it_goes_on() -> None:
    clock = Clock(until=6_000)
    errors = [ForeignServer(Doubt.CERTIFICATE), ForeignServer(Doubt.PROOF), NoAnswer("no")]
    server = Server(clock, 600_000, lambda n: failing(n, error=errors[n % 3])(n) if n < 7 else None)
    ended, attempts, _ = await run(server, clock)
    assert ended is None and [a.failures for a in attempts[:8]] == [1, 2, 3, 4, 5, 6, 0, 0]


async def test_a_rotation_of_our_own_is_followed_and_is_no_loss() -> None:
    current = [FIRST]
    clock = Clock(until=1000)

    def answers(number: int) -> None:
        if number == 2:
            # It came in between: the old credential was on its way already.
            current[0] = SECOND
            raise NotAccepted(superseded=True)

    server = Server(clock, 600_000, answers)
    ended, attempts, ends = await run(server, clock, lambda: current[0])
    assert ended is None and not ends
    assert server.used[:3] == [FIRST, FIRST, SECOND]
    assert attempts[2].error is None


async def test_the_period_is_learned_only_from_a_server_that_proved_itself() -> None:
    class Late(Server):
        async def prove(self) -> Identity:
            self.attempts.append(self.clock())
            if len(self.attempts) < 3:
                raise ForeignServer(Doubt.PROOF)
            return await super().prove()

    clock = Clock(until=200)
    server = Late(clock, 600_000)
    await run(server, clock)
    # Until then as often as the shortest period of all would need.
    assert server.attempts[1] - server.attempts[0] == claims.renewal_interval(claims.FLOOR_MS)
