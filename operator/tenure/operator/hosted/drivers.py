"""The drivers of this process: one for each execution that has no backend."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from tenure.operator.hosted.clients import Clients
from tenure.operator.hosted.driver import Driver, Orders

log = structlog.stdlib.get_logger(__name__)


@dataclass(slots=True)
class _Running:
    orders: Orders
    task: asyncio.Task[None]


class Drivers:
    """By namespace and session: a session has one agent, so it has one driver."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._running: dict[tuple[str, str], _Running] = {}

    def ensure(self, orders: Orders, on_news: Callable[[], None]) -> None:
        """See to it that this execution is driven. One of another instance of the session, or on another server, is
        over."""
        key = (orders.server.namespace, orders.session)
        known = self._running.get(key)
        if known is not None:
            same = _what(known.orders) == _what(orders)
            if same and not known.task.done():
                return
            known.task.cancel()
        driver = Driver(orders, self._clients, on_news)
        task = asyncio.create_task(self._run(driver, orders, on_news), name=f"driver of {orders.session}")
        self._running[key] = _Running(orders, task)

    async def release(self, namespace: str, session: str) -> None:
        """Drive it no longer; the agent is told nothing."""
        known = self._running.pop((namespace, session), None)
        if known is not None:
            known.task.cancel()
            await asyncio.wait({known.task})

    async def aclose(self) -> None:
        """Drive nothing any more."""
        tasks = [each.task for each in self._running.values()]
        self._running.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, driver: Driver, orders: Orders, on_news: Callable[[], None]) -> None:
        try:
            await driver.run()
        except Exception as error:  # noqa: BLE001 - one agent's failure must not stop the others
            # The next look at the agent begins another driver.
            log.error("an agent's driver ended", session=orders.session, error=type(error).__name__)
        on_news()


def _what(orders: Orders) -> tuple[str, str, str]:
    return orders.instance, orders.identity, orders.incarnation
