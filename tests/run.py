"""Run the tests: `python -m tests.run unit|integration|e2e|all [pytest arguments]`.

The end-to-end suite runs inside the test cluster's network. Where no cluster can be had it is skipped with one
sentence and a count; under CI=true that is a failure, since a green run must mean that everything was tried.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUITES = {
    "unit": ["tests/unit", "tests/properties"],
    "integration": ["tests/integration"],
    "e2e": ["tests/e2e"],
}

BESIDE = (
    (
        "tests/integration/agents",
        "tests/integration/hosted",
        "tests/integration/backend",
        "tests/integration/servers",
    ),
)
"""Parts of the integration tests that run beside the rest. One part: with three the processors of a small machine were
busy all the time, and tests that hold an operator to seconds failed."""


def pytest_command(suite: str, arguments: list[str]) -> list[str]:
    """The command line for one suite; ``arguments`` are pytest's own."""
    return [sys.executable, "-m", "pytest", *SUITES[suite], *arguments]


def run(suite: str, arguments: list[str]) -> int:
    """The exit code of one suite."""
    print(f"\n=== {suite} tests", flush=True)
    if suite == "integration" and not arguments:
        return run_side_by_side()
    if suite != "e2e":
        return subprocess.run(pytest_command(suite, arguments), cwd=ROOT, check=False).returncode
    return run_e2e(arguments)


def run_side_by_side() -> int:
    """The worst exit code of the parts of the integration tests; the reports follow that of the rest."""
    command = [sys.executable, "-m", "pytest"]
    taken = [place for part in BESIDE for place in part if (ROOT / place).exists()]

    def without(folders: Sequence[str]) -> list[str]:
        """What lies within these folders and is another part's."""
        others = (place for place in taken if place not in folders)
        return [
            f"--ignore={place}"
            for place in others
            if any(Path(place).is_relative_to(folder) for folder in folders)
        ]

    with ExitStack() as stack:
        beside = []
        for part in BESIDE:
            own = [place for place in part if place in taken]
            report = stack.enter_context(tempfile.TemporaryFile())
            process = subprocess.Popen(
                [*command, "-p", "no:cacheprovider", *own, *without(own)],
                cwd=ROOT,
                stdout=report,
                stderr=subprocess.STDOUT,
            )
            stack.callback(_end, process)
            beside.append((process, report))
        print(f"{', '.join(taken)} run beside the others; their reports follow", flush=True)
        everything = SUITES["integration"]
        rest = subprocess.run([*command, *everything, *without(everything)], cwd=ROOT, check=False)
        codes = [rest.returncode]
        for process, report in beside:
            codes.append(process.wait())
            report.seek(0)
            shutil.copyfileobj(report, sys.stdout.buffer)
            sys.stdout.flush()
    return max(codes)


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.terminate()
        process.wait()


def run_e2e(arguments: list[str]) -> int:
    """Start a cluster, or use the one that runs; run the suite inside its network; end what was started."""
    from tests.cluster import build, images  # late: the unit tests need nothing of it
    from tests.cluster.choose import cluster
    from tests.cluster.say import CannotStart

    target = cluster()
    ran_before = target.ready()
    try:
        target.up()
        # Out here: inside the cluster's network nothing can be fetched.
        build.helm()
        target.load(images.tenure(), images.worker(), images.postgres())
    except CannotStart as missing:
        print(f"{collected('e2e')} end-to-end tests skipped: {missing}", flush=True)
        return 1 if os.environ.get("CI") == "true" else 0
    try:
        command = target.command(pytest_command("e2e", arguments))
        return subprocess.run(command, cwd=ROOT, env=target.environment(), check=False).returncode
    finally:
        if not ran_before:
            target.down()


def collected(suite: str) -> int:
    """How many tests a suite has."""
    answer = subprocess.run(
        [*pytest_command(suite, ["--collect-only", "-q"])],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    return sum("::" in line for line in answer.stdout.splitlines())


def main(arguments: list[str]) -> int:
    """Every suite runs, whatever became of the one before; the worst exit code is the answer."""
    names = list(SUITES) if arguments[:1] == ["all"] else arguments[:1]
    if not names or names[0] not in SUITES:
        print(f"usage: python -m tests.run {'|'.join(SUITES)}|all [pytest arguments]")
        return 2
    codes, began = {}, time.monotonic()
    for name in names:
        codes[name] = run(name, arguments[1:])
    if len(names) > 1:
        verdicts = ", ".join(
            f"{name} {'ok' if code == 0 else f'FAILED ({code})'}" for name, code in codes.items()
        )
        print(f"\n=== {verdicts}; {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
    return max(codes.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
