"""Recovery where something is missing, doubled, stuck or silent: against a double that can be made to misbehave."""

import asyncio
from typing import Any

import pytest
from tests.integration.servers.recovery.stage import INSTALLATION, KEY, NEW, WITHIN, Operator, Stage
from tests.support.agentctl import Agentctl
from tests.support.records import a_launch
from tests.support.wait import eventually

from tenure.model.adoption import LaunchRefusal
from tenure.ownership.endpoint import ReadBudget
from tenure.ownership.errors import NotAccepted
from tenure.plan.adoption.gates import Deadline
from tenure.plan.adoption.state import Recovery as Reached
from tenure.storage.records import DatabaseUnavailable, LaunchRefused

LOST = ("stopped", "waiting_for_input", "review", ["abandoned"], True)
GUARDED = ("running", "waiting_for_input", "review", ["abandoned"], True)
RUNS = ("running", "running", "in_progress", ["open"], False)
LIST = ("GET", "/api/v1/instances")


def program(stage: Stage) -> Agentctl:
    assert stage.site.double is not None
    return stage.site.double


def stuck(stage: Stage, instance: str) -> None:
    """It cannot be stopped."""
    program(stage).refuse["DELETE", f"/api/v1/instances/{instance}"] = 500


def outcome(instance: str) -> tuple[str, str]:
    return "GET", f"/api/v1/instances/{instance}/turn-outcome"


async def at_work(stage: Stage, session: str = "s-1", **values: Any) -> None:
    """A session with an instance and a turn in hand."""
    await stage.session(session, **values)
    await stage.prompted(session)


async def ended_turn(stage: Stage, session: str = "s-1") -> None:
    await at_work(stage, session)
    await program(stage).finish(f"i-{session}")


# Duplicates


@pytest.mark.accept("S-002.10")
async def test_of_several_instances_the_one_on_record_wins_and_the_others_are_stopped(double: Stage) -> None:
    await at_work(double)
    await double.instance("twin", "s-1")
    await double.instance("triplet", "s-1")
    operator = await double.recovered()
    assert operator.tracked == {"s-1"}
    assert await double.alive() == {"i-s-1"}
    assert await double.state() == RUNS
    assert operator.count("tenure_duplicate_instances_stopped_total") == 2
    assert operator.count("tenure_ambiguous_correlations_total") == 0
    assert len(await operator.told("InstanceDuplicateStopped")) == 2


@pytest.mark.accept("S-002.10")
async def test_instances_of_which_none_is_on_record_are_all_stopped(double: Stage) -> None:
    await double.row()
    await double.records.turns.open("s-1", "i-s-1")
    await double.instance("one", "s-1")
    await double.instance("two", "s-1")
    operator = await double.recovered()
    assert operator.tracked == set()
    assert await double.alive() == set()
    assert await double.state() == LOST
    assert operator.count("tenure_ambiguous_correlations_total") == 1
    assert operator.count("tenure_duplicate_instances_stopped_total") == 0


@pytest.mark.accept("S-002.15")
@pytest.mark.accept("S-002.16")
async def test_a_loser_that_cannot_be_stopped_takes_its_winner_with_it_and_its_session_stays_guarded(
    double: Stage,
) -> None:
    await at_work(double, "s-1")
    await at_work(double, "s-2")
    await double.instance("twin", "s-1")
    stuck(double, "twin")
    operator = await double.recovered()
    assert operator.tracked == {"s-2"}
    assert await double.alive() == {"twin", "i-s-2"}
    assert await double.state("s-1") == GUARDED
    assert await double.state("s-2") == RUNS
    (mention,) = operator.recovery.report(KEY).unstopped
    assert (mention.id, mention.session_id) == ("twin", "s-1")
    assert len(await operator.told("InstanceStopFailed")) == 1
    await refused_for_good(double)
    # An operator that starts again refuses as well, and shows it, whether or not the stop succeeds by now.
    program(double).refuse.clear()
    second = await double.recovered()
    assert second.tracked == {"s-2"}
    assert [m.session_id for m in second.recovery.report(KEY).unstopped] == ["s-1"]
    await refused_for_good(double)


async def refused_for_good(stage: Stage) -> None:
    with pytest.raises(LaunchRefused) as refused:
        await stage.records.executions.launch(a_launch("s-1", installation_id=INSTALLATION, created_by=NEW))
    assert (refused.value.refusal, refused.value.retryable) == (LaunchRefusal.UNSTOPPED_AGENT, False)


