"""An operator that ends itself by SIGKILL around one of the steps by which it hosts an agent.

``python -m tests.integration.hosted.dying STEP MOMENT``: STEP is a key of ``STEPS``, MOMENT ``before`` (nothing was
sent) or ``after`` (it was carried out, and nobody heard of it). Its settings are those of ``tenure operator``.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from tenure.cli.main import app
from tenure.cluster.agents import KubernetesAgentCluster
from tenure.operator.hosted.driver import Driver
from tenure.ownership.client import ControlClient
from tenure.ownership.stream import ControlStream
from tenure.storage.records.executions import Executions
from tenure.storage.records.turns import Turns

STEPS: dict[str, tuple[type, str, Callable[..., bool]]] = {
    "status": (KubernetesAgentCluster, "patch_agent_process_status", lambda *_: True),
    "row": (Executions, "launch", lambda *_: True),
    "create": (ControlClient, "create", lambda *_: True),
    "session": (Driver, "_open", lambda *_: True),
    "token": (Executions, "launched", lambda *_: True),
    "turn": (Turns, "open", lambda *_: True),
    "prompt": (ControlStream, "send", lambda action, *_: action == "agent.prompt"),
    "bind": (Turns, "bind", lambda *_: True),
    "outcome": (Turns, "apply", lambda *_: True),
    "acknowledge": (ControlClient, "acknowledge", lambda *_: True),
    "delete": (ControlClient, "delete", lambda *_: True),
    "ended": (Executions, "ended", lambda *_: True),
}
"""By name: where it is done, and by which call, if its first argument says so."""


def arm(step: str, moment: str) -> None:
    """From now on that step is the last."""
    owner, name, concerned = STEPS[step]
    inner = getattr(owner, name)

    async def dying(self: Any, *arguments: Any, **named: Any) -> Any:
        if not concerned(*(arguments or ("",))):
            return await inner(self, *arguments, **named)
        if moment == "after":
            await inner(self, *arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("this process has ended")

    setattr(owner, name, dying)


if __name__ == "__main__":
    arm(sys.argv[1], sys.argv[2])
    sys.argv[1:] = ["operator"]
    app()
