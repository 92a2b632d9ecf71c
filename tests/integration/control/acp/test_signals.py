"""A signal reaches the process that was seen, and no later one with its id."""

import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tenure.control.acp import proctable


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    """A process in our own group, which no signal to a group may reach."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("handles", [True, False])
def test_one_process_of_our_own_group_is_signalled_by_itself(
    sleeper: "subprocess.Popen[bytes]", handles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(pid: int) -> int:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    if not handles:
        monkeypatch.setattr(os, "pidfd_open", forbidden)
    seen = proctable.read(sleeper.pid)
    assert seen is not None
    proctable.send_all([replace(seen, start=seen.start + 1)], signal.SIGKILL)
    with pytest.raises(subprocess.TimeoutExpired):
        sleeper.wait(0.2)
    proctable.send_all([seen], signal.SIGTERM)
    assert sleeper.wait(10) == -signal.SIGTERM