async def test_another_incarnation_tries_again_to_stop_what_could_not_be_stopped(double: Stage) -> None:
    await at_work(double)
    await double.instance("twin", "s-1")
    stuck(double, "twin")
    await double.recovered()
    program(double).refuse.clear()
    await double.records.servers.set_adopted(INSTALLATION, adopted_by=NEW, incarnation="backend-3/c1")
    third = double.operator("backend-3/c1")
    await third.recover()
    # The twin is the session's only instance by now.
    assert third.tracked == {"s-1"}
    row = await double.row_of()
    assert (row.unstopped_by, row.agent_execution_id) == (None, "twin")


@pytest.mark.accept("S-002.16")
@pytest.mark.parametrize("why", ["ambiguous", "lacking"])
async def test_any_instance_that_cannot_be_stopped_guards_its_session_for_good(
    double: Stage, why: str
) -> None:
    profile = "unheard-of" if why == "lacking" else "coder"
    await double.session(instance="one", agent_profile=profile)
    if why == "ambiguous":
        await double.instance("two", "s-1")
    stuck(double, "one")
    operator = await double.recovered()
    assert await double.alive() == {"one"}
    assert [m.id for m in operator.recovery.report(KEY).unstopped] == ["one"]
    assert (await double.row_of()).unstopped_by == NEW
    await refused_for_good(double)


async def test_a_stray_that_cannot_be_stopped_is_named(double: Stage) -> None:
    await double.instance("stray", "nobody")
    stuck(double, "stray")
    operator = await double.recovered()
    assert [m.id for m in operator.recovery.report(KEY).unstopped] == ["stray"]
    assert len(await operator.told("InstanceStopFailed")) == 1


async def test_a_stop_whose_answers_are_lost_is_sent_again(double: Stage) -> None:
    await double.instance("stray", "nobody")
    program(double).lose["/api/v1/instances/stray"] = 1
    operator = await double.recovered()
    assert await double.alive() == set()
    assert operator.recovery.report(KEY).stopped == 1


# Reconstruction


@pytest.mark.accept("S-002.4")
@pytest.mark.accept("M-1")
@pytest.mark.parametrize(
    ("missing", "lost"),
    [
        ("agent_profile", "UPDATE tenure.executors_running SET agent_profile = '' WHERE session_id = 's-1'"),
        ("agent_command", "UPDATE tenure.executors_running SET agent_profile = 'x' WHERE session_id = 's-1'"),
        (
            "workspace_path",
            "UPDATE tenure.executors_running SET workspace_path = '' WHERE session_id = 's-1'",
        ),
        ("task_environment", "UPDATE tenure.sessions SET task_environment_id = '' WHERE id = 's-1'"),
    ],
)
async def test_an_instance_that_lacks_a_value_is_refused_named_and_stopped(
    double: Stage, missing: str, lost: str
) -> None:
    await at_work(double)
    await at_work(double, "s-2")
    await double.execute(lost)
    operator = await double.recovered()
    assert operator.tracked == {"s-2"}
    assert await double.alive() == {"i-s-2"}
    assert await double.state() == LOST
    assert operator.count("tenure_instances_refused_missing_input_total", input=missing) == 1
    assert operator.recovery.report(KEY).refused == 1
    (note,) = await operator.told("InstanceStopped")
    assert missing in note


@pytest.mark.accept("S-002.4")
async def test_an_instance_without_a_session_of_its_provider_is_refused(double: Stage) -> None:
    await at_work(double)
    del program(double).instances["i-s-1"].info["provider_session_id"]
    operator = await double.recovered()
    assert operator.count("tenure_instances_refused_missing_input_total", input="provider_session") == 1
    assert await double.alive() == set()


@pytest.mark.accept("S-002.13")
async def test_a_read_that_uses_up_its_retries_is_not_a_missing_value(double: Stage) -> None:
    await at_work(double)
    del program(double).instances["i-s-1"].info["provider_session_id"]
    program(double).refuse["GET", "/api/v1/instances/i-s-1"] = 503
    before = program(double).answers["/api/v1/instances/i-s-1"]
    operator = await double.recovered()
    # One try and one retry of the read, and the DELETE.
    assert program(double).answers["/api/v1/instances/i-s-1"] - before == 3
    assert operator.tracked == set()
    assert await double.alive() == set()
    assert operator.count("tenure_reconstruction_reads_exhausted_total", input="provider_session") == 1
    assert operator.count("tenure_instances_refused_missing_input_total", input="provider_session") == 0
    assert operator.recovery.report(KEY).refused == 0


