"""A host for links in tests: keeps what it is told, and waits when it is told to."""

import asyncio
from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue

from tenure.protocol.frames import PermissionAnswer, PermissionRequest, event


class Recorder:
    """``events`` as ``(type, fields)`` in order; ``texts`` of the message chunks. After ``limit`` events ``event()``
    waits until ``limit`` is raised (``take_all``). Permissions wait in ``asked`` until ``answer`` is called."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self.events: list[tuple[str, dict[str, JsonValue]]] = []
        self.asked: list[PermissionRequest] = []
        self.cancelled: list[str] = []
        self.activities = 0
        self.waiting = 0
        self._answers: dict[str, asyncio.Future[PermissionAnswer]] = {}
        self._room = asyncio.Event()

    async def event(self, type: str, fields: Mapping[str, JsonValue]) -> None:
        self.waiting += 1
        try:
            while self.limit is not None and len(self.events) >= self.limit:
                self._room.clear()
                await self._room.wait()
        finally:
            self.waiting -= 1
        # What the instance does with it, so that what a link gives is always an event.
        event(type, **fields)
        self.events.append((type, dict(fields)))

    async def permission(self, request: PermissionRequest) -> PermissionAnswer:
        self.asked.append(request)
        answer: asyncio.Future[PermissionAnswer] = asyncio.get_running_loop().create_future()
        self._answers[request.pending_id] = answer
        try:
            return await answer
        except asyncio.CancelledError:
            self.cancelled.append(request.pending_id)
            raise

    def activity(self) -> None:
        self.activities += 1

    def answer(self, pending_id: str, option_id: str) -> None:
        self._answers[pending_id].set_result(PermissionAnswer(pending_id=pending_id, option_id=option_id))

    def take_all(self) -> None:
        self.limit = None
        self._room.set()

    @property
    def texts(self) -> list[str]:
        return [str(fields.get("text")) for type_, fields in self.events if type_ == "message_chunk"]

    def of(self, type_: str) -> list[dict[str, Any]]:
        return [fields for kind, fields in self.events if kind == type_]
