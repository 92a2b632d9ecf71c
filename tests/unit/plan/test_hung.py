"""When silence counts, and for how long a task protects: what only elapsed time can tell."""

import pytest
from tests.support.builders import (
    CLOCK,
    DOWN,
    POD_MODE,
    ago,
    deeds,
    observe,
    process,
    reading,
    recorded,
    row,
    running_pod,
    then,
    written,
)

from tenure.model.reasons import Phase, StopOrigin
from tenure.model.resources import AgentProcess
from tenure.plan.actions import Protect
from tenure.plan.agent_process import Verdict, plan_agent_process
from tenure.plan.observation import Memory, Observation, RowsReading
from tenure.plan.render import EVICTION_ANNOTATIONS

POD = running_pod(process())
BUSY = running_pod(process(), annotations=dict(EVICTION_ANNOTATIONS))


def silent_since(seconds: float, at: float) -> RowsReading:
    """A reading ``at`` seconds past NOW of a row whose heartbeat stopped ``seconds`` before NOW."""
    return reading(row(age=seconds), now=ago(-at))


class Watch:
    """Looks, one after the other, at the same pod."""

    def __init__(self, resource: AgentProcess, pod: object = POD) -> None:
        self.observation: Observation = observe(resource, pod, rows=reading(row()))  # type: ignore[arg-type]
        self.verdict: Verdict = plan_agent_process(self.observation)

    def look(self, at: float, rows: RowsReading, *, forget: bool = False) -> Verdict:
        self.observation = then(self.observation, self.verdict, rows=rows, now=ago(-at), clock=CLOCK + at)
        if forget:
            self.observation = then(self.observation, self.verdict, memory=Memory())
        self.verdict = plan_agent_process(self.observation)
        return self.verdict

    @property
    def phase(self) -> Phase | None:
        return then(self.observation, self.verdict).resource.status.phase


def watch(policy: str = "Report", **hung: int) -> Watch:
    """A healthy agent, looked at once."""
    return Watch(recorded(process(hung={"policy": policy, **hung}), POD))


@pytest.mark.accept("L-13")
def test_an_agent_is_hung_after_so_many_intervals_of_silence_beyond_expiry() -> None:
    seen = watch()
    assert seen.verdict.plan.wake_in == 89
    assert seen.look(90, silent_since(1, 90)).plan.wake_in == 5
    assert seen.look(179, silent_since(1, 179)).plan.wake_in == 1
    assert seen.phase is Phase.RUNNING
    seen.look(180, silent_since(1, 180))
    assert seen.phase is Phase.HUNG
    assert deeds(seen.verdict) == ()


def test_the_number_of_intervals_is_the_authors() -> None:
    seen = watch(afterIntervals=10)
    seen.look(90, silent_since(1, 90))
    seen.look(389, silent_since(1, 389))
    assert seen.phase is Phase.RUNNING
    seen.look(390, silent_since(1, 390))
    assert seen.phase is Phase.HUNG


def test_an_agent_that_reports_again_is_running_again() -> None:
    seen = watch()
    seen.look(90, silent_since(1, 90))
    seen.look(180, silent_since(1, 180))
    seen.look(181, reading(row(age=-181), now=ago(-181)))
    assert seen.phase is Phase.RUNNING


@pytest.mark.accept("L-15")
def test_an_outage_begins_the_count_anew() -> None:
    seen = watch("Restart")
    seen.look(90, silent_since(1, 90))
    seen.look(150, DOWN)
    assert seen.phase is Phase.UNKNOWN
    seen.look(3600, silent_since(1, 3600))
    assert seen.phase is Phase.RUNNING
    seen.look(3689, silent_since(1, 3689))
    assert (seen.phase, deeds(seen.verdict)) == (Phase.RUNNING, ())
    seen.look(3690, silent_since(1, 3690))
    stop = written(seen.verdict).stop
    assert stop is not None
    assert stop.origin is StopOrigin.REPLACEMENT


