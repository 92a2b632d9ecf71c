"""When another instance is due, and what it waits for."""

from dataclasses import replace
from typing import Any

import pytest
from tests.support.builders import (
    CLOCK,
    DOWN,
    POD_MODE,
    ago,
    changed,
    condition,
    deeds,
    deleting,
    ended_pod,
    plan,
    process,
    raw_pod,
    reading,
    recorded,
    row,
    running_pod,
    stopped,
    template,
    waiting_pod,
    with_status,
    written,
)

from tenure.model.pods import PodView, read_pod
from tenure.model.reasons import ConditionReason, ConditionStatus, ConditionType, Phase, StopOrigin
from tenure.model.resources import AgentProcess
from tenure.model.status import BackoffStatus, InstanceStatus
from tenure.plan.actions import CreatePod, DeletePod, WriteStatus
from tenure.plan.agent_process import Verdict
from tenure.plan.instances import with_instance
from tenure.plan.observation import Memory, Rejection


def ordinal(verdict: Verdict) -> int | None:
    """The number of the pod that the plan creates, if it does."""
    return next((a.ordinal for a in verdict.plan.actions if isinstance(a, CreatePod)), None)


def after(origin: StopOrigin | None, *, exit_code: int = 0, **spec: Any) -> tuple[AgentProcess, PodView]:
    """A resource whose first instance has ended."""
    pod = ended_pod(process(), exit_code=exit_code)
    return stopped(process(**spec), pod, origin, exit_code=exit_code), pod


def test_a_first_start_waits_for_nothing_and_writes_nothing_before_the_pod_exists() -> None:
    verdict = plan(process(), rows=DOWN)
    assert [type(action) for action in verdict.plan.actions] == [CreatePod]
    assert ordinal(verdict) == 1


def test_nothing_starts_that_is_not_wanted() -> None:
    verdict = plan(process(desired_state="StopRequested"))
    assert ordinal(verdict) is None
    assert written(verdict).phase is Phase.STOPPED
    assert ordinal(plan(deleting(process()))) is None


@pytest.mark.accept("L-10", "L-12", "L-13", "L-16", "L-20")
@pytest.mark.parametrize(
    ("origin", "exit_code", "spec", "starts"),
    [
        pytest.param(StopOrigin.RESOURCE, 0, {}, True, id="Resource"),
        pytest.param(StopOrigin.REPLACEMENT, 0, {}, True, id="Replacement"),
        pytest.param(StopOrigin.DISRUPTION, 0, {}, True, id="Disruption"),
        pytest.param(StopOrigin.DELETION, 0, {}, False, id="Deletion"),
        pytest.param(StopOrigin.TABLE, 0, {}, False, id="Table and Stay"),
        pytest.param(StopOrigin.TABLE, 1, {"restart_policy": "Always"}, False, id="Table, Stay and Always"),
        pytest.param(StopOrigin.TABLE, 0, {"on_external_stop": "Restart"}, True, id="Table and Restart"),
        pytest.param(StopOrigin.TABLE, 0, {"restart_token": "b"}, True, id="Table and another token"),
        pytest.param(None, 0, {}, False, id="completed under OnFailure"),
        pytest.param(None, 1, {}, True, id="failed under OnFailure"),
        pytest.param(None, 0, {"restart_policy": "Always"}, True, id="completed under Always"),
        pytest.param(None, 1, {"restart_policy": "Never"}, False, id="failed under Never"),
        pytest.param(
            None,
            1,
            {"restart_policy": "Never", "restart_token": "b"},
            True,
            id="failed under Never, another token",
        ),
        pytest.param(
            StopOrigin.TABLE,
            0,
            {"template": template("worker:2")},
            False,
            id="a changed template starts nobody",
        ),
        pytest.param(
            StopOrigin.RESOURCE, 0, {"desired_state": "StopRequested"}, False, id="a stop is still requested"
        ),
        pytest.param(
            StopOrigin.TABLE,
            0,
            {"desired_state": "StopRequested", "restart_token": "b"},
            False,
            id="another token does not outweigh a stop",
        ),
    ],
)
def test_what_follows_an_end(
    origin: StopOrigin | None, exit_code: int, spec: dict[str, Any], starts: bool
) -> None:
    resource, pod = after(origin, exit_code=exit_code, **spec)
    assert ordinal(plan(resource, pod)) == (2 if starts else None)


@pytest.mark.accept("L-12")
def test_the_toggle_back_starts_an_agent_that_had_been_stopped_by_whomever() -> None:
    resource, pod = after(StopOrigin.TABLE)
    toggled = changed(resource, desired_state="StopRequested")
    status = written(plan(toggled, pod))
    assert status.stop is not None
    assert status.stop.origin is StopOrigin.RESOURCE
    back = with_status(changed(toggled, desired_state="Running"), stop=status.stop)
    assert ordinal(plan(back, pod)) == 2


