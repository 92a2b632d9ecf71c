"""Job two on a real node: a backend that goes in every way there is, and the one agent process that outlives it."""

import time
from collections.abc import Callable, Iterator

import pytest
from examples.demo.stage import Stage
from examples.demo.survival import Hosted

pytestmark = pytest.mark.timeout(400)


def until(what: str, met: Callable[[], bool], limit: float) -> float:
    start = time.monotonic()
    while time.monotonic() - start < limit:
        if met():
            return time.monotonic() - start
        time.sleep(0.3)
    raise AssertionError(f"not within {limit:.0f} s: {what}")


@pytest.fixture
def hosted(stage: Stage) -> Iterator[Hosted]:
    """A session at work; everything of it is gone when the test ends."""
    made = Hosted(stage, print, until)
    yield made
    stage.kubectl("delete", "deployment/backend", "controlserver/main", "--wait=true", "--timeout=90s")


@pytest.mark.accept("K-1", "S-004.4", "O-002.1")
def test_one_agent_process_outlives_every_end_of_its_backend_and_finishes_its_turn(hosted: Hosted) -> None:
    stage = hosted.stage
    hosted.set_up()
    until("the agent works", lambda: len(hosted.steps()) >= 1, 90)
    agent, server = hosted.agent(), hosted.status()["serverIdentity"]

    life = str(hosted.status()["adoptedBy"])
    hosted.kill_backend()
    until("the container that was started again has the agent", lambda: hosted.recovered_after(life), 90)

    life = str(hosted.status()["adoptedBy"])
    # Surge 1, unavailable 0, and a readiness gate that opens after recovery: it must not wait for itself.
    stage.kubectl("rollout", "restart", "deployment/backend")
    stage.kubectl("rollout", "status", "deployment/backend", "--timeout=120s")
    until("the rolled out pod has the agent", lambda: hosted.recovered_after(life), 30)

    life = str(hosted.status()["adoptedBy"])
    stage.kubectl("delete", "pod", hosted.backend()["metadata"]["name"], "--wait=false")
    until("the pod that was made in its place has the agent", lambda: hosted.recovered_after(life), 90)

    until("the turn is over", lambda: hosted.turn() == "completed", 120)
    assert {pid for pid, _ in hosted.steps()} == {agent}
    assert hosted.status()["serverIdentity"] == server
    proof = hosted.journal().strip().splitlines()[-1]
    assert "in 1 turn by" in proof
    assert "Unfinished: none. Done twice: none." in proof
    assert stage.sql("SELECT count(*) FROM tenure.turns WHERE session_id = 'demo'") == "1"
    counters = hosted.counters()
    assert counters["adoptions"] >= 3
    assert counters["agents that went on (re-tracked)"] >= 3
