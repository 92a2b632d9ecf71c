"""Connections to one control server, and single exchanges on them: bounded, without redirects or proxies.

A *lane* is what a credential may travel on. On plain HTTP it is one TCP connection: the server proves itself on
it, the credential follows on the same one, and when that has gone the lane is over. So an address that somebody
else has taken over between two calls, or between proof and call, gets no byte of a credential. With TLS every
connection shows the pinned key, so one lane holds as many as are needed.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NoReturn

import aiohttp
from yarl import URL

from tenure.model.masked import Masked
from tenure.ownership.endpoint import Endpoint
from tenure.ownership.errors import BadAnswer, ControlError, Doubt, ForeignServer, NoAnswer

SILENCE = 20.0
"""Seconds of silence after which a stream is lost."""
PING = 10.0
"""Seconds from one of our pings to the next."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, whole, and at most as long as it may be."""

    status: int
    data: bytes = field(repr=False)


class Lane:
    """One connection (plain HTTP), or the connections to one pinned key (TLS)."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._created = 0
        self._session = self._open()

    async def aclose(self) -> None:
        """Close every connection of it."""
        await self._session.close()

    async def exchange(
        self, method: str, url: str, *, body: bytes | None = None, bearer: Masked | None = None, limit: int
    ) -> Answer:
        """One request and its whole answer, of at most ``limit`` bytes.

        Raises ``NoAnswer``, ``BadAnswer`` or ``ForeignServer`` (the certificate); waits without limit.
        """
        try:
            async with self._session.request(
                method,
                URL(url, encoded=True),
                data=body,
                headers=_headers(bearer, body),
                allow_redirects=False,
                **self._pin(),
            ) as response:
                if 300 <= response.status < 400:
                    failure: ControlError = BadAnswer("it is a redirect")
                else:
                    return Answer(response.status, await _read(response, limit))
        except (aiohttp.ClientError, OSError, ValueError, ControlError) as error:
            failure = classify(error)
        # Outside of the handler: what aiohttp raises may hold what was received.
        raise failure

    async def websocket(
        self, url: str, *, bearer: Masked, max_bytes: int
    ) -> aiohttp.ClientWebSocketResponse | int:
        """A WebSocket, or the status with which it was refused. Pings are its reader's own business. Raises what
        ``exchange`` raises."""
        try:
            socket: aiohttp.ClientWebSocketResponse = await self._session.ws_connect(
                URL(url, encoded=True),
                headers=_headers(bearer, None),
                timeout=aiohttp.ClientWSTimeout(ws_receive=None, ws_close=1.0),
                max_msg_size=max_bytes,
                compress=0,
                autoping=False,
                **self._pin(),
            )
            return socket
        except aiohttp.WSServerHandshakeError as error:
            if error.status != 101:
                return error.status
            failure: ControlError = BadAnswer("it opens no WebSocket")
        except (aiohttp.ClientError, OSError, ValueError, ControlError) as error:
            failure = classify(error)
        raise failure

    def _open(self) -> aiohttp.ClientSession:
        trace = aiohttp.TraceConfig()
        trace.on_request_redirect.append(_refuse_redirect)
        if self._endpoint.tls:
            connector = aiohttp.TCPConnector(limit=0, ssl=aiohttp.Fingerprint(self._endpoint.fingerprint))
        else:
            connector = aiohttp.TCPConnector(limit=1, use_dns_cache=False)
            trace.on_connection_create_start.append(self._once)
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=_NoCookies(),
            timeout=aiohttp.ClientTimeout(total=None),
            trust_env=False,
            auto_decompress=False,
            trace_configs=[trace],
        )

    async def _once(self, session: object, context: SimpleNamespace, params: object) -> None:
        self._created += 1
        if self._created > 1:
            # aiohttp would otherwise connect anew by itself, credential in hand.
            raise aiohttp.ClientConnectionError

    def _pin(self) -> dict[str, Any]:
        if not self._endpoint.tls:
            return {}
        return {"ssl": self._endpoint.context, "server_hostname": self._endpoint.server_name}


class Lanes:
    """Gives a lane for a call: the shared one with TLS, one of its own on plain HTTP."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._shared: Lane | None = None
        self._closed = False

    @asynccontextmanager
    async def lane(self) -> AsyncIterator[Lane]:
        """A lane that is closed after use, unless it is the shared one."""
        lane = self.take()
        try:
            yield lane
        finally:
            await self.give_back(lane)

    def take(self) -> Lane:
        """A lane; ``give_back`` it."""
        if self._closed:
            raise NoAnswer("the client is closed")
        if not self._endpoint.tls:
            return Lane(self._endpoint)
        if self._shared is None:
            self._shared = Lane(self._endpoint)
        return self._shared

    async def give_back(self, lane: Lane) -> None:
        """Close it, unless it is the shared one."""
        if lane is not self._shared:
            await lane.aclose()

    async def aclose(self) -> None:
        """Close the shared lane. Others belong to whoever took them."""
        self._closed = True
        if self._shared is not None:
            await self._shared.aclose()


def classify(error: BaseException) -> ControlError:
    """What a failure of the transport means. The text is ours: an error of aiohttp may quote the peer."""
    match error:
        case ControlError():
            return error
        case aiohttp.ServerFingerprintMismatch() | aiohttp.ClientSSLError():
            return ForeignServer(Doubt.CERTIFICATE)
        case aiohttp.ClientPayloadError():
            return NoAnswer("the answer was cut off")
        case aiohttp.ClientConnectorError():
            return NoAnswer("nothing answers at this address")
        case TimeoutError():
            return NoAnswer("no answer in time")
        case aiohttp.ClientConnectionError() | OSError():
            return NoAnswer("the connection was closed")
        case _:
            return BadAnswer("it is not HTTP")


class _NoCookies(aiohttp.DummyCookieJar):
    """Takes none, and reads none: the parser of aiohttp logs those that it cannot read."""

    def update_cookies_from_headers(self, headers: Sequence[str], response_url: URL) -> None:
        """Nothing."""


def _headers(bearer: Masked | None, body: bytes | None) -> Mapping[str, str]:
    # "identity": nothing that has to be unpacked, so that what is counted is what is read.
    headers = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "tenure"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    if bearer is not None:
        headers["Authorization"] = f"Bearer {bearer.reveal()}"
    return headers


async def _read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise BadAnswer("it is compressed")
    data = bytearray()
    async for chunk in response.content.iter_chunked(64 * 1024):
        data += chunk
        if len(data) > limit:
            response.close()
            raise BadAnswer(f"it is longer than {limit} bytes")
    return bytes(data)


async def _refuse_redirect(session: object, context: SimpleNamespace, params: object) -> NoReturn:
    raise BadAnswer("it is a redirect")


async def close_quietly(websocket: aiohttp.ClientWebSocketResponse, bound: float = 1.0) -> None:
    """Close a WebSocket; a peer that stalls is dropped after ``bound`` seconds."""
    try:
        async with asyncio.timeout(bound):
            await websocket.close()
    except (TimeoutError, aiohttp.ClientError, OSError):
        pass
