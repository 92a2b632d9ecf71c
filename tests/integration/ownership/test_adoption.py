"""Adoption, step by step: what is decided in which order, and what a failure at each step leaves behind."""

import asyncio
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.integration.ownership.adopter_that_dies import STEPS
from tests.integration.ownership.memory import MemoryStore
from tests.integration.ownership.site import Site, agentctl, tenure
from tests.support.control import ROOT, clean_environment
from tests.support.impostors import IDENTITY, Impostor, answer, identity

from tenure.model.adoption import AdoptionOutcome, AdoptionReason
from tenure.model.masked import Masked
from tenure.ownership.adoption import Adopter, Adoption
from tenure.ownership.endpoint import Endpoint, ReadBudget
from tenure.ownership.files import FileCredentialStore
from tenure.ownership.holding import Holding, StoreFailed
from tenure.protocol.proof import prove

FAST = ReadBudget(timeout=3.0, retries=1)


async def held(site: Site, store: MemoryStore) -> Holding:
    """The server's first owner, incarnation "first"."""
    done = await Adopter(store, "first", budget=FAST).greet(site.endpoint, site.home_dir, site.nonce)
    assert (done.outcome, done.reason) == (AdoptionOutcome.ADOPTED, AdoptionReason.NONE)
    assert store.holding is not None and done.holding == store.holding
    return store.holding


async def adopt(store: Any, incarnation: str = "second", *, deadline: float = 20.0, **more: Any) -> Adoption:
    """``deadline``: reached only where something never succeeds."""
    return await Adopter(store, incarnation, budget=FAST, deadline=deadline, pause=0.05, **more).adopt()


async def in_force(site: Site, holding: Holding | None) -> None:
    """What is stored is what the server takes for everything, and no other is pending."""
    assert holding is not None
    async with site.client(holding.credential) as client:
        await client.claim()
        assert (await client.rotate()).rotation_id == holding.rotation_id + 1


@pytest.mark.accept("O-002.1")
async def test_a_server_is_adopted_and_the_old_credential_is_refused_everywhere(site: Site) -> None:
    store = MemoryStore()
    before = await held(site, store)
    done = await adopt(store)
    assert (done.outcome, done.resumed, done.unconfirmed) == (AdoptionOutcome.ADOPTED, False, False)
    assert done.identity is not None and "agent-survival.v1" in done.identity.capabilities
    assert done.details is not None and done.details.home_dir == site.home_dir
    after = done.holding
    assert after == store.holding and after is not None
    assert (after.adopted_by, after.rotation_id, after.confirmed) == ("second", 1, True)
    assert after.credential != before.credential
    async with site.client(before.credential) as old:
        with pytest.raises(Exception, match="not ours"):
            await old.claim()
    await in_force(site, after)


async def test_credential_then_record_then_confirmation() -> None:
    async with agentctl() as site:
        store = MemoryStore()
        await held(site, store)
        assert site.double is not None
        seen = []

        async def record(holding: Holding) -> None:
            assert site.double is not None
            # Stored already, and not confirmed yet.
            seen.append((store.holding == holding, bool(site.double.superseded), holding.rotation_id))

        await adopt(store, record=record)
        assert seen == [(True, True, 1)]
        assert not site.double.superseded


async def test_an_adoption_of_the_same_incarnation_contacts_nobody_again() -> None:
    async with agentctl() as site:
        store = MemoryStore()
        await held(site, store)
        await adopt(store)
        assert site.double is not None
        site.double.answers.clear()
        done = await adopt(store)
        assert (done.outcome, done.resumed) == (AdoptionOutcome.ADOPTED, True)
        assert not site.double.answers


async def test_nothing_stored_is_no_server() -> None:
    done = await adopt(MemoryStore())
    assert (done.outcome, done.reason) == (AdoptionOutcome.NO_SERVER, AdoptionReason.NO_RECORD)


async def test_nothing_that_answers_and_a_server_that_shuts_down_are_no_server() -> None:
    async with agentctl() as site:
        store = MemoryStore()
        holding = await held(site, store)
        async with site.client(holding.credential) as client:
            await client.shutdown()
        done = await adopt(store)
        assert (done.outcome, done.reason) == (AdoptionOutcome.NO_SERVER, AdoptionReason.SHUTTING_DOWN)
    done = await adopt(store)
    assert (done.outcome, done.reason) == (AdoptionOutcome.NO_SERVER, AdoptionReason.NO_ANSWER)
    assert store.holding == holding


