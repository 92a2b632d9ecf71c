"""Who asks for a stop, and the three writes that follow."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.builders import (
    CLOCK,
    DOWN,
    POD_MODE,
    ago,
    changed,
    deeds,
    deleting,
    ended_pod,
    observe,
    plan,
    process,
    reading,
    recorded,
    row,
    running_pod,
    stop_of,
    template,
    then,
    waiting_pod,
    written,
)

from tenure.model.pods import PodView
from tenure.model.reasons import Phase, StopOrigin
from tenure.model.resources import AgentProcess
from tenure.plan.actions import DeletePod, MarkRow, WriteStatus
from tenure.plan.agent_process import plan_agent_process
from tenure.plan.observation import Memory

HUNG = Memory(instance="pod-1", expired_since=CLOCK - 1000, fresh_at=CLOCK - 1100)


def living(resource: AgentProcess, **pod: Any) -> tuple[AgentProcess, PodView]:
    """The resource with a running instance."""
    view = running_pod(resource, **pod)
    return recorded(resource, view), view


@pytest.mark.accept("L-9", "L-10", "L-17")
@pytest.mark.parametrize(
    ("edit", "marked", "origin"),
    [
        pytest.param(deleting, True, StopOrigin.DELETION, id="deleting before everything"),
        pytest.param(
            lambda r: changed(r, desired_state="StopRequested", template=template("worker:2")),
            True,
            StopOrigin.RESOURCE,
            id="the resource before a replacement",
        ),
        pytest.param(
            lambda r: changed(r, template=template("worker:2")),
            True,
            StopOrigin.REPLACEMENT,
            id="a changed template before the table",
        ),
        pytest.param(
            lambda r: changed(r, restart_token="again"),
            False,
            StopOrigin.REPLACEMENT,
            id="a changed restart token",
        ),
        pytest.param(lambda r: r, True, StopOrigin.TABLE, id="the table"),
    ],
)
def test_the_origin_of_a_stop_is_the_first_that_applies(
    edit: Callable[[AgentProcess], AgentProcess], marked: bool, origin: StopOrigin
) -> None:
    resource, pod = living(process())

    verdict = plan(edit(resource), pod, rows=reading(row(marked=marked)))

    stop = written(verdict).stop
    assert stop is not None
    assert (stop.instance, stop.origin, stop.requested_at) == (pod.uid, origin, ago(0))
    assert written(verdict).phase is Phase.DRAINING


def test_a_hung_agent_is_replaced_only_where_the_policy_says_so() -> None:
    stale = reading(row(age=1000))
    for policy, origin in (("Restart", StopOrigin.REPLACEMENT), ("Report", None)):
        resource, pod = living(process(hung={"policy": policy}))
        stop = written(plan(resource, pod, rows=stale, memory=HUNG)).stop
        assert (stop.origin if stop else None) is origin


@pytest.mark.accept("L-16")
def test_a_terminating_pod_is_a_disruption_since_its_deletion_was_asked_for() -> None:
    resource, pod = living(process(), deleted=7)

    verdict = plan(resource, pod, rows=reading(row()))

    stop = written(verdict).stop
    assert stop is not None
    assert (stop.origin, stop.requested_at) == (StopOrigin.DISRUPTION, ago(7))
    assert deeds(verdict) == ()


@pytest.mark.accept("L-16")
def test_an_eviction_shows_before_the_deletion_timestamp() -> None:
    resource, pod = living(process(), disrupted="EvictionByEvictionAPI")
    stop = written(plan(resource, pod, rows=reading(row()))).stop
    assert stop is not None
    assert stop.origin is StopOrigin.DISRUPTION


def test_status_is_written_before_the_pod_is_deleted_and_the_row_is_marked_last() -> None:
    resource, pod = living(process(desired_state="StopRequested"))

    verdict = plan(resource, pod, rows=reading(row()))

    kinds = [type(action) for action in verdict.plan.actions]
    assert kinds == [WriteStatus, DeletePod, MarkRow]
    assert deeds(verdict) == (DeletePod(pod.name, pod.uid, 600), MarkRow(pod.uid))


@pytest.mark.accept("L-15")
def test_with_the_database_down_the_pod_is_deleted_all_the_same_and_the_row_marked_later() -> None:
    resource, pod = living(process(desired_state="StopRequested"))
    first = observe(resource, pod, rows=DOWN)
    verdict = plan_agent_process(first)
    assert deeds(verdict) == (DeletePod(pod.name, pod.uid, 600),)
    assert verdict.plan.wake_in == 5

    back = then(first, verdict, running_pod(resource, deleted=0), rows=reading(row()))

    assert deeds(plan_agent_process(back)) == (MarkRow(pod.uid),)


def test_a_row_that_appears_while_the_pod_drains_is_marked_too() -> None:
    resource = process(desired_state="StopRequested")
    pod = running_pod(resource, deleted=10)
    resource = recorded(resource, pod, stop=stop_of(pod, StopOrigin.RESOURCE))
    assert deeds(plan(resource, pod, rows=reading())) == ()
    assert deeds(plan(resource, pod, rows=reading(row()))) == (MarkRow(pod.uid),)


def test_a_row_is_marked_once_and_not_after_the_agents_own_end() -> None:
    resource = process(desired_state="StopRequested")
    pod = running_pod(resource, deleted=10)
    resource = recorded(resource, pod, stop=stop_of(pod, StopOrigin.RESOURCE))
    assert deeds(plan(resource, pod, rows=reading(row(marked=True)))) == ()
    assert deeds(plan(resource, pod, rows=reading(row(epoch=True)))) == ()


def test_the_row_of_an_agent_with_an_id_of_its_own_is_marked_by_that_id() -> None:
    resource, pod = living(process(desired_state="StopRequested"))
    verdict = plan(resource, pod, rows=reading(row("own-id", hostname=pod.name)))
    assert MarkRow("own-id") in deeds(verdict)
    assert written(verdict).instance is not None


@pytest.mark.accept("L-10")
def test_our_own_mark_is_never_taken_for_somebody_elses() -> None:
    resource = process(desired_state="StopRequested")
    pod = running_pod(resource, deleted=10)
    resource = recorded(resource, pod, stop=stop_of(pod, StopOrigin.RESOURCE))
    stop = written(plan(resource, pod, rows=reading(row(marked=True)))).stop
    assert stop is not None
    assert stop.origin is StopOrigin.RESOURCE


@pytest.mark.parametrize("origin", [o for o in StopOrigin if o is not StopOrigin.DISRUPTION])
def test_the_first_origin_written_stays(origin: StopOrigin) -> None:
    resource = process(desired_state="StopRequested", restart_token="other")
    pod = running_pod(process(), deleted=10, disrupted="EvictionByEvictionAPI")
    resource = recorded(resource, pod, stop=stop_of(pod, origin))
    stop = written(plan(deleting(resource), pod, rows=reading(row(marked=True)))).stop
    assert stop == stop_of(pod, origin)


def test_a_mark_that_appears_under_a_disruption_turns_it_into_a_table_stop() -> None:
    resource = process()
    pod = running_pod(resource, deleted=10)
    resource = recorded(resource, pod, stop=stop_of(pod, StopOrigin.DISRUPTION))
    stop = written(plan(resource, pod, rows=reading(row(marked=True)))).stop
    assert stop is not None
    assert (stop.origin, stop.requested_at) == (StopOrigin.TABLE, ago(20))


def test_under_a_disruption_the_operator_marks_no_row_and_deletes_nothing() -> None:
    resource = process()
    pod = running_pod(resource, deleted=10)
    resource = recorded(resource, pod, stop=stop_of(pod, StopOrigin.DISRUPTION))
    assert deeds(plan(resource, pod, rows=reading(row()))) == ()


def test_an_eviction_that_was_announced_and_called_off_lets_the_agent_go_on() -> None:
    resource = process()
    pod = running_pod(resource)
    resource = recorded(resource, pod, stop=stop_of(pod, StopOrigin.DISRUPTION))
    status = written(plan(resource, pod, rows=reading(row())))
    assert status.stop is None
    assert status.phase is Phase.RUNNING


def test_a_stop_asked_for_under_an_announced_eviction_is_carried_out() -> None:
    resource = process(desired_state="StopRequested")
    pod = running_pod(resource, disrupted="TaintManager")
    resource = recorded(resource, pod, stop=stop_of(pod, StopOrigin.DISRUPTION))
    verdict = plan(resource, pod, rows=reading(row()))
    stop = written(verdict).stop
    assert stop is not None
    assert stop.origin is StopOrigin.RESOURCE
    assert DeletePod(pod.name, pod.uid, 600) in deeds(verdict)


@pytest.mark.accept("L-11")
@pytest.mark.parametrize(
    ("grace", "second"),
    [
        pytest.param(20, 20, id="shorter"),
        pytest.param(600, None, id="same"),
        pytest.param(900, None, id="longer"),
    ],
)
def test_a_shorter_grace_in_mid_drain_is_a_second_delete_and_a_longer_one_is_for_the_next(
    grace: int, second: int | None
) -> None:
    pod = running_pod(process(), deleted=10, grace=600)
    resource = process(desired_state="StopRequested", drain={"gracePeriodSeconds": grace})
    resource = recorded(resource, pod, stop=stop_of(pod, StopOrigin.RESOURCE))
    verdict = plan(resource, pod, rows=reading(row(marked=True)))
    expected = () if second is None else (DeletePod(pod.name, pod.uid, second),)
    assert deeds(verdict) == expected


@pytest.mark.accept("L-17")
def test_deletion_drains_with_the_grace_that_the_pod_was_created_with() -> None:
    resource, pod = living(process())
    shorter = deleting(changed(resource, drain={"gracePeriodSeconds": 5}))
    assert DeletePod(pod.name, pod.uid, None) in deeds(plan(shorter, pod, rows=reading(row())))


def test_running_set_during_a_drain_does_not_undo_the_drain() -> None:
    resource = process(desired_state="Running")
    pod = running_pod(resource, deleted=10)
    resource = recorded(resource, pod, stop=stop_of(pod, StopOrigin.RESOURCE))
    status = written(plan(resource, pod, rows=reading(row(marked=True))))
    assert status.phase is Phase.DRAINING


def test_a_pod_that_has_not_started_is_stopped_like_any_other() -> None:
    resource = process(desired_state="StopRequested")
    pod = waiting_pod(resource)
    verdict = plan(recorded(resource, pod), pod)
    assert deeds(verdict) == (DeletePod(pod.name, pod.uid, 600),)


def test_in_mode_pod_a_stop_needs_no_row() -> None:
    resource, pod = living(process(desired_state="StopRequested", liveness={"mode": "Pod"}))
    assert deeds(plan(resource, pod, rows=POD_MODE)) == (DeletePod(pod.name, pod.uid, 600),)


def test_an_instance_of_an_unknown_template_is_not_replaced_on_a_guess() -> None:
    pod = running_pod(process())
    resource = recorded(process(), pod)
    assert resource.status.instance is not None
    unknown = resource.status.instance.model_copy(update={"template_hash": None})
    resource = resource.model_copy(
        update={"status": resource.status.model_copy(update={"instance": unknown})}
    )
    assert written(plan(resource, pod, rows=reading(row()))).stop is None


def test_an_object_deleted_with_its_pods_left_behind_is_left_alone() -> None:
    resource, pod = living(process())
    assert plan(deleting(resource), pod, rows=reading(row()), orphaning=True).plan.actions == ()


def test_a_duplicate_never_gets_to_work() -> None:
    resource, pod = living(process())
    late = waiting_pod(resource, 2)
    assert deeds(plan(resource, pod, late, rows=reading(row()))) == (DeletePod(late.name, late.uid, None),)
    gone = ended_pod(resource, 3, exit_code=1)
    assert deeds(plan(resource, pod, gone, rows=reading(row()))) == ()
