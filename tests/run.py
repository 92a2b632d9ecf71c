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
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUITES = {
    "unit": ["tests/unit", "tests/properties"],
    "integration": ["tests/integration"],
    "e2e": ["tests/e2e"],
}

BESIDE = "tests/integration/agents"
"""The part of the integration tests that runs beside the rest: it mostly waits, and takes about as long."""


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
    """The worse exit code of the two halves of the integration tests; the report of one follows the other's."""
    command = [sys.executable, "-m", "pytest"]
    with tempfile.TemporaryFile() as report:
        beside = subprocess.Popen(
            [*command, "-p", "no:cacheprovider", BESIDE], cwd=ROOT, stdout=report, stderr=subprocess.STDOUT
        )
        try:
            print(f"{BESIDE} runs beside the others; its report follows theirs", flush=True)
            others = subprocess.run(
                [*command, *SUITES["integration"], f"--ignore={BESIDE}"], cwd=ROOT, check=False
            )
            code = beside.wait()
        finally:
            if beside.poll() is None:
                beside.terminate()
                beside.wait()
        report.seek(0)
        shutil.copyfileobj(report, sys.stdout.buffer)
        sys.stdout.flush()
    return max(others.returncode, code)


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
