"""Recovery of sessions whose agents survived their backend: real server, real agents, real PostgreSQL."""

import asyncio
import json

import pytest
from tests.integration.servers.recovery.stage import INSTALLATION, KEY, KEYS, NEW, OLD, Stage
from tests.support.records import a_launch

from tenure.model.adoption import LaunchRefusal
from tenure.plan.adoption.gates import Deadline
from tenure.storage.records import LaunchRefused

RUNS = ("running", "running", "in_progress", ["open"], False)
WAITS = ("running", "waiting_for_input", "review", ["completed"], False)
LOST = ("stopped", "waiting_for_input", "review", ["abandoned"], True)


async def test_a_server_without_sessions_is_recovered(stage: Stage) -> None:
    operator = await stage.recovered()
    report = operator.recovery.report(KEY)
    assert (report.retracked, report.not_retracked, report.stopped, report.hosted) == (0, 0, 0, 0)
    assert report.finished_at is not None
    assert await operator.told() == []


@pytest.mark.accept("S-002.1")
@pytest.mark.accept("S-003.2")
@pytest.mark.accept("S-003.3")
@pytest.mark.accept("S-003.4")
@pytest.mark.accept("S-003.5")
async def test_a_running_turn_goes_on_and_nothing_about_its_session_changes(stage: Stage) -> None:
    await stage.session()
    await stage.prompted()
    before, pids = await stage.everything(), stage.pids()
    operator = await stage.recovered()
    assert operator.tracked == {"s-1"}
    assert await stage.everything() == before
    assert await stage.state() == RUNS
    assert stage.pids() == pids
    assert operator.count("tenure_instances_retracked_total") == 1


@pytest.mark.accept("S-002.2")
async def test_the_only_instance_of_a_session_is_its_own_whatever_its_id(stage: Stage) -> None:
    await stage.session(instance="another-id")
    operator = await stage.recovered()
    assert operator.tracked == {"s-1"}
    assert (await stage.row_of()).agent_execution_id == "another-id"


@pytest.mark.accept("S-002.3")
@pytest.mark.accept("S-002.14")
@pytest.mark.accept("S-002.5")
async def test_every_value_of_an_execution_comes_from_its_own_source(stage: Stage) -> None:
    await stage.session(metadata={"secondary_profile": "office", "number": 7})
    (seen,) = await stage.client.instances(environment=True)
    operator = await stage.recovered()
    found = operator.store.get(KEY, "s-1")
    assert found is not None
    assert (found.session, found.task, found.instance_id) == ("s-1", "task-of-s-1", "i-s-1")
    assert (found.workspace_path, found.container_identity) == ("/workspaces/one", "pod-1")
    assert (found.runtime, found.instance_port) == ("standalone", stage.server.endpoint.port)
    assert (found.agent_profile, found.secondary_profile) == ("coder", "office")
    assert found.metadata == (("secondary_profile", "office"),)
    assert found.task_environment == "environment-of-s-1"
    assert found.workspace_source_roots == seen.workspace_source_roots != ()
    assert found.runtime_environment["PROVIDER_KEY"].reveal() == KEYS["PROVIDER_KEY"]
    assert found.run_identity.reveal() == KEYS["TENURE_RUN_ID"]
    assert found.provider_session == seen.provider_session_id != ""
    assert found.agent_command == ("agent", "--now")
    assert (found.continue_arguments, found.history) == (("--go-on",), "Load")


