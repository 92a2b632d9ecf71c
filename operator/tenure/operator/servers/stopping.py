"""Stops of instances: each is sent once for a recovery, whoever asks, and goes on to its end."""

import asyncio
from collections.abc import Callable, Iterable

from tenure.ownership.client import ControlClient
from tenure.ownership.errors import ControlError, ForeignServer, NotAccepted, ShuttingDown
from tenure.plan.adoption.correlation import Stop, StopResult

AT_ONCE = 32
"""Stops under way at a time."""


class Stops:
    """What became of the stops of one recovery, by instance.

    A stop is a task of its own: whoever waits for it may be cancelled without cancelling it. ``on_stopped`` hears of
    each that succeeded; an instance that was absent already is one.
    """

    def __init__(self, on_stopped: Callable[[Stop], None]) -> None:
        self.results: dict[str, StopResult] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._on_stopped = on_stopped

    @property
    def under_way(self) -> tuple[asyncio.Task[None], ...]:
        """The tasks that are not done."""
        return tuple(task for task in self._tasks.values() if not task.done())

    @property
    def stopped(self) -> int:
        """How many have ended well."""
        return sum(result is StopResult.STOPPED for result in self.results.values())

    def begin(self, client: ControlClient, stop: Stop) -> None:
        """Send it, unless it was sent."""
        if stop.instance not in self.results:
            self.results[stop.instance] = StopResult.IN_FLIGHT
            name = f"stop of instance {stop.instance}"
            task = self._tasks[stop.instance] = asyncio.create_task(self._run(client, stop), name=name)
            # Looked at here, because after the deadline nobody may wait for it.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def settled(self, instances: Iterable[str]) -> None:
        """Wait until the stops of these have ended. Raises what says that the server is not ours any more."""
        tasks = [self._tasks[instance] for instance in instances if instance in self._tasks]
        if tasks:
            await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def cancel(self) -> None:
        """End all of them, now: the server is nobody's business any more."""
        tasks = self.under_way
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, client: ControlClient, stop: Stop) -> None:
        try:
            async with self._slots:
                await client.delete(stop.instance)
        except (NotAccepted, ShuttingDown):
            self._forget(stop.instance)
            raise
        except ForeignServer as error:
            if error.certain:
                self._forget(stop.instance)
                raise
            self.results[stop.instance] = StopResult.FAILED
        except ControlError:
            # Its retries are used up.
            self.results[stop.instance] = StopResult.FAILED
        except BaseException:
            self._forget(stop.instance)
            raise
        else:
            self.results[stop.instance] = StopResult.STOPPED
            self._on_stopped(stop)

    def _forget(self, instance: str) -> None:
        """Nothing is known of it: the next try sends it again."""
        self.results.pop(instance, None)
