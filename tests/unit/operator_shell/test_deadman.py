"""A dead man's switch goes off when work outlives its time, and not otherwise."""

import threading
import time

from tenure.operator.deadman import Deadman


def test_it_goes_off_when_the_time_passes_inside() -> None:
    gone_off = threading.Event()
    with Deadman(gone_off.set) as deadman:
        deadman.extend(time.monotonic() + 0.2)
        assert gone_off.wait(5)


def test_it_stays_quiet_when_the_time_is_extended_or_the_work_ends() -> None:
    gone_off = threading.Event()
    with Deadman(gone_off.set) as deadman:
        deadman.extend(time.monotonic() + 0.3)
        deadman.extend(time.monotonic() + 60)
        assert not gone_off.wait(0.7)
    assert not gone_off.wait(0.1)
    assert not [thread for thread in threading.enumerate() if thread.name == "deadman"]
