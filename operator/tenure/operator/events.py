"""Telling people what happened: a Kubernetes Event and a log line with the same reason.

Best effort: nothing waits for an Event, and a lost one changes nothing. Call it after the durable write that
it tells of.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from tenure.cluster.errors import ApiError
from tenure.cluster.ports import AgentCluster
from tenure.model.objects import API_VERSION
from tenure.model.reasons import EventReason
from tenure.model.redaction import one_line

WINDOW = 60.0
"""Seconds during which the same words about the same object are said once."""
BURST = 25
"""Events about one object in a row; more are dropped until ``REFILL`` passes."""
REFILL = 10.0
"""Seconds after which an object may have one more."""
QUEUE_LIMIT = 1000
_REMEMBERED = 5000
_LOG_NOTE = 1024


def regarding(kind: str, namespace: str, name: str, uid: str) -> dict[str, str]:
    """One of our resources, as an Event names it."""
    return {"apiVersion": API_VERSION, "kind": kind, "namespace": namespace, "name": name, "uid": uid}


@dataclass(frozen=True, slots=True)
class _Event:
    regarding: Mapping[str, str]
    reason: EventReason
    note: str
    warning: bool
    action: str


@dataclass(slots=True)
class _Said:
    at: float
    repeats: int = 0


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


class EventRecorder:
    """``emit`` from anywhere in the loop; ``run`` sends, one at a time, until cancelled."""

    def __init__(self, cluster: AgentCluster, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._monotonic = monotonic
        self._queue: asyncio.Queue[_Event] = asyncio.Queue(QUEUE_LIMIT)
        self._said: OrderedDict[tuple[str, str, str], _Said] = OrderedDict()
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._log = structlog.stdlib.get_logger("tenure.events")
        self.dropped = 0
        """Events that were not sent, for whatever cause."""

    def emit(
        self,
        regarding: Mapping[str, str],
        reason: EventReason,
        note: str,
        *,
        warning: bool = False,
        action: str = "",
    ) -> None:
        """Log, and queue an Event about ``regarding`` ({apiVersion, kind, namespace, name, uid}).

        The same reason and note about the same object within ``WINDOW`` seconds is counted, and the count
        told when it is said again. Never waits, never raises.
        """
        said = self._repeats(regarding, reason, note)
        if said is None or not self._allowed(regarding["uid"]):
            self.dropped += 1
            return
        told = f"{note} (and {said} times more before)" if said else note
        log = self._log.warning if warning else self._log.info
        log(
            one_line(told, _LOG_NOTE),
            reason=str(reason),
            kind=regarding.get("kind", ""),
            namespace=regarding.get("namespace", ""),
            name=regarding.get("name", ""),
            uid=regarding["uid"],
        )
        try:
            self._queue.put_nowait(_Event(dict(regarding), reason, told, warning, action))
        except asyncio.QueueFull:
            self.dropped += 1

    async def run(self) -> None:
        """Send what is queued until cancelled. An Event that the API server does not take is given up."""
        while True:
            event = await self._queue.get()
            try:
                await self._cluster.create_event(
                    event.regarding,
                    reason=event.reason,
                    note=event.note,
                    warning=event.warning,
                    action=event.action,
                )
            except ApiError as error:
                self.dropped += 1
                self._log.debug("an Event was not recorded", error=str(error), lost=str(event.reason))
            finally:
                self._queue.task_done()

    async def flushed(self) -> None:
        """Return when everything emitted so far was sent or given up; ``run`` has to be running."""
        await self._queue.join()

    def _repeats(self, regarding: Mapping[str, str], reason: EventReason, note: str) -> int | None:
        """None when the same was said within the window, else how often it was swallowed since."""
        key, now = (regarding["uid"], str(reason), note), self._monotonic()
        said = self._said.get(key)
        if said is not None and now - said.at < WINDOW:
            said.repeats += 1
            return None
        self._said[key] = _Said(now)
        self._said.move_to_end(key)
        if len(self._said) > _REMEMBERED:
            self._said.popitem(last=False)
        return said.repeats if said is not None else 0

    def _allowed(self, uid: str) -> bool:
        """A token bucket for each object: notes that differ each time must not flood either."""
        now = self._monotonic()
        bucket = self._buckets.setdefault(uid, _Bucket(BURST, now))
        bucket.tokens = min(BURST, bucket.tokens + (now - bucket.at) / REFILL)
        bucket.at = now
        self._buckets.move_to_end(uid)
        if len(self._buckets) > _REMEMBERED:
            self._buckets.popitem(last=False)
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True