async def test_a_read_without_any_answer_is_exhausted_as_well(double: Stage) -> None:
    await at_work(double)
    del program(double).instances["i-s-1"].info["provider_session_id"]
    program(double).lose["/api/v1/instances/i-s-1"] = 2
    operator = await double.recovered()
    assert operator.count("tenure_reconstruction_reads_exhausted_total", input="provider_session") == 1
    assert operator.count("tenure_instances_refused_missing_input_total", input="provider_session") == 0


async def test_an_agent_that_was_starting_when_it_was_seen_is_asked_again(double: Stage) -> None:
    await at_work(double)
    info = program(double).instances["i-s-1"].info
    del info["provider_session_id"]
    operator = double.operator()
    recovering = operator.recovering()
    await operator.recovery.take_guards(recovering)
    await operator.recovery.enumerate(recovering)
    info["provider_session_id"] = "p-2"
    await operator.recovery.decide(recovering)
    found = operator.store.get(KEY, "s-1")
    assert found is not None and found.provider_session == "p-2"


async def test_a_session_that_ended_while_it_was_rebuilt_leaves_no_agent_behind(double: Stage) -> None:
    await at_work(double)
    gate = program(double).hold[outcome("i-s-1")] = asyncio.Event()
    operator = double.operator()
    task = await deciding(operator)
    await eventually(lambda: program(double).answers[outcome("i-s-1")[1]] > 0, within=WITHIN)
    await double.records.executions.ended("s-1", "i-s-1")
    gate.set()
    await task
    assert operator.tracked == set()
    assert await double.alive() == set()


async def test_a_read_that_answers_at_its_last_try_is_enough(double: Stage) -> None:
    await ended_turn(double)
    program(double).lose[outcome("i-s-1")[1]] = 1
    operator = await double.recovered()
    assert operator.tracked == {"s-1"}
    assert (await double.state())[3] == ["completed"]


# Outcomes


@pytest.mark.accept("S-004.5")
@pytest.mark.parametrize("status", [500, 503])
async def test_an_outcome_that_cannot_be_read_stops_the_instance_and_nothing_is_published(
    double: Stage, status: int
) -> None:
    await ended_turn(double)
    await ended_turn(double, "s-2")
    program(double).refuse[outcome("i-s-1")] = status
    operator = await double.recovered()
    assert operator.tracked == {"s-2"}
    assert await double.alive() == {"i-s-2"}
    assert await double.state() == LOST
    assert operator.count("tenure_reconstruction_reads_exhausted_total", input="turn_outcome") == 1


async def test_an_instance_that_has_gone_since_it_was_seen_is_as_if_it_had_never_been(double: Stage) -> None:
    await at_work(double)
    operator = double.operator()
    recovering = operator.recovering()
    await operator.recovery.take_guards(recovering)
    assert await operator.recovery.enumerate(recovering) is Reached.ENUMERATED
    await double.client.delete("i-s-1")
    await operator.recovery.decide(recovering)
    await operator.conclude(recovering)
    assert operator.tracked == set()
    assert await double.state() == LOST


async def test_an_acknowledgement_that_is_lost_costs_nothing(double: Stage) -> None:
    await ended_turn(double)
    program(double).refuse["POST", "/api/v1/instances/i-s-1/turn-outcome/ack"] = 500
    first = await double.recovered()
    assert first.tracked == {"s-1"}
    before = await double.everything()
    program(double).refuse.clear()
    await double.recovered()
    assert await double.everything() == before
    assert await double.client.outcome("i-s-1") is None


async def test_the_last_words_of_an_agent_that_has_ended_are_heard_before_it_is_removed(
    double: Stage,
) -> None:
    await ended_turn(double)
    program(double).instances["i-s-1"].info["status"] = "stopped"
    operator = await double.recovered()
    assert operator.tracked == set()
    assert await double.alive() == set()
    assert await double.state() == ("stopped", "waiting_for_input", "review", ["completed"], False)


# The server as a whole


@pytest.mark.accept("S-002.12")
async def test_a_server_that_cannot_be_enumerated_loses_nothing(double: Stage) -> None:
    await at_work(double)
    await double.instance("stray", "nobody")
    program(double).refuse[LIST] = 500
    operator = double.operator()
    assert await operator.recover() is Reached.ENUMERATION_FAILED
    program(double).refuse.clear()
    assert operator.tracked == set()
    assert await double.alive() == {"i-s-1", "stray"}
    assert (await double.row_of()).status.value == "running"
    report = operator.recovery.report(KEY)
    assert (report.enumeration_failed, report.retracked, report.stopped) == (True, 0, 0)


