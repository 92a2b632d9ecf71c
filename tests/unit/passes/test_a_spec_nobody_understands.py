"""A resource that this operator cannot read: nothing is done to its agent, and its author is told."""

from typing import Any

import pytest
from tests.unit.passes.bench import CRITIC, Bench


def conditions(bench: Bench) -> dict[str, Any]:
    return {c["type"]: c for c in bench.status["conditions"]}


@pytest.mark.accept("L-22")
async def test_its_author_reads_in_stalled_which_field_it_is_and_the_agent_goes_on() -> None:
    bench = Bench()
    name = await bench.started()
    before = bench.status
    bench.edit(restartPolicy="Sometimes")
    await bench.run()
    stalled = conditions(bench)["Stalled"]
    assert (stalled["status"], stalled["reason"]) == ("True", "InvalidSpec")
    assert "spec.restartPolicy" in stalled["message"]
    assert stalled["observedGeneration"] == bench.status["observedGeneration"] == 2
    assert bench.living == [name]
    kept = {k: v for k, v in bench.status.items() if k not in ("conditions", "observedGeneration")}
    assert kept == {k: v for k, v in before.items() if k not in ("conditions", "observedGeneration")}
    writes = len(bench.api.writes)
    await bench.run()
    assert len(bench.api.writes) == writes, "told once"
    bench.edit(restartPolicy="Never")
    await bench.run()
    assert conditions(bench)["Stalled"]["status"] == "False"


async def test_one_that_was_never_understood_has_every_condition_from_its_first_status_on() -> None:
    bench = Bench(desired_state="Sometimes")
    await bench.run()
    assert bench.pods == []
    assert list(conditions(bench)) == ["Ready", "Alive", "Draining", "Stopped", "Stalled"]
    assert conditions(bench)["Ready"]["status"] == "Unknown"


async def test_no_literal_of_the_template_is_quoted() -> None:
    bench = Bench(template={"spec": {"containers": "canary"}})
    await bench.run()
    assert "canary" not in conditions(bench)["Stalled"]["message"]


async def test_a_status_that_is_not_understood_either_is_left_as_it_is() -> None:
    bench = Bench(desired_state="Sometimes")
    raw = bench.process
    raw["status"] = {"phase": "Odd"}
    bench.put_process(raw)
    assert await bench.agent_pass(CRITIC) is None
    assert bench.status == {"phase": "Odd"}
    assert bench.api.writes == []
