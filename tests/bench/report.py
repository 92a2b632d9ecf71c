"""What a measurement says, how it is shown, and how it is kept."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

_VERDICTS = {True: "[green]met[/]", False: "[bold red]MISSED[/]", None: "[yellow]not measured[/]"}
_WIDTH = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the table. ``met`` None: it could not be measured, and ``note`` is the sentence why.

    ``ratio`` is measured over floor, where the target is about both. ``detail`` is for the JSON alone.
    """

    id: str
    what: str
    target: str
    measured: str = ""
    floor: str = ""
    ratio: float | None = None
    met: bool | None = None
    note: str = ""
    detail: dict[str, Any] = field(default_factory=dict)


def show(figures: Sequence[Figure], left_out: Iterable[tuple[str, str]], machine: dict[str, Any]) -> None:
    """The table on stdout, and in words what was missed."""
    console = Console(highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH)
    table = Table(title=_title(machine), title_justify="left", pad_edge=False)
    for name in ("id", "what", "measured", "floor", "ratio", "target", "verdict"):
        table.add_column(
            name, justify="right" if name == "ratio" else "left", no_wrap=name in ("id", "ratio")
        )
    for figure in figures:
        ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
        table.add_row(
            figure.id, figure.what, figure.measured, figure.floor, ratio, figure.target, _VERDICTS[figure.met]
        )
    for identifier, what in left_out:
        table.add_row(identifier, what, "", "", "", "", "[dim]not in this release[/]")
    console.print(table)
    for figure in figures:
        if figure.note:
            console.print(f"{figure.id}: {figure.note}", markup=False)
    missed = sorted({figure.id for figure in figures if figure.met is False})
    console.print(f"missed: {', '.join(missed)}" if missed else "no measured target was missed", markup=False)
    unknown = sorted({figure.id for figure in figures if figure.met is None})
    if unknown:
        console.print(f"not measured: {', '.join(unknown)}", markup=False)


def _title(machine: dict[str, Any]) -> str:
    return (
        f"{machine['cores']} cores; {machine['busy_before']:.0%} busy with other work before the start, "
        f"load {machine['load_before']:.1f}; scale {machine['scale']:g}"
    )


def keep(
    folder: Path,
    name: str,
    figures: Sequence[Figure],
    left_out: Sequence[tuple[str, str]],
    machine: dict[str, Any],
) -> Path:
    """Write everything as ``folder/name.json``; returns the path."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{name}.json"
    content = {
        "machine": machine,
        "figures": [asdict(figure) for figure in figures],
        "not_in_this_release": [identifier for identifier, _ in left_out],
    }
    target.write_text(json.dumps(content, indent=1, default=str) + "\n")
    return target
