"""All instances of one server: who may be made, who is there, and how each one ends."""

import asyncio
import itertools
import os
import time
import uuid
from collections.abc import Callable, Iterable

import structlog

from tenure.control.acp import AgentFailed, Link
from tenure.control.instances.admission import examine
from tenure.control.instances.config import (
    ActionRefused,
    CreateRefused,
    HostingConfig,
    Status,
    StopFailed,
)
from tenure.control.instances.hosted import Hosted, StartAgent
from tenure.control.instances.stream import CloseCode, Stream
from tenure.protocol.messages import CreateRequest, InstanceWithEnvironment
from tenure.protocol.wire import HUGE

_GROWS = 4096
"""Bytes by which one enumerated instance may still grow: status, the provider's session."""
_log = structlog.get_logger(__name__)


class Instances:
    """The hosted instances of one server. ``port`` is asked for whenever it is told to somebody; ``clock``
    is monotonic, in seconds; ``start_agent`` is another one only in tests."""

    def __init__(
        self,
        config: HostingConfig,
        *,
        port: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
        start_agent: StartAgent = Link.start,
    ) -> None:
        self._config, self._port, self._clock, self._start_agent = config, port, clock, start_agent
        self._hosted: dict[str, Hosted] = {}
        self._sizes: dict[str, int] = {}
        self._stops: dict[str, asyncio.Task[None]] = {}
        self._turn_ids = itertools.count(1)
        self._closed = False

    def admit(self, request: CreateRequest) -> Hosted:
        """Register a new instance, or raise ``CreateRefused``: 400 for a request that is not in order, 409
        for an id or a session in use, a server that shuts down, or one whose enumeration would become longer
        than anybody reads. Synchronous: whoever enumerates next sees it."""
        if self._closed:
            raise CreateRefused(409, "shutting_down")
        admitted = examine(request, self._config, os.environ)
        if request.id is not None and request.id in self._hosted:
            raise CreateRefused(409, "id_in_use")
        if request.session_id and any(
            hosted.session_id == request.session_id and hosted.status is not Status.STOPPED
            for hosted in self._hosted.values()
        ):
            raise CreateRefused(409, "session_in_use")
        hosted = Hosted(
            request.id or uuid.uuid4().hex,
            admitted,
            config=self._config,
            clock=self._clock,
            turn_ids=self._turn_ids,
            start_agent=self._start_agent,
        )
        size = len(hosted.details(0).to_wire()) + _GROWS
        if sum(self._sizes.values()) + size > HUGE:
            raise CreateRefused(409, "server_full")
        self._hosted[hosted.id], self._sizes[hosted.id] = hosted, size
        return hosted

    async def launch(self, hosted: Hosted) -> None:
        """Start the agent when that was asked for. Raises ``CreateRefused`` with status 500, and the instance
        is gone again, when it does not start."""
        if not hosted.auto_start:
            return
        try:
            await hosted.start()
        except AgentFailed as failed:
            _log.warning("an agent did not start", instance=hosted.id, problem=failed.message)
            await self.stop(hosted.id)
            raise CreateRefused(500, failed.message) from None
        except ActionRefused:
            raise CreateRefused(500, "The instance was stopped while its agent started.") from None

    def enumerate(self) -> tuple[InstanceWithEnvironment, ...]:
        """All instances, whatever their status, in the order in which they were made."""
        port = self._port()
        return tuple(hosted.details(port) for hosted in self._hosted.values())

    def find(self, instance_id: str) -> Hosted | None:
        """The instance of this id."""
        return self._hosted.get(instance_id)

    async def stop(self, instance_id: str) -> bool:
        """End an instance, within the stop budget: its agent, with all that came from it, is gone then, and so
        is the instance. False when there is none of this id. Concurrent stops are one. Raises ``StopFailed``
        when something of the agent is left: the instance is ``stopping`` then, and stays."""
        hosted = self._hosted.get(instance_id)
        if hosted is None:
            return False
        await asyncio.shield(self._stopping(hosted))
        return True

    async def stop_all(self) -> None:
        """End all instances at the same time, and admit no more. Never raises; what is left is logged."""
        self._closed = True
        stops = [self._stopping(hosted) for hosted in tuple(self._hosted.values())]
        await asyncio.gather(*stops, return_exceptions=True)

    async def close_streams(self, bound: float = 1.0) -> None:
        """End every stream: from the first moment on nothing that comes on one is accepted. A peer that does
        not agree within ``bound`` seconds is cut off."""
        streams: Iterable[Stream] = [s for hosted in self._hosted.values() for s in hosted.streams]
        for stream in streams:
            stream.end(CloseCode.RELEASED, bound)
        await asyncio.gather(*(stream.gone(bound) for stream in streams))

    async def run(self) -> None:
        """Look for idle instances, each minute, until cancelled."""
        if self._config.idle_timeout <= 0:
            return
        while True:
            await asyncio.sleep(self._config.timing.scan)
            self.reap()

    def reap(self) -> None:
        """Begin to stop every instance that is idle. What is begun goes on by itself."""
        now = self._clock()
        for hosted in tuple(self._hosted.values()):
            if hosted.idle(now):
                _log.info("instance is idle", instance=hosted.id)
                self._stopping(hosted)

    def _stopping(self, hosted: Hosted) -> "asyncio.Task[None]":
        stop = self._stops.get(hosted.id)
        if stop is None:
            hosted.halt()
            stop = self._stops[hosted.id] = asyncio.create_task(self._stop(hosted), name=f"stop-{hosted.id}")
            stop.add_done_callback(lambda _: self._stops.pop(hosted.id, None))
        return stop

    async def _stop(self, hosted: Hosted) -> None:
        try:
            await hosted.end()
        except StopFailed as failed:
            _log.error("instance is not stopped", instance=hosted.id, reason=str(failed))
            raise
        del self._hosted[hosted.id], self._sizes[hosted.id]
        _log.info("instance stopped", instance=hosted.id)
