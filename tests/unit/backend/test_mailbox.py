"""Events between stream and reader: in order, each once, bounded, and read only when the next one is asked for."""

import asyncio

import pytest

from tenure.backend.mailbox import Mailbox
from tenure.protocol.frames import event


async def test_repetitions_are_passed_over_and_what_has_no_number_is_not() -> None:
    box = Mailbox(10, lambda _: None)
    for number in (1, 2, 2, 1, 3):
        await box.put(event("message_chunk", seq=number))
    await box.put(event("message_chunk"))
    await box.put(event("message_chunk"))
    await box.close()
    seen = []
    while (one := await box.get()) is not None:
        seen.append(one.fields.get("seq"))
    assert seen == [1, 2, 3, None, None]


async def test_a_full_box_lets_the_stream_wait_until_somebody_reads() -> None:
    box = Mailbox(2, lambda _: None)
    for number in (1, 2):
        await box.put(event("message_chunk", seq=number))
    waiting = asyncio.create_task(box.put(event("message_chunk", seq=3)))
    done, _ = await asyncio.wait({waiting}, timeout=0.02)
    assert not done
    assert box.full
    assert await box.get() is not None
    await waiting


async def test_an_event_counts_as_read_only_when_its_reader_is_done_with_it() -> None:
    told: list[int] = []
    box = Mailbox(10, told.append)
    await box.put(event("message_chunk", seq=1))
    one = await box.get()
    assert one is not None
    assert (box.read, told) == (0, [])
    box.done(one)
    box.done(one)
    assert (box.read, told) == (1, [1])


async def test_a_box_without_capacity_keeps_nothing_and_counts_it_as_read() -> None:
    box = Mailbox(0, lambda _: None)
    for number in range(1, 1001):
        await box.put(event("message_chunk", seq=number))
    assert box.read == 1000
    await box.close()
    assert await box.get() is None


async def test_what_is_told_to_nobody_counts_as_read_once_all_before_it_does() -> None:
    box = Mailbox(10, lambda _: None)
    box.skip(event("message_chunk", seq=1))
    assert box.read == 1
    await box.put(event("message_chunk", seq=2))
    one = await box.get()
    assert one is not None
    box.skip(event("message_chunk", seq=3))
    assert box.read == 1, "its reader is not done with the second"
    await box.put(event("message_chunk", seq=3))
    await box.put(event("message_chunk", seq=4))
    box.done(one)
    other = await box.get()
    assert other is not None
    assert other.fields["seq"] == 4
    box.done(other)
    assert box.read == 4


async def test_events_that_nobody_reads_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    box = Mailbox(256, lambda _: None)
    for number in range(1, 200):
        await box.put(event("message_chunk", seq=number))
    assert len(caplog.records) == 1
