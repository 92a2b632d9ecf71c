"""An operator that dies right before or right after one of its writes: to the API server, the store or a control
server.

``python -m tests.integration.servers.fate before|after NUMBER`` is ``tenure operator`` that ends itself there, by
SIGKILL. Within a process, a dead operator is one whose every further call waits for ever: it learns nothing, and
nothing that it would do happens any more.
"""

import asyncio
import functools
import inspect
import re
import sys
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from tests.support.crashing import kill_this_process

from tenure.cluster.server_ports import ServerCluster
from tenure.ownership.client import ControlClient
from tenure.storage.records.executions import Executions
from tenure.storage.records.inventory import Inventory
from tenure.storage.records.servers import ControlServers
from tenure.storage.records.transactions import Rows
from tenure.storage.records.turns import Turns

CLUSTER_READS = {"get_control_server", "get_agent_process", "get_pod", "get_secret", "create_event"}
"""Nothing follows from an Event, so its loss is no state of its own."""
STORES = (ControlServers, Inventory, Executions, Turns)
STORE_READS = {"get", "installation_of", "live", "of_session", "now", "fresh_id", "touch"}
"""Whatever else there is in a store writes: a method that is new there is not forgotten here. Nothing follows from when
a row was seen last."""
ASKED = {"identity", "prove", "details", "claim", "instances", "instance", "outcome", "stream", "health"}
"""Of ``ControlClient``; whatever else there is sends."""

MOMENT = 0.05
"""Seconds. The next operator asks its first question later than that: 0.09 at the least, as measured."""

_writing: ContextVar[str] = ContextVar("writing", default="")


@dataclass
class Fate:
    """Of one operator: it dies at its write number ``at``, from 1; 0: of old age. ``after``: the write happens.

    ``spent``: instead it dies at its first write of a kind at which nobody has died yet, and adds it.
    """

    at: int = 0
    after: bool = False
    spent: set[str] | None = None
    end: Callable[[], object] = lambda: None
    writes: list[str] = field(default_factory=list)
    apart: set[int] = field(default_factory=set)
    """Numbers of writes before which it may be otherwise than after the write before: see ``_begin``."""
    died: asyncio.Event = field(default_factory=asyncio.Event)
    _under_way: int = 0
    _latest: float = 0.0
    """When a write ended, by the monotonic clock."""
    _refused: bool = False
    """That one was refused."""
    _again: bool = False
    """The latest write was tried more than once."""

    def __str__(self) -> str:
        if not self.at:
            return "nobody dies" if self.spent is None else "death at a kind of write"
        return f"death {'after' if self.after else 'before'} write {self.at}"

    def _begin(self, what: str) -> bool:
        """Count a write; whether the operator is to die at it.

        What is durable right before a write is what was durable right after the one before, and all else dies with the
        operator. Not so where both were under way at a time, and where the operator has waited in between, for the
        world or a deadline. In a shorter while than ``MOMENT`` the world does nothing that it would not have done
        anyway before the next operator looks. One that was refused and is tried again counts once: it changed nothing,
        and how often it is tried differs.
        """
        if self._refused and self.writes and self.writes[-1] == what:
            self._again = True
            return False
        self.writes.append(what)
        if self._under_way or self._again or time.monotonic() - self._latest > MOMENT:
            self.apart.add(len(self.writes))
        self._again = False
        if self.spent is None:
            return len(self.writes) == self.at
        fresh = what not in self.spent
        self.spent.add(what)
        return fresh

    async def write(self, what: str, exchange: Callable[[], Awaitable[Any]]) -> Any:
        """One write, if it lives."""
        await self.alive()
        due = self._begin(what)
        if due and not self.after:
            await self._die()
        self._under_way += 1
        self._refused = False
        try:
            answer = await exchange()
        except Exception:
            self._refused = True
            # A refusal is an answer, too.
            await self._if_alive(due)
            raise
        finally:
            self._under_way -= 1
            self._latest = time.monotonic()
        await self._if_alive(due)
        return answer

    async def read(self, exchange: Callable[[], Awaitable[Any]]) -> Any:
        """One question, if it lives; and it hears the answer only if it still does."""
        await self.alive()
        try:
            answer = await exchange()
        except Exception:
            await self.alive()
            raise
        await self.alive()
        return answer

    async def alive(self) -> None:
        """Returns if it is."""
        if self.died.is_set():
            await asyncio.Event().wait()

    async def _if_alive(self, due: bool) -> None:
        """Returns if it has not died meanwhile, and does not now."""
        if due:
            await self._die()
        await self.alive()

    async def _die(self) -> None:
        self.end()
        self.died.set()
        await self.alive()


class FatedCluster:
    """A ``ServerCluster`` of an operator with a fate."""

    def __init__(self, inner: ServerCluster, fate: Fate) -> None:
        self._inner, self._fate = inner, fate

    def __getattr__(self, name: str) -> Any:
        inner, fate = getattr(self._inner, name), self._fate

        async def call(*arguments: Any, **options: Any) -> Any:
            def exchange() -> Any:
                return inner(*arguments, **options)

            if name in CLUSTER_READS:
                return await fate.read(exchange)
            return await fate.write(f"{name} {_subject(arguments)}", exchange)

        return call


def _subject(arguments: tuple[Any, ...]) -> str:
    """The name that a call is about, whatever the ordinal in it."""
    about = arguments[1] if len(arguments) > 1 else ""
    if isinstance(about, dict):
        about = about["metadata"]["name"]
    name = about if isinstance(about, str) else str(getattr(about, "name", about))
    return re.sub(r"-\d+(?=-|$)", "-N", name)


def install(put: Callable[[type, str, Any], None], current: Callable[[], Fate]) -> None:
    """Give every store and every client of this process the fate of the operator that lives in it. ``put`` is
    ``setattr``, or what takes it back after a test."""

    def fated(kind: type, name: str, *, writes: bool) -> None:
        true = getattr(kind, name)

        @functools.wraps(true)
        async def call(*arguments: Any, **options: Any) -> Any:
            def exchange() -> Any:
                return true(*arguments, **options)

            fate = current()
            return await (fate.write(name, exchange) if writes else fate.read(exchange))

        put(kind, name, call)

    def labelled(kind: type, name: str) -> None:
        true = getattr(kind, name)

        @functools.wraps(true)
        async def call(*arguments: Any, **options: Any) -> Any:
            token = _writing.set(name)
            try:
                return await true(*arguments, **options)
            finally:
                _writing.reset(token)

        put(kind, name, call)

    for name in _methods(ControlClient) - {"aclose"}:
        fated(ControlClient, name, writes=name not in ASKED)
    for kind in STORES:
        for name in _methods(kind) - STORE_READS:
            labelled(kind, name)
    transact = Rows._transact

    async def each_transaction(self: Rows, *arguments: Any, **options: Any) -> Any:
        def exchange() -> Any:
            return transact(self, *arguments, **options)

        what, fate = _writing.get(), current()
        return await (fate.write(f"store {what}", exchange) if what else fate.read(exchange))

    put(Rows, "_transact", each_transaction)


def _methods(kind: type) -> set[str]:
    """The names of its own public coroutines."""
    found = vars(kind).items()
    return {name for name, each in found if inspect.iscoroutinefunction(each) and not name.startswith("_")}


def main(moment: str, number: str) -> int:
    """An operator whose process ends at that write."""
    from tenure.operator.main import Parts
    from tenure.operator.main import main as operate

    fate = Fate(int(number), moment == "after", end=kill_this_process)
    install(setattr, lambda: fate)
    return operate(Parts(wrap_servers=lambda inner: FatedCluster(inner, fate)))


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
