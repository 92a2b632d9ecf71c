"""The client against agentctl's double and Tenure's own server: the same calls, the same meaning."""

import asyncio

import pytest
from tests.integration.ownership.site import Site, agentctl, tenure

from tenure.model.masked import Masked
from tenure.ownership.calls import Calls
from tenure.ownership.endpoint import ReadBudget
from tenure.ownership.errors import NoAnswer, NotAccepted, Refused, ShuttingDown
from tenure.ownership.transport import Lane
from tenure.protocol.errors import CredentialUnavailable
from tenure.protocol.messages import Identity


async def test_whoever_shakes_hands_owns_the_server_and_reads_its_details(site: Site) -> None:
    async with site.client(identity=None) as client:
        token = await client.handshake(site.nonce)
        assert (await client.health()).status == "ok"
        identity = await client.prove()
        assert identity.server_identity == site.identity
        assert "agent-survival.v1" in identity.capabilities
        assert identity.unowned_period_ms >= 60_000
        await client.claim()
        assert (await client.details()).home_dir == site.home_dir
        assert "token" not in repr(client) and token.reveal() not in repr(client.__dict__)


async def test_a_used_nonce_is_not_accepted_and_nothing_is_superseded_by_that(site: Site) -> None:
    async with await site.owned() as first, site.client() as second:
        with pytest.raises(NotAccepted) as refused:
            await second.handshake(site.nonce)
        assert not refused.value.superseded
        await first.claim()


@pytest.mark.accept("O-002.10", "O-002.6")
async def test_a_rotation_repeated_with_the_superseded_credential_gives_the_same_answer(site: Site) -> None:
    async with await site.owned() as client:
        first = await client.rotate()
        again = await client.rotate()
        assert again == first and again.rotation_id == 1
        client.use(first.credential)
        await client.confirm(first.rotation_id)
        await client.confirm(first.rotation_id)
        second = await client.rotate()
        assert second.rotation_id == 2
        with pytest.raises(NotAccepted):
            await client.claim()
        client.use(second.credential)
        # A late confirmation of the older one revokes nothing.
        await client.confirm(first.rotation_id)
        await client.claim()
        with pytest.raises(Refused) as unknown:
            await client.confirm(99)
        assert unknown.value.status == 404


@pytest.mark.accept("O-002.3", "O-002.1")
async def test_a_superseded_client_is_told_so_confirmed_or_not(site: Site) -> None:
    async with await site.owned() as old, site.client() as new:
        token = old._calls.credential
        new.use(token)
        await old.claim()
        rotated = await new.rotate()
        new.use(rotated.credential)
        for confirmed in (False, True):
            if confirmed:
                await new.confirm(rotated.rotation_id)
            with pytest.raises(NotAccepted) as refused:
                await old.claim()
            assert refused.value.superseded, confirmed
        await new.claim()


@pytest.mark.accept("O-002.9", "O-004.6")
async def test_the_superseded_credential_still_stops_the_server_without_adoption(site: Site) -> None:
    async with await site.owned() as client:
        await client.rotate()
        await client.shutdown()
        # A second order finds it shutting down, or gone.
        try:
            await client.shutdown()
        except NoAnswer:
            assert site.real is not None
    if site.real is not None:
        await site.real.ended()


async def test_a_server_that_shuts_down_says_so_to_whoever_wants_something_new() -> None:
    async with agentctl() as site, await site.owned() as client:
        await client.shutdown()
        for call in (client.rotate, client.claim, client.prove, lambda: client.create(site.request())):
            with pytest.raises(ShuttingDown):
                await call()
        # Identity is outside of all this.
        assert (await client.identity()).server_identity == site.identity


async def test_instances_come_and_go(site: Site) -> None:
    async with await site.owned() as client:
        assert await client.instances() == ()
        made = await client.create(site.request("i-1", "s-1", env={"KEY": "sk-live"}))
        assert made.id == "i-1"
        (seen,) = await client.instances()
        assert (seen.id, seen.session_id, seen.task_id) == ("i-1", "s-1", "t-1")
        assert not hasattr(seen, "env")
        (full,) = await client.instances(environment=True)
        assert full.env["KEY"].reveal() == "sk-live"
        assert "sk-live" not in repr(full)
        assert (await client.instance("i-1")).id == "i-1"
        assert (await client.instance("i-1", environment=True)).env["KEY"] == Masked("sk-live")
        await client.delete("i-1")
        await client.delete("i-1")
        assert await client.instances() == ()
        with pytest.raises(Refused) as gone:
            await client.instance("i-1")
        assert gone.value.status == 404


