"""The listening socket, and connections that cost their peer's time and nobody else's."""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest

from tenure.control.http import failure
from tenure.control.peers import Peers, Place

HEADER_SECONDS = 10.0
"""From a connection's beginning to the end of its first request's headers."""
HANDSHAKE_SECONDS = 5.0
"""For TLS."""
KEEP_ALIVE_SECONDS = 75.0
"""Between two requests: longer than our clients keep an idle connection, so that theirs is the first to go."""
WRITE_SECONDS = 30.0
"""For an answer to be taken."""
_BACKLOG = 512
ANY = "::"
"""Every address of the machine, of both families."""
ANY_IPV4 = "0.0.0.0"
_NO_IPV6 = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})
_OUT_OF_HANDLES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

Handler = Callable[[BaseRequest], Awaitable[web.StreamResponse]]
log = logging.getLogger(__name__)


class Connection(RequestHandler):
    """One connection: bounded until it has sent a request, a stranger's until it has shown a credential."""

    def __init__(self, manager: web.Server, place: Place, **options: Any) -> None:
        super().__init__(manager, **options)
        self._place = place
        self._whole: asyncio.Transport | None = None
        self._first: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there, TLS and all."""
        assert isinstance(transport, asyncio.Transport)
        self._whole = transport
        self._place.cut = self.abort
        self._first = asyncio.get_running_loop().call_later(HEADER_SECONDS, self.abort)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection is gone."""
        self.spoke()
        self._place.give_up()
        self._whole = None
        super().connection_lost(exc)

    def spoke(self) -> None:
        """A whole request has arrived."""
        if self._first is not None:
            self._first.cancel()
            self._first = None

    def trust(self) -> None:
        """An acceptable credential was shown: the connection is a stranger's no more."""
        self._place.give_up()

    def abort(self) -> None:
        """End it now. A polite end would wait for a peer that reads nothing."""
        if self._whole is not None:
            self._whole.abort()

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What is no HTTP, and what we did not think of. The texts of aiohttp quote what was received."""
        if status >= 500:
            log.error("a request failed", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("an answer was sent in part")
        said = "the request is not valid HTTP" if status < 500 else "an error of the server's own"
        answer = failure(status, said)
        answer.force_close()
        return answer

    async def finish_response(
        self, request: BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send the answer, and give up on a peer that does not take it."""
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                return await super().finish_response(request, resp, start_time)
        except TimeoutError:
            self.abort()
            return resp, True


class Listener:
    """Accepts connections and hands their requests to ``handler``, which raises nothing."""

    def __init__(
        self, handler: Handler, *, context: ssl.SSLContext | None = None, peers: Peers | None = None
    ) -> None:
        self._context = context
        self._peers = Peers() if peers is None else peers
        self._server = web.Server(handler)
        self._socket: socket.socket | None = None
        self.host = ""
        """The address that it listens on."""
        self._accepting: asyncio.Task[None] | None = None
        self._coming: set[asyncio.Task[None]] = set()

    def open(self, host: str, port: int) -> int:
        """Bind and listen; the port that it became. ``::`` is every address of both families, or of IPv4 where the
        machine has no other. Raises ``OSError``."""
        try:
            listening = _listening(host, port)
        except OSError as error:
            if host != ANY or error.errno not in _NO_IPV6:
                raise
            host, listening = ANY_IPV4, _listening(ANY_IPV4, port)
        self._socket, self.host = listening, host
        return int(listening.getsockname()[1])

    def start(self) -> None:
        """Begin to accept."""
        self._accepting = asyncio.create_task(self._accept(), name="accept")

    async def aclose(self, grace: float) -> None:
        """Accept no more, let what is being answered be answered for ``grace`` seconds, then end the rest."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()
        for task in self._coming:
            task.cancel()
        await asyncio.gather(*self._coming, return_exceptions=True)
        connections = [c for c in self._server.connections if isinstance(c, Connection)]
        # First the idle ones: a shutdown would wait the whole grace for each of them to say something.
        self._server.pre_shutdown()
        await self._server.shutdown(grace)
        for connection in connections:
            connection.abort()

    async def _accept(self) -> None:
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(self._socket)
            except OSError as error:
                # A connection that is gone already is nothing; without handles, wait until some are free.
                if error.errno in _OUT_OF_HANDLES:
                    log.warning("no connection can be accepted: %s", error.strerror)
                    await asyncio.sleep(0.5)
                await asyncio.sleep(0.01)
                continue
            task = asyncio.create_task(self._welcome(accepted, str(address[0])), name="welcome")
            self._coming.add(task)
            task.add_done_callback(self._coming.discard)

    async def _welcome(self, accepted: socket.socket, address: str) -> None:
        loop = asyncio.get_running_loop()
        me = asyncio.current_task()
        assert me is not None
        place = self._peers.enter(address, me.cancel)

        def connection() -> Connection:
            return Connection(
                self._server,
                place,
                loop=loop,
                keepalive_timeout=KEEP_ALIVE_SECONDS,
                access_log=None,
                lingering_time=1.0,
                auto_decompress=False,
            )

        secured = self._context is not None
        try:
            await loop.connect_accepted_socket(
                connection,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS if secured else None,
                ssl_shutdown_timeout=2.0 if secured else None,
            )
        except (OSError, asyncio.CancelledError):
            # Its TLS failed or took too long, or it was cut: nobody waits for this task.
            place.give_up()
            with contextlib.suppress(OSError):
                accepted.close()


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        if host == ANY:
            # Whatever the system's default is: a pod's address is of either family, or it has one of each.
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setblocking(False)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening
