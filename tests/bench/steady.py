"""P-7: agents that only heartbeat cost the API server nothing and the operator little."""

import asyncio
import re
import time
from collections import Counter

from tests.bench.machine import cpu_seconds
from tests.bench.population import Population
from tests.bench.report import Figure
from tests.bench.say import say
from tests.bench.stage import Stage, stage

INTERVAL = 5
WRITES = ("POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION")
CORE_SHARE = 0.10
_OURS = ("agentprocesses", "pods", "events")
_SAMPLE = re.compile(r"^apiserver_request_total\{([^}]*)\} ([0-9.e+]+)$")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


async def steady(scale: float) -> list[Figure]:
    """One minute of heartbeats, counted at the API server and in the operator's own CPU time."""
    agents, seconds = max(50, round(1000 * scale)), max(15.0, 60.0 * min(scale, 1.0))
    async with stage() as here:
        people = Population(here, await here.namespace("bench"), interval=INTERVAL)
        async with people.heartbeating(), here.operator() as operator:
            await people.grow(operator, agents)
            # Past the first judgements: three intervals, and the operator's own housekeeping.
            await asyncio.sleep(4 * INTERVAL)
            await operator.settled(5)
            say(f"{agents} agents heartbeat for {seconds:.0f} s")
            before, began, cpu = await _writes(here), time.monotonic(), cpu_seconds(operator.pid)
            await asyncio.sleep(seconds)
            took, spent = time.monotonic() - began, cpu_seconds(operator.pid) - cpu
            made = await _writes(here) - before
    return [_written(agents, took, made), _spent(agents, took, spent)]


async def _writes(here: Stage) -> Counter[tuple[str, str]]:
    """Writes so far, by resource and verb. The Lease's renewals are not about agents and counted apart."""
    found: Counter[tuple[str, str]] = Counter()
    # The metrics are no JSON, so kubectl reads them; its own request is a GET.
    text = await asyncio.to_thread(here.plane.kubectl, "get", "--raw=/metrics")
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is None:
            continue
        labels = dict(_LABEL.findall(match[1]))
        if labels["verb"] in WRITES and labels["resource"] in (*_OURS, "leases"):
            found[labels["resource"], labels["verb"]] += round(float(match[2]))
    return found


def _written(agents: int, took: float, made: Counter[tuple[str, str]]) -> Figure:
    ours = {f"{verb} {resource}": count for (resource, verb), count in made.items() if resource in _OURS}
    total = sum(ours.values())
    leases = sum(count for (resource, _), count in made.items() if resource == "leases")
    return Figure(
        id="P-7",
        what=f"writes about agents while {agents} of them heartbeat every {INTERVAL} s for {took:.0f} s",
        measured=f"{total} ({leases} renewals of Leases beside)",
        target="0",
        met=total == 0,
        note=""
        if not ours
        else "written: " + ", ".join(f"{count} {what}" for what, count in sorted(ours.items())),
        detail={"writes": ours, "leases": leases},
    )


def _spent(agents: int, took: float, spent: float) -> Figure:
    share = spent / took
    return Figure(
        id="P-7",
        what=f"the operator's CPU meanwhile ({agents} agents)",
        measured=f"{share:.1%} of one core",
        target=f"< {CORE_SHARE:.0%}",
        met=share < CORE_SHARE,
        detail={"cpu_seconds": spent, "seconds": took},
    )