@pytest.mark.accept("M-2")
async def test_no_value_of_an_environment_is_stored_or_told(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    await stage.session()
    operator = await stage.recovered()
    told = [*await operator.told(), repr(operator.store.get(KEY, "s-1")), repr(operator.recovery.report(KEY))]
    stored = json.dumps(await stage.everything(), default=str)
    printed = capsys.readouterr()
    assert KEYS["PROVIDER_KEY"] not in f"{told} {stored} {printed} {operator.metrics.render().decode()}"


@pytest.mark.accept("S-002.6")
async def test_an_instance_without_a_record_is_stopped_and_the_others_are_not(stage: Stage) -> None:
    await stage.session()
    await stage.instance("stray", "nobody")
    operator = await stage.recovered()
    assert await stage.alive() == {"i-s-1"}
    assert operator.recovery.report(KEY).stopped == 1
    assert any("stray" in note for note in await operator.told("InstanceStopped"))


@pytest.mark.accept("S-002.7")
async def test_a_record_without_an_instance_is_repaired_in_place(stage: Stage) -> None:
    row = await stage.row()
    await stage.records.executions.launched("s-1", "i-s-1", resume_token="resume-1")
    await stage.records.turns.open("s-1", "i-s-1")
    operator = await stage.recovered()
    assert operator.tracked == set()
    assert await stage.state() == LOST
    after = await stage.row_of()
    assert (after.id, after.resume_token, after.worktree_id) == (row.id, "resume-1", "worktree-1")


@pytest.mark.accept("S-002.8")
async def test_launches_are_refused_as_retryable_until_recovery_is_recorded(stage: Stage) -> None:
    await stage.session()
    operator = stage.operator()
    recovering = operator.recovering()
    await stage.records.servers.begin_recovery(INSTALLATION, adopted_by=NEW)
    assert await operator.recovery.take_guards(recovering)
    again = a_launch("s-1", installation_id=INSTALLATION, created_by=NEW)
    with pytest.raises(LaunchRefused) as refused:
        await stage.records.executions.launch(again)
    assert (refused.value.refusal, refused.value.retryable) == (LaunchRefusal.RECOVERY_IN_PROGRESS, True)
    operator.telling.launch_refused({"kind": "ControlServer", "uid": "u"}, "s-1", refused.value.refusal)
    assert operator.count("tenure_launches_refused_total", reason="recovery_in_progress") == 1
    await operator.recover()
    with pytest.raises(LaunchRefused) as in_use:
        await stage.records.executions.launch(again)
    assert in_use.value.refusal is None


@pytest.mark.accept("S-002.9")
async def test_running_recovery_again_changes_nothing(stage: Stage) -> None:
    await stage.session("s-1")
    await stage.prompted("s-1")
    await stage.row("s-2")
    await stage.records.turns.open("s-2", "i-s-2")
    await stage.instance("stray", "nobody")
    first = await stage.recovered()
    before, alive = await stage.everything(), await stage.alive()
    await first.recover()
    second = await stage.recovered()
    assert await stage.everything() == before
    assert await stage.alive() == alive == {"i-s-1"}
    assert first.tracked == second.tracked == {"s-1"}
    assert second.recovery.report(KEY).stopped == 0


@pytest.mark.accept("S-004.2")
async def test_a_retained_outcome_is_applied_before_its_session_is_published_and_then_acknowledged(
    stage: Stage,
) -> None:
    await stage.session()
    await stage.prompted(text="say done")
    await stage.retained()
    operator = await stage.recovered()
    assert operator.tracked == {"s-1"}
    assert await stage.state() == WAITS
    assert await stage.client.outcome("i-s-1") is None


async def test_an_outcome_ends_the_turn_whose_number_was_never_recorded(stage: Stage) -> None:
    await stage.session()
    await stage.prompted(text="say done", bind=False)
    await stage.retained()
    await stage.recovered()
    assert await stage.state() == WAITS


async def test_a_turn_that_is_over_stays_as_it_is_when_its_outcome_is_seen_again(stage: Stage) -> None:
    await stage.session()
    turn = await stage.prompted(text="say done")
    await stage.retained()
    await stage.records.turns.abandon(turn.id)
    operator = await stage.recovered()
    assert (await stage.state())[3] == ["abandoned"]
    assert operator.tracked == {"s-1"}
    assert await stage.client.outcome("i-s-1") is None


@pytest.mark.accept("S-004.5")
async def test_without_an_outcome_a_session_is_published_as_running(stage: Stage) -> None:
    await stage.session()
    await stage.prompted()
    operator = await stage.recovered()
    assert operator.tracked == {"s-1"}
    assert await stage.state() == RUNS


@pytest.mark.accept("S-005.3")
async def test_a_passed_through_session_is_never_re_tracked_and_never_guarded(stage: Stage) -> None:
    await stage.session(passthrough=True)
    operator = stage.operator()
    await stage.records.servers.begin_recovery(INSTALLATION, adopted_by=NEW)
    assert await operator.recovery.take_guards(operator.recovering())
    again = a_launch(
        "s-1", installation_id=INSTALLATION, created_by=OLD, passthrough=True, container_identity="pod-1"
    )
    await stage.records.executions.launch(again)
    await operator.recover()
    assert operator.tracked == set()
    assert await stage.alive() == set()
    assert (await stage.row_of()).status.value == "stopped"


async def test_a_server_of_the_same_home_that_is_gone_takes_its_records_with_it(stage: Stage) -> None:
    await stage.row(container_identity="an-older-identity")
    await stage.records.turns.open("s-1", "i-s-1")
    await stage.recovered()
    assert await stage.state() == LOST


@pytest.mark.accept("S-003.6")
async def test_a_record_of_a_server_that_may_live_is_unknown_and_guards_its_session(stage: Stage) -> None:
    await stage.row(container_identity="pod-0")
    await stage.records.turns.open("s-1", "i-s-1")
    await stage.recovered(present=frozenset({"pod-0", "pod-1"}))
    # What people are told is the truth: nobody drives it. Its row stays live, for its agent may live.
    assert await stage.state() == ("running", "waiting_for_input", "review", ["abandoned"], True)
    operator = stage.operator()
    ended = operator.recovering(present=frozenset({"pod-0", "pod-1"}), ended=frozenset({"pod-0"}))
    await operator.recovery.upkeep(ended)
    assert (await stage.row_of()).status.value == "running"
    await operator.recovery.upkeep(ended)
    assert (await stage.row_of()).status.value == "stopped"


async def test_upkeep_leaves_what_lives_alone_and_repairs_what_has_gone(stage: Stage) -> None:
    await stage.session("s-1")
    await stage.session("s-2")
    operator = await stage.recovered()
    await stage.client.delete("i-s-2")
    for _ in range(2):
        assert await operator.recovery.upkeep(operator.recovering()) is not None
    assert (await stage.row_of("s-1")).status.value == "running"
    assert (await stage.row_of("s-2")).status.value == "stopped"
    assert operator.tracked == {"s-1"}


@pytest.mark.accept("S-003.1")
async def test_a_deadline_that_elapsed_before_there_was_a_server_gives_every_record_an_outcome(
    stage: Stage,
) -> None:
    await stage.session()
    await stage.prompted()
    operator = stage.operator()
    operator.deadline = Deadline.ELAPSED
    recovering = operator.recovering(server=None, about="vacancy")
    assert await operator.recovery.take_guards(recovering)
    await operator.conclude(recovering)
    assert operator.count("tenure_instances_deadline_elapsed_total") == 1
    assert (await operator.told("RecoveryDeadlineElapsed")) != []
    # Its pod runs: nothing is known of its agent.
    assert await stage.state() == ("running", "waiting_for_input", "review", ["abandoned"], True)
    assert await stage.alive() == {"i-s-1"}


@pytest.mark.accept("S-003.7")
async def test_an_adoption_that_ends_after_the_deadline_lists_its_instances_and_stops_none(
    stage: Stage,
) -> None:
    await stage.session()
    await stage.prompted()
    operator = stage.operator()
    operator.deadline = Deadline.ELAPSED
    recovering = operator.recovering()
    assert await operator.recovery.take_guards(recovering)
    await operator.conclude(recovering)
    report = operator.recovery.report(KEY)
    assert [mention.id for mention in report.untracked] == ["i-s-1"]
    assert operator.tracked == set()
    assert await stage.alive() == {"i-s-1"}


async def test_a_hundred_survivors_are_recovered_within_the_deadline(double: Stage) -> None:
    for number in range(100):
        await double.session(f"s-{number}")
    operator = double.operator()
    async with asyncio.timeout(30):
        await operator.recover()
    assert len(operator.tracked) == 100
