"""Long-running programs that the harness starts, and nothing else, ends.

Each program is known by its pid *and* its start time, written to a state file as it starts. So a later run
ends what a crashed run left behind, and never a stranger that got the same pid.
"""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.cluster.say import CannotStart


@dataclass(frozen=True)
class Program:
    """One started program. ``started`` is in clock ticks since boot, as in ``/proc/PID/stat``."""

    name: str
    pid: int
    started: int

    def alive(self) -> bool:
        """True while the same program runs; a zombie has ended."""
        found = _stat(self.pid)
        return found is not None and found[0] == self.started and found[1] not in "ZX"


class Processes:
    """Programs of one cluster: their logs and state file live in ``folder``.

    ``prefix`` is put before each command, for example ``["nsenter", "--net=..."]`` (it must exec, not fork).
    """

    def __init__(self, folder: Path, prefix: Sequence[str] = ()) -> None:
        self.folder = folder
        self.prefix = list(prefix)
        self.programs: list[Program] = []
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self.logs = folder / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)

    def start(
        self, name: str, command: Sequence[str | Path], environment: Mapping[str, str] | None = None
    ) -> Program:
        """Start a program in its own session, its output in ``logs/<name>.log``."""
        with (self.logs / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                [*self.prefix, *map(str, command)],
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        found = _stat(child.pid)
        program = Program(name, child.pid, found[0] if found else -1)
        self._children[child.pid] = child
        self.programs.append(program)
        self._save()
        return program

    def stop(self, program: Program, patience: float = 5.0) -> None:
        """SIGTERM, then SIGKILL after ``patience`` seconds; returns when the program has ended."""
        for number, limit in ((signal.SIGTERM, patience), (signal.SIGKILL, 5.0)):
            if not program.alive():
                break
            with contextlib.suppress(ProcessLookupError):
                os.kill(program.pid, number)
            self._wait(program, limit)
        if program in self.programs:
            self.programs.remove(program)
            child = self._children.pop(program.pid, None)
            if child is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(1)
        self._save()

    def running(self, name: str) -> Program | None:
        """The running program of that name."""
        return next((program for program in self.programs if program.name == name and program.alive()), None)

    def check(self) -> None:
        """Raise ``CannotStart`` with the last words of a program that has ended by itself."""
        for program in self.programs:
            if not program.alive():
                raise CannotStart(
                    f"{program.name} ended by itself; its last words: {self.last_words(program.name)}"
                )

    def last_words(self, name: str, lines: int = 8) -> str:
        """The end of a program's log, for error messages."""
        log = self.logs / f"{name}.log"
        text = log.read_text(errors="replace") if log.exists() else ""
        return " | ".join(text.strip().splitlines()[-lines:])[-3000:]

    def _wait(self, program: Program, limit: float) -> None:
        until = time.monotonic() + limit
        child = self._children.get(program.pid)
        while program.alive() and time.monotonic() < until:
            if child is not None:
                child.poll()
            time.sleep(0.02)

    def _save(self) -> None:
        state = {"owner": os.getpid(), "programs": [asdict(program) for program in self.programs]}
        scratch = self.folder / ".processes.json.part"
        scratch.write_text(json.dumps(state))
        scratch.replace(self.folder / "processes.json")

    @classmethod
    def left_in(cls, folder: Path) -> "Processes":
        """The programs that an earlier run noted in ``folder``."""
        processes = cls(folder)
        with contextlib.suppress(FileNotFoundError, ValueError):
            state = json.loads((folder / "processes.json").read_text())
            processes.programs = [Program(**entry) for entry in state["programs"]]
        return processes


def owner_alive(folder: Path) -> bool:
    """True while the run that started the programs noted in ``folder`` still runs."""
    try:
        return _stat(int(json.loads((folder / "processes.json").read_text())["owner"])) is not None
    except (FileNotFoundError, ValueError, KeyError):
        return False


def _stat(pid: int) -> tuple[int, str] | None:
    """Start time and state letter of a process, or None when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()
    return int(fields[19]), fields[0]
