"""Answers that are none: truncated, mistyped, deep, huge, slow. Each is a failed read, and none is quoted."""

import asyncio
import gzip
import json
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.impostors import IDENTITY, Impostor, Reply, answer, identity
from tests.support.wait import eventually

from tenure.model.masked import Masked
from tenure.ownership.client import ControlClient
from tenure.ownership.endpoint import Endpoint, ReadBudget
from tenure.ownership.errors import BadAnswer, ControlError, NoAnswer, Refused
from tenure.protocol.messages import CreateRequest, Identity
from tenure.protocol.proof import prove

CANARY = "canary-7d1f"
CREDENTIAL = Masked("ab" * 32)
HOME = "/home"
BUDGET = ReadBudget(timeout=0.5, retries=0, stop_timeout=0.5, launch_timeout=0.5)

READS: dict[str, Callable[[ControlClient], Awaitable[Any]]] = {
    "identity": lambda c: c.identity(),
    "health": lambda c: c.health(),
    "details": lambda c: c.details(),
    "instances": lambda c: c.instances(),
    "instances with environment": lambda c: c.instances(environment=True),
    "instance": lambda c: c.instance("i-1"),
    "outcome": lambda c: c.outcome("i-1"),
    "rotate": lambda c: c.rotate(),
    "confirm": lambda c: c.confirm(1),
    "claim": lambda c: c.claim(),
    "acknowledge": lambda c: c.acknowledge("i-1", 1),
    "shutdown": lambda c: c.shutdown(),
    "create": lambda c: c.create(CreateRequest(id="i-1", workspace_path="/w", env={})),
    "handshake": lambda c: c.handshake(Masked("nonce")),
}


def ours(then: Any, name: str = "") -> Reply:
    """A server that proves to be ours, and answers ``then`` to everything else; to the question for its identity
    too, when that is what the test is about."""

    def reply(method: str, path: str, body: bytes) -> Any:
        if path == "/identity" and name != "identity":
            return identity(IDENTITY)
        if path == "/ownership/prove":
            challenge = json.loads(body)["challenge"]
            return answer({"proofs": [prove(CREDENTIAL, challenge, HOME)]})
        return then(path) if callable(then) else then

    return reply


def client_of(impostor: Impostor, budget: ReadBudget = BUDGET) -> ControlClient:
    return ControlClient(
        Endpoint(impostor.url),
        credential=CREDENTIAL,
        home_dir=HOME,
        expected_identity=IDENTITY,
        budget=budget,
    )


