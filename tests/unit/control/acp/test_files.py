"""An agent's files: inside of its roots, whatever links and races it makes."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from acp.exceptions import RequestError

from tenure.control.acp import files
from tenure.control.acp.files import read_text, write_text


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path.resolve() / "root"
    path.mkdir()
    (path / "file").write_text("one\ntwo\nthree\n")
    (tmp_path / "secret").write_text("KANARIE")
    return path


def refusal(call: Callable[[], object]) -> RequestError:
    with pytest.raises(RequestError) as error:
        call()
    assert "KANARIE" not in str(error.value.to_error_obj())
    return error.value


@pytest.mark.parametrize(
    ("line", "limit", "text"),
    [
        (None, None, "one\ntwo\nthree\n"),
        (2, None, "two\nthree\n"),
        (2, 1, "two\n"),
        (None, 0, ""),
        (9, 9, ""),
        (0, 1, "one\n"),
    ],
)
def test_a_file_is_read_whole_or_by_lines(root: Path, line: int | None, limit: int | None, text: str) -> None:
    assert read_text([root], str(root / "file"), line, limit) == text


def test_links_inside_are_followed_and_links_outside_refused(root: Path) -> None:
    (root / "inner").symlink_to("file")
    (root / "outer").symlink_to("../secret")
    (root / "up").symlink_to("..")
    (root / "loop").symlink_to("loop")
    assert read_text([root], str(root / "inner"), 1, 1) == "one\n"
    for path in ("outer", "up/secret", "../secret", "loop", "up/root/../secret"):
        assert "KANARIE" not in str(
            refusal(lambda path=path: read_text([root], f"{root}/{path}", None, None))
        )
        refusal(lambda path=path: write_text([root], f"{root}/{path}", "x"))
    assert (root.parent / "secret").read_text() == "KANARIE"


def test_a_link_that_is_swapped_in_after_the_check_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "dir").mkdir()
    (root / "dir" / "secret").write_text("harmless")
    real = os.path.realpath

    def swap(path: str) -> str:
        resolved = real(path)
        (root / "dir" / "secret").unlink()
        (root / "dir").rmdir()
        (root / "dir").symlink_to("..")
        return resolved

    monkeypatch.setattr(files.os.path, "realpath", swap)
    error = refusal(lambda: read_text([root], str(root / "dir" / "secret"), None, None))
    assert str(error) == "a part of the path is no directory"
    monkeypatch.setattr(files.os.path, "realpath", real)
    (root / "dir").unlink()
    (root / "dir").mkdir()
    (root / "dir" / "secret").write_text("harmless")
    monkeypatch.setattr(files.os.path, "realpath", swap)
    refusal(lambda: write_text([root], str(root / "dir" / "secret"), "gone"))
    assert (root.parent / "secret").read_text() == "KANARIE"


def test_a_last_name_that_becomes_a_link_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.path.realpath

    def swap(path: str) -> str:
        resolved = real(path)
        (root / "file").unlink()
        (root / "file").symlink_to("../secret")
        return resolved

    monkeypatch.setattr(files.os.path, "realpath", swap)
    assert str(refusal(lambda: read_text([root], str(root / "file"), None, None))) == (
        "a part of the path became a link"
    )


def test_what_is_no_regular_file_is_refused_and_waits_for_nobody(root: Path) -> None:
    os.mkfifo(root / "fifo")
    for path in (root / "fifo", root):
        refusal(lambda path=path: read_text([root], str(path), None, None))
        refusal(lambda path=path: write_text([root], str(path), "x"))


def test_the_servers_own_process_is_never_inside(root: Path) -> None:
    (root / "self").symlink_to("/proc/self")
    for path in ("/proc/self/environ", f"{root}/self/environ", "/dev/stdin", "/sys/kernel/uevent_seqnum"):
        refusal(lambda path=path: read_text([Path("/")], path, None, None))


@pytest.mark.parametrize("path", ["", "file", "a\0b", "./file"])
def test_a_path_that_is_not_absolute_is_refused(root: Path, path: str) -> None:
    refusal(lambda: read_text([root], path, None, None))


def test_a_file_that_is_not_there_has_acps_own_error(root: Path) -> None:
    assert refusal(lambda: read_text([root], str(root / "no"), None, None)).code == -32002


def test_what_is_too_long_is_refused_unless_few_lines_are_asked(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "READ_LIMIT", 100)
    monkeypatch.setattr(files, "SCAN_LIMIT", 10_000)
    (root / "long").write_text("0123456789\n" * 500)
    (root / "endless").write_text("x" * 20_000)
    assert read_text([root], str(root / "long"), 490, 2) == "0123456789\n" * 2
    refusal(lambda: read_text([root], str(root / "long"), None, None))
    refusal(lambda: read_text([root], str(root / "endless"), 2, 1))
    monkeypatch.setattr(files, "WRITE_LIMIT", 10)
    refusal(lambda: write_text([root], str(root / "file"), "x" * 11))


def test_a_file_is_replaced_at_once_keeps_its_mode_and_leaves_nothing_else(root: Path) -> None:
    (root / "file").chmod(0o700)
    before = os.open(root / "file", os.O_RDONLY)
    write_text([root], str(root / "file"), "new")
    assert os.read(before, 100) == b"one\ntwo\nthree\n"
    os.close(before)
    assert (root / "file").read_text() == "new"
    assert (root / "file").stat().st_mode & 0o777 == 0o700
    write_text([root], str(root / "a" / "b" / "c"), "deep")
    assert (root / "a/b/c").read_text() == "deep"
    assert sorted(p.name for p in root.rglob("*")) == ["a", "b", "c", "file"]


def test_a_write_that_fails_leaves_the_old_text_and_nothing_else(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "rename", full)
    assert str(refusal(lambda: write_text([root], str(root / "file"), "new"))) == "no room is left"
    assert os.listdir(root) == ["file"]
    assert (root / "file").read_text().startswith("one")


def test_a_link_to_an_allowed_file_is_written_through(root: Path) -> None:
    (root / "inner").symlink_to("file")
    write_text([root], str(root / "inner"), "new")
    assert (root / "inner").is_symlink()
    assert (root / "file").read_text() == "new"
