"""kopf, in a thread of its own: its watches feed the cache, and that is all they do.

kopf needs a loop of its own (it cancels every task of its loop when it stops, and takes over signals where it
can), and it ends for good when it loses a permission or meets a long 5xx: so it is supervised from here and
started again. Handlers are ``on.event`` only. Those set no finalizer and no annotation; they copy the object,
and the operator's loop takes it from there.
"""

import asyncio
import logging
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import aiohttp
import kopf
from aiohttp import ClientHandlerType, ClientRequest, ClientResponse

from tenure import __version__
from tenure.cluster.calls import AGENT_PROCESSES, CONTROL_SERVERS, Resource
from tenure.cluster.connection import ConnectionFacts
from tenure.model.pods import ROLE_LABEL
from tenure.operator.cache import ObjectCache
from tenure.operator.feed import Feed, call_threadsafe
from tenure.operator.health import WatchAges
from tenure.operator.servers.cache import ServerCache
from tenure.operator.storeless import NoDiffBase, NoProgress
from tenure.operator.streams import WATCHED, WATCHED_WITH_SERVERS, StreamMonitor, TappedResponse
from tenure.telemetry.metrics import WatchedResource

log = logging.getLogger(__name__)

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
STEADY_SECONDS = 60.0
"""A kopf that ran this long is started again after ``FIRST_PAUSE``."""
SILENCE_LIMIT = 150.0
"""A watch without a sign for so many seconds is broken: kopf itself renews a silent one after 70."""
OPENING_LIMIT = 30.0
"""A watch that shows nothing before it opens: the CRD was missing when kopf looked, and it looks only once."""
STOP_LIMIT = 3.0
"""Seconds that kopf has to stop. Less than what a lost Lease leaves of its 15 s before the process is ended."""
SAMPLE_SECONDS = 1.0


