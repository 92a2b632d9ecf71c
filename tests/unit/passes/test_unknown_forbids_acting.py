"""What could not be read is no permission: neither to replace an agent nor to start the next."""

import pytest
from tests.support.builders import row
from tests.unit.passes.bench import Bench


@pytest.mark.accept("L-15")
async def test_an_end_is_not_judged_while_the_agents_row_cannot_be_read() -> None:
    """A row with a time that is none may yet hold the stop that somebody asked for."""
    bench = Bench(table=True)
    assert bench.rows is not None
    name = await bench.started()
    uid = bench.api.pod(name)["metadata"]["uid"]
    bench.rows.rows = [row(uid, hostname=name)]
    await bench.read()
    await bench.run()
    bench.rows.rows, bench.rows.unreadable = [], (uid,)
    bench.ends(name, exit_code=1)
    assert await bench.run() is not None, "it is looked at again"
    assert bench.status["phase"] == "Unknown"
    assert "backoff" not in bench.status
    bench.rows.rows, bench.rows.unreadable = [row(uid, hostname=name, marked=True)], ()
    await bench.run()
    assert bench.status["phase"] == "Stopped"
    assert bench.status["stop"]["origin"] == "Table"


@pytest.mark.accept("L-13")
@pytest.mark.parametrize(("phase", "stopped"), [("Unknown", False), ("Running", True)])
async def test_an_agent_whose_pod_is_unknown_is_not_replaced_as_hung(phase: str, stopped: bool) -> None:
    """Its node does not report: nobody knows what the agent does."""
    bench = Bench(table=True, hung={"policy": "Restart"})
    assert bench.rows is not None
    name = await bench.started()
    bench.rows.rows = [row(bench.api.pod(name)["metadata"]["uid"], hostname=name, age=1000)]
    await bench.read()
    await bench.run()
    bench.api.pod(name)["status"]["phase"] = phase
    bench.show(name)
    bench.later(91)
    await bench.run()
    assert ("stop" in bench.status) is stopped
    assert ("deletionTimestamp" in bench.api.pod(name)["metadata"]) is stopped
