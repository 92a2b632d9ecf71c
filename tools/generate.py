"""Make every generated file: `python tools/generate.py`; with `--check` fail, naming them, when some are stale.

A generator is a function that returns {path from the root: text}. The same code always gives the same bytes.
"""

import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

Generator = Callable[[], dict[Path, str]]


def crds() -> dict[Path, str]:
    """The custom resource definitions, from the models."""
    from tenure.cli.crds import rendered

    return {ROOT / "crds" / name: text for name, text in rendered().items()}


def chart() -> dict[Path, str]:
    """What of the chart follows from code: definitions and permissions. Reads crds/, so it comes after them."""
    from tools.sync_chart import rendered

    return rendered()


def reference() -> dict[Path, str]:
    """The reference pages of the docs."""
    from tools.reference import rendered

    return rendered()


GENERATORS: tuple[Generator, ...] = (crds, chart, reference)


def main(arguments: list[str]) -> int:
    """Exit code 1 when `--check` finds a stale file."""
    check, stale = "--check" in arguments, []
    for generator in GENERATORS:
        for path, text in generator().items():
            before = path.read_text(encoding="utf-8") if path.exists() else None
            if before == text:
                continue
            stale.append(path.relative_to(ROOT))
            if not check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
    for path in stale:
        print(f"{'stale' if check else 'written'}: {path}")
    if check and stale:
        print("run `make generate` and commit the result")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
