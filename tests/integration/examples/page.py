"""Reading a page of the documentation: its tables, and its blocks of code."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def read(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def tables(text: str) -> dict[str, list[list[str]]]:
    """The rows of each table, under the text of its first heading cell; backquotes are left in."""
    found: dict[str, list[list[str]]] = {}
    rows: list[list[str]] | None = None
    for line in text.splitlines():
        if not line.startswith("|"):
            rows = None
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if rows is None:
            rows = found.setdefault(cells[0], [])
        elif not set("".join(cells)) <= set("-: |"):
            rows.append(cells)
    return found


def code(cell: str) -> list[str]:
    """What is between backquotes."""
    return re.findall(r"`([^`]+)`", cell)


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