async def test_a_server_that_is_somebody_elses_by_now_is_left_alone(double: Stage) -> None:
    await at_work(double)
    operator = await double.recovered()
    assert operator.tracked == {"s-1"}
    rotated = await double.client.rotate()
    double.client.use(rotated.credential)
    with pytest.raises(NotAccepted) as refused:
        await operator.recovery.upkeep(operator.recovering())
    assert refused.value.superseded
    operator.telling.ownership_lost(KEY, double.resource)
    assert operator.tracked == set()
    assert operator.count("tenure_superseded_credential_rejections_total") == 1
    assert len(await operator.told("OwnershipLost")) == 1


@pytest.mark.accept("S-002.11")
async def test_sessions_are_decided_each_for_itself(double: Stage) -> None:
    await at_work(double, "good")
    await at_work(double, "lacking", agent_profile="unheard-of")
    await ended_turn(double, "mute")
    await at_work(double, "doubled")
    await double.instance("twin", "doubled")
    await double.row("absent")
    program(double).refuse[outcome("i-mute")] = 500
    stuck(double, "twin")
    operator = await double.recovered()
    assert operator.tracked == {"good"}
    assert await double.state("good") == RUNS
    assert await double.alive() == {"i-good", "twin"}
    assert operator.recovery.report(KEY).not_retracked == 4


# The deadline


async def deciding(operator: Operator) -> "asyncio.Task[None]":
    recovering = operator.recovering()
    await operator.recovery.take_guards(recovering)
    assert await operator.recovery.enumerate(recovering) is Reached.ENUMERATED
    return asyncio.create_task(operator.recovery.decide(recovering))


@pytest.mark.accept("S-003.7")
async def test_a_record_without_an_outcome_at_the_deadline_is_not_re_tracked_and_its_instance_is_stopped(
    double: Stage,
) -> None:
    await at_work(double, "slow")
    await at_work(double, "quick")
    gate = program(double).hold[outcome("i-slow")] = asyncio.Event()
    operator = double.operator()
    task = await deciding(operator)
    await eventually(lambda: operator.tracked == {"quick"}, within=WITHIN)
    operator.deadline = Deadline.ELAPSED
    async with asyncio.timeout(WITHIN):
        await task
        await operator.recovery.quiet(KEY)
    gate.set()
    await operator.conclude(operator.recovering())
    assert operator.tracked == {"quick"}
    assert await double.alive() == {"i-quick"}
    assert await double.state("slow") == LOST
    assert await double.state("quick") == RUNS
    assert operator.count("tenure_instances_deadline_elapsed_total") == 1
    assert operator.recovery.report(KEY).deadline_elapsed


@pytest.mark.accept("S-003.7")
async def test_a_stop_in_flight_at_the_deadline_goes_on_and_keeps_its_session_guarded_until_it_ends(
    double: Stage,
) -> None:
    await at_work(double)
    await double.instance("twin", "s-1")
    gate = program(double).hold["DELETE", "/api/v1/instances/twin"] = asyncio.Event()
    operator = double.operator()
    task = await deciding(operator)
    await eventually(lambda: program(double).answers["/api/v1/instances/twin"] > 0, within=WITHIN)
    operator.deadline = Deadline.ELAPSED
    async with asyncio.timeout(WITHIN):
        await task
    await operator.conclude(operator.recovering())
    # Recovery is over; whether an agent is left running is not known yet.
    assert await double.state() == GUARDED
    gate.set()
    async with asyncio.timeout(WITHIN):
        await operator.recovery.quiet(KEY)
    assert await double.alive() == set()
    for _ in range(2):
        await operator.recovery.upkeep(operator.recovering())
    assert await double.state() == LOST
    assert operator.count("tenure_duplicate_instances_stopped_total") == 1


@pytest.mark.accept("S-002.16")
async def test_a_stop_that_fails_after_the_deadline_flags_its_session(double: Stage) -> None:
    await at_work(double)
    await double.instance("twin", "s-1")
    gate = program(double).hold["DELETE", "/api/v1/instances/twin"] = asyncio.Event()
    stuck(double, "twin")
    operator = double.operator()
    task = await deciding(operator)
    await eventually(lambda: program(double).answers["/api/v1/instances/twin"] > 0, within=WITHIN)
    operator.deadline = Deadline.ELAPSED
    async with asyncio.timeout(WITHIN):
        await task
        await operator.conclude(operator.recovering())
        gate.set()
        await operator.recovery.quiet(KEY)
    assert (await double.row_of()).unstopped_by == NEW
    assert [m.id for m in operator.recovery.report(KEY).unstopped] == ["twin"]
    await refused_for_good(double)


