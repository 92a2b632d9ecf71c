"""Which acceptance lines have a test: collects every test, reads its `accept` marks, and compares with the list.

`python tools/acceptance.py` collects only (seconds). Exit code 1 when a test names a line that does not exist.
"""

import contextlib
import io
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests" / "acceptance.toml"


class Collector:
    """A pytest plugin that keeps which ids the collected tests name."""

    def __init__(self) -> None:
        self.tests: dict[str, list[str]] = defaultdict(list)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for mark in item.iter_markers("accept"):
                for line in mark.args:
                    self.tests[line].append(item.nodeid)


def main() -> int:
    groups = tomllib.loads(LIST.read_text())
    collector = Collector()
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = pytest.main(
            ["--collect-only", "-q", "-p", "no:cacheprovider", str(ROOT / "tests")], [collector]
        )
    if code not in (0, 5):
        print(said.getvalue())
        print(f"acceptance: the tests could not be collected (pytest says {code})")
        return 2
    known = {line for lines in groups.values() for line in lines}
    unknown = sorted(set(collector.tests) - known)
    for line in unknown:
        print(f"unknown line {line}, named by {collector.tests[line][0]}")
    counts = []
    for group, lines in groups.items():
        proven = [line for line in lines if collector.tests.get(line)]
        counts.append(f"{group} {len(proven)}/{len(lines)}")
        missing = [line for line in lines if line not in proven]
        print(f"\n{group}: {len(proven)} of {len(lines)} lines have a test")
        for line in missing:
            print(f"  {line:9} {lines[line]}")
    print("\nacceptance: " + ", ".join(counts))
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
