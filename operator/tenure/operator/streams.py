"""What kopf's own requests show about its watches, seen from outside of kopf.

kopf keeps bookmarks to itself and says nothing when it lists anew after a gap (410 Gone). Both can be told
from the HTTP session that the login handler gives it (``kopf.AiohttpSession``): a middleware sees each
request, and an open stream counts its bytes. So the age of a watch is known to a second without a private
name of kopf being touched.
"""

import functools
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from aiohttp import ClientHandlerType, ClientRequest, ClientResponse

from tenure.cluster.calls import AGENT_PROCESSES, CONTROL_SERVERS, PODS, Resource
from tenure.cluster.ports import Json
from tenure.telemetry.metrics import WatchedResource

WATCHED: dict[WatchedResource, Resource] = {
    WatchedResource.AGENT_PROCESSES: AGENT_PROCESSES,
    WatchedResource.PODS: PODS,
}
WATCHED_WITH_SERVERS = {**WATCHED, WatchedResource.CONTROL_SERVERS: CONTROL_SERVERS}


class TappedResponse(ClientResponse):
    """For ``aiohttp.ClientSession(response_class=...)``: a response whose decoded body passes through a
    function.
    """

    tap: Callable[[Any], Any] | None = None

    async def json(self, **options: Any) -> Any:
        """The body as ``tap`` leaves it."""
        body = await super().json(**options)
        return body if self.tap is None else self.tap(body)


@dataclass(slots=True)
class _Stream:
    """One watch: a resource in one namespace, or in all of them."""

    resource: WatchedResource
    sign: float
    """When it last showed an event, a bookmark or a list."""
    listed: int = 0
    opened: int = 0
    response: ClientResponse | None = None
    bytes: int = 0
    relisted: bool = False


class StreamMonitor:
    """Follows the watches of all ``namespaces`` (empty: one cluster-wide watch per resource).

    The middleware runs in kopf's thread, everything else in the operator's loop; ``on_sign(resource)`` is
    called in both. ``on_list(resource, objects)`` and ``on_open(resource, relisted)`` are called in kopf's
    thread. ``relisted`` is True when the stream continues from a list that is not the first one: what was
    deleted in between gave no event.
    """

    def __init__(
        self,
        namespaces: Iterable[str] = (),
        *,
        on_sign: Callable[[WatchedResource], None] = lambda resource: None,
        on_list: Callable[[WatchedResource, list[Json]], None] | None = None,
        on_open: Callable[[WatchedResource, bool], None] = lambda resource, relisted: None,
        watched: Mapping[WatchedResource, Resource] = WATCHED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.watched = watched
        self._namespaces = tuple(namespaces)
        self._on_sign = on_sign
        self.on_list = on_list
        self._on_open = on_open
        self._clock = clock
        self._lock = threading.Lock()
        self._streams: dict[str, _Stream] = {}
        self.restart()

    def restart(self) -> None:
        """kopf is about to begin: every watch is yet to be opened, and is as fresh as now."""
        with self._lock:
            listed = {path: stream.listed for path, stream in self._streams.items()}
            self._streams = {
                path: _Stream(resource, self._clock(), listed=listed.get(path, 0))
                for resource, path in self._expected()
            }

    def _expected(self) -> Iterable[tuple[WatchedResource, str]]:
        for watched, resource in self.watched.items():
            if not self._namespaces:
                yield watched, resource.path(None, None)
            for namespace in self._namespaces:
                yield watched, resource.path(namespace, None).format(namespace=namespace)

    # --- in kopf's thread

    async def middleware(self, request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        """For ``aiohttp.ClientSession(middlewares=...)``: follow a request that lists or watches."""
        response = await handler(request)
        path = request.url.path
        with self._lock:
            stream = self._streams.get(path)
        if stream is None or request.method != "GET" or response.status != 200:
            return response
        if request.url.query.get("watch") == "true":
            self._opened(stream, response)
        else:
            if "continue" not in request.url.query:
                with self._lock:
                    stream.relisted = stream.relisted or stream.listed > 0
                    stream.listed += 1
            if isinstance(response, TappedResponse):
                response.tap = functools.partial(self._take_over, stream.resource)
        self._show(stream)
        return response

    def _take_over(self, resource: WatchedResource, body: Any) -> Any:
        if self.on_list is None or not isinstance(body, dict) or not isinstance(body.get("items"), list):
            return body
        kind = str(body.get("kind", "")).removesuffix("List")
        # Items of a list lack what their list says of all of them.
        objects = [{"apiVersion": body.get("apiVersion"), "kind": kind, **item} for item in body["items"]]
        self.on_list(resource, objects)
        return {**body, "items": []}

    def _opened(self, stream: _Stream, response: ClientResponse) -> None:
        with self._lock:
            stream.opened += 1
            stream.response, stream.bytes = response, 0
            relisted, stream.relisted = stream.relisted, False
        self._on_open(stream.resource, relisted)

    def _show(self, stream: _Stream) -> None:
        stream.sign = self._clock()
        self._on_sign(stream.resource)

    # --- in the operator's loop

    def sample(self) -> None:
        """Look at the open streams; to be called about once a second."""
        with self._lock:
            streams = list(self._streams.values())
        for stream in streams:
            response = stream.response
            if response is None or response.content is None:
                continue
            received = response.content.total_raw_bytes
            if received != stream.bytes:
                stream.bytes = received
                self._show(stream)

    def all_opened(self) -> bool:
        """Every watch has been opened since ``restart``, so each has shown its list before."""
        with self._lock:
            return all(stream.opened for stream in self._streams.values())

    def age(self, resource: WatchedResource) -> float:
        """Seconds since the most silent watch of this resource showed anything."""
        with self._lock:
            signs = [stream.sign for stream in self._streams.values() if stream.resource is resource]
        return self._clock() - min(signs)

    def oldest(self) -> float:
        """The greatest age of all."""
        return max(self.age(resource) for resource in self.watched)
