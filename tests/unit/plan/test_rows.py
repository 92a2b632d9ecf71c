"""Whose row is whose."""

import pytest
from tests.support.builders import DOWN, POD_MODE, process, reading, row, running_pod

from tenure.plan.rows import judge_row, match_row

POD = running_pod(process())


@pytest.mark.accept("L-21")
@pytest.mark.parametrize(
    ("rows", "found"),
    [
        pytest.param([row("pod-1")], "pod-1", id="by the pod's UID"),
        pytest.param([row("own", hostname=POD.name)], "own", id="by host name and kind"),
        pytest.param(
            [row("own", hostname=POD.name), row("pod-1", started=500)],
            "pod-1",
            id="the UID before the host name",
        ),
        pytest.param(
            [row("old", hostname=POD.name, started=90), row("new", hostname=POD.name, started=10)],
            "new",
            id="the newest of several",
        ),
        pytest.param(
            [row("own", hostname=POD.name, kind="pipeline")], None, id="another kind is somebody else"
        ),
        pytest.param([row("own", hostname="elsewhere")], None, id="another host is somebody else"),
        pytest.param([row("pod-1", kind="pipeline")], "pod-1", id="the UID whatever the kind"),
        pytest.param([], None, id="none"),
    ],
)
def test_a_row_is_matched(rows: list[object], found: str | None) -> None:
    match = match_row(rows, uid=POD.uid, pod_name=POD.name, process_kind="critic")  # type: ignore[arg-type]
    assert (match.instance_id if match else None) == found


@pytest.mark.accept("L-14")
def test_a_former_pods_row_is_never_taken_for_the_new_pods() -> None:
    following = running_pod(process(), 2)
    former = [row("pod-1", marked=True), row("own", hostname=POD.name, marked=True)]
    verdict = judge_row(reading(*former), following, "critic")
    assert verdict.row is None
    assert not verdict.marked


def test_a_row_is_alive_for_three_of_its_own_intervals() -> None:
    fresh = judge_row(reading(row(age=90)), POD, "critic")
    stale = judge_row(reading(row(age=90.001)), POD, "critic")
    assert (fresh.alive, fresh.expires_in) == (True, 0)
    assert not stale.alive
    assert judge_row(reading(row(age=90.001, interval=60)), POD, "critic").alive


def test_a_database_that_does_not_answer_says_nothing_of_any_row() -> None:
    verdict = judge_row(DOWN, POD, "critic")
    assert (verdict.applies, verdict.readable, verdict.row) == (True, False, None)
    assert not judge_row(None, POD, "critic").readable


def test_in_mode_pod_there_is_no_row_to_read() -> None:
    verdict = judge_row(POD_MODE, POD, "critic")
    assert (verdict.applies, verdict.readable) == (False, True)


def test_a_task_counts_only_while_the_heartbeat_is_fresh() -> None:
    assert judge_row(reading(row(task=7)), POD, "critic").busy
    assert not judge_row(reading(row(task=7, age=1000)), POD, "critic").busy
    assert not judge_row(reading(row()), POD, "critic").busy
