"""Vacating a record and naming the server that comes next: nothing that comes late undoes what came after it."""

import asyncio

import pytest
from tests.support.records import INSTALLATION, SERVER, Cutter, a_launch, a_server

from tenure.model.adoption import AdoptionReason, LaunchRefusal
from tenure.model.masked import Masked
from tenure.model.records import SurvivalEffective
from tenure.storage.records import LaunchRefused, RecordMoved, Records

A, B = "incarnation-a", "incarnation-b"
ENABLED = SurvivalEffective.ENABLED


async def _adopted(records: Records, incarnation: str = A) -> None:
    await records.servers.ensure(INSTALLATION, "workers")
    await records.servers.record(INSTALLATION, a_server(), adopted_by=None, incarnation=incarnation)


@pytest.mark.parametrize("recovered_by", [None, B])
async def test_a_vacated_record_names_the_abandoned_pod_and_says_what_holds_for_its_owner(
    records: Records, recovered_by: str | None
) -> None:
    await _adopted(records)
    await records.servers.set_recovered(INSTALLATION, A, adopted_by=A)
    vacated = await records.servers.vacate(
        INSTALLATION,
        adopted_by=A,
        incarnation=B,
        pod_uid="pod-1",
        recovered_by=recovered_by,
        survival=ENABLED,
    )
    record = vacated.record
    assert vacated.reason is None
    assert (record.vacant, record.pod_uid, record.adopted_by) == (True, "pod-1", B)
    assert (record.recovered_by, record.survival_effective) == (recovered_by, ENABLED)


async def test_a_vacating_whose_answer_was_lost_is_done_once(records: Records, database_url: str) -> None:
    await _adopted(records)
    async with Cutter.running(database_url) as cutter:
        cut_off = Records(Masked(cutter.proxied), namespace="team-a", size=1)
        await cut_off.servers.get(INSTALLATION)
        cutter.armed = True
        vacated = await cut_off.servers.vacate(
            INSTALLATION, adopted_by=A, incarnation=B, pod_uid="pod-1", reason=AdoptionReason.NO_ANSWER
        )
        assert cutter.cuts == 1
        await cut_off.aclose()
    assert (vacated.record.pod_uid, vacated.record.adopted_by) == ("pod-1", B)
    assert await records.servers.get(INSTALLATION) == vacated.record


async def test_a_late_vacating_does_not_abandon_the_server_made_since_for_the_same_incarnation(
    records: Records,
) -> None:
    await _adopted(records)
    again = {"adopted_by": A, "incarnation": A, "pod_uid": "pod-1"}
    await records.servers.vacate(INSTALLATION, **again)
    second = a_server(server_identity="server-2", pod_uid="pod-2", rotation_id=None)
    named = await records.servers.record(INSTALLATION, second, adopted_by=A, incarnation=A)
    with pytest.raises(RecordMoved):
        await records.servers.vacate(INSTALLATION, **again)
    assert await records.servers.get(INSTALLATION) == named


async def test_a_repeated_vacating_takes_no_finished_recovery_back(records: Records) -> None:
    await _adopted(records)
    again = {"adopted_by": A, "incarnation": B, "pod_uid": "pod-1"}
    await records.servers.vacate(INSTALLATION, **again)
    await records.servers.set_recovered(INSTALLATION, B, adopted_by=B)
    assert (await records.servers.vacate(INSTALLATION, **again)).record.recovered


async def test_of_many_that_insert_the_first_record_one_gets_it(
    records: Records, rivals: tuple[Records, ...]
) -> None:
    results = await asyncio.gather(
        *(
            rival.servers.vacate(
                INSTALLATION,
                adopted_by=None,
                incarnation=f"incarnation-{number}",
                pod_uid=None,
                name="workers",
            )
            for number, rival in enumerate(rivals)
        ),
        return_exceptions=True,
    )
    won = [result for result in results if not isinstance(result, BaseException)]
    assert len(won) == 1
    assert sum(isinstance(result, RecordMoved) for result in results) == len(rivals) - 1
    record = await records.servers.get(INSTALLATION)
    assert record == won[0].record
    assert (record.name, record.vacant) == ("workers", True)


async def test_a_record_that_somebody_owned_is_not_inserted_when_it_has_gone(records: Records) -> None:
    with pytest.raises(RecordMoved):
        await records.servers.vacate(INSTALLATION, adopted_by=A, incarnation=B, pod_uid=None, name="workers")
    assert await records.servers.get(INSTALLATION) is None


async def test_an_adoption_that_ends_after_its_recovery_leaves_it_finished(records: Records) -> None:
    await _adopted(records)
    await records.servers.set_recovered(INSTALLATION, A, adopted_by=A)
    await records.servers.begin_recovery(INSTALLATION, adopted_by=A, incarnation=B)
    late = await records.servers.set_recovered(INSTALLATION, B, adopted_by=A)
    assert (late.adopted_by, late.recovered_by) == (A, B)
    adopted = await records.servers.record(
        INSTALLATION, a_server(rotation_id=2), adopted_by=A, incarnation=B, survival=ENABLED
    )
    assert (adopted.adopted_by, adopted.recovered_by, adopted.survival_effective) == (B, B, ENABLED)
    assert adopted.server_identity == SERVER
    other = await records.servers.record(INSTALLATION, a_server(rotation_id=3), adopted_by=B, incarnation="c")
    assert (other.recovered_by, other.survival_effective) == (None, ENABLED)


async def test_a_recovery_is_recorded_only_in_the_record_that_it_was_about(records: Records) -> None:
    await records.servers.ensure(INSTALLATION, "workers")
    assert (await records.servers.set_recovered(INSTALLATION, B, adopted_by=None)).recovered_by == B
    await records.servers.record(INSTALLATION, a_server(), adopted_by=None, incarnation=A)
    for expected in (None, B):
        with pytest.raises(RecordMoved):
            await records.servers.set_recovered(INSTALLATION, B, adopted_by=expected)


async def test_guards_taken_late_do_not_begin_a_finished_recovery_again(records: Records) -> None:
    await _adopted(records)
    await records.servers.set_recovered(INSTALLATION, A, adopted_by=A)
    assert (await records.servers.begin_recovery(INSTALLATION, adopted_by=A, incarnation=A)).recovered
    begun = await records.servers.begin_recovery(INSTALLATION, adopted_by=A, incarnation=B)
    assert begun.recovered_by is None


async def test_launches_are_told_what_the_latest_recovery_decided(records: Records) -> None:
    await _adopted(records)
    executor = await records.executions.launch(a_launch())
    refusals = []

    async def refused() -> None:
        with pytest.raises(LaunchRefused) as caught:
            await records.executions.launch(a_launch())
        refusals.append(caught.value.refusal)

    await refused()
    await records.servers.set_recovered(INSTALLATION, B, adopted_by=A)  # its adoption is in flight
    await refused()
    await records.inventory.flag_unstopped("session-1", executor.agent_execution_id, B)
    await refused()
    await records.inventory.flag_unstopped("session-1", executor.agent_execution_id, A)
    await refused()
    assert refusals == [LaunchRefusal.RECOVERY_IN_PROGRESS, None, LaunchRefusal.UNSTOPPED_AGENT, None]
