"""Where everything of a trial is: one folder, below the current one, that ``remove`` removes."""

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from examples.database import TRY


@dataclass(frozen=True)
class ControlServer:
    """A control server that runs, as its run file tells."""

    identity: str
    url: str
    home: str
    pid: int


NONCE = TRY / "nonce"
HOME = TRY / "server"
WORKSPACES = TRY / "workspaces"
PROMPTS = TRY / "prompts"
PID = TRY / "backend.pid"
LOG = TRY / "backend.log"


def port() -> int:
    """The port of the page: ``EXAMPLE_PORT``, or 8420."""
    return int(os.environ.get("EXAMPLE_PORT") or 8420)


def page() -> str:
    """The address of the page."""
    return f"http://127.0.0.1:{port()}"


def control_server() -> ControlServer | None:
    """The control server that runs with this home; None while there is none."""
    for file in sorted((HOME / "servers").glob("*/run.json")):
        with contextlib.suppress(OSError, ValueError, KeyError):
            run = json.loads(file.read_text())
            if alive(run["pid"]):
                return ControlServer(run["server_identity"], run["url"], run["home_dir"], run["pid"])
    return None


def backend_pid() -> int | None:
    """The backend that runs; None while there is none."""
    with contextlib.suppress(OSError, ValueError):
        pid = int(PID.read_text())
        # A number may be another program's by now.
        if b"examples.backend" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid if alive(pid) else None
    return None


def alive(pid: int) -> bool:
    """Whether this process runs, and is more than a remnant that its parent has not looked at."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    return False


def write_whole(file: Path, text: str, mode: int = 0o600) -> None:
    """Write a file so that it has all of the text or is as before, whenever this process dies."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    beside.replace(file)
