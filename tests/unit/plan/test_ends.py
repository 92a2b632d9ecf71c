"""What an end is said to have been."""

from datetime import timedelta
from typing import Any

import pytest
from tests.support.builders import (
    DOWN,
    NOW,
    POD_MODE,
    ago,
    deeds,
    ended_pod,
    observe,
    plan,
    process,
    reading,
    recorded,
    row,
    running_pod,
    status_after,
    stop_of,
    then,
    waiting_pod,
    written,
)

from tenure.model.pods import PodView
from tenure.model.reasons import Phase, StopOrigin
from tenure.model.resources import AgentProcess
from tenure.model.status import BackoffStatus, StopRecord, StopStatus
from tenure.plan.actions import RecordStop
from tenure.plan.agent_process import plan_agent_process


def end(resource: AgentProcess, pod: PodView | None, *rows: Any, **overrides: Any) -> StopStatus:
    """What is recorded for the end of an instance."""
    pods = (pod,) if pod is not None else ()
    final = overrides.pop("final", reading(*rows))
    stop = written(plan(resource, *pods, final=final, vanished=pod is None, **overrides)).stop
    assert stop is not None
    assert stop.finished_at is not None
    return stop


def asked(pod: PodView, origin: StopOrigin | None = StopOrigin.RESOURCE) -> AgentProcess:
    """A resource whose instance was asked to stop."""
    resource = process(desired_state="StopRequested") if origin is StopOrigin.RESOURCE else process()
    return recorded(resource, pod, stop=stop_of(pod, origin) if origin else None)


@pytest.mark.accept("L-5", "L-11", "L-20")
@pytest.mark.parametrize(
    ("pod", "epoch", "graceful"),
    [
        pytest.param({"exit_code": 0}, False, True, id="exit code 0"),
        pytest.param({"exit_code": 0, "deleted": 20}, True, True, id="exit code 0 while draining"),
        pytest.param({"exit_code": 137, "deleted": 20}, False, False, id="killed at the end of the grace"),
        pytest.param({"exit_code": 137, "deleted": 20}, True, False, id="killed, whatever its row says"),
        pytest.param(
            {"exit_code": 143, "deleted": 20}, True, True, id="ended by the signal with an epoch row"
        ),
        pytest.param({"exit_code": 143, "deleted": 20}, False, False, id="ended by the signal without one"),
        pytest.param({"exit_code": 3}, False, False, id="a crash"),
        pytest.param({"exit_code": 137, "reason": "OOMKilled"}, False, False, id="out of memory"),
        pytest.param(
            {"exit_code": 137, "reason": "ContainerStatusUnknown", "started": None, "deleted": 9},
            False,
            True,
            id="ended by a kubelet before it had started",
        ),
    ],
)
def test_graceful_is_the_first_that_applies(pod: dict[str, Any], epoch: bool, graceful: bool) -> None:
    view = ended_pod(process(), **pod)
    assert end(asked(view), view, row(epoch=epoch)).graceful is graceful


@pytest.mark.parametrize(("epoch", "graceful"), [(True, True), (False, None)])
def test_of_a_pod_that_vanished_only_its_row_can_tell(epoch: bool, graceful: bool | None) -> None:
    view = running_pod(process())
    stop = end(asked(view), None, row(epoch=epoch))
    assert (stop.graceful, stop.exit_code) == (graceful, None)


def test_an_agent_that_never_started_ended_gracefully() -> None:
    resource = process(desired_state="StopRequested")
    pod = waiting_pod(resource, deleted=5)
    gone = PodView(**{**_fields(pod), "departed": True})
    stop = end(recorded(resource, pod, stop=stop_of(pod, StopOrigin.RESOURCE)), gone, final=DOWN)
    assert (stop.graceful, stop.message) == (True, "the agent never started")


def _fields(pod: PodView) -> dict[str, Any]:
    return {name: getattr(pod, name) for name in PodView.__slots__}


@pytest.mark.accept("L-20")
def test_a_succeeded_pod_is_graceful_whatever_its_row_says() -> None:
    view = ended_pod(process(), exit_code=0)
    resource = recorded(process(restart_policy="Never"), view)
    status = written(plan(resource, view, final=reading(row(age=5000))))
    assert (status.phase, status.stop.graceful if status.stop else None) == (Phase.STOPPED, True)


