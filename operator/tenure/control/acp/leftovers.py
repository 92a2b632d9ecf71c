"""Agents that outlived their control server: it was killed, and could not take them along.

Whoever starts the next server of the same home would begin their sessions anew, beside them. So that server ends
them first. It knows them by the brand of the server that started them, in the mark of each of their processes.
"""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass

from tenure.control.acp import proctable
from tenure.control.acp.proctable import Family, Seen


@dataclass(eq=False)
class _Leftovers(Family):
    brands: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Not one of the instances that this server has."""

    def members(self, table: Iterable[Seen]) -> list[Seen]:
        """A server that was started by such an agent spares itself."""
        return [seen for seen in super().members(table) if seen.pid != os.getpid()]

    def _by_itself(self, seen: Seen) -> bool:
        if seen.pid in proctable.NEVER or seen.pid == os.getpid():
            return False
        return seen.mark.partition(".")[0] in self.brands or seen.identity in self.known


def end_leftovers(brands: frozenset[str], within: float) -> bool:
    """Kill every process of these brands, and what came from it; whether none is left. Blocks, for ``within``
    seconds at most."""
    return not brands or proctable.kill(_Leftovers("", brands=brands), time.monotonic() + within)
