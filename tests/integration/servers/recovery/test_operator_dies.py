"""An operator that dies at any exchange of a recovery: the next one ends where it would have ended."""

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from tests.integration.ownership.site import agentctl
from tests.integration.servers.recovery.dying import Died, DyingPool, DyingServer, Fate
from tests.integration.servers.recovery.stage import Stage, staged

from tenure.model.masked import Masked
from tenure.storage.migrations import migrate_schema
from tenure.storage.records import Records

EMPTY = """
TRUNCATE tenure.control_servers, tenure.executors_running, tenure.turns, tenure.sessions, tenure.tasks RESTART IDENTITY
"""
OWN_WORDS = {"id", "server_identity", "created_at", "finished_at", "updated_at", "last_seen_at"}
"""Columns that differ from one life to the next."""


async def sessions(stage: Stage) -> None:
    """One of each kind."""
    assert stage.site.double is not None
    await stage.session("runs")
    await stage.prompted("runs")
    await stage.session("ended")
    await stage.prompted("ended")
    await stage.site.double.finish("i-ended")
    await stage.session("doubled")
    await stage.instance("twin", "doubled")
    await stage.session("stuck")
    await stage.instance("stuck-twin", "stuck")
    stage.site.double.refuse["DELETE", "/api/v1/instances/stuck-twin"] = 500
    await stage.session("lacking", agent_profile="unheard-of")
    await stage.row("absent")
    await stage.records.turns.open("absent", "i-absent")
    await stage.instance("stray", "nobody")


async def one_life(stage: Stage, fate: Fate, url: str) -> None:
    """An operator until it has finished, or died."""
    pool = DyingPool("store", Masked(url))
    pool.fate = fate
    facts = {f.name: getattr(stage.server, f.name) for f in dataclasses.fields(stage.server)}
    operator = stage.operator()
    server = DyingServer(**facts, fate=fate)
    try:
        await operator.recover(records=Records.over(pool, "team"), server=server)
    finally:
        await operator.aclose()
        await pool.aclose()


async def what_is_left(stage: Stage) -> Any:
    tables = []
    for rows in await stage.everything():
        found = [{k: v for k, v in row.items() if k not in OWN_WORDS} for row in map(_parsed, rows)]
        for row in found:
            row["interrupted_at"] = row.get("interrupted_at") is not None
        tables.append(sorted(found, key=str))
    outcomes = {i: await stage.client.outcome(i) for i in sorted(await stage.alive())}
    return tables, outcomes


def _parsed(row: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(row)
    return found


@pytest.mark.accept("S-002.9")
@pytest.mark.accept("S-004.6")
@pytest.mark.parametrize("after", [False, True], ids=["before it", "after it"])
async def test_whenever_an_operator_dies_the_next_one_ends_where_it_would_have_ended(
    database_url: str, tmp_path: Path, after: bool
) -> None:
    await migrate_schema(Masked(database_url))
    undisturbed: Any = None
    exchanges, number = 1, 0
    while number <= exchanges:
        async with agentctl() as site, staged(site, None, database_url, tmp_path) as stage:
            await sessions(stage)
            fate = Fate(number, after)
            if number == 0:
                await one_life(stage, fate, database_url)
                undisturbed, exchanges = await what_is_left(stage), fate.count
                assert exchanges > 20
            else:
                try:
                    await one_life(stage, fate, database_url)
                except Died:
                    await one_life(stage, Fate(), database_url)
                async with asyncio.timeout(10):
                    assert await what_is_left(stage) == undisturbed, f"died at {number} of {exchanges}"
            await stage.execute(EMPTY)
        number += 1