class Watching:
    """Keeps ``cache`` up to date until cancelled.

    ``facts`` tells server and credential of the moment; ``namespaces`` empty means cluster-wide.
    ``on_relist`` is called when a watch began anew with a list: what was deleted before it gave no event, so
    a sweep is due. ``opened`` is set once every watch has shown its first list and is open. ``servers`` None:
    ControlServers are not watched.
    """

    def __init__(
        self,
        cache: ObjectCache,
        facts: Callable[[], ConnectionFacts],
        *,
        namespaces: Iterable[str] = (),
        servers: ServerCache | None = None,
        watches: WatchAges | None = None,
        on_relist: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.opened = asyncio.Event()
        self.starts = 0
        self._cache = cache
        self._servers = servers
        self._facts = facts
        self._namespaces = tuple(namespaces)
        self._watches = watches or WatchAges()
        self._on_relist = on_relist
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._monitor = StreamMonitor(
            self._namespaces,
            on_sign=self._watches.seen,
            on_open=self._stream_opened,
            watched=WATCHED if servers is None else WATCHED_WITH_SERVERS,
            clock=clock,
        )

    def age(self, resource: WatchedResource) -> float:
        """Seconds since the most silent watch of this resource showed an event, a bookmark or a list."""
        return self._monitor.age(resource)

    async def run(self) -> None:
        """Run kopf, again whenever it ends, until cancelled; it has stopped when this returns."""
        self._loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE
        self._watches.started(self._monitor.watched)
        try:
            while True:
                began = self._clock()
                self._monitor.restart()
                self.starts += 1
                reason = await self._run_once()
                if self._clock() - began > STEADY_SECONDS:
                    pause = FIRST_PAUSE
                log.warning("the watches ended and begin again in %.1f s: %s", pause, reason)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
        finally:
            self._watches.ended()
            self._loop = None

    async def _run_once(self) -> str:
        """One life of kopf; returns why it ended."""
        assert self._loop is not None
        feed = Feed(self._loop, self._take)
        self._monitor.on_list = lambda resource, objects: feed.push(
            *((resource, False, raw) for raw in objects)
        )
        kopf_thread = KopfThread(self._loop, self._facts, self._namespaces, self._monitor, feed)
        kopf_thread.start()
        try:
            return await self._supervise(kopf_thread)
        finally:
            feed.close()
            await kopf_thread.stop()

    async def _supervise(self, kopf_thread: "KopfThread") -> str:
        while not kopf_thread.ended.done():
            await asyncio.wait([kopf_thread.ended], timeout=SAMPLE_SECONDS)
            self._monitor.sample()
            if self._monitor.oldest() > SILENCE_LIMIT:
                return "a watch has been silent for too long"
            if not self._monitor.all_opened() and self._monitor.oldest() > OPENING_LIMIT:
                return "a watch could not be opened (is the CRD installed?)"
        return kopf_thread.ended.result()

    # --- called in kopf's thread

    def _stream_opened(self, resource: WatchedResource, relisted: bool) -> None:
        loop = self._loop
        if loop is not None:
            call_threadsafe(loop, self._after_opening, relisted)

    # --- called in the operator's loop

    def _after_opening(self, relisted: bool) -> None:
        if self._monitor.all_opened():
            self.opened.set()
        if relisted:
            self._on_relist()

    def _take(self, resource: WatchedResource, gone: bool, raw: Mapping[str, Any]) -> None:
        match resource:
            case WatchedResource.AGENT_PROCESSES:
                (self._cache.drop_agent_process if gone else self._cache.put_agent_process)(raw)
            case WatchedResource.PODS:
                (self._cache.drop_pod if gone else self._cache.put_pod)(raw)
                if self._servers is not None:
                    (self._servers.drop_pod if gone else self._servers.put_pod)(raw)
            case WatchedResource.CONTROL_SERVERS:
                if self._servers is not None:
                    (self._servers.drop_control_server if gone else self._servers.put_control_server)(raw)


class KopfThread:
    """One life of kopf. ``ended`` is resolved in the operator's loop with the reason."""

    def __init__(
        self,
        home: asyncio.AbstractEventLoop,
        facts: Callable[[], ConnectionFacts],
        namespaces: tuple[str, ...],
        monitor: StreamMonitor,
        feed: Feed,
    ) -> None:
        self.ended: asyncio.Future[str] = home.create_future()
        self._home = home
        self._facts = facts
        self._namespaces = namespaces
        self._monitor = monitor
        self._feed = feed
        self._sessions: list[aiohttp.ClientSession] = []
        self._transports: weakref.WeakSet[asyncio.Transport] = weakref.WeakSet()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._main, name="kopf", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def stop(self) -> None:
        """Ask kopf to stop and wait for it; after ``STOP_LIMIT`` seconds it is left to itself, with no
        effect.
        """
        self._stopping.set()
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None:
            call_threadsafe(loop, stop.set)
        done, _ = await asyncio.wait([self.ended], timeout=STOP_LIMIT)
        if done:
            self._thread.join(timeout=1.0)  # that was its last act
        else:
            log.warning("kopf did not stop within %.0f s and is left behind", STOP_LIMIT)

    # --- in the thread

    def _main(self) -> None:
        try:
            asyncio.run(self._operate())
            reason = "it was asked to stop" if self._stopping.is_set() else "kopf ended by itself"
        except Exception as error:  # noqa: BLE001 - whatever ends kopf, it is started again
            reason = f"{type(error).__name__}: {error}"[:500]
        except asyncio.CancelledError:
            reason = "kopf was cancelled"
        call_threadsafe(self._home, self._end, reason)

    def _end(self, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)

    async def _operate(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        # Tasks of a kopf that failed leave their exceptions behind; the first one is told by ``ended``.
        self._loop.set_exception_handler(lambda _, context: log.debug("kopf: %s", context.get("message")))
        if self._stopping.is_set():
            return
        try:
            await kopf.operator(
                registry=self._registry(),
                settings=kopf_settings(),
                standalone=True,
                clusterwide=not self._namespaces,
                namespaces=self._namespaces,
                stop_flag=self._stop,
            )
        finally:
            await self._hang_up()

    async def _hang_up(self) -> None:
        """Drop every connection: a stream closes with a TLS farewell for which this loop is not there any
        more.
        """
        for session in self._sessions:
            await session.close()
        for transport in list(self._transports):
            transport.abort()
        for _ in range(3):
            await asyncio.sleep(0)

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        @kopf.on.login(registry=registry, errors=kopf.ErrorsMode.PERMANENT)
        async def login(**_: Any) -> kopf.AiohttpSession:
            return self._log_in()

        @kopf.on.event(*_selector(AGENT_PROCESSES), registry=registry)
        async def agent_process_changed(event: Any, **_: Any) -> None:
            self._pass_on(WatchedResource.AGENT_PROCESSES, event)

        if WatchedResource.CONTROL_SERVERS in self._monitor.watched:

            @kopf.on.event(*_selector(CONTROL_SERVERS), registry=registry)
            async def control_server_changed(event: Any, **_: Any) -> None:
                self._pass_on(WatchedResource.CONTROL_SERVERS, event)

        @kopf.on.event("", "v1", "pods", registry=registry)
        async def pod_changed(event: Any, **_: Any) -> None:
            self._pass_on(WatchedResource.PODS, event)

        return registry

    def _pass_on(self, resource: WatchedResource, event: Mapping[str, Any]) -> None:
        raw = dict(event["object"])
        raw["metadata"] = {key: value for key, value in raw["metadata"].items() if key != "managedFields"}
        self._feed.push((resource, event["type"] == "DELETED", raw))

    def _log_in(self) -> kopf.AiohttpSession:
        facts = self._facts()
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=_tls(facts)),
            headers={"User-Agent": f"tenure/{__version__} kopf"},
            middlewares=(self._authorize, self._monitor.middleware),
            response_class=TappedResponse,
            # A proxy variable must not redirect our credential.
            trust_env=False,
        )
        self._sessions.append(session)
        return kopf.AiohttpSession(server=facts.server, aiohttp_session=session)

    async def _authorize(self, request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        """Each request with the token of the moment: kubelets rotate it, and watches live long."""
        facts = self._facts()
        if facts.token is not None:
            request.headers["Authorization"] = f"Bearer {facts.token.reveal()}"
        if facts.tls_server_name:
            request.server_hostname = facts.tls_server_name
        response = await handler(request)
        if response.connection is not None and response.connection.transport is not None:
            self._transports.add(response.connection.transport)
        return response


def _selector(resource: Resource) -> tuple[str, str, str]:
    return resource.group, resource.version, resource.plural


def _tls(facts: ConnectionFacts) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=facts.ca_path)
    if facts.certificate_path:
        context.load_cert_chain(facts.certificate_path, facts.private_key_path)
    if facts.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def kopf_settings() -> kopf.OperatorSettings:
    """kopf as a plain source of events: nothing posted, nothing stored, nothing looked for but what was asked
    for.
    """
    settings = kopf.OperatorSettings()
    settings.watching.label_selectors["", "v1", "pods"] = ROLE_LABEL
    settings.watching.chunk_size = 500
    # Else a namespaced Role costs a minute of 403s, and a cluster-wide one needs rights on CRDs and namespaces.
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.networking.error_backoffs = [0.5, 1, 1, 2, 2]
    settings.networking.request_timeout = 60
    settings.networking.connect_timeout = 5
    # kopf's last resort is to kill its thread, and with it the process.
    settings.process.ultimate_exiting_timeout = None
    # A limit starves the start: workers linger for their idle time.
    settings.queueing.worker_limit = None
    settings.queueing.idle_timeout = 1.0
    settings.queueing.exit_timeout = 0.5
    settings.persistence.diffbase_storage = NoDiffBase()
    settings.persistence.progress_storage = NoProgress()
    # One line for each event and object otherwise.
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)
    logging.getLogger("kopf.activities").setLevel(logging.WARNING)
    # Warns at every start that signals are not its business in this thread, which is why it is in one.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
    return settings
