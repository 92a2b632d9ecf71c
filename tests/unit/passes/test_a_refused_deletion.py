"""A policy of the cluster may refuse to delete a pod; the agent can still be asked through its row."""

from typing import Any

import pytest
from tests.support.builders import row
from tests.unit.passes.bench import Bench

from tenure.cluster.errors import Refused


@pytest.mark.accept("L-9")
async def test_a_stop_reaches_the_agent_through_its_row_when_the_pod_may_not_be_deleted() -> None:
    bench = Bench(table=True)
    assert bench.rows is not None
    name = await bench.started()
    uid = bench.api.pod(name)["metadata"]["uid"]
    bench.rows.rows = [row(uid, hostname=name)]
    await bench.read()
    await bench.run()

    async def refuse(*args: Any, **options: Any) -> None:
        raise Refused(403, "Forbidden", "a policy says no")

    bench.api.delete_pod = refuse  # type: ignore[method-assign]
    bench.edit(desiredState="StopRequested")
    with pytest.raises(Refused):
        await bench.run()
    assert bench.status["stop"]["origin"] == "Resource", "the stop is durable first"
    assert bench.rows.marked == [uid]
