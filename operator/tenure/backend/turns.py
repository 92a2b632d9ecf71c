"""One prompt and how it ended, as the backend sees it."""

import asyncio
from dataclasses import dataclass

from tenure.backend.errors import BackendError
from tenure.model.records import TurnState
from tenure.storage.records.types import Turn as TurnRecord


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """How a turn ended, as it is in the database.

    ``stop_reason`` is the agent's word for a turn that it ended (``end_turn``, ``cancelled``...), ``code`` that
    of a failure; both may be empty. An *abandoned* turn has no outcome: its instance was stopped, or lost.
    """

    state: TurnState
    stop_reason: str = ""
    code: str = ""

    @property
    def completed(self) -> bool:
        """Whether the agent did its turn to the end."""
        return self.state is TurnState.COMPLETED


def end_of(record: TurnRecord) -> TurnEnd | None:
    """How the recorded turn ended; None while it is open."""
    if record.state is TurnState.OPEN:
        return None
    words = record.outcome or {}
    return TurnEnd(record.state, words.get("stop_reason", ""), words.get("code", ""))


class Turn:
    """A prompt that was given to a session. Made by ``Session.prompt``."""

    def __init__(self, record: TurnRecord) -> None:
        self.id = record.id
        """Its number in the database, and the key under which the prompt is sent."""
        self.session_id = record.session_id
        self.control_turn_id = record.control_turn_id
        """The control server's own number; None until it has accepted the prompt, as far as is known."""
        self._ended = asyncio.Event()
        self._end: TurnEnd | BackendError | None = None
        self.settle_with(record)

    def __repr__(self) -> str:
        return f"Turn(id={self.id}, session_id={self.session_id!r}, end={self.end!r})"

    @property
    def key(self) -> str:
        """What travels as ``turn_key``."""
        return str(self.id)

    @property
    def end(self) -> TurnEnd | None:
        """How it ended; None while nobody knows."""
        return self._end if isinstance(self._end, TurnEnd) else None

    async def outcome(self) -> TurnEnd:
        """Wait until the outcome is in the database, and return it. There is no limit of time.

        Raises ``FinalError`` when the ``Backend`` is closed, or the session detached, before: the turn goes on,
        and whoever attaches next hears of its end.
        """
        await self._ended.wait()
        if isinstance(self._end, BackendError):
            raise self._end
        assert self._end is not None
        return self._end

    async def settled(self) -> None:
        """Wait for its end, whatever it is (for the library)."""
        await self._ended.wait()

    def settle_with(self, record: TurnRecord) -> None:
        """Take over what the database says of it (for the library)."""
        self.control_turn_id = record.control_turn_id or self.control_turn_id
        end = end_of(record)
        if end is not None:
            self.finish(end)

    def finish(self, end: TurnEnd | BackendError) -> None:
        """The end is known (for the library). The first one stays."""
        if self._end is None:
            self._end = end
            self._ended.set()
