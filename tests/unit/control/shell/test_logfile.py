"""The log file is bounded, survives what happens to disks, and holds nobody's words but ours."""

import contextlib
import json
import logging
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure.control.logfile import BACKUPS, MAX_AGE_SECONDS, MAX_BYTES, RotatedFile, Sink, without_content


class Now:
    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def __call__(self) -> float:
        return self.seconds


@contextlib.contextmanager
def rotated(path: Path, **options: object) -> Iterator[RotatedFile]:
    file = RotatedFile(path, **options)  # type: ignore[arg-type]
    try:
        yield file
    finally:
        file.close()


def test_the_bounds_are_those_of_the_protocol() -> None:
    assert (MAX_BYTES, BACKUPS, MAX_AGE_SECONDS) == (16 * 2**20, 10, 14 * 86400)


@pytest.mark.accept("S-001.3")
def test_a_full_file_is_renamed_and_the_oldest_of_ten_goes(tmp_path: Path) -> None:
    with rotated(tmp_path / "log", max_bytes=100) as file:
        for number in range(40):
            file.put(b"%048d\n" % number)
    names = {entry.name for entry in tmp_path.iterdir()}
    assert names == {"log", *(f"log.{number}" for number in range(1, 11))}
    assert all(entry.stat().st_size <= 100 for entry in tmp_path.iterdir())
    kept = [int(line) for n in range(10, 0, -1) for line in (tmp_path / f"log.{n}").read_text().split()]
    kept += [int(line) for line in (tmp_path / "log").read_text().split()]
    assert kept == list(range(18, 40))


def test_backups_older_than_a_fortnight_go_even_if_nothing_is_rotated(tmp_path: Path) -> None:
    old, new = tmp_path / "log.1", tmp_path / "log.2"
    now = Now()
    for backup, age in ((old, MAX_AGE_SECONDS + 1), (new, MAX_AGE_SECONDS - 4000)):
        backup.write_text("x")
        os.utime(backup, (now() - age, now() - age))
    with rotated(tmp_path / "log", now=now) as file:
        file.put(b"a\n")
        assert (old.exists(), new.exists()) == (False, True)
        now.seconds += 5000
        file.put(b"b\n")
    assert not new.exists()


def test_a_file_that_exists_is_appended_to(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"before\n")
    with rotated(tmp_path / "log") as file:
        file.put(b"after\n")
    assert (tmp_path / "log").read_bytes() == b"before\nafter\n"


def test_a_file_or_directory_that_vanishes_costs_lines_until_it_is_back(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    with rotated(directory / "log") as file:
        with pytest.raises(OSError):
            file.put(b"lost\n")
        directory.mkdir()
        file.put(b"kept\n")
    assert (directory / "log").read_bytes() == b"kept\n"


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_what_an_agent_puts_in_the_files_place_is_neither_followed_nor_waited_for(
    tmp_path: Path, kind: str
) -> None:
    path, victim = tmp_path / "log", tmp_path / "victim"
    victim.write_text("mine")
    {"link": lambda: path.symlink_to(victim), "pipe": lambda: os.mkfifo(path), "directory": path.mkdir}[
        kind
    ]()
    with rotated(path) as file, pytest.raises(OSError):
        file.put(b"x\n")
    assert victim.read_text() == "mine"


def test_the_file_is_for_its_user_alone(tmp_path: Path) -> None:
    with rotated(tmp_path / "log") as file:
        file.put(b"x\n")
    assert (tmp_path / "log").stat().st_mode & 0o077 == 0


@pytest.mark.accept("S-001.3")
def test_a_sink_that_is_stuck_holds_nobody_up_and_says_later_how_much_was_lost() -> None:
    stuck, came = threading.Event(), []

    def put(line: bytes) -> None:
        stuck.wait(30)
        came.append(line)

    sink = Sink("test", put)
    for _ in range(100):
        sink.write("x" * 60_000 + "\n")
    stuck.set()
    sink.close(30)
    assert len(came) < 100
    sink = Sink("test", came.append)
    assert not sink.isatty()
    sink.close(30)


def test_lines_that_could_not_be_written_are_counted_in_the_next_that_can() -> None:
    came: list[bytes] = []
    full = [True, True, False]

    def put(line: bytes) -> None:
        if full and full.pop(0):
            raise OSError(28, "no space")
        came.append(line)

    sink = Sink("test", put)
    for text in ("a\n", "b\n", "c\n", "d\n"):
        sink.write(text)
    sink.close(30)
    # The second line took the message of the first loss down with it, hence three tries.
    assert b"d\n" in came
    assert any(b"lost" in line for line in came)


def test_an_endless_line_is_cut() -> None:
    came: list[bytes] = []
    sink = Sink("test", came.append)
    sink.write("x" * 1_000_000 + "\n")
    sink.close(30)
    assert len(came[0]) < 64 * 1024
    assert json.loads(came[0])["event"] == "a log line was too long"


def record_of(error: BaseException, name: str = "tenure.x", msg: object = "failed") -> logging.LogRecord:
    return logging.LogRecord(name, logging.ERROR, "f", 1, msg, (), (type(error), error, error.__traceback__))


def test_an_exception_is_logged_by_type_and_place_and_not_by_what_it_says() -> None:
    try:
        raise ValueError("sk-a-key-of-somebodys")
    except ValueError as error:
        record = record_of(error)
    assert without_content(record)
    shown = str(record.__dict__)
    assert "builtins.ValueError" in shown
    assert Path(__file__).name in shown
    assert "somebodys" not in shown


@pytest.mark.parametrize("given", [True, "error", "tuple"])
def test_so_is_one_that_comes_by_structlog(given: object) -> None:
    try:
        raise ValueError("sk-a-key-of-somebodys")
    except ValueError as error:
        info = {"error": error, "tuple": sys.exc_info()}.get(str(given), True)
        record = logging.LogRecord("x", logging.ERROR, "f", 1, {"event": "e", "exc_info": info}, (), None)
        assert without_content(record)
    assert "ValueError" in str(record.msg)
    assert "somebodys" not in str(record.__dict__)


def test_what_libraries_log_on_the_root_logger_is_not_logged() -> None:
    assert not without_content(
        logging.LogRecord("root", logging.ERROR, "f", 1, "all that an agent said", (), None)
    )
