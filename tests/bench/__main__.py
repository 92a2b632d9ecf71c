"""``python -m tests.bench [P-1 P-9 ...] [--scale 0.1]``: measure, show, keep."""

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.bench import machine
from tests.bench.adoption import adoption
from tests.bench.continuity import continuity
from tests.bench.creation import creation
from tests.bench.crowd import crowd
from tests.bench.library import library
from tests.bench.report import Figure, keep, show
from tests.bench.say import say
from tests.bench.steady import steady
from tests.bench.stops import stops
from tests.cluster.say import CannotStart

FOLDER = Path(__file__).resolve().parents[2] / ".cache" / "bench"

Run = Callable[[float, frozenset[str]], Coroutine[Any, Any, list[Figure]]]
"""Given the scale and the wanted ids."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is measured together, because it needs the same stage."""

    ids: tuple[str, ...]
    what: str
    run: Run


def _whole(run: Callable[[float], Coroutine[Any, Any, list[Figure]]]) -> Run:
    return lambda scale, _: run(scale)


SCENARIOS = (
    Scenario(("P-9",), "the agent library", _whole(library)),
    Scenario(("P-1", "P-2"), "from resource to pod", _whole(creation)),
    Scenario(("P-5", "P-6"), "an operator that starts among thousands", crowd),
    Scenario(("P-7",), "agents that only heartbeat", _whole(steady)),
    Scenario(("P-10",), "a control server's events to an attached reader", _whole(continuity)),
    Scenario(("P-8",), "a successor takes over a server and its agents", _whole(adoption)),
    Scenario(("P-3", "P-4"), "from a stop to SIGTERM, on a real node", stops),
)
NOT_YET: dict[str, str] = {}


def main(words: Sequence[str]) -> int:
    """Exit code 0 although a target was missed; 1 when a measurement failed, 2 for an unknown id."""
    wanted, scale = _arguments(words)
    # Both end everything that was started; a shell leaves SIGINT ignored in what it runs in the background.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    facts: dict[str, Any] = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "scale": scale,
        "load_before": os.getloadavg()[0],
        "busy_before": machine.busy_share(2.0),
    }
    began, failed = time.monotonic(), False
    figures: list[Figure] = []
    for scenario in SCENARIOS:
        if wanted.isdisjoint(scenario.ids):
            continue
        say(f"{', '.join(scenario.ids)}: {scenario.what}")
        try:
            found = asyncio.run(scenario.run(scale, wanted))
        except CannotStart as error:
            found = [_not_measured(scenario, identifier, str(error)) for identifier in scenario.ids]
        except (Exception, ExceptionGroup) as error:
            failed = True
            found = [_not_measured(scenario, identifier, f"failed: {error!r}") for identifier in scenario.ids]
        load = round(os.getloadavg()[0], 2)
        figures += [
            replace(each, detail={**each.detail, "load": load}) for each in found if each.id in wanted
        ]
    figures.sort(key=lambda figure: int(figure.id.partition("-")[2]))
    left_out = [(identifier, NOT_YET[identifier]) for identifier in NOT_YET if identifier in wanted]
    facts |= {"load_after": os.getloadavg()[0], "seconds": round(time.monotonic() - began, 1)}
    show(figures, left_out, facts)
    name = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    say(f"kept as {keep(FOLDER, name, figures, left_out, facts)}")
    return 1 if failed else 0


def _not_measured(scenario: Scenario, identifier: str, sentence: str) -> Figure:
    return Figure(id=identifier, what=scenario.what, target="", note=sentence)


def _arguments(words: Sequence[str]) -> tuple[frozenset[str], float]:
    known = sorted(
        {identifier for scenario in SCENARIOS for identifier in scenario.ids} | set(NOT_YET),
        key=lambda each: int(each.partition("-")[2]),
    )
    parser = argparse.ArgumentParser(prog="make bench ARGS=...", description=__doc__)
    parser.add_argument(
        "ids", nargs="*", metavar="ID", help=f"what to measure (default: all): {' '.join(known)}"
    )
    parser.add_argument(
        "--scale", type=float, default=1.0, help="sizes times this, for a quick look (default: 1)"
    )
    given = parser.parse_args(words)
    unknown = sorted(set(given.ids) - set(known))
    if unknown:
        parser.error(f"unknown: {' '.join(unknown)}; known are {' '.join(known)}")
    if not 0 < given.scale <= 10:
        parser.error("--scale must be above 0 and at most 10")
    return frozenset(given.ids or known), given.scale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
