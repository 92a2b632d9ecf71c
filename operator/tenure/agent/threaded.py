"""The reporter in a thread of its own, for agents whose tasks block."""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from types import TracebackType

from tenure.agent.reporter import LivenessReporter, StopFlag
from tenure.storage.liveness import LivenessStorage

log = logging.getLogger("tenure.agent")

_LONGEST_END = 15.0


class ThreadedLivenessReporter:
    """``LivenessReporter`` with its own thread and event loop: it heartbeats while the agent computes.

    ``stop_event`` is a ``threading.Event``, or the ``asyncio.Event`` of the loop in which ``start()`` is
    called. ``storage`` is used in the thread only, so it must not have been used anywhere else. Use it as a
    context manager, under the rules of ``LivenessReporter``: a block that raised is no graceful exit.
    """

    def __init__(
        self,
        storage: LivenessStorage | None,
        process_kind: str,
        liveness_interval: float = 30.0,
        *,
        stop_event: threading.Event | asyncio.Event | None = None,
        instance_id: str | None = None,
    ) -> None:
        self._wrap(
            LivenessReporter(storage, process_kind, liveness_interval, instance_id=instance_id), stop_event
        )

    def _wrap(self, reporter: LivenessReporter, stop_event: threading.Event | asyncio.Event | None) -> None:
        self._reporter = reporter
        self.stop_event = stop_event
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._running = threading.Event()
        self._graceful = True

    @classmethod
    def from_env(
        cls,
        *,
        stop_event: threading.Event | asyncio.Event | None = None,
        process_kind: str | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> "ThreadedLivenessReporter":
        """As ``LivenessReporter.from_env``. Raises ``SettingsError``."""
        made = cls.__new__(cls)
        environ = os.environ if environ is None else environ
        made._wrap(LivenessReporter.from_env(process_kind=process_kind, environ=environ), stop_event)
        return made

    @property
    def instance_id(self) -> str:
        return self._reporter.instance_id

    def set_current_task(self, task_id: int | None, task_type: str | None = None) -> None:
        """See ``LivenessReporter``."""
        self._reporter.set_current_task(task_id, task_type)

    def clear_current_task(self) -> None:
        """See ``LivenessReporter``."""
        self._reporter.clear_current_task()

    @contextlib.contextmanager
    def task(self, task_id: int | None, task_type: str | None = None) -> Iterator[None]:
        """See ``LivenessReporter``."""
        with self._reporter.task(task_id, task_type):
            yield

    def start(self) -> None:
        """Start the thread; returns when the first row was written, or the database did not answer in
        time."""
        if self._thread is None:
            self._launch()
            self._running.wait(_LONGEST_END)

    def _launch(self) -> None:
        self._reporter.stop_event = _thread_safe(self.stop_event)
        self._running.clear()
        # A daemon: a crash of the agent ends the process, and must not wait for the reporter of its death.
        self._thread = threading.Thread(target=self._run, name="tenure-liveness", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write the last row and end the thread. Harmless when repeated."""
        self._finish(graceful=True)

    def _finish(self, *, graceful: bool) -> None:
        thread, self._thread = self._thread, None
        if thread is None or self._loop is None or self._end is None:
            return
        self._graceful = graceful
        with contextlib.suppress(RuntimeError):  # the loop ended by itself
            self._loop.call_soon_threadsafe(self._end.set)
        thread.join(_LONGEST_END)
        if thread.is_alive():
            log.warning("the liveness thread did not end in time and is left behind")

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except Exception as error:  # noqa: BLE001 - the agent goes on without heartbeats
            log.warning("the liveness thread ended: %s", type(error).__name__)
        finally:
            self._running.set()

    async def _main(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        await self._reporter.start()
        self._running.set()
        await self._end.wait()
        if self._graceful:
            await self._reporter.stop()
        else:
            await self._reporter.abandon()

    def __enter__(self) -> "ThreadedLivenessReporter":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._finish(graceful=kind is None)

    async def __aenter__(self) -> "ThreadedLivenessReporter":
        if self._thread is None:
            self._launch()
            await asyncio.to_thread(self._running.wait, _LONGEST_END)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self._finish, graceful=kind is None)


class _LoopFlag:
    """An ``asyncio.Event`` that another thread may set."""

    def __init__(self, event: asyncio.Event, loop: asyncio.AbstractEventLoop) -> None:
        self._event, self._loop = event, loop

    def set(self) -> None:
        with contextlib.suppress(RuntimeError):  # the agent's loop is closed: it has stopped already
            self._loop.call_soon_threadsafe(self._event.set)

    def is_set(self) -> bool:
        return self._event.is_set()


def _thread_safe(event: threading.Event | asyncio.Event | None) -> StopFlag | None:
    return _LoopFlag(event, asyncio.get_running_loop()) if isinstance(event, asyncio.Event) else event
