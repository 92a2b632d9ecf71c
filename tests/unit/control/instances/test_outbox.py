"""The queue before a full buffer: order, places, and who is let go."""

import asyncio
import json
import random

import pytest

from tenure.control.instances.outbox import Outbox


def body(number: int) -> bytes:
    return json.dumps({"type": "x", "n": number}).encode()


def kept(box: Outbox) -> list[tuple[int, int]]:
    """Places and contents of what is kept."""
    frames = [json.loads(frame) for frame in box.after(0, 10_000)]
    return [(frame["seq"], frame["n"]) for frame in frames]


async def test_events_have_places_from_1_and_wait_when_there_is_none() -> None:
    box = Outbox(2, 10**6)
    assert [await box.put(body(n)) for n in (1, 2)] == [1, 2]
    third, fourth = box.offer(body(3)), box.offer(body(4))
    assert (third.waits, fourth.waits, box.paused) == (True, True, 2)
    box.forget(1)
    assert third.taken.result() == 3
    assert fourth.waits
    assert kept(box) == [(2, 2), (3, 3)]


async def test_a_newcomer_does_not_overtake_who_waits() -> None:
    box = Outbox(1, 10**6)
    await box.put(body(1))
    waiting = [asyncio.create_task(box.put(body(n))) for n in (2, 3)]
    await asyncio.sleep(0)
    box.forget(1)
    late = box.offer(body(4))
    assert late.waits
    for seq in (2, 3, 4):
        assert kept(box) == [(seq, seq)]
        box.forget(seq)
    assert [await task for task in waiting] == [2, 3]


async def test_an_event_that_is_taken_back_leaves_no_hole() -> None:
    box = Outbox(1, 10**6)
    await box.put(body(1))
    second, third = box.offer(body(2)), box.offer(body(3))
    assert box.withdraw(second)
    assert not box.withdraw(second)
    assert second.taken.result() == 0
    box.forget(1)
    assert (third.taken.result(), kept(box)) == (2, [(2, 3)])
    assert not box.withdraw(third)


async def test_a_cancelled_producer_takes_its_event_back_even_in_the_moment_of_room() -> None:
    box = Outbox(1, 10**6)
    await box.put(body(1))
    producer = asyncio.create_task(box.put(body(2)))
    await asyncio.sleep(0)
    producer.cancel()
    box.forget(1)
    with pytest.raises(asyncio.CancelledError):
        await producer
    assert (box.paused, kept(box)) == (0, [])
    assert await box.put(body(3)) == 2


async def test_a_stop_keeps_what_waited_past_the_limit_and_takes_nothing_more() -> None:
    box = Outbox(1, 10**6)
    await box.put(body(1))
    producer = asyncio.create_task(box.put(body(2)))
    await asyncio.sleep(0)
    box.stop(body(3))
    assert await producer == 0
    assert await box.put(body(4)) == 0
    assert kept(box) == [(1, 1), (2, 2), (3, 3)]
    box.forget(3)
    assert await box.put(body(5)) == 0


async def test_bytes_pause_but_one_event_always_fits() -> None:
    box = Outbox(100, 50)
    assert await box.put(json.dumps({"type": "x", "text": "y" * 500}).encode()) == 1
    assert box.offer(body(2)).waits
    box.forget(1)
    assert kept(box) == [(2, 2)]


async def test_forgetting_is_idempotent_and_never_reaches_what_is_not_there() -> None:
    box = Outbox(5, 10**6)
    for n in (1, 2, 3):
        await box.put(body(n))
    for seq in (2, 2, 1, 0, -5):
        box.forget(seq)
    assert kept(box) == [(3, 3)]
    box.forget(10**9)
    assert (kept(box), box.first, box.newest) == ([], 4, 3)
    assert await box.put(body(4)) == 4


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_producers_and_readers_do_nothing_is_lost_doubled_or_out_of_order(seed: int) -> None:
    chance = random.Random(seed)
    box = Outbox(chance.randint(1, 5), 10**6)
    out: list[tuple[int, int]] = []
    withdrawn: set[int] = set()
    tickets = []
    for n in range(200):
        tickets.append((n, box.offer(body(n))))
        if chance.random() < 0.2:
            number, ticket = chance.choice(tickets)
            if box.withdraw(ticket):
                withdrawn.add(number)
        while chance.random() < 0.5:
            taken = kept(box)[: chance.randint(0, 3)]
            out += taken
            if taken:
                box.forget(taken[-1][0])
    while kept(box):
        out += kept(box)
        box.forget(box.newest)
    assert [seq for seq, _ in out] == list(range(1, len(out) + 1))
    assert [n for _, n in out] == [n for n in range(200) if n not in withdrawn]
