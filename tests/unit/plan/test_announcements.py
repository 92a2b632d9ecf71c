"""What is told once a status is durable."""

from typing import Any

import pytest
from tests.support.builders import (
    DOWN,
    ago,
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
    stopped,
    then,
    waiting_pod,
)

from tenure.model.pods import PodView
from tenure.model.reasons import EventReason, StopOrigin
from tenure.model.resources import AgentProcess
from tenure.plan.actions import Announcement
from tenure.plan.agent_process import plan_agent_process
from tenure.plan.announcements import announcements
from tenure.plan.observation import Memory, Rejection


def told(resource: AgentProcess, *pods: PodView, **overrides: Any) -> tuple[Announcement, ...]:
    """What this look announces."""
    observation = observe(resource, *pods, **overrides)
    return announcements(resource.status, status_after(observation, plan_agent_process(observation)))


def reasons(resource: AgentProcess, *pods: PodView, **overrides: Any) -> list[EventReason]:
    """The reasons of what this look announces."""
    return [a.reason for a in told(resource, *pods, **overrides)]


def test_a_first_instance_is_no_news_and_a_later_one_is_a_restart() -> None:
    pod = waiting_pod(process())
    assert reasons(process(), pod) == []
    old = ended_pod(process())
    assert reasons(stopped(process(), old, StopOrigin.RESOURCE), old, waiting_pod(process(), 2)) == [
        EventReason.RESTARTED
    ]


@pytest.mark.accept("L-10")
def test_a_stop_is_announced_with_its_origin_and_then_the_draining() -> None:
    pod = running_pod(process())
    found = told(recorded(process(), pod), pod, rows=reading(row(marked=True)))
    assert [a.reason for a in found] == [EventReason.STOP_REQUESTED, EventReason.DRAINING]
    assert found[0].origin is StopOrigin.TABLE


def test_a_disruption_that_becomes_a_table_stop_is_announced_again() -> None:
    pod = running_pod(process(), deleted=10)
    resource = recorded(process(), pod, stop=stop_of(pod, StopOrigin.DISRUPTION))
    found = told(resource, pod, rows=reading(row(marked=True)))
    assert [(a.reason, a.origin) for a in found] == [(EventReason.STOP_REQUESTED, StopOrigin.TABLE)]


@pytest.mark.accept("L-11")
@pytest.mark.parametrize(
    ("pod", "epoch", "reason", "graceful", "warning"),
    [
        pytest.param({"exit_code": 0}, True, EventReason.STOPPED, True, False, id="graceful"),
        pytest.param({"exit_code": 137}, False, EventReason.STOP_FORCED, False, True, id="killed"),
        pytest.param(
            {"exit_code": 137, "reason": "OOMKilled"},
            False,
            EventReason.STOPPED,
            False,
            True,
            id="out of memory",
        ),
        pytest.param({"exit_code": 3}, False, EventReason.STOPPED, False, True, id="another exit code"),
    ],
)
def test_an_end_is_announced_as_what_it_was(
    pod: dict[str, Any], epoch: bool, reason: EventReason, graceful: bool, warning: bool
) -> None:
    view = ended_pod(process(), deleted=20, **pod)
    resource = recorded(process(), view, stop=stop_of(view, StopOrigin.TABLE))
    (found,) = told(resource, view, final=reading(row(epoch=epoch)))
    assert (found.reason, found.graceful, found.warning) == (reason, graceful, warning)
    assert (found.origin, found.drain_seconds) == (StopOrigin.TABLE, 15)


def test_a_crash_is_announced_without_an_origin() -> None:
    view = ended_pod(process(), exit_code=1)
    (found,) = told(recorded(process(), view), view, final=reading())
    assert (found.reason, found.origin, found.drain_seconds, found.warning) == (
        EventReason.STOPPED,
        None,
        None,
        True,
    )


def test_a_table_stop_found_after_the_end_is_announced_with_the_end() -> None:
    view = ended_pod(process(), exit_code=0)
    found = reasons(recorded(process(), view), view, final=reading(row(marked=True)))
    assert found == [EventReason.STOP_REQUESTED, EventReason.STOPPED]


def test_an_expired_heartbeat_is_announced_once() -> None:
    pod = running_pod(process())
    resource = recorded(process(), pod)
    memory = Memory(instance=pod.uid, fresh_at=4900.0)
    first = observe(resource, pod, rows=reading(row(age=100)), memory=memory)
    verdict = plan_agent_process(first)
    status = status_after(first, verdict)
    assert [a.reason for a in announcements(resource.status, status)] == [EventReason.HEARTBEAT_EXPIRED]
    again = then(first, verdict, rows=reading(row(age=100), now=ago(-60)))
    assert announcements(status, status_after(again, plan_agent_process(again))) == ()


def test_an_agents_own_end_is_no_expired_heartbeat() -> None:
    pod = running_pod(process())
    assert reasons(recorded(process(), pod), pod, rows=reading(row(epoch=True))) == []


def test_a_refusal_is_announced_once_in_the_servers_words() -> None:
    memory = Memory(rejection=Rejection(1, "exceeded quota", attempts=1, retry_at=9999.0))
    first = observe(process(), memory=memory)
    verdict = plan_agent_process(first)
    status = status_after(first, verdict)
    (found,) = announcements(process().status, status)
    assert (found.reason, found.note, found.warning) == (
        EventReason.TEMPLATE_REJECTED,
        "exceeded quota",
        True,
    )
    later = then(first, verdict, memory=Memory(rejection=Rejection(1, "exceeded quota", 2, 99999.0)))
    assert announcements(status, status_after(later, plan_agent_process(later))) == ()


def test_an_outage_announces_nothing() -> None:
    pod = running_pod(process())
    first = observe(recorded(process(), pod), pod, rows=reading(row()))
    verdict = plan_agent_process(first)
    down = then(first, verdict, rows=DOWN)
    assert announcements(down.resource.status, status_after(down, plan_agent_process(down))) == ()
    assert plan(down.resource, pod, rows=DOWN).plan.actions