def test_a_toggle_wholly_missed_is_no_start() -> None:
    resource, pod = after(StopOrigin.TABLE)
    again = changed(changed(resource, desired_state="StopRequested"), desired_state="Running")
    assert ordinal(plan(again, pod)) is None


@pytest.mark.accept("L-17")
@pytest.mark.parametrize("state", ["running", "terminating", "ended with a sidecar running", "unknown"])
def test_never_two_pods_at_once(state: str) -> None:
    resource = process()
    pod = {
        "running": running_pod(resource),
        "terminating": running_pod(resource, deleted=5),
        "ended with a sidecar running": ended_pod(resource, phase="Running", sidecar=True, deleted=5),
        "unknown": running_pod(resource, phase="Unknown"),
    }[state]
    verdict = plan(stopped(resource, pod, StopOrigin.REPLACEMENT), pod)
    assert ordinal(verdict) is None
    assert written(verdict).phase is Phase.PENDING


@pytest.mark.accept("L-17")
def test_the_pod_of_an_earlier_object_of_the_name_has_to_end_first() -> None:
    former = process(uid="an-earlier-one")
    pod = running_pod(former, created=7200)
    verdict = plan(process(), pod)
    assert ordinal(verdict) is None
    assert written(verdict).phase is Phase.PENDING
    assert pod.name in condition(written(verdict), ConditionType.READY).message
    assert deeds(verdict) == (DeletePod(pod.name, pod.uid, None),)
    over = ended_pod(former, created=7200)
    assert ordinal(plan(process(), over)) == 1


def test_an_ended_pod_stays_until_just_before_its_successor_is_created() -> None:
    resource, pod = after(StopOrigin.RESOURCE, desired_state="StopRequested")
    assert deeds(plan(resource, pod)) == ()
    back = changed(resource, desired_state="Running")
    assert [type(a) for a in deeds(plan(back, pod))] == [DeletePod, CreatePod]


def test_the_log_of_an_ended_agent_stays_though_the_kubelet_has_not_yet_said_that_its_pod_is_over() -> None:
    pod = ended_pod(process(), exit_code=1, phase="Running")
    resource = stopped(process(restart_policy="Never"), pod, None)
    assert deeds(plan(resource, pod)) == ()


def test_a_pod_whose_agent_has_ended_is_deleted_though_others_still_run_in_it() -> None:
    pod = ended_pod(process(), phase="Running", sidecar=True)
    resource = stopped(process(restart_policy="Never"), pod, None)
    assert deeds(plan(resource, pod)) == (DeletePod(pod.name, pod.uid, None),)
    # but not before its end is durable
    unrecorded = recorded(process(restart_policy="Never"), pod)
    assert deeds(plan(unrecorded, pod, final=reading())) == ()


@pytest.mark.accept("L-13")
def test_a_start_waits_until_the_back_off_is_over() -> None:
    resource, pod = after(None, exit_code=1)
    waiting = with_status(resource, backoff=BackoffStatus(failures=2, until=ago(-15)))
    verdict = plan(waiting, pod)
    assert ordinal(verdict) is None
    assert verdict.plan.wake_in == 15
    ready = condition(written(verdict), ConditionType.READY)
    assert (ready.status, ready.reason) == (ConditionStatus.FALSE, ConditionReason.BACKING_OFF)
    assert ordinal(plan(waiting, pod, after=15)) == 2


def test_a_refused_template_is_tried_again_after_a_while_or_a_change() -> None:
    refused = Memory(rejection=Rejection(1, "exceeded quota", attempts=3, retry_at=CLOCK + 8))
    verdict = plan(process(), memory=refused)
    assert ordinal(verdict) is None
    assert verdict.plan.wake_in == 8
    stalled = condition(written(verdict), ConditionType.STALLED)
    assert (stalled.status, stalled.reason, stalled.message) == (
        ConditionStatus.TRUE,
        ConditionReason.TEMPLATE_REJECTED,
        "exceeded quota",
    )
    assert ordinal(plan(process(), memory=refused, after=8)) == 1
    assert ordinal(plan(process(generation=2), memory=refused)) == 1


@pytest.mark.accept("L-19")
def test_a_create_refused_in_a_dying_namespace_is_a_deletion() -> None:
    resource, pod = after(StopOrigin.DISRUPTION)
    refused = Rejection(1, "being terminated", attempts=1, retry_at=CLOCK, namespace_terminating=True)
    verdict = plan(resource, pod, memory=Memory(rejection=refused), after=900)
    assert ordinal(verdict) is None
    status = written(verdict)
    assert status.stop is not None
    assert status.stop.origin is StopOrigin.DELETION
    assert condition(status, ConditionType.STALLED).reason == ConditionReason.NAMESPACE_TERMINATING


