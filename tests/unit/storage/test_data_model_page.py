"""The page about the records says every word that a row may hold."""

import re
from enum import StrEnum
from pathlib import Path

import pytest

from tenure.model import records
from tenure.model.adoption import LaunchRefusal
from tenure.storage.migrations import shipped_migrations

PAGE = Path(__file__).resolve().parents[3] / "docs" / "data-model.md"
WORDS = [
    records.ExecutorStatus,
    records.SessionState,
    records.TurnState,
    records.TaskState,
    records.SurvivalEffective,
    LaunchRefusal,
]


@pytest.mark.parametrize("words", WORDS, ids=lambda words: words.__name__)
def test_every_word_is_on_the_page(words: type[StrEnum]) -> None:
    spans = set(re.findall(r"`([^`]+)`", PAGE.read_text(encoding="utf-8")))
    missing = {word.value for word in words} - spans
    assert not missing


def test_every_table_is_on_the_page() -> None:
    sql = "".join(migration.sql for migration in shipped_migrations())
    tables = re.findall(r"CREATE TABLE tenure\.(\w+)", sql)
    assert len(tables) == 6
    page = PAGE.read_text(encoding="utf-8")
    assert [table for table in tables if f"| `{table}` |" not in page] == []
