"""An agent that is hosted by a ControlServer has no pod and no row of its own: the pass over pods leaves it alone."""

from tests.support.agent_manifests import hosted
from tests.support.builders import raw_process
from tests.unit.passes.bench import CRITIC, Bench

SESSION = {"template": None, "session": hosted()["spec"]["session"]}


async def test_no_pod_is_made_of_it_and_no_row_is_looked_for() -> None:
    bench = Bench(table=True, **SESSION)
    await bench.agent_pass(CRITIC)
    assert bench.pods == []
    assert [call for call in bench.api.calls if "pod" in call or "create" in call] == []
    assert bench.rows is not None
    assert bench.watch is not None
    assert bench.watch.reading(CRITIC) is None


async def test_of_an_agent_with_a_pod_that_had_its_name_nothing_is_kept() -> None:
    bench = Bench()
    name = await bench.started()
    assert sum(bench.agent_pass.phases().values()) == 1
    bench.put_process(raw_process(uid="another", **SESSION))
    await bench.agent_pass(CRITIC)
    assert bench.living == [name], "its pod drains as Kubernetes has it"
    assert sum(bench.agent_pass.phases().values()) == 0
