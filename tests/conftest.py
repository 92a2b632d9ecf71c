"""What every test gets: a check that no asyncio task leaks, and the collection of acceptance ids."""

import asyncio
import os
from collections.abc import AsyncIterator, Generator

import pytest
import pytest_asyncio
from hypothesis import settings

# A loaded machine is no reason to fail: what is slow is found by the bench.
settings.register_profile("tenure", deadline=None)
settings.load_profile("tenure")

JITTER = os.environ.get("TENURE_JITTER", "")


def pytest_configure() -> None:
    """With ``TENURE_JITTER`` everything takes its time; see ``tests.support.jitter``."""
    if JITTER:
        from tests.support import jitter  # late: it imports what most tests do not need

        jitter.install()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if JITTER:
        from tests.support import jitter

        jitter.begin(JITTER, item.nodeid)


@pytest_asyncio.fixture(autouse=True)
async def _no_task_outlives_its_test(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """Fail the test when a task that it started still runs at its end: a leak here is a leak in production.

    Only tests that are coroutines get a loop of their own; for the others this fixture sees no tasks.
    """
    before = asyncio.all_tasks()
    yield
    await asyncio.sleep(0)
    leaked = [t for t in asyncio.all_tasks() - before if not t.done() and t is not asyncio.current_task()]
    names = sorted(t.get_name() + " " + getattr(t.get_coro(), "__qualname__", "?") for t in leaked)
    for task in leaked:
        task.cancel()
    await asyncio.gather(*leaked, return_exceptions=True)
    assert not leaked, f"tasks still running at the end of the test: {names}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Under CI=true nothing may be skipped: a green run there means that everything was tried."""
    report = yield
    if report.skipped and os.environ.get("CI") == "true":
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, which CI=true does not allow: {report.longrepr}"
    return report