@pytest.mark.accept("O-001.6")
async def test_an_unreadable_credential_asks_for_the_identity_only_and_comes_after_it() -> None:
    async with agentctl() as site:
        store = MemoryStore()
        holding = await held(site, store)
        assert site.double is not None
        for credential in (None, Masked(""), Masked("abc")):
            site.double.answers.clear()
            store.holding = replace(holding, credential=credential)
            done = await adopt(store)
            assert (done.outcome, done.reason) == (
                AdoptionOutcome.REFUSED,
                AdoptionReason.CREDENTIAL_UNAVAILABLE,
            )
            assert dict(site.double.answers) == {"/identity": 1}
        store.holding = replace(holding, credential=None, server_identity="another")
        assert (await adopt(store)).reason is AdoptionReason.IDENTITY_MISMATCH


@pytest.mark.accept("O-004.1", "O-004.2", "O-004.6")
async def test_capabilities_are_a_subset_test_after_authentication_and_nothing_is_stored_before() -> None:
    async with agentctl() as site:
        store = MemoryStore()
        holding = await held(site, store)
        assert site.double is not None
        done = await adopt(store, required=frozenset({"agent-survival.v1", "flight.v1"}))
        assert (done.outcome, done.reason) == (
            AdoptionOutcome.REFUSED,
            AdoptionReason.CAPABILITY_INCOMPATIBLE,
        )
        assert done.identity is not None and done.identity.capabilities == ("agent-survival.v1",)
        # It authenticated: the rotation took place. The replacement was in memory only.
        assert site.double.rotation == 1 and store.holding == holding
        site.double.capabilities = ["more.v9", "flight.v1", "agent-survival.v1"]
        done = await adopt(store, required=frozenset({"agent-survival.v1", "flight.v1"}))
        assert done.outcome is AdoptionOutcome.ADOPTED
    async with agentctl() as site:
        store = MemoryStore()
        holding = await held(site, store)
        await adopt(store, required=frozenset({"flight.v1"}))
        # The stop is outside of the negotiation, and the stored credential is good enough for it.
        async with site.client(holding.credential) as client:
            await client.shutdown()
        assert site.double is not None and site.double.closing


CREDENTIAL = Masked("c0" * 32)


def knows_us(then: Callable[[str], bytes], capabilities: tuple[str, ...]) -> Any:
    """A server that proves to be ours, and answers everything else with ``then``."""

    def reply(method: str, path: str, body: bytes) -> bytes:
        if path == "/identity":
            return identity(IDENTITY, capabilities)
        if path == "/ownership/prove":
            challenge = body.decode().split('"')[3]
            return answer({"proofs": [prove(CREDENTIAL, challenge, "/home")]})
        return then(path)

    return reply


@pytest.mark.accept("O-001.3", "O-001.6")
@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (401, AdoptionReason.AUTHENTICATION_FAILED),
        (403, AdoptionReason.AUTHENTICATION_FAILED),
        (409, AdoptionReason.SHUTTING_DOWN),
        (500, AdoptionReason.CREDENTIAL_ROTATION_FAILED),
        (503, AdoptionReason.CREDENTIAL_ROTATION_FAILED),
        (404, AdoptionReason.CREDENTIAL_ROTATION_FAILED),
        (307, AdoptionReason.CREDENTIAL_ROTATION_FAILED),
    ],
)
@pytest.mark.parametrize("capabilities", [("agent-survival.v1",), ("other.v1",)])
async def test_the_reason_is_that_of_the_authentication_whatever_it_is_capable_of(
    status: int, reason: AdoptionReason, capabilities: tuple[str, ...]
) -> None:
    reply = knows_us(lambda path: answer({"error": "no"}, status), capabilities)
    async with Impostor(reply) as server:
        store = MemoryStore(Holding(IDENTITY, "/home", Endpoint(server.url), CREDENTIAL, adopted_by="old"))
        done = await adopt(store, deadline=0.5)
        assert done.reason is reason
        assert {path for _, path in server.requests} == {
            "/identity",
            "/ownership/prove",
            "/api/v1/ownership/rotate",
        }
        assert store.stores == 0


@pytest.mark.accept("O-002.5")
async def test_a_rotation_that_cannot_be_stored_sends_nothing_further_and_can_be_had_again() -> None:
    async with agentctl() as site:
        assert site.double is not None
        for failing in ("store", "record"):
            store = MemoryStore()
            site.double.nonce, site.double._used = site.nonce.reveal(), False
            site.double.latest = site.double.superseded = ""
            await held(site, store)
            site.double.answers.clear()

            async def record(holding: Holding, failing: str = failing) -> None:
                if failing == "record":
                    raise StoreFailed("no record")

            store.fail = 1000 if failing == "store" else 0
            done = await adopt(store, deadline=0.5, record=record)
            assert (done.outcome, done.reason) == (
                AdoptionOutcome.REFUSED,
                AdoptionReason.CREDENTIAL_ROTATION_FAILED,
            )
            assert not {p for p in site.double.answers if "confirm" in p or "claim" in p or "instances" in p}
            issued = site.double.latest
            store.fail = 0
            done = await adopt(store, "third")
            assert done.outcome is AdoptionOutcome.ADOPTED
            if failing == "store":
                # The very replacement that was not stored the first time.
                assert done.holding is not None and done.holding.credential == Masked(issued)


