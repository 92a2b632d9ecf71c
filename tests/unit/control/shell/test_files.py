"""The server's small files: the nonce, the identity, the message about its end, and what older servers left."""

import errno
import fcntl
import json
import os
import time
from pathlib import Path

import pytest

from tenure.control.files import (
    brands_of_the_dead,
    forget_old_servers,
    make_private_dir,
    read_nonce,
    take_identity,
    write_whole,
)
from tenure.control.lifetime import EXIT_CODES, EXIT_UNOWNED, Ending, leave_message
from tenure.control.tls import server_context
from tenure.model.errors import InvalidSettings

BRAND = "0123456789abcdef" * 2


def test_white_space_around_a_nonce_is_none_of_it(tmp_path: Path) -> None:
    (tmp_path / "nonce").write_text("\n  0123456789abcdef \r\n")
    assert read_nonce(tmp_path / "nonce").reveal() == "0123456789abcdef"


@pytest.mark.parametrize(
    "content", [b"", b"\n \n", b"short", b"0123456789abcdef\nsecond-line", b"\xff" * 32, b"x" * 1025]
)
def test_a_nonce_that_is_no_secret_refuses_to_start_and_is_not_quoted(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "nonce").write_bytes(content)
    with pytest.raises(InvalidSettings) as error:
        read_nonce(tmp_path / "nonce")
    assert "--nonce-file (TENURE_SERVER_NONCE_FILE)" in str(error.value)
    assert "second-line" not in str(error.value)
    assert error.value.__cause__ is None
    assert error.value.__context__ is None


def test_an_identity_is_taken_once(tmp_path: Path) -> None:
    lived = take_identity(tmp_path, "cs-1", BRAND)
    with pytest.raises(InvalidSettings, match="each process needs a new one"):
        take_identity(tmp_path, "cs-1", BRAND)
    os.close(lived)


def test_the_agents_of_a_server_are_known_when_it_has_ended_and_not_before(tmp_path: Path) -> None:
    directory = tmp_path / "cs-1"
    directory.mkdir()
    lives = take_identity(directory, "cs-1", BRAND)
    assert brands_of_the_dead(tmp_path) == frozenset()
    os.close(lives)
    assert brands_of_the_dead(tmp_path) == {BRAND}


def test_where_files_cannot_be_locked_nobody_is_led_to_the_agents_of_a_server_that_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    (tmp_path / "cs-1").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", no_locks)
        lives = take_identity(tmp_path / "cs-1", "cs-1", BRAND)
        assert brands_of_the_dead(tmp_path) == frozenset()
    assert brands_of_the_dead(tmp_path) == frozenset()
    os.close(lives)


@pytest.mark.parametrize("content", ["", "cs-1\n", "cs-1\nno brand\n", "\udcff\n" + "0" * 32])
def test_an_identity_file_without_a_brand_leads_to_nobody(tmp_path: Path, content: str) -> None:
    (tmp_path / "cs-1").mkdir()
    (tmp_path / "cs-1" / "identity").write_bytes(content.encode("utf-8", "surrogateescape"))
    assert brands_of_the_dead(tmp_path) == frozenset()


def test_a_home_that_cannot_be_made_is_named_by_its_flag(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidSettings, match="--home"):
        make_private_dir(tmp_path / "file" / "servers" / "x", tmp_path / "file")


def test_a_written_file_is_private_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    write_whole(tmp_path / "run.json", {"a": 1})
    assert json.loads((tmp_path / "run.json").read_text()) == {"a": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["run.json"]
    assert (tmp_path / "run.json").stat().st_mode & 0o077 == 0


def left_behind(servers: Path, name: str, *files: str, age: float = 0) -> Path:
    directory = servers / name
    directory.mkdir(parents=True)
    for file in files:
        (directory / file).write_text("x")
    for entry in (*directory.iterdir(), directory):
        os.utime(entry, (time.time() - age,) * 2)
    return directory


def test_what_older_servers_left_goes_after_its_time_and_only_that(tmp_path: Path) -> None:
    old = left_behind(tmp_path, "old", "server.log", "server.log.3", "identity", "run.json", age=200)
    quiet = left_behind(tmp_path, "quiet", "server.log", "run.json")
    lives = take_identity(quiet, "quiet", BRAND)
    for entry in (*quiet.iterdir(), quiet):
        os.utime(entry, (time.time() - 200,) * 2)
    recent = left_behind(tmp_path, "recent", "server.log", age=50)
    mixed = left_behind(tmp_path, "mixed", "server.log", "notes.txt", age=200)
    fresh = left_behind(tmp_path, "fresh")
    (tmp_path / "link").symlink_to(mixed)
    forget_old_servers(tmp_path, 100)
    assert not old.exists()
    assert (recent / "server.log").exists()
    assert [file.name for file in mixed.iterdir()] == ["notes.txt"]
    assert fresh.exists()
    assert {file.name for file in quiet.iterdir()} == {"server.log", "run.json", "identity"}
    os.close(lives)
    forget_old_servers(tmp_path, 100)
    assert not quiet.exists()
    forget_old_servers(tmp_path / "none", 100)


def test_the_last_message_says_why_in_one_line(tmp_path: Path) -> None:
    leave_message(tmp_path / "m", Ending.UNOWNED, "cs-1", 60_000)
    text = (tmp_path / "m").read_text()
    assert text.count("\n") == 1
    assert json.loads(text) == {"ended": "unowned", "server_identity": "cs-1", "unowned_period_ms": 60_000}


def test_a_message_that_cannot_be_left_stops_nothing(tmp_path: Path) -> None:
    leave_message(None, Ending.UNOWNED, "cs-1", 1)
    leave_message(tmp_path / "no" / "m", Ending.UNOWNED, "cs-1", 1)
    os.mkfifo(tmp_path / "pipe")
    leave_message(tmp_path / "pipe", Ending.UNOWNED, "cs-1", 1)


def test_unowned_has_an_exit_code_of_its_own() -> None:
    assert [ending for ending, code in EXIT_CODES.items() if code == EXIT_UNOWNED] == [Ending.UNOWNED]
    assert set(EXIT_CODES) == set(Ending)


@pytest.mark.parametrize("content", [None, "no PEM"])
def test_a_certificate_that_is_no_use_is_named_and_not_quoted(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "crt").write_text(content)
        (tmp_path / "key").write_text(content)
    with pytest.raises(InvalidSettings, match="TENURE_SERVER_TLS_KEY") as error:
        server_context(tmp_path / "crt", tmp_path / "key")
    assert error.value.__context__ is None
