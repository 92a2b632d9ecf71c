"""Logs on standard output and in a file of the server's own, neither of which can stop the server.

The event loop's thread only puts lines into a bounded store; each sink has a thread that writes them. A pipe
that nobody reads, a full disk or a closed terminal costs lines, which are counted, and nothing else.
"""

import contextlib
import json
import logging
import os
import stat
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import IO, cast

from tenure.telemetry import logs

LOG_FILE = "server.log"
MAX_BYTES = 16 * 1024 * 1024
BACKUPS = 10
MAX_AGE_SECONDS = 14 * 24 * 3600
_LINE_BYTES = 64 * 1024
_STORE_BYTES = 4 * 1024 * 1024
_CLOSING_SECONDS = 1.0


class Sink:
    """A text stream for a logging handler. ``put`` writes one line; it raises ``OSError`` for a lost one."""

    def __init__(self, name: str, put: Callable[[bytes], None], *, terminal: bool = False) -> None:
        self._put = put
        self._terminal = terminal
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._lost = 0
        self._ended = False
        self._changed = threading.Condition()
        # A daemon: a pipe that nobody reads must not keep the process from its end.
        self._thread = threading.Thread(target=self._work, name=f"log {name}", daemon=True)
        self._thread.start()

    def write(self, text: str) -> int:
        """Take one line, or count it as lost when there are too many already."""
        line = text.encode("utf-8", "replace")
        if len(line) > _LINE_BYTES:
            line = _shortened(text)
        with self._changed:
            if self._ended or self._size + len(line) > _STORE_BYTES:
                self._lost += 1
            else:
                self._lines.append(line)
                self._size += len(line)
                self._changed.notify()
        return len(text)

    def flush(self) -> None:
        """Nothing: the thread does."""

    def isatty(self) -> bool:
        """Whether people read it as it comes."""
        return self._terminal

    def close(self, within: float = _CLOSING_SECONDS) -> None:
        """Write what is left, as far as that goes in this time."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join(within)

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._lines and not self._ended:
                    self._changed.wait()
                if not self._lines:
                    return
                line = self._lines.popleft()
                self._size -= len(line)
                lost, self._lost = self._lost, 0
            try:
                if lost and not self._terminal:
                    self._put(json.dumps({"event": "log lines were lost", "lost": lost}).encode() + b"\n")
                self._put(line)
            except OSError:
                with self._changed:
                    self._lost += lost + 1


def _shortened(text: str) -> bytes:
    begin = text[: _LINE_BYTES // 8]
    return json.dumps({"event": "a log line was too long", "begins": begin}).encode() + b"\n"


class RotatedFile:
    """A log file that is renamed when it is full: ``name``, ``name.1`` (the last one) to ``name.10``."""

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int = MAX_BYTES,
        backups: int = BACKUPS,
        max_age: float = MAX_AGE_SECONDS,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._backups = backups
        self._max_age = max_age
        self._now = now
        self._handle: int | None = None
        self._size = 0
        self._next_look = 0.0

    def put(self, line: bytes) -> None:
        """Append a line. Raises ``OSError``; the next one is tried afresh."""
        if self._now() >= self._next_look:
            self._next_look = self._now() + 3600
            self._drop_old()
        if self._handle is not None and self._size + len(line) > self._max_bytes:
            self._rotate()
        if self._handle is None:
            self._open()
        assert self._handle is not None
        try:
            written = os.write(self._handle, line)
            self._size += written
            if written < len(line):
                # The disk is full in the middle of a line. End it, so that the next one stands alone.
                os.write(self._handle, b"\n")
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        if self._handle is not None:
            with contextlib.suppress(OSError):
                os.close(self._handle)
            self._handle = None

    def _open(self) -> None:
        # Whatever an agent of the same user put in the file's place: no link is followed, no pipe waited for.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        handle = os.open(self._path, flags, 0o600)
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            os.close(handle)
            raise OSError("not a file")
        self._handle, self._size = handle, status.st_size

    def _rotate(self) -> None:
        self.close()
        for number in range(self._backups, 0, -1):
            older = self._numbered(number)
            newer = self._numbered(number - 1) if number > 1 else self._path
            with contextlib.suppress(FileNotFoundError):
                newer.replace(older)
        self._drop_old()

    def _drop_old(self) -> None:
        for number in range(1, self._backups + 1):
            backup = self._numbered(number)
            with contextlib.suppress(OSError):
                if backup.stat().st_mtime < self._now() - self._max_age:
                    backup.unlink()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


class Logs:
    """Where this process logs to."""

    def __init__(self, sinks: tuple[Sink, ...], file: RotatedFile) -> None:
        self._sinks = sinks
        self._file = file

    def close(self) -> None:
        """Write what is left, briefly."""
        for sink in self._sinks:
            sink.close()
        self._file.close()


def log_to(directory: Path, level: str, *, stdout: bool = True) -> Logs:
    """Send all logs of this process to ``directory/server.log``, and to standard output as well."""
    file = RotatedFile(directory / LOG_FILE)
    kept = Sink("file", file.put)
    sinks = [kept]
    logs.configure(level, stream=cast("IO[str]", kept), json=True)
    root = logging.getLogger()
    if stdout:
        out = Sink("stdout", _put_to_stdout, terminal=_is_terminal())
        sinks.append(out)
        handler = logging.StreamHandler(cast("IO[str]", out))
        handler.setFormatter(logs.formatter(as_json=not out.isatty(), colors=out.isatty()))
        root.addHandler(handler)
    for each in root.handlers:
        each.addFilter(without_content)
    return Logs(tuple(sinks), file)


def without_content(record: logging.LogRecord) -> bool:
    """Take out of a record what may hold a peer's or an agent's words: texts of exceptions, of which type
    and place remain, and whatever libraries log on the root logger."""
    if record.name == "root":
        return False
    if record.exc_info:
        record.__dict__["error"] = _described(record.exc_info)
    record.exc_info = None
    record.exc_text = None
    # structlog keeps its own in the event.
    if isinstance(record.msg, dict) and record.msg.get("exc_info"):
        record.msg["error"] = _described(record.msg.pop("exc_info"))
    return True


def _described(given: object) -> str:
    """Type and places of an exception, as ``exc_info`` gives it in its several forms."""
    if isinstance(given, tuple) and len(given) == 3:
        given = given[1]
    error = given if isinstance(given, BaseException) else sys.exc_info()[1]
    if error is None:
        return ""
    places = "".join(
        f" < {Path(frame.filename).name}:{frame.lineno} {frame.name}"
        for frame in reversed(traceback.extract_tb(error.__traceback__)[-12:])
    )
    return f"{type(error).__module__}.{type(error).__qualname__}{places}"


def _is_terminal() -> bool:
    with contextlib.suppress(ValueError, OSError, AttributeError):
        return sys.stdout.isatty()
    return False


def _put_to_stdout(line: bytes) -> None:
    rest = memoryview(line)
    while rest:
        rest = rest[os.write(1, rest) :]
