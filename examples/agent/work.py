"""The work itself: what a prompt asks for, and counting the words of files. No protocol in here."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

LARGEST = 1024 * 1024
"""Bytes; a longer file is left out, and so is everything hidden."""
MOST = 100
"""Files of one turn."""

HELP = (
    "I count words. Try: “count the words of every file and write a report”, “count the words of every *.md file "
    "into WORDS.md”, or “continue” after I was cut off."
)


@dataclass(frozen=True)
class Order:
    """What to count, and where the report goes."""

    pattern: str = "*"
    report: str = "REPORT.md"


def understand(text: str) -> Order | None:
    """The order that a prompt is, or None: this agent has no language model."""
    if "count" not in text.lower():
        return None
    pattern = re.search(r"(?<!\S)[\w*?-]*\*[\w*?.-]*", text)
    report = re.search(r"\b(?:into|to|as)\s+([\w-][\w.-]*\.\w+)", text)
    return Order(
        pattern=pattern[0] if pattern else Order.pattern, report=report[1] if report else Order.report
    )


def find(workspace: Path, order: Order) -> list[str]:
    """The files to read, relative to the workspace, in order."""
    found = []
    for path in sorted(workspace.rglob(order.pattern)):
        name = path.relative_to(workspace)
        hidden = any(part.startswith(".") for part in name.parts)
        if hidden or str(name) == order.report or path.is_symlink() or not path.is_file():
            continue
        if path.stat().st_size <= LARGEST:
            found.append(str(name))
    return found[:MOST]


def count(text: str) -> int:
    """Words, as ``wc -w`` counts them."""
    return len(text.split())


def total_of(wc_output: str) -> int:
    """The sum that ``wc -w`` printed in its last line: of one file its number, of more the total."""
    last = wc_output.strip().splitlines()[-1:]
    number = last[0].split()[0] if last else ""
    return int(number) if number.isdigit() else -1


def report(counts: Mapping[str, int], checked: int) -> str:
    """The report in Markdown."""
    total = sum(counts.values())
    rows = [
        f"| {name} | {words} |" for name, words in sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    ]
    verdict = "`wc -w` agrees." if checked == total else f"`wc -w` counted {checked}."
    return "\n".join(
        ["# Words", "", "| file | words |", "| --- | ---: |", *rows, f"| total | {total} |", "", verdict, ""]
    )
