"""Work that takes as long as a peer takes: one piece at a time for each ControlServer, beside its passes."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from tenure.operator.servers.ports import ServerKey

Work = Coroutine[Any, Any, None]


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of work under way. One that ``finishes`` is not cancelled when its incarnation ends."""

    name: str
    incarnation: str
    finishes: bool
    task: asyncio.Task[None]


class Background:
    """``on_end(key, name, error)`` hears of each end, with None for a success and for one that was cancelled."""

    def __init__(self, on_end: Callable[[ServerKey, str, Exception | None], None]) -> None:
        self._on_end = on_end
        self._pieces: dict[ServerKey, Piece] = {}

    def busy(self, key: ServerKey) -> Piece | None:
        """What is under way for this server."""
        return self._pieces.get(key)

    def start(
        self, key: ServerKey, name: str, incarnation: str, work: Callable[[], Work], *, finishes: bool = False
    ) -> bool:
        """Begin, unless something is under way. False: it is."""
        if key in self._pieces:
            return False
        task = asyncio.create_task(self._run(key, name, work), name=f"{name} {key}")
        self._pieces[key] = Piece(name, incarnation, finishes, task)
        task.add_done_callback(lambda done: self._done(key, done))
        return True

    def outdate(self, key: ServerKey, incarnation: str) -> None:
        """Cancel what belongs to another incarnation than this one, unless it has to finish."""
        piece = self._pieces.get(key)
        if piece is not None and piece.incarnation != incarnation and not piece.finishes:
            piece.task.cancel()

    async def aclose(self) -> None:
        """Cancel everything and wait for its end."""
        tasks = [piece.task for piece in self._pieces.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, key: ServerKey, name: str, work: Callable[[], Work]) -> None:
        failed: Exception | None = None
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - one server's failure must not stop the others
            failed = error
        # Before whoever is told asks whether anything is under way.
        self._pieces.pop(key, None)
        self._on_end(key, name, failed)

    def _done(self, key: ServerKey, task: asyncio.Task[None]) -> None:
        piece = self._pieces.get(key)
        if piece is not None and piece.task is task:
            # Cancelled: whatever waited for its place may have it now.
            del self._pieces[key]
            self._on_end(key, piece.name, None)
