"""HTTP towards peers that are wrong, slow, many or hostile: each pays for itself, and is told in JSON."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.web_request import BaseRequest
from tests.support.control import Asker, RunningServer, asking, running_server, self_signed
from tests.support.wait import eventually

from tenure.control import http, listener
from tenure.control.http import read_body, success
from tenure.control.listener import Connection, Listener
from tenure.control.peers import Peers
from tenure.control.tls import server_context
from tenure.protocol.messages import ClaimAnswer


@pytest.fixture
async def server() -> AsyncIterator[RunningServer]:
    async with running_server() as running:
        yield running


@pytest.fixture
async def client(server: RunningServer) -> AsyncIterator[Asker]:
    async with asking(server) as asker:
        yield asker


_open: list[asyncio.StreamWriter] = []


@pytest.fixture(autouse=True)
async def _connections_are_closed() -> AsyncIterator[None]:
    yield
    for writer in _open:
        writer.close()
    for writer in _open:
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    _open.clear()


async def dial(
    port: int, sent: bytes = b"", **options: Any
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that has sent these bytes, and is closed when the test is over."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, **options)
    _open.append(writer)
    writer.write(sent)
    await writer.drain()
    return reader, writer


async def raw(server: RunningServer, sent: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body that the server answers to these bytes."""
    reader, _ = await dial(server.port, sent)
    async with asyncio.timeout(10):
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines if line)
        body = await reader.readexactly(int(headers["content-length"]))
    return int(first.split()[1]), headers, body


def request(method: str, path: str, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


WRONG: list[tuple[bytes, int]] = [
    (request("GET", "/no/such/path"), 404),
    (request("GET", "/api/v1/instances/a/b/c"), 404),
    (request("GET", "/%2e%2e/identity"), 404),
    (request("POST", "/identity"), 405),
    (request("OPTIONS", "/api/v1/instances"), 405),
    (request("TRACE", "/health"), 405),
    (request("GET", "/api/v1/instances"), 401),
    (request("GET", "/api/v1/instances", "Authorization: Basic YTpi"), 401),
    (request("GET", "/api/v1/instances", "Authorization: Bearer"), 401),
    (request("POST", "/auth/handshake", "Content-Length: 99999999"), 413),
    (request("POST", "/auth/handshake", "Content-Encoding: gzip", "Content-Length: 0"), 415),
    (request("POST", "/auth/handshake", "Expect: a-miracle", "Content-Length: 0"), 417),
    (request("POST", "/auth/handshake", "Content-Length: 0"), 400),
    (b"\x16\x03\x01 what is this, canary\r\n\r\n", 400),
    (request("GET", "/health", "Canary: " + "x" * 20_000), 400),
    (request("GET", "/" + "canary" * 3000), 400),
    (request("POST", "/auth/handshake", "Transfer-Encoding: chunked", body=b"canary\r\n"), 400),
    (request("POST", "/auth/handshake", "Content-Length: 1", "Content-Length: 2", body=b"{}"), 400),
]


async def test_every_error_is_json_of_our_own_words(server: RunningServer) -> None:
    for sent, status in WRONG:
        answered, headers, body = await raw(server, sent)
        assert answered == status, sent
        assert set(json.loads(body)) == {"error"}, sent
        assert b"canary" not in body
        assert headers["content-type"].startswith("application/json")
        assert headers["server"] == "tenure"
        assert headers["cache-control"] == "no-store"
    assert "canary" not in str(server.logs())


async def test_a_head_request_is_answered_without_a_body(server: RunningServer) -> None:
    reader, _ = await dial(server.port, request("HEAD", "/identity", "Connection: close"))
    async with asyncio.timeout(10):
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 405")
    assert answer.endswith(b"\r\n\r\n")


async def test_an_upgrade_that_is_none_is_refused_in_json_too(server: RunningServer, client: Asker) -> None:
    from tests.support.agents import scripted_command

    token = await client.handshake()
    one = await client.create(token, scripted_command())
    path = f"/api/v1/instances/{one}/agent/stream"
    assert (await client.ask("GET", path, token=token))[0] == 400
    status, _, body = await raw(
        server,
        request(
            "GET",
            path,
            f"Authorization: Bearer {token}",
            "Upgrade: websocket",
            "Connection: upgrade",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: canary",
        ),
    )
    assert status == 400
    assert b"canary" not in body
    for method, rest in [("GET", ""), ("DELETE", ""), ("GET", "/turn-outcome"), ("GET", "/agent/stream")]:
        assert (await client.ask(method, f"/api/v1/instances/none{rest}", token=token))[0] == 404
    assert await client.ask(
        "POST", "/api/v1/instances/none/turn-outcome/ack", {"turn_id": 1}, token=token
    ) == (200, {"status": "acked"})


async def test_a_body_of_the_limit_is_taken_and_one_byte_more_is_not(client: Asker) -> None:
    token = await client.handshake()
    limit = 64 * 1024
    path = "/api/v1/ownership/confirm"
    fits = b'{"rotation_id": 0}'.ljust(limit)
    assert (await client.ask("POST", path, data=fits, token=token))[0] == 400
    assert (await client.ask("POST", path, data=fits + b" ", token=token))[0] == 413


async def test_a_stranger_has_no_body_read(server: RunningServer) -> None:
    """It is answered while its body is still to come."""
    status, _, _ = await raw(
        server, request("POST", "/api/v1/instances", "Content-Length: 4000000", body=b"{")
    )
    assert status == 401


async def test_a_client_that_asks_before_it_sends_is_told_to_go_on(server: RunningServer) -> None:
    reader, writer = await dial(
        server.port, request("POST", "/auth/handshake", "Expect: 100-continue", "Content-Length: 2")
    )
    async with asyncio.timeout(10):
        assert await reader.readline() == b"HTTP/1.1 100 Continue\r\n"
        await reader.readline()
        writer.write(b"{}")
        assert (await reader.readline()).split()[1] == b"400"


# -- the listener by itself, with limits that a test can wait for


@dataclass
class Served:
    """A listener in this process. ``release`` lets the path ``/wait`` be answered."""

    port: int
    peers: Peers
    release: asyncio.Event = field(default_factory=asyncio.Event)

    async def connect(
        self, sent: bytes = b"", **options: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await dial(self.port, sent, **options)


@contextlib.asynccontextmanager
async def served(
    peers: Peers | None = None, context: ssl.SSLContext | None = None, size: int = 0
) -> AsyncIterator[Served]:
    release = asyncio.Event()

    async def answer(asked: BaseRequest) -> web.StreamResponse:
        connection = asked.protocol
        assert isinstance(connection, Connection)
        connection.spoke()
        if "Authorization" in asked.headers:
            connection.trust()
        if asked.path == "/wait":
            await release.wait()
        if asked.path == "/body":
            try:
                await read_body(asked, 1000)
            except http.Rejected as rejected:
                return rejected.answer()
        return web.Response(body=b"x" * size) if size else success(ClaimAnswer())

    peers = Peers() if peers is None else peers
    listening = Listener(answer, context=context, peers=peers)
    port = listening.open("127.0.0.1", 0)
    listening.start()
    try:
        yield Served(port, peers, release)
    finally:
        release.set()
        await listening.aclose(1.0)


async def is_cut(reader: asyncio.StreamReader, within: float = 10) -> bytes:
    """Everything until the server hangs up."""
    async with asyncio.timeout(within):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /hea",
        request("GET", "/health")[:-2],
        request("POST", "/body", "Content-Length: 5", body=b"{"),
    ],
)
async def test_a_slow_peer_is_cut_and_another_is_served_meanwhile(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(listener, "HEADER_SECONDS", 0.5)
    monkeypatch.setattr(http, "BODY_SECONDS", 0.5)
    async with served() as server:
        slow, _ = await server.connect(sent)
        reader, writer = await server.connect(request("GET", "/health"))
        assert b"200" in await reader.readuntil(b'claimed"}')
        last = await is_cut(slow)
        assert last == b"" or last.startswith(b"HTTP/1.1 408")
        writer.write(request("GET", "/health"))
        assert b"200" in await reader.readuntil(b'claimed"}')


async def test_a_peer_that_takes_no_answer_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "WRITE_SECONDS", 0.5)
    async with served(size=32 * 2**20) as server:
        await server.connect(request("GET", "/health"), limit=1024)
        await eventually(lambda: len(server.peers) == 0, within=10, what="the connection's end")