@pytest.mark.accept("S-002.16")
async def test_a_flag_that_cannot_be_written_is_written_later(
    double: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await at_work(double)
    gate = program(double).hold["DELETE", "/api/v1/instances/i-s-1"] = asyncio.Event()
    stuck(double, "i-s-1")
    operator = double.operator()
    recovering = operator.recovering()
    await operator.recovery.take_guards(recovering)
    await operator.recovery.enumerate(recovering)
    operator.deadline = Deadline.ELAPSED
    await operator.recovery.decide(recovering)
    write, failures = double.records.inventory.flag_unstopped, iter([True, True])

    async def flag(*values: Any) -> bool:
        if next(failures, False):
            raise DatabaseUnavailable("store", "no connection")
        return await write(*values)

    monkeypatch.setattr(double.records.inventory, "flag_unstopped", flag)
    monkeypatch.setattr("tenure.operator.servers.deciding.FLAG_AGAIN_SECONDS", 0.02)
    gate.set()
    async with asyncio.timeout(WITHIN):
        await operator.recovery.quiet(KEY)
    assert (await double.row_of()).unstopped_by == NEW


async def test_what_is_launched_while_recovery_goes_on_is_none_of_its_business(double: Stage) -> None:
    await at_work(double)
    operator = double.operator()
    recovering = operator.recovering()
    await operator.recovery.take_guards(recovering)
    await operator.recovery.enumerate(recovering)
    await operator.recovery.decide(recovering)
    await double.session("s-2", created_by=NEW)
    await double.prompted("s-2")
    await operator.conclude(recovering)
    assert await double.state("s-2") == RUNS
    assert operator.recovery.report(KEY).not_retracked == 0


async def test_an_operator_that_loses_its_lease_stops_nothing_any_more(double: Stage) -> None:
    await at_work(double)
    await double.instance("twin", "s-1")
    await double.instance("stray", "nobody")
    gates = [
        program(double).hold.setdefault(("DELETE", f"/api/v1/instances/{name}"), asyncio.Event())
        for name in ("twin", "stray")
    ]
    operator = double.operator()
    task = await deciding(operator)
    await eventually(lambda: program(double).answers["/api/v1/instances/twin"] > 0, within=WITHIN)
    task.cancel()
    async with asyncio.timeout(WITHIN):
        await asyncio.wait([task])
        await operator.aclose()
    assert task.cancelled()
    for gate in gates:
        gate.set()
    assert operator.tracked == set()
    assert await double.state() == RUNS
    # Whoever leads next does all of it.
    program(double).hold.clear()
    assert (await double.recovered()).tracked == {"s-1"}
    assert await double.alive() == {"i-s-1"}


@pytest.mark.accept("S-003.7")
async def test_a_deadline_that_elapsed_after_the_enumeration_stops_what_was_enumerated(double: Stage) -> None:
    await at_work(double)
    operator = double.operator()
    recovering = operator.recovering()
    await operator.recovery.take_guards(recovering)
    await operator.recovery.enumerate(recovering)
    operator.deadline = Deadline.ELAPSED
    await operator.recovery.decide(recovering)
    async with asyncio.timeout(WITHIN):
        await operator.recovery.quiet(KEY)
    await operator.conclude(recovering)
    assert operator.tracked == set()
    assert await double.alive() == set()
    assert await double.state() == LOST


async def test_a_session_that_was_rebuilt_too_late_is_not_published(double: Stage) -> None:
    await at_work(double)
    operator = double.operator()
    looks = 0

    def deadline() -> Deadline:
        # It elapses between the look that lets the publication begin and the one that lets it end.
        nonlocal looks
        looks += 1
        return Deadline.RUNNING if looks <= 2 else Deadline.ELAPSED

    recovering = operator.recovering(deadline=deadline)
    await operator.recovery.take_guards(recovering)
    await operator.recovery.enumerate(recovering)
    await operator.recovery.decide(recovering)
    async with asyncio.timeout(WITHIN):
        await operator.recovery.quiet(KEY)
    assert operator.tracked == set()
    assert await double.alive() == set()


async def test_a_silent_server_costs_no_more_than_its_reads(double: Stage) -> None:
    await at_work(double)
    double.budget = ReadBudget(timeout=1.0, retries=1, stop_timeout=5.0)
    program(double).hold[outcome("i-s-1")] = asyncio.Event()
    async with asyncio.timeout(WITHIN):
        operator = await double.recovered()
    program(double).hold[outcome("i-s-1")].set()
    assert operator.tracked == set()
    assert operator.count("tenure_reconstruction_reads_exhausted_total", input="turn_outcome") == 1
