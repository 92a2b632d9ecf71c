"""Who owns a server, by the answers it gives and on a clock that the test moves."""

import asyncio
from dataclasses import dataclass, field

import pytest

from tenure.control.lifetime import Door, Ending
from tenure.control.owner import Owner
from tenure.model.masked import Masked
from tenure.protocol import rotation
from tenure.protocol.proof import new_challenge, verify
from tenure.protocol.rotation import Operation, Refusal, Refused

NONCE = Masked("a nonce of the bootstrap")
PERIOD = 600.0


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Streams:
    """Streams that close when they are let."""

    closed: int = 0
    may_close: asyncio.Event = field(default_factory=asyncio.Event)
    fail: bool = False

    async def close(self) -> None:
        await self.may_close.wait()
        if self.fail:
            raise RuntimeError("a stream would not")
        self.closed += 1


@dataclass
class World:
    clock: Clock = field(default_factory=Clock)
    streams: Streams = field(default_factory=Streams)
    door: Door = field(default_factory=Door)

    def __post_init__(self) -> None:
        self.streams.may_close.set()
        self.owner = Owner(
            NONCE,
            int(PERIOD * 1000),
            "/home/x",
            self.door,
            close_streams=self.streams.close,
            clock=self.clock,
        )

    def adopted(self) -> Masked:
        outcome = self.owner.handshake(NONCE)
        assert isinstance(outcome, rotation.Handshaken)
        return outcome.token

    async def rotated(self, credential: Masked) -> rotation.Rotated:
        outcome = await self.owner.rotate(credential)
        assert isinstance(outcome, rotation.Rotated)
        return outcome


def why(outcome: object) -> Refusal | None:
    return outcome.why if isinstance(outcome, Refused) else None


@pytest.mark.accept("O-003.1")
async def test_a_server_that_was_never_handshaken_counts_from_its_start() -> None:
    world = World()
    world.clock.now += PERIOD - 0.5
    assert not world.owner.expire()
    world.clock.now += 0.5
    assert world.owner.expire()
    assert world.door.ending is Ending.UNOWNED


@pytest.mark.accept("O-003.8")
async def test_handshake_claim_rotation_and_its_replay_renew_and_nothing_else_does() -> None:
    world = World()
    world.clock.now += 100
    first = world.adopted()
    assert world.owner.left() == PERIOD
    world.clock.now += 100
    second = (await world.rotated(first)).credential
    assert world.owner.left() == PERIOD
    world.clock.now += 100
    assert (await world.rotated(first)).replayed
    assert world.owner.left() == PERIOD
    world.clock.now += 100
    assert not isinstance(world.owner.claim(second), Refused)
    assert world.owner.left() == PERIOD
    world.clock.now += 100
    world.owner.confirm(second, 1)
    world.owner.prove(new_challenge())
    for operation in set(Operation) - {Operation.ROTATE, Operation.CLAIM}:
        world.owner.permit(second, operation)
    world.owner.claim(first)
    world.owner.claim(None)
    world.owner.handshake(NONCE)
    await world.owner.rotate(first)
    assert world.owner.left() == PERIOD - 100


@pytest.mark.accept("O-003.2", "O-003.3")
async def test_a_claim_that_comes_after_the_period_finds_the_door_shut_however_late_the_timer_is() -> None:
    world = World()
    credential = world.adopted()
    world.clock.now += PERIOD - 0.5
    assert not isinstance(world.owner.claim(credential), Refused)
    world.clock.now += PERIOD
    assert why(world.owner.claim(credential)) is Refusal.SHUTTING_DOWN
    assert world.door.ending is Ending.UNOWNED


@pytest.mark.accept("O-003.2")
async def test_two_failed_renewals_are_survived() -> None:
    from tenure.protocol.claims import renewal_interval

    world = World()
    credential = world.adopted()
    # Two that never arrive, and the third.
    world.clock.now += 3 * renewal_interval(int(PERIOD * 1000))
    assert not isinstance(world.owner.claim(credential), Refused)
    assert world.door.ending is None