async def test_a_store_that_fails_for_a_while_or_does_not_say_that_it_stored_is_tried_again() -> None:
    async with agentctl() as site:
        store = MemoryStore()
        await held(site, store)
        store.fail, store.lose = 2, 1
        done = await adopt(store)
        assert done.outcome is AdoptionOutcome.ADOPTED
        await in_force(site, done.holding)


async def test_whoever_stores_first_wins_and_the_other_sends_nothing_further() -> None:
    async with agentctl() as site:
        store = MemoryStore()
        await held(site, store)
        assert site.double is not None

        tries = 0

        class Overtaken(MemoryStore):
            async def store(self, holding: Holding) -> Holding:
                nonlocal tries
                tries += 1
                if store.holding is not None and store.holding.adopted_by == "first":
                    assert (await adopt(store, "winner")).outcome is AdoptionOutcome.ADOPTED
                return await store.store(holding)

        done = await adopt(Overtaken(store.holding), "loser")
        assert done.reason is AdoptionReason.CREDENTIAL_ROTATION_FAILED
        assert tries == 1
        assert store.holding is not None and store.holding.adopted_by == "winner"
        await in_force(site, store.holding)


async def test_lost_answers_of_every_step_are_made_up_for() -> None:
    for path in ("/identity", "/ownership/prove", "/api/v1/ownership/rotate", "/api/v1/ownership/details"):
        async with agentctl() as site:
            store = MemoryStore()
            await held(site, store)
            assert site.double is not None
            site.double.lose[path] = 1
            done = await adopt(store)
            assert done.outcome is AdoptionOutcome.ADOPTED, path
            assert site.double.rotation == 1
            await in_force(site, done.holding)


@pytest.mark.accept("O-002.7")
async def test_a_confirmation_that_is_not_heard_is_an_adoption_and_is_made_up_for_later() -> None:
    async with agentctl() as site:
        store = MemoryStore()
        await held(site, store)
        assert site.double is not None
        site.double.lose["/api/v1/ownership/confirm"] = 10
        done = await adopt(store)
        assert (done.outcome, done.unconfirmed) == (AdoptionOutcome.ADOPTED, True)
        assert done.holding is not None and not done.holding.confirmed
        site.double.lose.clear()
        done = await adopt(store)
        assert (done.outcome, done.resumed, done.unconfirmed) == (AdoptionOutcome.ADOPTED, True, False)
        assert done.holding is not None and done.holding.confirmed and site.double.rotation == 1


async def test_a_used_nonce_refuses_a_second_greeting_and_stores_nothing(site: Site) -> None:
    first, second = MemoryStore(), MemoryStore()
    assert (await held(site, first)).adopted_by == "first"
    done = await Adopter(second, "other", budget=FAST).greet(site.endpoint, site.home_dir, site.nonce)
    assert (done.outcome, done.reason) == (AdoptionOutcome.REFUSED, AdoptionReason.AUTHENTICATION_FAILED)
    assert second.stores == 0


@pytest.mark.accept("O-002.7")
@pytest.mark.parametrize("step", STEPS)
async def test_an_adopter_that_is_killed_leaves_a_credential_that_both_sides_hold(
    step: str, tmp_path: Path
) -> None:
    async with tenure() as site:
        file = tmp_path / "held" / "credential.json"
        async with FileCredentialStore(file) as store:
            done = await Adopter(store, "first").greet(site.endpoint, site.home_dir, site.nonce)
            assert done.outcome is AdoptionOutcome.ADOPTED
        # The successor is the same incarnation at first, then another one.
        for killed, successor in (("a", "a"), ("b", "c")):
            await run_until_killed(file, killed, step)
            async with FileCredentialStore(file) as store:
                done = await Adopter(store, successor).adopt()
                assert (done.outcome, done.reason) == (AdoptionOutcome.ADOPTED, AdoptionReason.NONE), step
                stored = await store.load()
            assert stored == done.holding and stored is not None
            assert (stored.adopted_by, stored.confirmed) == (successor, True)
            async with site.client(stored.credential) as client:
                await client.claim()
        await in_force(site, stored)


async def run_until_killed(file: Path, incarnation: str, step: str) -> None:
    program = [sys.executable, "-m", "tests.integration.ownership.adopter_that_dies"]
    child = await asyncio.create_subprocess_exec(
        *program,
        str(file),
        incarnation,
        step,
        cwd=ROOT,
        env=clean_environment() | {"PYTHONPATH": str(ROOT)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(60):
        output, _ = await child.communicate()
    assert child.returncode == -signal.SIGKILL, output.decode()
