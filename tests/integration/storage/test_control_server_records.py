"""The control-server record: one for each installation, and nobody writes over another incarnation's."""

import asyncio

import pytest
from tests.support.postgres import PostgresServer
from tests.support.records import INSTALLATION, SERVER, Cutter, a_server

from tenure.model.adoption import AdoptionReason
from tenure.model.masked import Masked
from tenure.model.records import SurvivalEffective
from tenure.storage.records import EntryRefused, RecordMoved, Records

A, B = "incarnation-a", "incarnation-b"


@pytest.mark.accept("O-001.1")
async def test_an_installation_has_one_record_with_no_session_at_all(
    records: Records, rivals: tuple[Records, ...], postgres_server: PostgresServer, database_url: str
) -> None:
    assert await records.servers.get(INSTALLATION) is None
    made = await asyncio.gather(*(rival.servers.ensure(INSTALLATION, "workers") for rival in rivals))
    assert set(made) == {await records.servers.get(INSTALLATION)}
    await records.servers.record(INSTALLATION, a_server(), adopted_by=None, incarnation=A)
    await records.servers.record(
        INSTALLATION, a_server(server_identity="server-2"), adopted_by=A, incarnation=B
    )
    connection = await postgres_server.connect(database_url.rsplit("/", 1)[1])
    rows = await connection.fetch("SELECT server_identity FROM tenure.control_servers")
    sessions = await connection.fetchval("SELECT count(*) FROM tenure.sessions")
    await connection.close()
    assert [row["server_identity"] for row in rows] == ["server-2"]
    assert sessions == 0


async def test_a_new_record_is_vacant_and_nobodys(records: Records) -> None:
    record = await records.servers.ensure(INSTALLATION, "workers")
    assert record.vacant
    assert not record.recovered
    assert (record.adopted_by, record.survival_effective) == (None, SurvivalEffective.DISABLED)


async def test_of_many_incarnations_that_adopt_at_once_one_gets_the_record(
    records: Records, rivals: tuple[Records, ...]
) -> None:
    await records.servers.ensure(INSTALLATION, "workers")
    results = await asyncio.gather(
        *(
            rival.servers.record(
                INSTALLATION,
                a_server(rotation_id=number + 1),
                adopted_by=None,
                incarnation=f"incarnation-{number}",
            )
            for number, rival in enumerate(rivals)
        ),
        return_exceptions=True,
    )
    won = [result for result in results if not isinstance(result, BaseException)]
    assert len(won) == 1
    assert sum(isinstance(result, RecordMoved) for result in results) == len(rivals) - 1
    assert await records.servers.get(INSTALLATION) == won[0]


@pytest.mark.parametrize("deed", ["record", "vacate", "set_adopted", "begin_recovery", "set_recovered"])
async def test_a_predecessor_writes_nothing_any_more(records: Records, deed: str) -> None:
    servers = records.servers
    await servers.ensure(INSTALLATION, "workers")
    await servers.record(INSTALLATION, a_server(), adopted_by=None, incarnation=A)
    before = await servers.record(INSTALLATION, a_server(rotation_id=2), adopted_by=A, incarnation=B)
    with pytest.raises(RecordMoved):
        match deed:
            case "record":
                await servers.record(INSTALLATION, a_server(rotation_id=9), adopted_by=A, incarnation=A)
            case "vacate":
                await servers.vacate(INSTALLATION, adopted_by=A, incarnation=A, pod_uid="pod-1")
            case "set_adopted":
                await servers.set_adopted(INSTALLATION, adopted_by=A, incarnation=A)
            case "begin_recovery":
                await servers.begin_recovery(INSTALLATION, adopted_by=A)
            case _:
                await servers.set_recovered(INSTALLATION, A, adopted_by=A)
    assert not await servers.confirm_rotation(INSTALLATION, A, 2)
    assert await servers.get(INSTALLATION) == before