DEEP = b'{"x":' * 5000 + b"1" + b"}" * 5000
BAD: dict[str, Any] = {
    "nothing": None,
    "no http": f"{CANARY}\r\n\r\n".encode(),
    "half a head": b"HTTP/1.1 200 OK\r\nContent-",
    "truncated": answer({"a": CANARY}).replace(b"Content-Length: ", b"Content-Length: 9"),
    "no json": answer(CANARY.encode()),
    "empty": answer(b""),
    "null": answer(None),
    "array": answer([CANARY]),
    "mistyped": answer({"instances": CANARY, "id": 7, "token": 7, "status": CANARY, "retained": CANARY}),
    "nan": answer(b'{"unowned_period_ms":NaN}'),
    "deep": answer(DEEP),
    "not utf-8": answer(b'{"status":"\xff\xfe"}'),
    "compressed": answer(gzip.compress(b"{}"), 200, "Content-Encoding: gzip"),
    "bad chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n" + CANARY.encode(),
    "created": answer({"status": "claimed"}, 202),
    "no content": b"HTTP/1.1 204 X\r\n\r\n",
    "long header": b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    "bad cookie": answer({"a": 1}, 200, f"Set-Cookie: {CANARY}=\x01;;;=;", f"Set-Cookie: a b={CANARY}"),
    "huge by its head": b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n{",
}


@pytest.mark.accept("S-002.13")
@pytest.mark.parametrize("kind", BAD)
async def test_an_answer_that_is_none_is_a_failed_read_of_every_call_and_is_not_quoted(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for name, call in READS.items():
        async with Impostor(ours(BAD[kind], name)) as impostor, client_of(impostor) as client:
            with pytest.raises((NoAnswer, BadAnswer)) as failed:
                await call(client)
            seen: BaseException | None = failed.value
            while seen is not None:
                assert CANARY not in f"{seen!s}{seen!r}{vars(seen)}", name
                seen = seen.__cause__ or seen.__context__
    assert CANARY not in caplog.text


@pytest.mark.accept("S-002.13")
@pytest.mark.parametrize("head", [b"", b"Content-Length: 40000000\r\n"])
async def test_an_endless_answer_is_read_as_far_as_its_kind_may_be_long(head: bytes) -> None:
    sent = 0

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n{")
        try:
            while sent < 2**28:
                writer.write(b" " * 65536)
                await writer.drain()
                sent += 65536
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(endless, "127.0.0.1", 0)
    try:
        endpoint = Endpoint(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        budget = ReadBudget(timeout=20, retries=0)
        async with ControlClient(
            endpoint, credential=None, home_dir=HOME, expected_identity=None, budget=budget
        ) as client:
            with pytest.raises(BadAnswer, match="longer than"):
                await client.identity()
        # What lies in the buffers of two sockets comes on top.
        assert sent < Identity.max_bytes + 16 * 2**20
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.accept("S-002.13")
@pytest.mark.parametrize("name", READS)
async def test_an_answer_that_drips_is_given_up_in_time(name: str) -> None:
    async def drip(path: str) -> bytes:
        await asyncio.sleep(30)
        return b""

    async with Impostor(ours(drip, name)) as impostor, client_of(impostor) as client:
        began = time.monotonic()
        with pytest.raises(NoAnswer):
            await READS[name](client)
        assert time.monotonic() - began < 15


async def test_bytes_that_keep_coming_one_by_one_buy_no_time() -> None:
    connections: list[asyncio.Task[None] | None] = []

    async def dripping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(asyncio.current_task())
        try:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.02)
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(dripping, "127.0.0.1", 0)
    try:
        endpoint = Endpoint(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        budget = ReadBudget(timeout=0.3, retries=1)
        async with ControlClient(
            endpoint, credential=None, home_dir=HOME, expected_identity=None, budget=budget
        ) as client:
            with pytest.raises(NoAnswer):
                await asyncio.wait_for(client.identity(), 15)
        # The client hung up, both times.
        await eventually(lambda: all(task is None or task.done() for task in connections), within=60)
        assert len(connections) == 2
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.accept("S-002.13")
async def test_exhausted_is_not_missing() -> None:
    """A read that fails and a thing that is not there are told apart, however often one was tried."""
    budget = ReadBudget(timeout=1, retries=2)
    async with Impostor(ours(answer({"error": "no"}, 404))) as impostor:
        async with client_of(impostor, budget) as client:
            with pytest.raises(Refused) as missing:
                await client.instance("i-1")
        assert (missing.value.status, missing.value.retries) == (404, 0)
    for bad in (BAD["truncated"], answer({"error": "no"}, 503)):
        async with Impostor(ours(bad)) as impostor, client_of(impostor, budget) as client:
            with pytest.raises(ControlError) as exhausted:
                await client.instance("i-1")
            assert exhausted.value.retries == 2
            assert not isinstance(exhausted.value, Refused) or exhausted.value.status == 503


async def test_what_says_that_it_is_compressed_is_not_unpacked_and_not_taken() -> None:
    for encoding in ("gzip", "br", "zstd", "x"):
        told = identity(IDENTITY).replace(b"\r\n\r\n", f"\r\nContent-Encoding: {encoding}\r\n\r\n".encode())
        async with Impostor(ours(told, "identity")) as impostor, client_of(impostor) as client:
            with pytest.raises(BadAnswer, match="compressed"):
                await client.identity()
            assert b"accept-encoding: identity" in impostor.seen.lower()


async def test_a_cookie_is_not_brought_back() -> None:
    told = identity(IDENTITY).replace(b"\r\n\r\n", b"\r\nSet-Cookie: a=b; Path=/\r\n\r\n")
    base = ours(answer({"status": "claimed"}, 200, "Set-Cookie: c=d; Path=/"))

    def reply(method: str, path: str, body: bytes) -> Any:
        return told if path == "/identity" else base(method, path, body)

    async with Impostor(reply) as impostor:
        # A name: of an address no client at all takes a cookie.
        endpoint = Endpoint(impostor.url.replace("127.0.0.1", "localhost"))
        client = ControlClient(endpoint, credential=CREDENTIAL, home_dir=HOME, expected_identity=IDENTITY)
        async with client:
            await client.claim()
        assert b"\ncookie" not in impostor.seen.lower()


async def test_a_stream_is_not_followed_elsewhere_either_not_even_on_the_same_connection() -> None:
    one = {"id": "i-1", "port": 0, "status": "running", "workspace_path": "/w"}
    told = answer({**one, "created_at": "2026-05-01T10:00:00Z"})

    def then(path: str) -> bytes:
        return answer(b"", 307, "Location: /elsewhere") if "stream" in path else told

    async with Impostor(ours(then)) as impostor, client_of(impostor) as client:
        with pytest.raises(BadAnswer, match="redirect"):
            await client.stream("i-1")
        assert "/elsewhere" not in {path for _, path in impostor.requests}


async def test_an_environment_is_not_even_decoded_unless_it_is_asked_for() -> None:
    one = {"id": "i-1", "port": 1, "status": "running", "workspace_path": "/w", "env": {"A=B": 7}}
    listed = answer({"instances": [{**one, "created_at": "2026-05-01T10:00:00Z"}]})
    async with Impostor(ours(listed)) as impostor, client_of(impostor) as client:
        (seen,) = await client.instances()
        assert seen.id == "i-1"
        with pytest.raises(BadAnswer):
            await client.instances(environment=True)


WORDS = """server_identity capabilities unowned_period_ms proofs token rotation_id credential status home_dir
    adjustments instances id port workspace_path created_at env session_id retained turn_id event type timestamp"""
FIELDS = st.sampled_from([*WORDS.split(), "error"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(FIELDS | st.text(max_size=8), inner, max_size=6)
    ),
    max_leaves=20,
)
BODIES = st.binary(max_size=300) | JSON.map(lambda value: json.dumps(value).encode())
RAW = st.binary(max_size=400) | st.builds(
    answer,
    BODIES,
    st.sampled_from([100, 101, 199, 200, 201, 204, 301, 304, 400, 401, 403, 404, 409, 500, 999]),
)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(raw=RAW, name=st.sampled_from(sorted(READS)))
def test_whatever_is_answered_a_call_returns_its_type_or_raises_one_of_its_errors(
    raw: bytes, name: str
) -> None:
    async def call() -> None:
        budget = ReadBudget(timeout=0.3, retries=0, stop_timeout=0.3, launch_timeout=0.3)
        async with Impostor(ours(lambda path: raw, name)) as impostor, client_of(impostor, budget) as client:
            with suppress(ControlError):
                await READS[name](client)

    asyncio.run(call())