@pytest.mark.accept("L-15")
def test_an_operators_start_begins_the_count_anew() -> None:
    seen = watch("Restart")
    seen.look(90, silent_since(1, 90))
    seen.look(179, silent_since(1, 179), forget=True)
    seen.look(200, silent_since(1, 200))
    assert (seen.phase, deeds(seen.verdict)) == (Phase.RUNNING, ())


def test_an_agent_without_a_row_is_never_hung() -> None:
    seen = watch("Restart")
    for at in (100, 1000, 10_000):
        seen.look(at, reading(now=ago(-at)))
        assert (seen.phase, deeds(seen.verdict)) == (Phase.RUNNING, ())


def test_a_silent_agent_without_a_row_stays_running_over_an_operators_restart() -> None:
    old = running_pod(process(), started=5000)
    seen = Watch(recorded(process(), old), old)
    seen.look(1, reading(), forget=True)
    assert seen.phase is Phase.RUNNING


@pytest.mark.accept("L-16")
def test_a_pod_is_protected_from_eviction_while_a_task_is_held() -> None:
    assert deeds(Watch(recorded(process(), POD)).look(1, reading(row(task=7)))) == (
        Protect(POD.name, POD.uid, on=True),
    )
    protected = Watch(recorded(process(), BUSY), BUSY)
    assert deeds(protected.look(1, reading(row(task=7)))) == ()


def test_the_protection_goes_after_sixty_seconds_without_a_task() -> None:
    seen = Watch(recorded(process(), BUSY), BUSY)
    seen.look(1, reading(row(task=7)))
    assert seen.look(12, reading(row())).plan.wake_in == 60
    assert deeds(seen.look(71, reading(row()))) == ()
    assert deeds(seen.look(72, reading(row()))) == (Protect(BUSY.name, BUSY.uid, on=False),)


def test_a_task_in_between_keeps_the_protection() -> None:
    seen = Watch(recorded(process(), BUSY), BUSY)
    seen.look(10, reading(row()))
    seen.look(60, reading(row(task=8)))
    assert deeds(seen.look(75, reading(row()))) == ()


def test_a_database_that_does_not_answer_takes_no_protection_away() -> None:
    seen = Watch(recorded(process(), BUSY), BUSY)
    seen.look(10, DOWN)
    assert deeds(seen.look(500, DOWN)) == ()
    assert deeds(seen.look(501, reading(row()))) == ()


def test_without_a_table_or_a_row_nothing_is_protected() -> None:
    seen = Watch(recorded(process(), BUSY), BUSY)
    assert deeds(seen.look(1, POD_MODE)) == (Protect(BUSY.name, BUSY.uid, on=False),)
    seen = Watch(recorded(process(), BUSY), BUSY)
    seen.look(1, reading())
    assert deeds(seen.look(70, reading())) == (Protect(BUSY.name, BUSY.uid, on=False),)


def test_allow_turns_the_protection_off() -> None:
    resource = recorded(process(eviction="Allow"), BUSY)
    assert deeds(Watch(resource, BUSY).look(1, reading(row(task=7)))) == (
        Protect(BUSY.name, BUSY.uid, on=False),
    )
    plain = Watch(recorded(process(eviction="Allow"), POD))
    assert deeds(plain.look(1, reading(row(task=7)))) == ()


def test_annotations_of_the_authors_own_are_left_alone() -> None:
    own = {"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "false"}}, **_spec()}
    resource = process(template=own)
    pod = running_pod(resource)
    assert deeds(Watch(recorded(resource, pod), pod).look(1, reading(row(task=7)))) == ()


def _spec() -> dict[str, object]:
    return {"spec": {"containers": [{"name": "agent", "image": "worker:1"}]}}


def test_a_pod_that_is_being_stopped_is_edited_no_more() -> None:
    resource = recorded(process(desired_state="StopRequested"), POD)
    assert not any(isinstance(a, Protect) for a in Watch(resource).look(1, reading(row(task=7))).plan.actions)