async def test_a_vacated_record_leads_back_to_no_server(records: Records) -> None:
    servers = records.servers
    await servers.ensure(INSTALLATION, "workers")
    await servers.record(INSTALLATION, a_server(), adopted_by=None, incarnation=A)
    await servers.set_recovered(INSTALLATION, A, adopted_by=A)
    reason = AdoptionReason.IDENTITY_MISMATCH
    vacated = await servers.vacate(INSTALLATION, adopted_by=A, incarnation=B, pod_uid="pod-1", reason=reason)
    record = vacated.record
    assert vacated.reason is reason
    assert record.vacant
    assert (record.endpoint, record.credential_secret, record.rotation_id) == (None,) * 3
    assert (record.adopted_by, record.recovered_by) == (B, None)
    again = await servers.vacate(INSTALLATION, adopted_by=A, incarnation=B, pod_uid="pod-1", reason=reason)
    assert again.record.vacant, "its answer may have been lost"
    await servers.record(INSTALLATION, a_server(server_identity="server-2"), adopted_by=B, incarnation=B)
    with pytest.raises(RecordMoved):
        await servers.vacate(INSTALLATION, adopted_by=A, incarnation=B, pod_uid="pod-1", reason=reason)


async def test_recovery_is_over_only_for_the_incarnation_that_adopted(records: Records) -> None:
    servers = records.servers
    await servers.ensure(INSTALLATION, "workers")
    assert not (await servers.record(INSTALLATION, a_server(), adopted_by=None, incarnation=A)).recovered
    assert (await servers.set_recovered(INSTALLATION, A, adopted_by=A)).recovered
    same = await servers.record(INSTALLATION, a_server(rotation_id=2), adopted_by=A, incarnation=A)
    assert same.recovered, "another rotation in the same incarnation"
    assert not (await servers.set_adopted(INSTALLATION, adopted_by=A, incarnation=B)).recovered
    assert not (await servers.begin_recovery(INSTALLATION, adopted_by=B)).recovered


async def test_only_the_newest_rotation_is_confirmed_and_none_goes_back(records: Records) -> None:
    servers = records.servers
    await servers.ensure(INSTALLATION, "workers")
    ours = {"adopted_by": A, "incarnation": A}
    await servers.record(INSTALLATION, a_server(rotation_id=4), adopted_by=None, incarnation=A)
    assert not await servers.confirm_rotation(INSTALLATION, A, 3)
    assert await servers.confirm_rotation(INSTALLATION, A, 4)
    repeated = await servers.record(INSTALLATION, a_server(rotation_id=4), **ours)
    assert repeated.rotation_confirmed, "a repeated call takes nothing back"
    newer = await servers.record(INSTALLATION, a_server(rotation_id=5), **ours)
    assert not newer.rotation_confirmed
    with pytest.raises(RecordMoved):
        await servers.record(INSTALLATION, a_server(rotation_id=4), **ours)
    fresh = a_server(server_identity="server-2", rotation_id=None)
    assert (await servers.record(INSTALLATION, fresh, **ours)).rotation_id is None, (
        "another server counts anew"
    )


async def test_an_adoption_whose_answer_was_lost_is_ours(records: Records, database_url: str) -> None:
    await records.servers.ensure(INSTALLATION, "workers")
    async with Cutter.running(database_url) as cutter:
        cut_off = Records(Masked(cutter.proxied), namespace="team-a", size=1)
        await cut_off.servers.get(INSTALLATION)
        cutter.armed = True
        record = await cut_off.servers.record(INSTALLATION, a_server(), adopted_by=None, incarnation=A)
        assert cutter.cuts == 1
        await cut_off.aclose()
    assert (record.adopted_by, record.server_identity) == (A, SERVER)


async def test_survival_is_told_in_the_record(records: Records) -> None:
    await records.servers.ensure(INSTALLATION, "workers")
    for survival in SurvivalEffective:
        record = await records.servers.set_survival(INSTALLATION, survival)
        assert record.survival_effective is survival
    with pytest.raises(RecordMoved):
        await records.servers.set_survival("no such installation", SurvivalEffective.ENABLED)


async def test_a_record_that_no_table_takes_is_refused_without_quoting_it(records: Records) -> None:
    await records.servers.ensure(INSTALLATION, "workers")
    for server in (a_server(unowned_period_ms=0), a_server(endpoint="canary\0"), a_server(rotation_id=-1)):
        with pytest.raises(EntryRefused) as caught:
            await records.servers.record(INSTALLATION, server, adopted_by=None, incarnation=A)
        assert "canary" not in str(caught.value)
