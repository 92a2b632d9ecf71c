"""An operator that dies at one of its exchanges with the store or the server: just before it, or just after it, its
answer never seen. From then on nothing of it does anything."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tenure.operator.servers.ports import OwnedServer
from tenure.ownership.client import ControlClient
from tenure.ownership.endpoint import ReadBudget
from tenure.storage.pool import BoundedPool

T = TypeVar("T")


class Died(BaseException):
    """The end of the operator."""


@dataclass
class Fate:
    """``at``: at which exchange, from 1; 0: never. ``after``: the exchange takes effect."""

    at: int = 0
    after: bool = False
    count: int = 0
    dead: bool = False

    async def live(self, exchange: Callable[[], Awaitable[T]]) -> T:
        """One exchange, if there is a life for it."""
        if self.dead:
            raise Died
        self.count += 1
        if self.count != self.at:
            return await exchange()
        self.dead = True
        if self.after:
            await exchange()
        raise Died


class DyingPool(BoundedPool):
    """A pool of an operator with a fate."""

    fate: Fate

    async def run(self, work: Callable[..., Awaitable[Any]], **options: Any) -> Any:
        """One transaction."""
        return await self.fate.live(lambda: super(DyingPool, self).run(work, **options))


class DyingClient(ControlClient):
    """What changes something at the server; reads end with their operator anyway."""

    fate: Fate

    async def delete(self, instance_id: str) -> None:
        """Stop."""
        await self.fate.live(lambda: super(DyingClient, self).delete(instance_id))

    async def acknowledge(self, instance_id: str, turn_id: int) -> None:
        """Discard."""
        await self.fate.live(lambda: super(DyingClient, self).acknowledge(instance_id, turn_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class DyingServer(OwnedServer):
    """A server as an operator with a fate knows it."""

    fate: Fate

    def client(self, budget: ReadBudget | None = None) -> ControlClient:
        """A client that dies with its operator."""
        made = DyingClient(
            self.endpoint,
            credential=self.credential,
            home_dir=self.home_dir,
            expected_identity=self.identity,
            budget=budget,
        )
        made.fate = self.fate
        return made