@pytest.mark.accept("L-10", "L-13")
@pytest.mark.parametrize(
    ("pod", "marked", "origin"),
    [
        pytest.param({"exit_code": 1}, False, None, id="a crash"),
        pytest.param({"exit_code": 0}, False, None, id="a completion"),
        pytest.param({"exit_code": 0}, True, StopOrigin.TABLE, id="a table stop found afterwards"),
        pytest.param({"exit_code": 1, "disrupted": "x"}, False, StopOrigin.DISRUPTION, id="an eviction"),
        pytest.param(
            {"exit_code": 0, "disrupted": "x"}, True, StopOrigin.TABLE, id="the table before an eviction"
        ),
        pytest.param({"exit_code": 0, "deleted": 20}, False, StopOrigin.DISRUPTION, id="deleted, then ended"),
        pytest.param({"exit_code": 1, "deleted": 2}, False, None, id="ended, then deleted"),
    ],
)
def test_for_a_pod_already_ended_only_table_or_disruption_applies(
    pod: dict[str, Any], marked: bool, origin: StopOrigin | None
) -> None:
    view = ended_pod(process(), **pod)
    # Whatever the resource asks for now did not end this one.
    resource = recorded(process(restart_token="new"), view)
    assert end(resource, view, row(marked=marked)).origin is origin


def test_a_pod_that_vanished_unasked_is_a_disruption() -> None:
    view = running_pod(process())
    assert end(recorded(process(), view), None).origin is StopOrigin.DISRUPTION
    departed = running_pod(process(), departed=True)
    assert end(recorded(process(), view), departed).origin is StopOrigin.DISRUPTION


def test_what_ended_while_a_stop_is_requested_is_recorded_as_it_was_and_then_kept_stopped() -> None:
    view = ended_pod(process(), exit_code=1)
    resource = recorded(process(desired_state="StopRequested"), view)
    first = observe(resource, view, final=reading())
    verdict = plan_agent_process(first)
    assert status_after(first, verdict).stop is not None
    assert written(verdict).stop == end(resource, view)
    assert written(verdict).stop.origin is None  # type: ignore[union-attr]

    stop = written(plan_agent_process(then(first, verdict))).stop

    assert stop is not None
    assert stop.origin is StopOrigin.RESOURCE


def test_a_recorded_stop_keeps_its_origin_and_time() -> None:
    view = ended_pod(process(), exit_code=0, deleted=20)
    stop = end(asked(view), view, row(marked=True))
    assert (stop.origin, stop.requested_at, stop.finished_at) == (StopOrigin.RESOURCE, ago(20), ago(5))


def test_an_end_is_never_before_the_request_that_it_answers() -> None:
    view = ended_pod(process(), exit_code=0, deleted=20, finished=25)
    assert end(asked(view), view, row(marked=True)).finished_at == ago(20)


@pytest.mark.accept("L-15")
def test_an_end_that_nobody_is_known_to_have_asked_for_waits_for_its_row() -> None:
    view = ended_pod(process(), exit_code=1)
    resource = recorded(process(), view)
    for final in (None, DOWN):
        verdict = plan(resource, view, rows=DOWN, final=final)
        assert written(verdict).phase is Phase.UNKNOWN
        assert written(verdict).stop is None
        assert deeds(verdict) == ()
        assert verdict.plan.wake_in == 5


def test_an_end_that_was_asked_for_needs_no_database() -> None:
    view = ended_pod(process(), exit_code=143, deleted=20)
    stop = end(asked(view), view, final=DOWN)
    assert (stop.origin, stop.graceful) == (StopOrigin.RESOURCE, False)


def test_but_whether_it_was_graceful_is_asked_once() -> None:
    view = ended_pod(process(), exit_code=143, deleted=20)
    assert written(plan(asked(view), view, final=None)).phase is Phase.UNKNOWN


def test_mode_pod_never_waits() -> None:
    view = ended_pod(process(), exit_code=1)
    resource = recorded(process(liveness={"mode": "Pod"}), view)
    stop = written(plan(resource, view, rows=POD_MODE)).stop
    assert stop is not None
    assert stop.finished_at == ago(5)


def test_absence_is_no_end_until_a_live_look_has_shown_it() -> None:
    resource = recorded(process(), running_pod(process()))
    verdict = plan(resource, final=reading())
    assert written(verdict).stop is None
    assert written(verdict).phase is Phase.UNKNOWN


