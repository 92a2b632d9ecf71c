"""Ending the operator exactly before or after one of its writes to the API server, or losing the answer to one.

A wrapper around the cluster adapter counts the writes that passes make (Events are no such write: nothing
follows from them). ``python -m tests.support.crashing MOMENT NUMBER`` is an operator that ends itself by SIGKILL
there; its settings are those of ``tenure operator``.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from tenure.cluster.errors import Unavailable
from tenure.cluster.ports import AgentCluster, Json

T = TypeVar("T")


class Moment(StrEnum):
    """When it happens."""

    BEFORE = "before"
    """The operator ends, and nothing has been sent."""
    AFTER = "after"
    """The write was carried out, and the operator ends before it hears of that."""
    LOST = "lost"
    """The write was carried out, and the operator is told that there was no answer; it lives on."""


def kill_this_process() -> None:
    """As a power cut ends it."""
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class Crashing:
    """An ``AgentCluster`` that counts its writes and at the ``number``-th (from 1) lets ``moment`` happen.

    ``writes`` names them in order. When the operator is to end, ``end`` is called; if that returns, this and
    every further call wait for ever, as those of a dead program would: nothing is written any more.
    """

    inner: AgentCluster
    number: int = 0
    moment: Moment = Moment.BEFORE
    end: Callable[[], object] = lambda: None
    writes: list[str] = field(default_factory=list)
    pods: list[Json] = field(default_factory=list)
    """The pods that were to be created."""
    died: asyncio.Event = field(default_factory=asyncio.Event)

    def arm(self, number: int, moment: Moment) -> None:
        """Begin to count anew."""
        self.writes.clear()
        self.number, self.moment = number, moment

    async def get_agent_process(self, namespace: str, name: str) -> Json | None:
        await self._alive()
        return await self.inner.get_agent_process(namespace, name)

    async def get_pod(self, namespace: str, name: str) -> Json | None:
        await self._alive()
        return await self.inner.get_pod(namespace, name)

    async def create_pod(self, namespace: str, body: Json) -> Json:
        self.pods.append(body)
        return await self._write("create", lambda: self.inner.create_pod(namespace, body))

    async def delete_pod(
        self, namespace: str, name: str, *, uid: str, grace_seconds: int | None
    ) -> Json | None:
        return await self._write(
            "delete",
            lambda: self.inner.delete_pod(namespace, name, uid=uid, grace_seconds=grace_seconds),
        )

    async def annotate_pod(
        self, namespace: str, name: str, *, uid: str, annotations: Mapping[str, str | None]
    ) -> Json:
        return await self._write(
            "annotate", lambda: self.inner.annotate_pod(namespace, name, uid=uid, annotations=annotations)
        )

    async def patch_agent_process_status(
        self, namespace: str, name: str, *, uid: str, resource_version: str, status: Json
    ) -> Json:
        return await self._write(
            f"status {status.get('phase')}",
            lambda: self.inner.patch_agent_process_status(
                namespace, name, uid=uid, resource_version=resource_version, status=status
            ),
        )

    async def create_event(
        self, regarding: Mapping[str, str], *, reason: str, note: str, warning: bool, action: str
    ) -> None:
        if self.died.is_set():
            raise Unavailable(0, "Dead", "this operator has ended")
        await self.inner.create_event(regarding, reason=reason, note=note, warning=warning, action=action)

    async def _write(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        await self._alive()
        self.writes.append(name)
        due = len(self.writes) == self.number
        if due and self.moment is Moment.BEFORE:
            await self._die()
        answer = await call()
        if due and self.moment is Moment.AFTER:
            await self._die()
        if due and self.moment is Moment.LOST:
            raise Unavailable(0, "Timeout", "no answer within 0 s")
        return answer

    async def _die(self) -> None:
        self.end()
        self.died.set()
        await self._alive()

    async def _alive(self) -> None:
        if self.died.is_set():
            await asyncio.Event().wait()


def main(moment: str, number: str) -> int:
    """An operator whose process ends at that write."""
    from tenure.operator.main import Parts
    from tenure.operator.main import main as operate

    def wrap(cluster: AgentCluster) -> AgentCluster:
        return Crashing(cluster, int(number), Moment(moment), kill_this_process)

    return operate(Parts(wrap_cluster=wrap))


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
