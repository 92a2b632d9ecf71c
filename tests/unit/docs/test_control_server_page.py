"""The page of the control server says what the program does."""

import re
from pathlib import Path

from tenure.control import lifetime, listener, logfile, peers
from tenure.control.lifetime import EXIT_CODES, Ending
from tenure.control.settings import ServerSettings, default_of, flag_of, variable_of

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "control-server.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_every_setting_is_in_the_table_as_it_is() -> None:
    wanted = [
        [f"`{flag_of(name)}`", f"`{variable_of(name)}`", default_of(name), field.description]
        for name, field in ServerSettings.model_fields.items()
    ]
    assert rows("Settings") == wanted


def test_every_ending_has_its_exit_code() -> None:
    assert {row[0]: int(row[2]) for row in rows("How it ends")} == {
        f"`{ending}`": code for ending, code in EXIT_CODES.items()
    }
    assert set(EXIT_CODES) == set(Ending)
    assert f"Code {lifetime.EXIT_FAILED}: it could not listen" in PAGE
    assert f"Code {lifetime.EXIT_SETTINGS}: it refused its settings" in PAGE


def test_the_limits_are_those_of_the_program() -> None:
    assert f"a peer has {peers.PER_PEER}, all peers together {peers.IN_ALL:,}" in re.sub(r"\s+", " ", PAGE)
    assert (listener.HEADER_SECONDS, listener.HANDSHAKE_SECONDS, listener.WRITE_SECONDS) == (10, 5, 30)
    assert f"`.{logfile.BACKUPS}`" in PAGE
    assert f"at {logfile.MAX_BYTES // 2**20} MB" in PAGE