async def test_tls_that_is_never_finished_is_cut(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(listener, "HANDSHAKE_SECONDS", 0.5)
    certificate, key = self_signed("cs.tenure.invalid")
    (tmp_path / "crt").write_text(certificate)
    (tmp_path / "key").write_text(key)
    async with served(context=server_context(tmp_path / "crt", tmp_path / "key")) as server:
        for sent in (b"", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n\r\n"):
            reader, writer = await server.connect(sent)
            await is_cut(reader)
        assert len(server.peers) == 0
        trusting = ssl.create_default_context(cadata=certificate)
        reader, writer = await server.connect(
            request("GET", "/health"), ssl=trusting, server_hostname="cs.tenure.invalid"
        )
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        version = writer.get_extra_info("ssl_object").version()
        assert version in ("TLSv1.2", "TLSv1.3")
        old = ssl.create_default_context(cadata=certificate)
        old.set_ciphers("ALL:@SECLEVEL=0")
        old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        with pytest.warns(DeprecationWarning):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await server.connect(b"", ssl=old, server_hostname="cs.tenure.invalid")


async def test_a_crowd_of_strangers_costs_its_own_oldest_and_never_who_showed_a_credential() -> None:
    async with served(Peers(per_peer=3, in_all=10)) as server:
        known, known_writer = await server.connect(request("GET", "/health", "Authorization: Bearer x"))
        await known.readuntil(b"claimed")
        crowd = [await server.connect() for _ in range(3)]
        await eventually(lambda: len(server.peers) == 3, within=60)
        reader, _ = await server.connect(request("GET", "/health"))
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        assert await is_cut(crowd[0][0]) == b""
        known_writer.write(request("GET", "/health"))
        assert await known.readuntil(b"claimed")


async def test_what_is_being_answered_at_the_end_is_answered() -> None:
    async with served() as server:
        reader, _ = await server.connect(request("GET", "/wait"))
        await eventually(lambda: len(server.peers) == 1, within=60)
        asyncio.get_running_loop().call_later(0.2, server.release.set)
        await asyncio.sleep(0)
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")


async def test_an_error_of_our_own_is_told_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(asked: BaseRequest) -> web.StreamResponse:
        raise KeyError("canary")

    listening = Listener(broken)
    port = listening.open("127.0.0.1", 0)
    listening.start()
    try:
        reader, _ = await dial(port, request("GET", "/health"))
        answer = await reader.read()
        assert b"500" in answer
        assert b"canary" not in answer
        assert b'{"error"' in answer
    finally:
        await listening.aclose(1.0)