@pytest.mark.accept("L-13")
@pytest.mark.parametrize(
    ("before", "ran", "failures", "wait"),
    [
        pytest.param(None, 60, 1, 10, id="the first"),
        pytest.param(1, 60, 2, 20, id="the second"),
        pytest.param(4, 60, 5, 160, id="the fifth"),
        pytest.param(5, 60, 6, 300, id="never longer than the longest"),
        pytest.param(10**9, 60, 10**9 + 1, 300, id="after a very long time"),
        pytest.param(5, 605, 1, 10, id="after ten minutes of running"),
    ],
)
def test_back_off_doubles_and_starts_anew_after_ten_minutes(
    before: int | None, ran: float, failures: int, wait: int
) -> None:
    view = ended_pod(process(), exit_code=1, started=ran + 5)
    known = BackoffStatus(failures=before, until=ago(1000)) if before is not None else None
    resource = recorded(process(), view, backoff=known, restarts=7)
    status = written(plan(resource, view, final=reading()))
    assert status.backoff == BackoffStatus(failures=failures, until=NOW + timedelta(seconds=wait))
    assert status.restarts == 8


def test_an_end_its_count_and_its_back_off_are_one_write() -> None:
    view = ended_pod(process(), exit_code=1)
    verdict = plan(recorded(process(), view), view, final=reading())
    status = written(verdict)
    assert status.stop is not None
    assert status.stop.finished_at is not None
    assert status.restarts == 1
    assert status.backoff is not None
    assert deeds(verdict) == ()


@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
def test_what_is_not_started_again_is_not_counted(policy: str) -> None:
    view = ended_pod(process(), exit_code=0)
    status = written(plan(recorded(process(restart_policy=policy), view), view, final=reading()))
    assert (status.restarts, status.backoff) == (0, None)


def test_a_stop_that_was_asked_for_ends_a_series_of_failures() -> None:
    view = ended_pod(process(), exit_code=0, deleted=20)
    resource = asked(view)
    status = resource.status.model_copy(update={"backoff": BackoffStatus(failures=4, until=ago(0))})
    resource = resource.model_copy(update={"status": status})
    assert written(plan(resource, view, final=reading())).backoff is None


def test_the_last_ten_stops_are_kept() -> None:
    view = ended_pod(process(), exit_code=0, deleted=20)
    old = tuple(StopRecord(instance=f"old-{n}", origin=StopOrigin.TABLE, recorded=True) for n in range(10))
    resource = asked(view)
    resource = resource.model_copy(update={"status": resource.status.model_copy(update={"stops": old})})
    stops = written(plan(resource, view, final=reading())).stops
    assert [s.instance for s in stops] == [*(f"old-{n}" for n in range(1, 10)), view.uid]
    assert not stops[-1].recorded


@pytest.mark.parametrize("alive", [True, False])
def test_stops_not_yet_in_the_ledger_are_written_when_the_store_is_there(alive: bool) -> None:
    unrecorded = StopRecord(instance="old", origin=StopOrigin.TABLE, finished_at=ago(100))
    done = StopRecord(instance="older", origin=StopOrigin.TABLE, finished_at=ago(200), recorded=True)
    pod = running_pod(process(), 2) if alive else ended_pod(process(), 2)
    resource = recorded(process(restart_policy="Never"), pod, ordinal=2, stops=(done, unrecorded))
    if not alive:
        status = resource.status.model_copy(update={"stop": stop_of(pod, None, finished=True)})
        resource = resource.model_copy(update={"status": status})
    assert RecordStop(unrecorded, 600) in deeds(plan(resource, pod, ledger=True))
    assert RecordStop(unrecorded, 600) not in deeds(plan(resource, pod, ledger=False))


def test_a_stop_that_begins_goes_into_the_ledger_once_with_the_task_it_found_in_hand() -> None:
    pod = running_pod(process())
    resource = recorded(process(desired_state="StopRequested"), pod)
    verdict = plan(resource, pod, rows=reading(row(task=7)), ledger=True)
    (begun,) = [a for a in deeds(verdict) if isinstance(a, RecordStop)]
    assert (begun.task_id, begun.stop.origin, begun.stop.finished_at) == (7, StopOrigin.RESOURCE, None)
    asked_before = recorded(process(desired_state="StopRequested"), pod, stop=written(verdict).stop)
    again = deeds(plan(asked_before, pod, rows=reading(row(task=7)), ledger=True))
    assert not [a for a in again if isinstance(a, RecordStop)]


def test_messages_say_what_happened() -> None:
    killed = ended_pod(process(), exit_code=137, deleted=20)
    assert (
        end(asked(killed), killed).message == "the agent did not end within its grace period and was killed"
    )
    oom = ended_pod(process(), exit_code=137, reason="OOMKilled")
    assert (
        end(recorded(process(), oom), oom).message
        == "the agent ended by itself, with exit code 137 (OOMKilled)"
    )
    gone = running_pod(process())
    assert "before anybody saw" in (end(recorded(process(), gone), None).message or "")
