"""The server's own small files: the nonce it reads once, the run file it leaves for whoever started it."""

import contextlib
import fcntl
import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from tenure.model.errors import InvalidSettings
from tenure.model.masked import Masked

_NONCE = "--nonce-file (TENURE_SERVER_NONCE_FILE)"
_NONCE_MIN, _NONCE_MAX = 16, 1024
RUN_FILE = "run.json"
IDENTITY_FILE = "identity"
_IDENTITY = "--identity (TENURE_SERVER_IDENTITY)"
_BRAND = re.compile(r"[0-9a-f]{32}")
_OURS = re.compile(r"(run\.json|identity|server\.log(\.\d+)?|\.run\.json\.\d+)")


def read_nonce(file: Path) -> Masked:
    """The one-time bootstrap nonce, without the white space around it. The file may be deleted afterwards.

    Raises ``InvalidSettings``.
    """
    problem, text = "cannot be read", ""
    try:
        with file.open("rb") as source:
            text = source.read(4 * _NONCE_MAX).decode("utf-8").strip()
    except (OSError, ValueError):
        pass
    else:
        if _NONCE_MIN <= len(text) <= _NONCE_MAX and text.isprintable():
            return Masked(text)
        problem = f"must hold a secret of {_NONCE_MIN} to {_NONCE_MAX} characters, on one line"
    raise InvalidSettings((f"{_NONCE} {problem}",))


def make_private_dir(directory: Path, home: Path) -> None:
    """Make the server's directory; only its user can look into it. Raises ``InvalidSettings``."""
    problem = None
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(directory, os.W_OK | os.X_OK):
            problem = "is not writable"
    except OSError as error:
        problem = f"cannot be made: {error.strerror}"
    if problem is not None:
        raise InvalidSettings((f"--home (TENURE_SERVER_HOME) {problem}",))


def write_whole(file: Path, values: Mapping[str, object]) -> None:
    """Write JSON so that a reader finds all of it or none. Raises ``OSError``."""
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(json.dumps(values, indent=2) + "\n")
        beside.replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise


def take_identity(directory: Path, identity: str, brand: str) -> int:
    """Note that a server of this identity has lived, and the brand of its agents' processes. Raises
    ``InvalidSettings`` when one has before: turn ids begin again with each process, and records name a turn by
    identity and id.

    The handle that is returned holds a lock: whoever finds it free knows that this server has ended, however it
    did. Keep it open to the end."""
    try:
        handle = os.open(
            directory / IDENTITY_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
        )
        try:
            # Waits for nobody but a server that looks at this very moment whether we have ended.
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            # Where files cannot be locked, this one would look free while we live: it must lead nobody to our agents.
            brand = ""
        with os.fdopen(handle, "w", encoding="utf-8", closefd=False) as out:
            out.write(f"{identity}\n{brand}\n")
        return handle
    except FileExistsError:
        problem = "has been the identity of another server of this home: each process needs a new one"
    except OSError as error:
        problem = f"cannot be noted in the home: {error.strerror}"
    raise InvalidSettings((f"{_IDENTITY} {problem}",))


def brands_of_the_dead(servers: Path) -> frozenset[str]:
    """The brands of servers of this home that have ended. One that may live is not among them."""
    found = set()
    with contextlib.suppress(OSError):
        for directory in servers.iterdir():
            file = directory / IDENTITY_FILE
            if not directory.is_symlink() and _has_ended(file):
                with contextlib.suppress(OSError, ValueError), file.open(encoding="utf-8") as lines:
                    found.add(lines.read(4096).partition("\n")[2].strip())
    return frozenset(brand for brand in found if _BRAND.fullmatch(brand))


def _has_ended(identity_file: Path) -> bool:
    """Whether nobody holds the lock of this file; False when that cannot be known."""
    try:
        handle = os.open(identity_file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return True
    except OSError:
        return False
    finally:
        os.close(handle)


def forget_old_servers(servers: Path, seconds: float) -> None:
    """Remove what servers of this home left behind whose log ended this long ago; a server that is still there has
    only been quiet. Only files of ours are removed; whatever else lies there stays, and its directory with it."""
    with contextlib.suppress(OSError):
        for directory in servers.iterdir():
            _forget_old_server(directory, time.time() - seconds)


def _forget_old_server(directory: Path, before: float) -> None:
    with contextlib.suppress(OSError):
        if directory.is_symlink() or not directory.is_dir():
            return
        files = list(directory.iterdir())
        if any(entry.lstat().st_mtime >= before for entry in (directory, *files)):
            return
        identity = directory / IDENTITY_FILE
        if os.path.lexists(identity) and not _has_ended(identity):
            return
        for file in files:
            if _OURS.fullmatch(file.name):
                file.unlink()
        directory.rmdir()
