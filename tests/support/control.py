"""A real control server: the program, as a process of its own, on a loopback address with a home of its own.

    async with running_server() as server:
        ... server.url, server.nonce, server.home_dir ...

What it writes is in ``server.logs()`` (what it logged) and ``server.stderr()``; a server that does not come up
fails with both.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tenure.model.masked import Masked
from tests.support.wait import eventually

ROOT = Path(__file__).resolve().parents[2]
JITTER = os.environ.get("TENURE_JITTER", "")
_LATE = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from tests.support import jitter
jitter.begin({JITTER!r}, os.environ.get("PYTEST_CURRENT_TEST", ""))
jitter.install()
"""
_BEGIN = _LATE if JITTER else ""
"""A server of a world in which everything is late (``tests.support.jitter``) is late itself."""
PROGRAM = (sys.executable, "-c", f"{_BEGIN}from tenure.cli.main import app; app()", "control-server")
"""The command line, run without depending on an installed script."""
UP = 60.0
DOWN = 40.0


@dataclass
class RunningServer:
    """One process. ``certificate`` is PEM, empty over plain HTTP; ``workspaces`` is a permitted root."""

    identity: str
    url: str
    port: int
    nonce: Masked
    home: Path
    workspaces: Path
    directory: Path
    process: "subprocess.Popen[bytes]"
    certificate: str = ""

    @property
    def home_dir(self) -> str:
        """The home as it is a part of proofs."""
        return str(self.home)

    @property
    def server_name(self) -> str:
        """The name in the certificate."""
        return f"{self.identity}.tenure.invalid" if self.certificate else ""

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def server_dir(self) -> Path:
        """Where its log and run file are."""
        return self.home / "servers" / self.identity

    @property
    def termination_message(self) -> Path:
        return self.directory / "termination-message"

    def logs(self) -> list[dict[str, Any]]:
        """What it logged to standard output, whole lines only."""
        return _lines(self.directory / "stdout")

    def log_file(self) -> list[dict[str, Any]]:
        """What it logged to its own file."""
        return _lines(self.server_dir / "server.log")

    def stderr(self) -> str:
        return (self.directory / "stderr").read_text(encoding="utf-8", errors="replace")

    def workspace(self, name: str = "work") -> Path:
        """A workspace within the permitted root."""
        path = self.workspaces / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    async def ended(self, within: float = DOWN) -> int:
        """Wait for its end; the exit code, negative for a signal."""
        await eventually(lambda: self.process.poll() is not None, within=within, what="the server's end")
        return int(self.process.returncode)

    async def stop(self, within: float = DOWN) -> int:
        """SIGTERM, and its exit code."""
        self.signal(signal.SIGTERM)
        return await self.ended(within)

    async def kill(self) -> None:
        """SIGKILL, and wait. What it hosted is not killed with it: the kernel does no such thing."""
        self.signal(signal.SIGKILL)
        await self.ended()

    def signal(self, number: int) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)

    def descendants(self) -> list[psutil.Process]:
        """The agents and what they started."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return list(psutil.Process(self.process.pid).children(recursive=True))
        return []


@contextlib.asynccontextmanager
async def running_server(
    *,
    tls: bool = False,
    identity: str | None = None,
    directory: Path | None = None,
    flags: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
    program: Sequence[str] = PROGRAM,
) -> AsyncIterator[RunningServer]:
    """Start a server, wait until it listens, and end it, and what it left behind, at the end.

    ``directory`` keeps home, workspaces, nonce and output, and is kept itself when it is given: give the same
    one again for another server of the same installation. ``flags`` are more flags, by name without dashes
    (``{"unowned-period": 60}``; a list repeats one). ``program`` is another program with the same flags.
    """
    made = directory is None
    where = Path(tempfile.mkdtemp(prefix="tenure-server-")) if directory is None else directory
    server = _start(
        where.resolve(), tls, identity or f"cs-{secrets.token_hex(8)}", flags or {}, env or {}, program
    )
    try:
        await _until_it_listens(server)
        yield server
    finally:
        await _end(server)
        if made:
            shutil.rmtree(where, ignore_errors=True)


def _start(
    where: Path,
    tls: bool,
    identity: str,
    flags: Mapping[str, object],
    env: Mapping[str, str],
    program: Sequence[str],
) -> RunningServer:
    home, workspaces = where / "home", where / "workspaces"
    for directory in (where, home, workspaces):
        directory.mkdir(parents=True, exist_ok=True)
    nonce = Masked(secrets.token_hex(32))
    (where / "nonce").write_text(nonce.reveal() + "\n")
    given: dict[str, object] = {
        "home": home,
        "identity": identity,
        "nonce-file": where / "nonce",
        "port": 0,
        "workspace-root": workspaces,
        "termination-message-file": where / "termination-message",
    }
    certificate = ""
    if tls:
        certificate, key = self_signed(f"{identity}.tenure.invalid")
        (where / "tls.crt").write_text(certificate)
        (where / "tls.key").write_text(key)
        given |= {"tls-cert": where / "tls.crt", "tls-key": where / "tls.key"}
    with (where / "stdout").open("wb") as out, (where / "stderr").open("wb") as err:
        process = subprocess.Popen(
            [*program, *command_line(given | dict(flags))],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=ROOT,
            env=clean_environment() | dict(env),
            start_new_session=True,
        )
    return RunningServer(identity, "", 0, nonce, home, workspaces, where, process, certificate)


def command_line(flags: Mapping[str, object]) -> list[str]:
    """Flags as words; a list repeats its flag, None leaves it out."""
    words = []
    for name, value in flags.items():
        for one in value if isinstance(value, list | tuple) else [value]:
            words += [] if one is None else [f"--{name}", str(one)]
    return words


def clean_environment() -> dict[str, str]:
    """This process's environment without settings of Tenure's."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}