@pytest.mark.parametrize(
    ("recorded_ordinal", "seen", "following"),
    [(0, [], 1), (4, [], 5), (4, [3], 5), (2, [3], 4), (9, [10, 11], 12)],
)
def test_an_ordinal_is_one_more_than_status_and_every_pod_show(
    recorded_ordinal: int, seen: list[int], following: int
) -> None:
    pods = [ended_pod(process(), n, exit_code=1) for n in seen]
    instance = InstanceStatus(id="gone", pod_name="gone", ordinal=recorded_ordinal)
    resource = stopped(process(), ended_pod(process()), StopOrigin.RESOURCE, ordinal=recorded_ordinal)
    if not seen or max(seen) <= recorded_ordinal:
        assert ordinal(plan(resource, *pods)) == following
        return
    # A pod above the number in status is taken first, and its end recorded; then the next number is due.
    taken = with_instance(resource, tuple(pods), ago(0)).instance
    assert taken is not None
    assert taken.ordinal == following - 1
    assert instance.ordinal < taken.ordinal


def test_a_pod_that_came_back_after_its_end_was_recorded_is_ended() -> None:
    pod = running_pod(process())
    resource = stopped(process(), pod, StopOrigin.DISRUPTION)
    assert deeds(plan(resource, pod, rows=reading(row()))) == (DeletePod(pod.name, pod.uid, None),)


def test_a_number_given_up_is_not_used_again() -> None:
    resource, pod = after(StopOrigin.RESOURCE)
    assert resource.status.instance is not None
    raised = resource.status.instance.model_copy(update={"ordinal": 5})
    assert ordinal(plan(with_status(resource, instance=raised), pod)) == 6


@pytest.mark.accept("L-22")
def test_a_number_given_up_is_written_with_every_condition() -> None:
    create = next(a for a in plan(process()).plan.actions if isinstance(a, CreatePod))
    assert create.status is not None
    assert [c.type for c in create.status.conditions] == list(ConditionType)
    assert condition(create.status, ConditionType.READY).status is not ConditionStatus.TRUE


def test_a_created_pod_becomes_the_instance() -> None:
    pod = waiting_pod(process(restart_token="t"))
    status = written(plan(process(restart_token="t"), pod))
    assert status.instance is not None
    assert status.instance.id == pod.uid
    assert (status.instance.pod_name, status.instance.ordinal) == (pod.name, 1)
    assert status.instance.restart_token == "t"
    assert status.instance.template_hash == pod.annotations["tenure.dev/template-hash"]
    assert status.stop is None


def test_a_pod_that_came_and_went_before_it_was_recorded_is_recorded_with_its_end() -> None:
    pod = ended_pod(process(), exit_code=3, departed=True)
    status = written(plan(process(), pod, final=reading()))
    assert (status.instance and status.instance.id, status.stop and status.stop.exit_code) == (pod.uid, 3)


def test_a_pod_that_lands_late_is_taken_when_no_instance_is_in_its_way() -> None:
    resource, pod = after(StopOrigin.RESOURCE)
    assert resource.status.instance is not None
    raised = resource.status.instance.model_copy(update={"ordinal": 3})
    resource = with_status(resource, instance=raised)
    late = waiting_pod(resource, 2)
    status = written(plan(resource, pod, late))
    assert status.instance is not None
    assert (status.instance.id, status.instance.ordinal, status.stop) == (late.uid, 3, None)


def test_a_recorded_instance_is_seen_to_its_end_before_another_is_taken() -> None:
    resource = process()
    first, second = running_pod(resource), waiting_pod(resource, 2)
    verdict = plan(recorded(resource, first), first, second, rows=reading(row()))
    status = written(verdict)
    assert status.instance is not None
    assert status.instance.id == first.uid
    assert deeds(verdict) == (DeletePod(second.name, second.uid, None),)


def test_pods_that_only_look_like_ones_own_are_not_counted() -> None:
    foreign = read_pod(raw_pod(process(uid="somebody-else"), uid="foreign"))
    unnamed = replace(running_pod(process()), name="critic-of-my-own", owner_uid="another")
    status = with_instance(process(), (), ago(0))
    assert status.instance is None
    verdict = plan(process(), foreign, unnamed)
    assert not any(isinstance(a, WriteStatus) and a.status.instance for a in verdict.plan.actions)


def test_in_mode_pod_the_end_and_the_next_start_need_no_row() -> None:
    pod = ended_pod(process(), exit_code=1)
    resource = stopped(process(liveness={"mode": "Pod"}), pod, None, exit_code=1)
    assert ordinal(plan(resource, pod, rows=POD_MODE)) == 2
