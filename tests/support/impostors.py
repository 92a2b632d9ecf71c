"""Servers that are not ours, and count every byte that they are sent.

They speak HTTP by hand: an answer is bytes, so that it can be cut off, endless, or no HTTP at all.
"""

import asyncio
import datetime
import json
import secrets
import ssl
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Reply = Callable[[str, str, bytes], "bytes | Awaitable[bytes | None] | None"]
"""Method, path and body to the raw answer; None closes the connection without one."""

IDENTITY = "recorded-identity"


def answer(body: Any, status: int = 200, *headers: str) -> bytes:
    """A well-formed answer; ``body`` is bytes, or becomes JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [
        f"HTTP/1.1 {status} X",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
        *headers,
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + data


def identity(name: str = IDENTITY, capabilities: Any = ("agent-survival.v1",)) -> bytes:
    """An answer to ``GET /identity``."""
    told = {"server_identity": name, "capabilities": list(capabilities), "unowned_period_ms": 600_000}
    return answer(told)


class Impostor:
    """Listens on 127.0.0.1, answers with ``reply``, and keeps all that it is sent in ``seen``.

    With ``context`` it speaks TLS, and sees what comes out of it.
    """

    def __init__(self, reply: Reply, *, context: ssl.SSLContext | None = None, port: int = 0) -> None:
        self._reply = reply
        self._context = context
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = port
        self.seen = bytearray()
        self.requests: list[tuple[str, str]] = []
        self.connections = 0

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"{'https' if self._context else 'http'}://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", self.port, ssl=self._context, limit=2**20
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        for writer in tuple(self._writers):
            writer.transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def saw(self, credential: str) -> bool:
        """Whether any part of the credential of 8 digits or more, or anything that carries one, came here."""
        pieces = (credential[i : i + 8].encode() for i in range(len(credential) - 7))
        return b"authorization" in self.seen.lower() or any(piece in self.seen for piece in pieces)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        self.connections += 1
        try:
            while True:
                method, path, body = await self._request(reader)
                self.requests.append((method, path))
                said = self._reply(method, path, body)
                data = await said if isinstance(said, Awaitable) else said
                if data is None:
                    return
                writer.write(data)
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, OSError, ValueError):
            return
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.close()

    async def _request(self, reader: asyncio.StreamReader) -> tuple[str, str, bytes]:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            # Byte by byte: also what is no request is counted.
            byte = await reader.readexactly(1)
            self.seen += byte
            head += byte
        lines = head.decode("latin-1").split("\r\n")
        method, path, _ = lines[0].split(" ", 2)
        length = next((int(x.split(":")[1]) for x in lines if x.lower().startswith("content-length:")), 0)
        body = await reader.readexactly(length)
        self.seen += body
        return method, path, body


def proving(prove: Callable[[str], Any], *, name: str = IDENTITY, then: bytes | None = None) -> Reply:
    """An impostor that tells the recorded identity, and gives ``prove(challenge)`` as its proofs.

    ``then`` is its answer to everything else.
    """

    def reply(method: str, path: str, body: bytes) -> bytes | None:
        if path == "/identity":
            return identity(name)
        if path == "/ownership/prove":
            return answer({"proofs": prove(json.loads(body)["challenge"])})
        return then if then is not None else answer({"status": "claimed"})

    return reply


def echo() -> Reply:
    """Gives the challenge back as its proof."""
    return proving(lambda challenge: [challenge])


def replay(recorded: list[str]) -> Reply:
    """Gives proofs that the real server gave for another challenge."""
    return proving(lambda challenge: recorded[-2:])


def random_proofs() -> Reply:
    """Guesses."""
    return proving(lambda challenge: [secrets.token_hex(32), secrets.token_hex(32)])


def relay(real: str, *, name: str | None = None) -> Reply:
    """Passes whatever may be asked without a credential on to the real server, and answers with what it says."""

    async def reply(method: str, path: str, body: bytes) -> bytes | None:
        if path not in ("/identity", "/ownership/prove"):
            return answer({"status": "claimed"})
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, real + path, data=body or None, ssl=False) as said,
        ):
            return answer(await said.read(), said.status)

    return reply


def redirector(to: str) -> Reply:
    """Sends everybody elsewhere."""
    return lambda method, path, body: answer(b"", 307, f"Location: {to}{path}")


class Certificate:
    """A self-signed leaf of ``name`` with its key, or one that ``issuer`` signed."""

    def __init__(self, name: str, issuer: "Certificate | None" = None, *, ca: bool = False) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
        now = datetime.datetime.now(datetime.UTC)
        signer = issuer or self
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer.certificate.subject if issuer else subject)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=3650))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key()), critical=False
            )
        )
        self.certificate: x509.Certificate = builder.sign(signer.key, hashes.SHA256())

    @property
    def pem(self) -> str:
        """The certificate."""
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    @property
    def key_pem(self) -> str:
        """Its key, without a password."""
        return self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ).decode()

    def context(self) -> ssl.SSLContext:
        """For a server that presents it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.TemporaryDirectory() as folder:
            both = Path(folder) / "both.pem"
            both.write_text(self.key_pem + self.pem)
            context.load_cert_chain(both)
        return context
