"""An agent's requests to read and write text files, inside of its instance's roots and nowhere else.

The control server does this with its own rights, and it can read what the agent cannot: its own
``/proc/self``. So a path is resolved once, has to be inside of a root then, and is walked from the top again
without following a single link: what is swapped for a link meanwhile is refused.

Everything here blocks: call it in a thread.
"""

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from acp.exceptions import RequestError

READ_LIMIT = 4 * 1024 * 1024
"""Bytes of text in one answer."""
SCAN_LIMIT = 64 * 1024 * 1024
"""Bytes that are looked through for the lines that were asked for."""
WRITE_LIMIT = 4 * 1024 * 1024
"""Bytes of a file that is written."""

_WALK = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NEVER = (Path("/proc"), Path("/sys"), Path("/dev"))


def refused(why: str) -> RequestError:
    """The error that an agent is answered; ``why`` is a sentence of our own."""
    return RequestError(-32602, why)


def read_text(roots: Sequence[Path], path: str, line: int | None, limit: int | None) -> str:
    """The text of a file, from ``line`` (1 is the first) on, at most ``limit`` lines.

    Raises ``RequestError``: outside of the roots, no regular file, not there, too long.
    """
    parent, name = _locate(roots, path)
    with _errors(), _directory(parent, create=False) as directory:
        handle = os.open(name, _READ, dir_fd=directory)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise refused("it is no regular file")
            return _lines(handle, max(line or 1, 1), limit)
        finally:
            os.close(handle)


def _lines(handle: int, first: int, limit: int | None) -> str:
    wanted: list[bytes] = []
    size = scanned = 0
    last = None if limit is None else first + max(limit, 0)
    with os.fdopen(os.dup(handle), "rb") as file:
        number = 1
        while last is None or number < last:
            # A line without end is read in pieces, too.
            piece = file.readline(READ_LIMIT + 1)
            if not piece:
                break
            scanned += len(piece)
            if number >= first:
                wanted.append(piece)
                size += len(piece)
            if size > READ_LIMIT or scanned > SCAN_LIMIT:
                raise refused("it is too long: ask for fewer lines")
            number += piece.endswith(b"\n")
    return b"".join(wanted).decode("utf-8", "replace")


def write_text(roots: Sequence[Path], path: str, content: str) -> None:
    """Write a file, and the directories above it that are missing. Readers see the old text or the new one.

    Raises ``RequestError``: outside of the roots, no regular file, too long, no room.
    """
    data = content.encode("utf-8", "replace")
    if len(data) > WRITE_LIMIT:
        raise refused(f"it is longer than {WRITE_LIMIT} bytes")
    parent, name = _locate(roots, path)
    with _errors(), _directory(parent, create=True) as directory:
        mode = _mode_of(directory, name)
        temporary = f".tenure-{secrets.token_hex(8)}"
        handle = os.open(temporary, _CREATE, 0o666, dir_fd=directory)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                if mode is not None:
                    os.fchmod(file.fileno(), mode)
            os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=directory)
            raise


def _mode_of(directory: int, name: str) -> int | None:
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise refused("it is no regular file")
    return stat.S_IMODE(status.st_mode)


def inside(roots: Sequence[Path], path: str) -> Path:
    """The path without links, if it is one of the roots or inside of one. Raises ``RequestError``."""
    if not path.startswith("/") or "\0" in path:
        raise refused("the path has to be absolute")
    try:
        real = Path(os.path.realpath(path))
    except (OSError, ValueError):
        raise refused("the path cannot be resolved") from None
    if any(real.is_relative_to(never) for never in _NEVER) or not any(real.is_relative_to(r) for r in roots):
        raise refused("the path is outside of the workspace")
    return real


def _locate(roots: Sequence[Path], path: str) -> tuple[Path, str]:
    real = inside(roots, path)
    if not real.name or any(real == root for root in roots):
        raise refused("it is a directory")
    return real.parent, real.name


@contextlib.contextmanager
def _directory(path: Path, *, create: bool) -> Iterator[int]:
    """The directory, reached from the top through directories only."""
    handle = os.open("/", _WALK)
    try:
        for name in path.parts[1:]:
            try:
                below = os.open(name, _WALK, dir_fd=handle)
            except FileNotFoundError:
                if not create:
                    raise
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=handle)
                below = os.open(name, _WALK, dir_fd=handle)
            os.close(handle)
            handle = below
        yield handle
    finally:
        os.close(handle)


_SAID = {
    errno.ENOENT: "there is no such file",
    errno.ELOOP: "a part of the path became a link",
    errno.ENOTDIR: "a part of the path is no directory",
    errno.EACCES: "no permission",
    errno.EPERM: "no permission",
    errno.EISDIR: "it is a directory",
    errno.ENOSPC: "no room is left",
    errno.EDQUOT: "no room is left",
    errno.EROFS: "the file system is read-only",
    errno.ENXIO: "it is no regular file",
    errno.ENAMETOOLONG: "the name is too long",
}


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        code = error.errno or 0
    else:
        return
    # Outside of the handler: an OSError quotes the path. -32002 is ACP's "resource not found".
    raise RequestError(-32002 if code == errno.ENOENT else -32603, _SAID.get(code, "it cannot be done"))
