"""Ending an instance's processes, all of them, by a deadline."""

import asyncio
import time

from tenure.control.acp import proctable
from tenure.control.acp.process import BLOCKING, Child, children
from tenure.control.acp.proctable import Family

_LOOK = 0.03


async def look(family: Family) -> None:
    """What to do first: ``proctable.look``."""
    await asyncio.get_running_loop().run_in_executor(BLOCKING, proctable.look, family)


async def end(family: Family, child: Child, deadline: float, grace: float) -> bool:
    """SIGTERM to every process of the family, SIGKILL after ``grace`` seconds to what is left and to whatever
    that starts, until ``deadline`` (monotonic seconds). Whether none is left, no zombie either."""
    loop = asyncio.get_running_loop()
    until = min(time.monotonic() + grace, deadline - 0.3 * max(0.0, deadline - time.monotonic()))
    gone = not await loop.run_in_executor(BLOCKING, proctable.terminate, family, children())
    if not gone:
        while time.monotonic() < until:
            if not await loop.run_in_executor(BLOCKING, proctable.living, family):
                break
            await asyncio.sleep(_LOOK)
        gone = await loop.run_in_executor(BLOCKING, proctable.kill, family, deadline)
        await loop.run_in_executor(BLOCKING, proctable.reap, family, children())
    if gone and not child.exit.done():
        # Its end is seen by the loop a moment after the table shows it.
        await asyncio.wait([child.exit], timeout=max(0.1, deadline - time.monotonic()))
    if gone:
        child.reap()
    if child.reaped:
        family.leaders.pop(child.pid, None)
    return gone and child.reaped
