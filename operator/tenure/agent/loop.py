"""The loop of an agent: claim at most one task, do it, look whether to stop, and only then claim another."""

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeVar

from tenure.agent.reporter import LivenessReporter
from tenure.agent.threaded import ThreadedLivenessReporter

T = TypeVar("T")
Describe = Callable[[Any], tuple[int | None, str | None]]

log = logging.getLogger("tenure.agent")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def describe_task(task: object) -> tuple[int | None, str | None]:
    """Number and type of a task: its ``id`` and ``type``, as attributes or as keys, where they have the
    right type."""
    if isinstance(task, Mapping):
        number, kind = task.get("id"), task.get("type")
    else:
        number, kind = getattr(task, "id", None), getattr(task, "type", None)
    return number if isinstance(number, int) else None, kind if isinstance(kind, str) else None


async def run(
    claim: Callable[[], Awaitable[T | None]],
    work: Callable[[T], Awaitable[object]],
    *,
    reporter: LivenessReporter | ThreadedLivenessReporter | None = None,
    poll_interval: float = 1.0,
    describe: Describe = describe_task,
) -> None:
    """Work until a stop is asked for, by SIGTERM, by SIGINT or in the liveness table; then return.

    ``claim()`` returns a task, or None when there is none; then it is asked again after ``poll_interval``
    seconds. ``work(task)`` does it, and is never interrupted by a stop. ``describe(task)`` gives its number
    and type for the liveness row. ``reporter``: by default ``LivenessReporter.from_env()``.

    From request to return it takes at most one liveness interval (for a request in the table), the rest of
    the task, and one poll interval. What ``claim`` or ``work`` raises comes out of here: an agent that
    cannot go on has crashed.
    """
    reporter = LivenessReporter.from_env() if reporter is None else reporter
    stop = reporter.stop_event
    if not isinstance(stop, asyncio.Event):
        if stop is not None:
            raise TypeError("the reporter given to run() needs an asyncio.Event as its stop_event, or none")
        stop = reporter.stop_event = asyncio.Event()
    with stop_on_signals(stop):
        async with reporter:
            while not stop.is_set():
                task = await claim()
                if task is not None:
                    with reporter.task(*describe(task)):
                        await work(task)
                else:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(stop.wait(), poll_interval)
            log.info("stopped before claiming another task")


def run_blocking(
    claim: Callable[[], T | None],
    work: Callable[[T], object],
    *,
    reporter: ThreadedLivenessReporter | None = None,
    poll_interval: float = 1.0,
    describe: Describe = describe_task,
) -> None:
    """``run`` for agents without an event loop: ``claim`` and ``work`` are plain functions and may block as
    they like.

    To be called in the main thread, which is where Python delivers signals. Heartbeats come from a thread.
    """
    stop = threading.Event() if reporter is None else reporter.stop_event
    if not isinstance(stop, threading.Event):
        raise TypeError("the reporter given to run_blocking() needs a threading.Event as its stop_event")
    reporter = ThreadedLivenessReporter.from_env(stop_event=stop) if reporter is None else reporter
    with stop_on_signals(stop), reporter:
        while not stop.is_set():
            task = claim()
            if task is not None:
                with reporter.task(*describe(task)):
                    work(task)
            else:
                stop.wait(poll_interval)
        log.info("stopped before claiming another task")


@contextlib.contextmanager
def stop_on_signals(stop: asyncio.Event | threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT set ``stop`` within the block, and do what they did before after it.

    A handler of our own is also what makes SIGTERM work for PID 1, which the kernel spares every default
    action. Outside of the main thread nothing is installed: Python delivers no signals there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if isinstance(stop, asyncio.Event):
        with _in_loop(stop):
            yield
        return
    # Not set in the handler itself: it may have interrupted the very code that holds the event's lock.
    before = {
        number: signal.signal(number, lambda *_: threading.Thread(target=_say, args=(stop,)).start())
        for number in STOP_SIGNALS
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


@contextlib.contextmanager
def _in_loop(stop: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, _say, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler or signal.SIG_DFL)  # None: set by something that is not Python


def _say(stop: asyncio.Event | threading.Event) -> None:
    if not stop.is_set():
        log.info("a stop was asked for by signal")
        stop.set()
