"""What people and programs read: phase and conditions."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.support.builders import (
    CLOCK,
    DOWN,
    POD_MODE,
    ago,
    condition,
    ended_pod,
    observe,
    plan,
    process,
    reading,
    recorded,
    row,
    running_pod,
    stop_of,
    stopped,
    then,
    waiting_pod,
    with_status,
    written,
)

from tenure.model.pods import PodView
from tenure.model.reasons import ConditionReason, ConditionStatus, ConditionType, Phase, StopOrigin
from tenure.model.resources import AgentProcess
from tenure.model.status import BackoffStatus, CurrentTask, Status
from tenure.plan.actions import WriteStatus
from tenure.plan.agent_process import Verdict, plan_agent_process
from tenure.plan.observation import Memory, NoTable, Rejection, Unreadable

TRUE, FALSE, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN
EXPIRED = Memory(instance="pod-1", expired_since=CLOCK - 1000, fresh_at=CLOCK - 1100)


def _living(make: Callable[..., Any] = running_pod, **pod: Any) -> tuple[AgentProcess, Any]:
    view = make(process(), **pod)
    return recorded(process(), view), view


def _draining() -> Verdict:
    pod = running_pod(process(), deleted=5)
    return plan(recorded(process(), pod, stop=stop_of(pod, StopOrigin.TABLE)), pod, rows=DOWN)


def _phase_of_living(
    rows: Any, make: Callable[..., Any] = running_pod, memory: Memory | None = None, **pod: Any
) -> Verdict:
    resource, view = _living(make, **pod)
    return plan(resource, view, rows=rows, memory=memory or Memory())


def _never_wanted() -> Verdict:
    """Right after the first status, which says nothing yet."""
    first = observe(process(desired_state="StopRequested"))
    return plan_agent_process(then(first, plan_agent_process(first)))


def _after(origin: StopOrigin | None, exit_code: int = 0, **spec: Any) -> Verdict:
    pod = ended_pod(process(), exit_code=exit_code)
    resource = stopped(process(**spec), pod, origin, exit_code=exit_code)
    return plan(resource, pod)


@pytest.mark.accept("L-9", "L-15", "L-18", "L-20")
@pytest.mark.parametrize(
    ("case", "phase", "ready", "alive", "stopped_"),
    [
        pytest.param(
            _draining, "Draining", "FalseDraining", "UnknownDatabaseUnavailable", "FalseRunning", id="drain"
        ),
        pytest.param(
            lambda: _phase_of_living(DOWN),
            "Unknown",
            "UnknownDatabaseUnavailable",
            "UnknownDatabaseUnavailable",
            "FalseRunning",
            id="database down",
        ),
        pytest.param(
            lambda: _phase_of_living(reading(row()), phase="Unknown"),
            "Unknown",
            "UnknownPodUnknown",
            "TrueHeartbeatFresh",
            "FalseRunning",
            id="the node does not report",
        ),
        pytest.param(
            lambda: _phase_of_living(reading(row(age=1000)), memory=EXPIRED),
            "Hung",
            "FalseHung",
            "FalseHeartbeatExpired",
            "FalseRunning",
            id="hung",
        ),
        pytest.param(
            lambda: _phase_of_living(reading(), waiting_pod),
            "Starting",
            "UnknownStarting",
            "UnknownNotReported",
            "FalseRunning",
            id="the container does not run yet",
        ),
        pytest.param(
            lambda: _phase_of_living(reading(), started=80),
            "Starting",
            "UnknownStarting",
            "UnknownNotReported",
            "FalseRunning",
            id="under three intervals without a row",
        ),
        pytest.param(
            lambda: _phase_of_living(reading(), started=95),
            "Running",
            "TrueRunning",
            "UnknownNotReported",
            "FalseRunning",
            id="no row after three intervals",
        ),
        pytest.param(
            lambda: _phase_of_living(reading(row(age=80))),
            "Running",
            "TrueRunning",
            "TrueHeartbeatFresh",
            "FalseRunning",
            id="well",
        ),
        pytest.param(
            lambda: _phase_of_living(reading(row(age=100))),
            "Running",
            "TrueRunning",
            "UnknownSettling",
            "FalseRunning",
            id="stale when first seen",
        ),
        pytest.param(
            lambda: _phase_of_living(POD_MODE),
            "Running",
            "TrueRunning",
            "UnknownNotConfigured",
            "FalseRunning",
            id="mode Pod",
        ),
        pytest.param(
            lambda: _phase_of_living(NoTable(allowed=("main",))),
            "Running",
            "TrueRunning",
            "UnknownDatabaseNotAllowed",
            "FalseRunning",
            id="a database that is not allowed",
        ),
        pytest.param(
            lambda: _after(None, 1, restart_policy="Never"),
            "Failed",
            "FalseFailed",
            "FalseNoInstance",
            "TrueFailed",
            id="failed",
        ),
        pytest.param(
            lambda: _after(None, 0),
            "Stopped",
            "FalseCompleted",
            "FalseNoInstance",
            "TrueCompleted",
            id="completed",
        ),
        pytest.param(
            lambda: _after(StopOrigin.TABLE),
            "Stopped",
            "TrueStoppedAsAsked",
            "FalseNoInstance",
            "TrueStoppedAsAsked",
            id="stopped as asked",
        ),
        pytest.param(
            _never_wanted,
            "Stopped",
            "TrueStoppedAsAsked",
            "FalseNoInstance",
            "TrueNoInstance",
            id="never wanted",
        ),
    ],
)
def test_phase_and_conditions_say(
    case: Callable[[], Verdict], phase: str, ready: str, alive: str, stopped_: str
) -> None:
    status = written(case())
    found = {c.type: f"{c.status}{c.reason}" for c in status.conditions}
    assert status.phase == Phase(phase)
    assert found["Ready"] == ready
    assert found["Alive"] == alive
    assert found["Stopped"] == stopped_
    assert found["Draining"] == ("TrueStopByTable" if phase == "Draining" else "FalseNotDraining")


def test_pending_is_a_pod_that_is_due() -> None:
    pod = ended_pod(process(), exit_code=1)
    resource = stopped(process(), pod, None, exit_code=1)
    resource = with_status(resource, backoff=BackoffStatus(failures=1, until=ago(-9)))
    status = written(plan(resource, pod))
    assert status.phase is Phase.PENDING
    assert condition(status, ConditionType.STOPPED).status is FALSE


def test_draining_is_also_a_pod_that_merely_terminates() -> None:
    resource, pod = _living(deleted=3)
    status = written(plan(resource, pod, rows=reading(row())))
    assert status.phase is Phase.DRAINING
    assert condition(status, ConditionType.DRAINING).reason == ConditionReason.STOP_BY_DISRUPTION


@pytest.mark.accept("L-8")
def test_an_agent_that_drains_is_never_hung() -> None:
    pod = running_pod(process(), deleted=500)
    resource = recorded(process(hung={"policy": "Restart"}), pod, stop=stop_of(pod, StopOrigin.TABLE))
    verdict = plan(resource, pod, rows=reading(row(age=1000, marked=True)), memory=EXPIRED)
    assert written(verdict).phase is Phase.DRAINING


@pytest.mark.accept("L-8")
def test_a_silent_agent_whose_pod_somebody_deletes_is_a_disruption_and_not_hung() -> None:
    pod = running_pod(process(), deleted=3)
    resource = recorded(process(hung={"policy": "Restart"}), pod)
    stop = written(plan(resource, pod, rows=reading(row(age=1000)), memory=EXPIRED)).stop
    assert stop is not None
    assert stop.origin is StopOrigin.DISRUPTION


@pytest.mark.accept("L-22")
@pytest.mark.parametrize("pods", [0, 1])
def test_every_condition_is_there_from_the_first_status_on_with_generation_reason_and_sentence(
    pods: int,
) -> None:
    resource = process(generation=4, desired_state="StopRequested" if not pods else "Running")
    views = [waiting_pod(resource)] if pods else []
    status = written(plan(resource, *views))
    assert [c.type for c in status.conditions] == ["Ready", "Alive", "Draining", "Stopped", "Stalled"]
    assert all(c.observed_generation == 4 and c.message for c in status.conditions)
    assert {c.reason for c in status.conditions} <= set(ConditionReason)
    assert status.observed_generation == 4


@pytest.mark.accept("L-22")
def test_the_first_status_of_an_agent_that_is_wanted_says_ready_unknown() -> None:
    resource = process()
    status = written(plan(resource, waiting_pod(resource)))
    assert condition(status, ConditionType.READY).status is UNKNOWN
    former = running_pod(process(uid="earlier"), created=9000)
    assert condition(written(plan(resource, former)), ConditionType.READY).status is UNKNOWN


@pytest.mark.accept("L-22")
@pytest.mark.parametrize(
    ("late", "next_word"),
    [
        (running_pod(process()), TRUE),
        (running_pod(process(), deleted=5), FALSE),
        (None, TRUE),
    ],
    ids=["it runs by then", "it ends by then", "never wanted"],
)
def test_the_first_status_says_ready_unknown_however_late_it_is_and_the_next_says_what_is_so(
    late: PodView | None, next_word: ConditionStatus
) -> None:
    wanted = "StopRequested" if late is None else "Running"
    first = observe(process(desired_state=wanted), *([late] if late else []), rows=POD_MODE)
    verdict = plan_agent_process(first)
    assert condition(written(verdict), ConditionType.READY).status is UNKNOWN
    second = plan_agent_process(then(first, verdict))
    assert condition(written(second), ConditionType.READY).status is next_word


@pytest.mark.accept("L-22")
def test_a_transition_time_stays_for_as_long_as_the_status_of_its_condition() -> None:
    resource, pod = _living()
    first = observe(resource, pod, rows=reading(row()))
    verdict = plan_agent_process(first)
    second = then(first, verdict, rows=DOWN, now=ago(-60))
    status = written(plan_agent_process(second))
    assert condition(status, ConditionType.READY).last_transition_time == ago(-60)
    assert condition(status, ConditionType.DRAINING).last_transition_time == ago(0)


def test_when_nothing_changes_nothing_is_written() -> None:
    resource, pod = _living()
    first = observe(resource, pod, rows=reading(row()))
    verdict = plan_agent_process(first)
    later = then(first, verdict, rows=reading(row(age=-55), now=ago(-60)), now=ago(-60), clock=CLOCK + 60)
    assert plan_agent_process(later).plan.actions == ()


@pytest.mark.parametrize(
    ("before", "after"), [("", "ContainerCreating"), ("ErrImagePull", "ImagePullBackOff")]
)
def test_a_pod_on_its_way_to_running_costs_no_write_for_each_word_of_its_kubelet(
    before: str, after: str
) -> None:
    resource = process()
    messages = []
    for reason in (before, after):
        pod = waiting_pod(resource, agent={"waiting": {"reason": reason}})
        status = written(plan_agent_process(observe(resource, pod)))
        messages.append(status.conditions[0].message)
    assert messages[0] == messages[1]
    assert ("ImagePullBackOff" in messages[0]) is (after == "ImagePullBackOff")


def test_the_current_task_is_shown_with_the_time_since_when_it_was_seen() -> None:
    resource, pod = _living()
    status = written(plan(resource, pod, rows=reading(row(task=7, task_type="judge"))))
    assert status.current_task == CurrentTask(id=7, type="judge", since=ago(0))


def test_the_current_task_is_written_at_most_every_ten_seconds() -> None:
    pod = running_pod(process())
    resource = recorded(process(eviction="Allow"), pod)
    first = observe(resource, pod, rows=reading(row(task=7)))
    verdict = plan_agent_process(first)
    soon = then(first, verdict, rows=reading(row(task=8)), clock=CLOCK + 4)
    assert plan_agent_process(soon).plan.actions == ()
    assert plan_agent_process(soon).plan.wake_in == 6
    later = then(first, verdict, rows=reading(row(task=8)), clock=CLOCK + 10)
    task = written(plan_agent_process(later)).current_task
    assert task is not None
    assert task.id == 8


def test_a_status_that_is_written_anyway_tells_the_task_that_is_held_now() -> None:
    resource, pod = _living()
    first = observe(resource, pod, rows=reading(row(task=1)))
    verdict = plan_agent_process(first)
    changed_task = then(first, verdict, rows=reading(row(task=2)), clock=CLOCK + 1)
    assert not [a for a in plan_agent_process(changed_task).plan.actions if isinstance(a, WriteStatus)]
    marked = then(first, verdict, rows=reading(row(task=2, marked=True)), clock=CLOCK + 1)
    task = written(plan_agent_process(marked)).current_task
    assert task is not None
    assert task.id == 2


def test_a_row_that_cannot_be_read_is_told_apart_from_a_database_that_does_not_answer() -> None:
    resource, pod = _living()
    broken = observe(resource, pod, rows=Unreadable(CLOCK, "its row cannot be read", row_only=True))
    silent = observe(resource, pod, rows=Unreadable(CLOCK, "refused"))
    messages = [
        condition(written(plan_agent_process(o)), ConditionType.ALIVE).message for o in (broken, silent)
    ]
    assert messages == [
        "database default answers, but its row cannot be read",
        "database default does not answer",
    ]


def test_a_task_whose_type_is_longer_than_status_holds_is_written_once() -> None:
    pod = running_pod(process())
    resource = recorded(process(eviction="Allow"), pod)
    first = observe(resource, pod, rows=reading(row(task=7, task_type="x" * 400)))
    verdict = plan_agent_process(first)
    status = written(verdict)
    assert Status.model_validate(status.to_wire()) == status
    assert plan_agent_process(then(first, verdict, clock=CLOCK + 60, now=ago(-60))).plan.actions == ()


def test_an_id_that_status_cannot_hold_whole_is_not_shown() -> None:
    resource, pod = _living()
    status = written(plan(resource, pod, rows=reading(row("i" * 300, hostname=pod.name))))
    assert status.instance is not None
    assert status.instance.row_id is None
    assert Status.model_validate(status.to_wire()) == status


def test_a_pod_that_lives_shows_that_nothing_is_refused_any_more() -> None:
    resource, pod = _living()
    refused = Memory(rejection=Rejection(1, "exceeded quota", attempts=3, retry_at=CLOCK + 8))
    verdict = plan(resource, pod, rows=reading(row()), memory=refused)
    assert condition(written(verdict), ConditionType.STALLED).status is FALSE
    assert verdict.memory.rejection is None


@pytest.mark.parametrize(("since", "stuck"), [(59, False), (60, True)])
def test_a_stuck_task_is_reported_and_never_acted_upon(since: float, stuck: bool) -> None:
    pod = running_pod(process())
    task = CurrentTask(id=7, since=ago(since))
    resource = recorded(process(stuck_task_seconds=60), pod, current_task=task)
    verdict = plan(resource, pod, rows=reading(row(task=7)))
    status = written(verdict)
    alive = condition(status, ConditionType.ALIVE)
    assert alive.status is TRUE
    assert (alive.reason == ConditionReason.TASK_STUCK) is stuck
    assert (status.phase, status.stop) == (Phase.RUNNING, None)
    assert (verdict.plan.wake_in == 1) is not stuck
