"""An agent that makes its own ids may begin a new row in the same pod: a shell around it starts it again, say."""

import pytest
from tests.support.builders import row
from tests.unit.passes.bench import Bench


async def settled(bench: Bench) -> None:
    """Passes and readings until both have nothing new."""
    for _ in range(4):
        await bench.read()
        await bench.run()


async def reporting(bench: Bench) -> str:
    assert bench.rows is not None
    name = await bench.started()
    bench.rows.rows = [row("own-1", hostname=name, started=50)]
    await settled(bench)
    assert bench.status["instance"]["rowID"] == "own-1"
    assert [each.hostname for each in bench.rows.lookups] == [""], "a known row is read by its key"
    return name


@pytest.mark.accept("L-21")
async def test_the_row_of_a_process_that_followed_in_the_pod_is_found_once_the_former_has_expired() -> None:
    bench = Bench(table=True)
    assert bench.rows is not None
    name = await reporting(bench)
    bench.rows.rows = [
        row("own-1", hostname=name, started=50, epoch=True),
        row("own-2", hostname=name, started=5),
    ]
    await settled(bench)
    assert bench.status["instance"]["rowID"] == "own-2"
    assert bench.status["phase"] == "Running"
    assert [each.hostname for each in bench.rows.lookups] == [""]


@pytest.mark.accept("L-21", "L-10")
async def test_a_stop_in_the_row_that_followed_is_a_stop() -> None:
    bench = Bench(table=True)
    assert bench.rows is not None
    name = await reporting(bench)
    bench.rows.rows = [
        row("own-1", hostname=name, started=50, age=1000),
        row("own-2", hostname=name, started=5, marked=True),
    ]
    await settled(bench)
    assert bench.status["stop"]["origin"] == "Table"


@pytest.mark.accept("L-7")
async def test_a_silent_agent_with_the_operators_id_is_looked_for_by_its_id_alone() -> None:
    """When a database returns every row is stale at once, and a search by name for each would be its next outage."""
    bench = Bench(table=True)
    assert bench.rows is not None
    name = await bench.started()
    uid = bench.api.pod(name)["metadata"]["uid"]
    bench.rows.rows = [row(uid, hostname=name, age=1000)]
    await settled(bench)
    assert bench.status["instance"]["rowID"] == uid
    assert [each.hostname for each in bench.rows.lookups] == [""]


@pytest.mark.accept("L-21", "L-10")
async def test_a_kind_that_the_author_changes_hides_no_stop_of_the_agent_that_runs() -> None:
    """The agent goes on under the kind that it was started with; the template is as before, so nothing replaces it."""
    bench = Bench(table=True)
    assert bench.rows is not None
    name = await reporting(bench)
    bench.edit(processKind="renamed")
    await settled(bench)
    assert bench.status["phase"] == "Running"
    bench.rows.rows = [row("own-1", hostname=name, started=50, marked=True)]
    await settled(bench)
    assert bench.status["stop"]["origin"] == "Table"


@pytest.mark.accept("K-9")
async def test_a_row_that_only_an_edited_status_names_is_nobodys() -> None:
    bench = Bench(table=True)
    assert bench.rows is not None
    await bench.started()
    bench.rows.rows = [row("theirs", hostname="pod-of-theirs", marked=True)]
    bench.edit_status(instance=bench.status["instance"] | {"rowID": "theirs"})
    await settled(bench)
    assert "stop" not in bench.status
    bench.edit(desiredState="StopRequested")
    await settled(bench)
    assert bench.rows.marked == []


@pytest.mark.accept("L-10")
@pytest.mark.parametrize("liveness", [{"mode": "Pod"}, {"database": "another"}])
async def test_a_running_agent_is_read_where_it_was_started_to_report_whatever_the_spec_says_by_now(
    liveness: dict[str, str],
) -> None:
    bench = Bench(table=True)
    assert bench.rows is not None
    name = await reporting(bench)
    bench.edit(liveness=liveness)
    await settled(bench)
    assert bench.status["phase"] == "Running"
    bench.rows.rows = [row("own-1", hostname=name, started=50, marked=True)]
    await settled(bench)
    assert bench.status["stop"]["origin"] == "Table"
