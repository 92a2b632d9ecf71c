"""P-3 and P-4: from the wish to stop an agent to SIGTERM seen in its process, on a real node.

The measuring happens where the node can be reached: in a process of its own, in the node's network.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.bench.report import Figure
from tests.bench.say import say
from tests.cluster import images
from tests.cluster.choose import Cluster, cluster
from tests.cluster.say import CannotStart


async def stops(scale: float, wanted: frozenset[str]) -> list[Figure]:
    """Start a node unless there is one, measure within, and end what was started. Raises ``CannotStart``."""
    target = cluster()
    was_there = await asyncio.to_thread(target.ready)
    await asyncio.to_thread(target.up)
    try:
        return await asyncio.to_thread(_within, target, scale, wanted)
    finally:
        if not was_there:
            await asyncio.to_thread(target.down)


def _within(target: Cluster, scale: float, wanted: frozenset[str]) -> list[Figure]:
    target.load(images.base())
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "figures.json"
        words = [sys.executable, "-m", "tests.bench.node", str(result), str(scale), *sorted(wanted)]
        say("measuring within the node's network")
        done = subprocess.run(target.command(words), env=target.environment(), check=False)
        if done.returncode == 3:
            raise CannotStart(result.read_text())
        done.check_returncode()
        return [Figure(**entry) for entry in json.loads(result.read_text())]
