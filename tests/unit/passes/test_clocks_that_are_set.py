"""The wall clock may be set while an agent waits; waits are in a status that anybody may edit."""

from datetime import timedelta

import pytest
from tests.unit.passes.bench import Bench


@pytest.mark.accept("L-13")
async def test_a_clock_set_back_does_not_hold_an_agent_down_for_longer_than_the_longest_backoff() -> None:
    bench = Bench(backoff={"initialSeconds": 10, "maxSeconds": 60})
    name = await bench.started()
    bench.ends(name, exit_code=1)
    wait = await bench.run()
    assert bench.living == []
    assert wait is not None
    assert 0 < wait <= 10
    bench.now -= timedelta(hours=1)
    await bench.run()
    assert len(bench.living) == 1


@pytest.mark.accept("L-13")
async def test_the_longest_backoff_is_waited_for() -> None:
    bench = Bench(backoff={"initialSeconds": 60, "maxSeconds": 60})
    name = await bench.started()
    bench.ends(name, exit_code=1)
    await bench.run()
    bench.later(59)
    await bench.run()
    assert bench.living == []
    bench.later(2)
    await bench.run()
    assert len(bench.living) == 1