async def _until_it_listens(server: RunningServer) -> None:
    run_file = server.server_dir / "run.json"

    def listening() -> bool:
        if server.process.poll() is not None:
            return True
        if not run_file.exists():
            return False
        run = json.loads(run_file.read_text())
        server.url, server.port = run["url"], run["port"]
        return bool(run["pid"] == server.pid)

    await eventually(listening, within=UP, every=0.02, what="the server to listen")
    assert server.process.poll() is None, f"ended with {server.process.returncode}: {server.stderr()}"


async def _end(server: RunningServer) -> None:
    left = server.descendants()
    server.signal(signal.SIGTERM)
    limit = time.monotonic() + DOWN
    try:
        await server.ended(limit - time.monotonic())
    finally:
        server.signal(signal.SIGKILL)
        server.process.wait()
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def _lines(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    whole = file.read_text(encoding="utf-8").rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines() if line]


def self_signed(name: str) -> tuple[str, str]:
    """A certificate for this DNS name and its key, both PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=3650))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), text.decode()


def fast_program(speed: float) -> tuple[str, ...]:
    """The same program on a monotonic clock that runs ``speed`` times as fast: only a program of the tests can
    give it another clock. Pings and other waits of the event loop keep the real time."""
    text = f"""
import time
from tenure.control import server
begin = time.monotonic()
clock = lambda: begin + (time.monotonic() - begin) * {speed}
class Fast(server.Surroundings):
    def __init__(self, **given):
        super().__init__(**{{"clock": clock, **given}})
server.Surroundings = Fast
from tenure.cli.main import app
app()
"""
    return (sys.executable, "-c", text, "control-server")


def held_program(gate: Path) -> tuple[str, ...]:
    """The same program, which has stopped its instances when it ends only once this file exists: time to ask a server
    that is ending."""
    text = f"""{_BEGIN}
import asyncio, os
from tenure.control.instances import Instances
stop_all = Instances.stop_all
async def held(self):
    await stop_all(self)
    while not os.path.exists({str(gate)!r}):
        await asyncio.sleep(0.01)
Instances.stop_all = held
from tenure.cli.main import app
app()
"""
    return (sys.executable, "-c", text, "control-server")


class Asker:
    """Plain requests to one server, as another client would write them: no client of ours takes part."""

    def __init__(self, server: RunningServer, http: aiohttp.ClientSession) -> None:
        self.server = server
        self.http = http

    async def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        token: str | None = None,
        data: bytes | None = None,
    ) -> tuple[int, Any]:
        """Status and parsed body. ``data`` is sent as it is, ``body`` as JSON."""
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        sent = json.dumps(body).encode() if body is not None else data
        name = self.server.server_name or None
        async with self.http.request(
            method, path, data=sent, headers=headers, server_hostname=name, allow_redirects=False
        ) as answer:
            assert answer.content_type == "application/json"
            return answer.status, await answer.json()

    async def handshake(self) -> str:
        status, body = await self.ask("POST", "/auth/handshake", {"nonce": self.server.nonce.reveal()})
        assert status == 200
        return str(body["token"])

    async def create(self, token: str, command: str, **fields: object) -> str:
        """An instance that runs ``command``; its id."""
        asked = {"workspace_path": str(self.server.workspace()), "agent_command": command, "auto_start": True}
        status, body = await self.ask("POST", "/api/v1/instances", asked | fields, token=token)
        assert status == 201, body
        return str(body["id"])


@contextlib.asynccontextmanager
async def asking(server: RunningServer) -> AsyncIterator[Asker]:
    """A client session for ``Asker``."""
    context = ssl.create_default_context(cadata=server.certificate) if server.certificate else True
    timeout = aiohttp.ClientTimeout(total=20)
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(server.url, connector=connector, timeout=timeout) as http:
        yield Asker(server, http)


def living(process: psutil.Process) -> bool:
    """Whether it runs. One that has ended stays a zombie until its parent, or the machine's init, takes note."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
