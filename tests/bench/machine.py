"""What the machine does meanwhile, and what one process takes of it."""

import math
import os
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
MIB = 1024 * 1024


def busy_share(seconds: float) -> float:
    """The share of all cores that was busy for so many seconds (it blocks for them)."""
    before = _jiffies()
    time.sleep(seconds)
    after = _jiffies()
    total = sum(after) - sum(before)
    idle = (after[3] + after[4]) - (before[3] + before[4])
    return 1 - idle / total if total else 0.0


def _jiffies() -> list[int]:
    return [int(number) for number in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far, all its threads included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def precise_cpu_seconds(pid: int) -> float:
    """The same of its living threads, in nanoseconds instead of hundredths of a second."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def resident_mib(pid: int) -> float:
    """The resident memory of a process now."""
    return _memory(pid, "VmRSS")


def peak_mib(pid: int) -> float:
    """The highest that its resident memory ever was."""
    return _memory(pid, "VmHWM")


def _memory(pid: int, name: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024 / MIB
    raise LookupError(f"process {pid} has no {name}")


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def median(values: Sequence[float]) -> float:
    """The median."""
    return statistics.median(values)


def in_ms(seconds: float) -> str:
    """Seconds as milliseconds, for people."""
    return f"{seconds * 1000:.{0 if seconds >= 0.1 else 1}f} ms"
