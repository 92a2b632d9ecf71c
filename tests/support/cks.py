"""The packages ``cks-runtime`` and ``cks-mcp`` as they ship, in an environment of their own.

They need Python 3.12 or newer, which Tenure's own environment need not be. Made once per pinned version, in the
git-ignored cache.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = ("cks-runtime[postgres]==1.58.0", "cks-mcp==1.77.0")
CACHE = Path(__file__).parents[2] / ".cache"
AGENT = Path(__file__).with_name("cks_agent.py")

_NEWER = tuple(f"python3.{minor}" for minor in range(12, 16))


def newer_python() -> str:
    """An interpreter that the packages accept. Raises ``RuntimeError`` with what to do when there is none."""
    candidates = [sys.executable] if sys.version_info >= (3, 12) else []
    candidates += [found for name in _NEWER if (found := shutil.which(name))]
    for versions in (Path.home() / ".pyenv/versions", Path("/root/.pyenv/versions")):
        if os.access(versions, os.R_OK):
            candidates += [str(found) for name in _NEWER for found in sorted(versions.glob(f"*/bin/{name}"))]
    for candidate in candidates:
        asked = subprocess.run(
            [candidate, "-c", "import sys, venv; sys.exit(sys.version_info < (3, 12))"],
            capture_output=True,
            check=False,
        )
        if asked.returncode == 0:
            return candidate
    raise RuntimeError("the tests of agents on cks-runtime need a Python 3.12 or newer on the PATH")


def agent_command() -> tuple[str, ...]:
    """How to run the agent of ``cks_agent.py``. ``-P``: the folder of that file has modules named like the standard
    library's."""
    return str(cks_python()), "-P", str(AGENT)


def cks_python() -> Path:
    """The interpreter of an environment with the packages; made at the first call, which takes some 15 seconds."""
    interpreter = newer_python()
    key = hashlib.sha256("\n".join([interpreter, *REQUIREMENTS]).encode()).hexdigest()[:16]
    home = CACHE / f"cks-{key}"
    python, done = home / "bin" / "python", home / "complete"
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "cks.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(home, ignore_errors=True)
            _quietly(interpreter, "-m", "venv", "--without-pip", str(home))
            _quietly(sys.executable, "-m", "uv", "pip", "install", "--python", str(python), *REQUIREMENTS)
            done.touch()
    return python


def _quietly(*command: str) -> None:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{command[0]} failed:\n{ran.stderr[-2000:]}"