@pytest.mark.accept("O-003.9")
@pytest.mark.parametrize("ending", list(Ending))
async def test_nothing_undoes_the_decision_to_end(ending: Ending) -> None:
    world = World()
    credential = world.adopted()
    world.owner.end(ending)
    for _ in range(2):
        assert why(world.owner.claim(credential)) is Refusal.SHUTTING_DOWN
        assert why(await world.owner.rotate(credential)) is Refusal.SHUTTING_DOWN
        assert why(world.owner.confirm(credential, 1)) is Refusal.SHUTTING_DOWN
        assert why(world.owner.handshake(NONCE)) is Refusal.SHUTTING_DOWN
        assert why(world.owner.prove("no challenge")) is Refusal.SHUTTING_DOWN
        assert why(world.owner.permit(credential, Operation.CREATE)) is Refusal.SHUTTING_DOWN
        assert why(world.owner.permit(credential, Operation.STREAM)) is Refusal.SHUTTING_DOWN
        for other in Ending:
            world.owner.end(other)
    assert world.door.ending is ending


@pytest.mark.accept("O-002.9")
async def test_either_acceptable_credential_orders_the_shutdown_and_no_other_does() -> None:
    for index in (0, 1):
        world = World()
        first = world.adopted()
        second = (await world.rotated(first)).credential
        assert why(world.owner.shutdown(Masked("0" * 64))) is Refusal.NOT_AUTHENTICATED
        assert why(world.owner.shutdown(None)) is Refusal.NOT_AUTHENTICATED
        assert world.door.ending is None
        assert not isinstance(world.owner.shutdown((first, second)[index]), Refused)
        assert world.door.ending is Ending.ORDERED


@pytest.mark.accept("O-002.2")
async def test_a_rotation_and_its_replay_are_answered_only_when_the_streams_are_closed() -> None:
    world = World()
    first = world.adopted()
    world.streams.may_close.clear()
    rotating = asyncio.create_task(world.owner.rotate(first))
    await asyncio.sleep(0)
    replayed = asyncio.create_task(world.owner.rotate(first))
    await asyncio.sleep(0)
    # In force already: a stream cannot be opened any more while the others close.
    assert why(world.owner.permit(first, Operation.STREAM)) is Refusal.SUPERSEDED
    assert why(world.owner.permit(first, Operation.STREAM, admitted=True)) is Refusal.RACED
    for _ in range(5):
        await asyncio.sleep(0)
    assert not rotating.done()
    assert not replayed.done()
    world.streams.may_close.set()
    answers = [await rotating, await replayed]
    assert all(isinstance(answer, rotation.Rotated) for answer in answers)
    assert world.streams.closed == 1


async def test_a_caller_that_hangs_up_keeps_no_stream_open() -> None:
    world = World()
    first = world.adopted()
    world.streams.may_close.clear()
    rotating = asyncio.create_task(world.owner.rotate(first))
    await asyncio.sleep(0)
    rotating.cancel()
    await asyncio.gather(rotating, return_exceptions=True)
    world.streams.may_close.set()
    await world.owner.aclose()
    assert world.streams.closed == 1


async def test_streams_that_fail_to_close_do_not_lock_the_owner_out() -> None:
    world = World()
    first = world.adopted()
    world.streams.fail = True
    assert (await world.rotated(first)).rotation_id == 1
    assert (await world.rotated(first)).replayed


@pytest.mark.accept("O-002.1")
async def test_a_confirmed_rotation_leaves_the_old_credential_nothing() -> None:
    world = World()
    first = world.adopted()
    second = (await world.rotated(first)).credential
    assert why(world.owner.permit(first, Operation.ROTATE)) is None
    assert not isinstance(world.owner.confirm(second, 1), Refused)
    for operation in Operation:
        assert why(world.owner.permit(first, operation)) is Refusal.NOT_AUTHENTICATED
        assert why(world.owner.permit(second, operation)) is None


async def test_a_credential_that_lost_its_rank_while_a_request_waited_lost_a_race() -> None:
    world = World()
    first = world.adopted()
    second = (await world.rotated(first)).credential
    assert why(world.owner.confirm(first, 1)) is Refusal.RACED
    world.owner.confirm(second, 1)
    refused = world.owner.permit(first, Operation.CREATE, admitted=True)
    assert refused is not None
    assert refused.status == 403


@pytest.mark.accept("O-001.10")
async def test_proofs_are_of_the_acceptable_credentials_on_the_challenge_and_the_home() -> None:
    world = World()
    first = world.adopted()
    second = (await world.rotated(first)).credential
    challenge = new_challenge()
    proven = world.owner.prove(challenge)
    assert isinstance(proven, rotation.Proven)
    assert verify(proven.proofs[:1], second, challenge, "/home/x")
    assert verify(proven.proofs[1:], first, challenge, "/home/x")
    assert not verify(proven.proofs, first, new_challenge(), "/home/x")
    assert not verify(proven.proofs, first, challenge, "/home/y")
