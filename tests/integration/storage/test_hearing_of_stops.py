"""The notify trigger and the connection that listens for it."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator

import pytest
from tests.support.liveness import a_record
from tests.support.postgres import PostgresServer
from tests.support.wait import eventually

from tenure.model.masked import Masked
from tenure.storage.liveness import HeartbeatClock
from tenure.storage.notify import StopListener
from tenure.storage.postgres import PostgresLivenessStorage


@contextlib.asynccontextmanager
async def listening(url: str, **options: float) -> AsyncIterator[tuple[StopListener, list[str | None]]]:
    """A listener at work, and what it has heard."""
    heard: list[str | None] = []
    listener = StopListener("default", Masked(url), heard.append, **options)
    task = asyncio.create_task(listener.run())
    try:
        yield listener, heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def prepared(url: str, *ids: str) -> PostgresLivenessStorage:
    storage = PostgresLivenessStorage(Masked(url))
    await storage.migrate()
    for id_ in ids:
        await storage.upsert_agent_liveness(a_record(id_), clock=HeartbeatClock.DATABASE)
    return storage


@pytest.mark.accept("L-10")
async def test_a_stop_is_heard_at_once_and_a_heartbeat_never(database_url: str) -> None:
    storage = await prepared(database_url, "one", "two")
    async with listening(database_url) as (listener, heard):
        await eventually(lambda: listener.connected, within=5)
        assert heard == [None], "after connecting everything is to be read"
        await storage.upsert_agent_liveness(a_record("one"), clock=HeartbeatClock.DATABASE)
        began = time.monotonic()
        await storage.request_agent_stop("one")
        await eventually(lambda: heard == [None, "one"], within=1, every=0.005)
        assert time.monotonic() - began < 1
        # The marked row goes on heartbeating; that is no news.
        await storage.upsert_agent_liveness(a_record("one"), clock=HeartbeatClock.DATABASE)
        await storage.request_agent_stop("two")
        await eventually(lambda: heard == [None, "one", "two"], within=10)
    await storage.aclose()


async def test_a_stop_by_plain_sql_is_heard_too(database_url: str, postgres_server: PostgresServer) -> None:
    storage = await prepared(database_url, "one")
    async with listening(database_url) as (listener, heard):
        await eventually(lambda: listener.connected, within=5)
        await postgres_server.execute(
            "UPDATE cks_agent_liveness SET desired_state = 'stop_requested'",
            database=database_url.rsplit("/", 1)[1],
        )
        await eventually(lambda: heard[-1] == "one", within=10)
    await storage.aclose()


async def test_an_id_beyond_the_limit_of_a_notification_is_marked_all_the_same(database_url: str) -> None:
    huge = "x" * 2500  # an index entry holds at most 2,704 bytes; NOTIFY 8,000, of which we use 1,000
    storage = await prepared(database_url, huge)
    async with listening(database_url) as (listener, heard):
        await eventually(lambda: listener.connected, within=5)
        assert await storage.request_agent_stop(huge) is True
        await eventually(lambda: heard == [None, None], within=10, what="an empty payload: read everything")
    await storage.aclose()


@pytest.mark.accept("L-15")
async def test_after_a_restart_of_the_server_it_listens_again_and_says_read_everything(
    own_postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    url = await own_postgres.fresh_database()
    storage = await prepared(url, "one")
    async with listening(url) as (listener, heard):
        await eventually(lambda: listener.connected, within=5)
        own_postgres.stop()
        await eventually(lambda: not listener.connected, within=10)
        own_postgres.start()
        await eventually(lambda: listener.connected, within=5)
        assert heard == [None, None]
        await storage.request_agent_stop("one")
        await eventually(lambda: heard[-1] == "one", within=10)
    await storage.aclose()
    assert not [record for record in caplog.records if record.exc_info], "a traceback was logged"
    lost = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len({record.getMessage() for record in lost}) == len(lost), "the same trouble was told twice"


async def test_a_frozen_server_is_noticed_by_the_probe(own_postgres: PostgresServer) -> None:
    url = await own_postgres.fresh_database()
    storage = await prepared(url, "one")
    async with listening(url, probe_every=0.2, limit=0.5) as (listener, heard):
        await eventually(lambda: listener.connected, within=5)
        own_postgres.freeze()
        try:
            await eventually(lambda: not listener.connected, within=10)
        finally:
            own_postgres.thaw()
        await eventually(lambda: listener.connected, within=8)
        assert heard[0] is None
        assert heard[-1] is None
        assert len(heard) >= 2
        await storage.request_agent_stop("one")
        await eventually(lambda: heard[-1] == "one", within=10)
    await storage.aclose()


@pytest.mark.accept("M-2")
async def test_a_listener_that_cannot_connect_says_so_once_and_without_the_url(
    postgres_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="tenure")
    url = postgres_server.url("postgres", user="canary", password="canary-s3cret")
    async with listening(url) as (listener, heard):
        await eventually(lambda: len(caplog.records) > 0, within=5)
        await asyncio.sleep(1)  # at least two more attempts, which are no news
    assert not listener.connected
    assert heard == []
    assert len(caplog.records) == 1
    assert "refused the password" in caplog.text
    assert "canary" not in caplog.text
