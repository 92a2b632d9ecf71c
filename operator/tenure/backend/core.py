"""What the parts of one ``Backend`` share."""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tenure.backend.link import Link, Peer
from tenure.backend.refusals import translated
from tenure.backend.settling import Settling
from tenure.ownership.errors import ControlError, Refused
from tenure.storage.records import Records

if TYPE_CHECKING:
    from tenure.backend.session import Session

log = logging.getLogger("tenure.backend")


@dataclass(eq=False)
class Core:
    """``incarnation``: of this lifetime of the backend, as the records name it. ``launching`` holds the sessions
    whose launch, or its undoing, is under way."""

    records: Records
    link: Link
    installation: str
    incarnation: str
    sessions: "dict[str, Session]" = field(default_factory=dict)
    launching: set[str] = field(default_factory=set)
    background: "set[asyncio.Task[None]]" = field(default_factory=set)
    closed: bool = False
    """Nothing is begun any more; what was begun is the next process's."""

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        """Let something run until it ends, or the backend is closed."""
        task = asyncio.create_task(work, name=name)
        self.background.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self.background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("%s failed: %s", task.get_name(), type(task.exception()).__name__)

    @contextlib.contextmanager
    def calling(self, peer: Peer) -> Iterator[None]:
        """Around calls to ``peer``: failures are looked into, and leave as the library's two kinds of error."""
        with translated():
            try:
                yield
            except ControlError as error:
                self.link.report(peer, error)
                raise

    async def stop_instance(
        self, instance_id: str, server_identity: str, settling: Settling | None = None
    ) -> None:
        """Stop an instance, an outcome that it still has read before. An instance that is not there, or was on a
        server that is not ours any more, counts as stopped."""
        peer = self.link.require()
        if peer.name != server_identity:
            return
        with self.calling(peer):
            if settling is not None:
                with contextlib.suppress(Refused):
                    retained = await peer.client.outcome(instance_id)
                    if retained is not None:
                        settling.take(retained.turn_id, retained.event)
            await peer.client.delete(instance_id)