async def test_a_session_with_a_live_instance_is_in_use_and_the_same_id_is_settled_by_a_read(
    site: Site,
) -> None:
    async with await site.owned() as client:
        made = await client.create(site.request("i-1", "s-1"))
        with pytest.raises(Refused) as refused:
            await client.create(site.request("i-2", "s-1"))
        assert (refused.value.status, refused.value.code) == (409, "session_in_use")
        assert await client.create(site.request("i-1", "s-1")) == made
        assert len(await client.instances()) == 1
        await client.delete("i-1")


async def test_an_outcome_is_none_until_there_is_one_and_an_acknowledgement_is_never_refused(
    site: Site,
) -> None:
    async with await site.owned() as client:
        await client.create(site.request())
        assert await client.outcome("i-1") is None
        await client.acknowledge("i-1", 7)
        await client.acknowledge("nobody", 7)
        with pytest.raises(Refused) as unknown:
            await client.outcome("nobody")
        assert unknown.value.status == 404
        await client.delete("i-1")


@pytest.mark.parametrize("bad", ["", ".", "../identity", "a/b", "a b", "x" * 129, "i-1\n", "%2e%2e", "i?x=1"])
async def test_an_id_that_is_no_id_becomes_no_path(bad: str) -> None:
    async with agentctl() as site, await site.owned() as client:
        for call in (client.instance, client.delete, client.outcome, client.stream):
            with pytest.raises(ValueError, match="instance id"):
                await call(bad)


@pytest.mark.parametrize("credential", [None, Masked(""), Masked("short"), Masked("z" * 64)])
async def test_an_unusable_credential_sends_nothing(credential: Masked | None) -> None:
    async with agentctl() as site, site.client(credential) as client:
        for call in (client.prove, client.rotate, client.claim, client.instances, client.shutdown):
            with pytest.raises(CredentialUnavailable):
                await call()
        assert site.double is not None and not site.double.answers


async def test_a_lost_answer_of_a_rotation_is_asked_for_again_and_names_the_same_one() -> None:
    async with agentctl() as site, await site.owned() as client:
        assert site.double is not None
        site.double.lose["/api/v1/ownership/rotate"] = 2
        rotated = await client.rotate()
        assert rotated.rotation_id == 1 and site.double.rotation == 1
        assert rotated.credential.reveal() == site.double.latest


async def test_a_lost_answer_of_a_creation_is_settled_by_a_read_and_starts_no_second_instance() -> None:
    async with agentctl() as site, await site.owned() as client:
        assert site.double is not None
        site.double.lose["/api/v1/instances"] = 1
        made = await client.create(site.request())
        assert made.id == "i-1" and site.double.answers["/api/v1/instances"] == 1
        assert len(site.double.instances) == 1


async def test_a_lost_answer_of_a_handshake_is_not_asked_for_again() -> None:
    async with agentctl() as site, site.client() as client:
        assert site.double is not None
        site.double.lose["/auth/handshake"] = 1
        with pytest.raises(NoAnswer):
            await client.handshake(site.nonce)
        assert site.double.answers["/auth/handshake"] == 1


@pytest.mark.accept("S-002.13")
async def test_a_read_is_tried_as_often_as_the_budget_says_and_says_how_often_it_was() -> None:
    async with agentctl() as site, site.client(budget=ReadBudget(timeout=5, retries=3)) as client:
        assert site.double is not None
        site.double.lose["/identity"] = 3
        assert (await client.identity()).server_identity == site.identity
        site.double.lose["/identity"] = 4
        site.double.answers.clear()
        with pytest.raises(NoAnswer) as failed:
            await client.identity()
        assert (failed.value.retries, site.double.answers["/identity"]) == (3, 4)


async def test_a_stop_has_its_own_time() -> None:
    async with agentctl() as site:
        budget = ReadBudget(timeout=0.3, retries=0, stop_timeout=10)
        assert site.double is not None
        async with await site.owned() as owner, site.client(owner._calls.credential, budget=budget) as client:
            await owner.create(site.request())
            site.double.delete_seconds = 0.6
            await client.delete("i-1")
            assert not site.double.instances


async def test_many_calls_at_the_same_time_are_answered_each(site: Site) -> None:
    async with await site.owned() as client:
        calls = [client.claim() for _ in range(20)] + [client.details() for _ in range(20)]
        await asyncio.gather(*calls)


async def test_calls_that_wait_for_the_proof_of_a_pinned_server_share_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proofs = 0
    prove_on = Calls._prove_on

    async def counted(calls: Calls, lane: Lane, credential: Masked, *, first: bool) -> Identity:
        nonlocal proofs
        proofs += 1
        return await prove_on(calls, lane, credential, first=first)

    monkeypatch.setattr(Calls, "_prove_on", counted)
    async with tenure(tls=True) as site, await site.owned() as client:
        await asyncio.gather(*(client.instances() for _ in range(16)))
    assert proofs == 1
