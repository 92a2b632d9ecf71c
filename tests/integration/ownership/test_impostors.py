"""Servers that are not ours get no byte of a credential: every byte that an impostor receives is counted."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from tests.integration.ownership.memory import MemoryStore
from tests.integration.ownership.site import Site, agentctl, endpoint_of
from tests.support import impostors
from tests.support.control import running_server
from tests.support.impostors import IDENTITY, Certificate, Impostor, answer, identity, proving

from tenure.model.adoption import AdoptionOutcome, AdoptionReason
from tenure.model.masked import Masked
from tenure.ownership.adoption import Adopter
from tenure.ownership.client import ControlClient
from tenure.ownership.endpoint import Endpoint, ReadBudget
from tenure.ownership.errors import BadAnswer, ControlError, Doubt, ForeignServer, NoAnswer, NotAccepted
from tenure.ownership.holding import Holding
from tenure.protocol.messages import CreateRequest
from tenure.protocol.proof import prove

HOME = "/home/of/ours"
CREDENTIAL = secrets.token_hex(32)
FAST = ReadBudget(timeout=2.0, retries=1)

CALLS: dict[str, Callable[[ControlClient], Awaitable[object]]] = {
    "rotate": lambda c: c.rotate(),
    "confirm": lambda c: c.confirm(1),
    "claim": lambda c: c.claim(),
    "details": lambda c: c.details(),
    "shutdown": lambda c: c.shutdown(),
    "create": lambda c: c.create(CreateRequest(id="i-1", workspace_path="/w", env={})),
    "instances": lambda c: c.instances(environment=True),
    "instance": lambda c: c.instance("i-1"),
    "delete": lambda c: c.delete("i-1"),
    "outcome": lambda c: c.outcome("i-1"),
    "acknowledge": lambda c: c.acknowledge("i-1", 1),
    "stream": lambda c: c.stream("i-1"),
}


def client_of(
    url: str | Endpoint, credential: str = CREDENTIAL, *, home: str = HOME, name: str | None = IDENTITY
) -> ControlClient:
    endpoint = url if isinstance(url, Endpoint) else Endpoint(url)
    return ControlClient(
        endpoint, credential=Masked(credential), home_dir=home, expected_identity=name, budget=FAST
    )


async def recorded(credential: str) -> list[str]:
    """Proofs that a real server gave to somebody, for challenges of theirs."""
    return [prove(Masked(credential), secrets.token_hex(32), HOME) for _ in range(2)]


FOREIGN = {
    "echo": impostors.echo(),
    "random": impostors.random_proofs(),
    "none": proving(lambda challenge: []),
    "empty": proving(lambda challenge: ["", ""]),
    "short": proving(lambda challenge: ["a", "ab"]),
    "other home": proving(lambda challenge: [prove(Masked(CREDENTIAL), challenge, "/elsewhere")]),
    "upper case": proving(lambda challenge: [prove(Masked(CREDENTIAL), challenge, HOME).upper()]),
    "no text": proving(lambda challenge: [7, None]),
    "too many": proving(lambda challenge: ["a" * 64] * 1000),
    "other identity": proving(lambda challenge: [prove(Masked(CREDENTIAL), challenge, HOME)], name="other"),
}


@pytest.mark.accept("O-001.2", "O-001.10", "K-7")
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", FOREIGN)
async def test_whoever_does_not_prove_possession_gets_no_byte_by_any_call(kind: str, call: str) -> None:
    async with Impostor(FOREIGN[kind]) as impostor, client_of(impostor.url) as client:
        with pytest.raises(ForeignServer):
            await client.prove()
        with pytest.raises(ForeignServer):
            await CALLS[call](client)
        assert impostor.seen
        assert not impostor.saw(CREDENTIAL)
        assert {path for _, path in impostor.requests} <= {"/identity", "/ownership/prove"}


@pytest.mark.accept("O-001.10")
async def test_a_proof_of_yesterday_verifies_nothing_today() -> None:
    async with Impostor(impostors.replay(await recorded(CREDENTIAL))) as impostor:
        async with client_of(impostor.url) as client:
            with pytest.raises(ForeignServer):
                await client.claim()
        assert not impostor.saw(CREDENTIAL)


@pytest.mark.accept("O-001.10")
async def test_no_challenge_is_ever_used_twice() -> None:
    challenges: list[str] = []

    def proofs(challenge: str) -> list[str]:
        challenges.append(challenge)
        return []

    async with Impostor(proving(proofs)) as impostor, client_of(impostor.url) as client:
        for _ in range(5):
            with pytest.raises(ForeignServer):
                await client.claim()
    assert len(set(challenges)) == len(challenges) == 5
    assert all(len(challenge) == 64 for challenge in challenges)


@pytest.mark.accept("O-001.5")
@pytest.mark.parametrize(
    "told",
    [
        answer({"capabilities": ["agent-survival.v1"], "unowned_period_ms": 1}),
        answer({"server_identity": IDENTITY, "unowned_period_ms": 1}),
        identity(IDENTITY, []),
        identity(""),
        answer({}, 404),
        answer(b"<html>"),
        answer({}, 500),
    ],
    ids=["no identity", "no capabilities", "none of them", "empty", "404", "a page", "500"],
)
async def test_a_server_without_identity_or_capabilities_is_foreign(told: bytes) -> None:
    async with Impostor(lambda method, path, body: told) as impostor, client_of(impostor.url) as client:
        with pytest.raises(ForeignServer) as foreign:
            await client.claim()
        assert foreign.value.doubt is Doubt.IDENTITY
        assert not impostor.saw(CREDENTIAL)


@pytest.mark.accept("K-7")
@pytest.mark.parametrize("call", CALLS)
async def test_a_recycled_address_gets_no_byte_even_right_after_a_good_call(call: str) -> None:
    async with agentctl() as site, await site.owned() as client:
        assert site.double is not None
        await client.claim()
        credential = site.double.latest
        await site.double.__aexit__(None, None, None)
        for reply in (impostors.echo(), proving(lambda c: [], name=site.identity)):
            async with Impostor(reply, port=site.double.port) as impostor:
                with pytest.raises(ControlError):
                    await CALLS[call](client)
                assert impostor.seen and not impostor.saw(credential)


@pytest.mark.accept("K-7")
async def test_a_connection_that_ends_after_the_proof_is_not_made_anew_with_the_credential() -> None:
    async with agentctl() as site, await site.owned() as owner:
        assert site.double is not None
        relayed = impostors.relay(site.double.url)

        async def proves_and_hangs_up(method: str, path: str, body: bytes) -> bytes | None:
            said = await relayed(method, path, body)  # type: ignore[misc]
            if path == "/ownership/prove":
                return bytes(said).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
            return said

        async with Impostor(proves_and_hangs_up) as impostor:
            credential = site.double.latest
            async with client_of(impostor.url, credential, home=site.home_dir, name=site.identity) as client:
                for call in ("claim", "details", "rotate", "stream"):
                    with pytest.raises(NoAnswer):
                        await CALLS[call](client)
            assert not impostor.saw(credential)
        await owner.claim()


async def test_on_plain_loopback_a_relay_is_not_noticed_and_that_is_why_the_network_needs_tls() -> None:
    """The documented limit: whoever can listen on this machine and knows the port of the real server."""
    async with agentctl() as site, await site.owned():
        assert site.double is not None
        async with Impostor(impostors.relay(site.double.url)) as impostor:
            credential = site.double.latest
            async with client_of(impostor.url, credential, home=site.home_dir, name=site.identity) as client:
                await client.claim()
            assert impostor.saw(credential)


@asynccontextmanager
async def with_tls() -> AsyncIterator[Site]:
    async with running_server(tls=True) as server:
        site = Site(
            endpoint_of(server),
            server.identity,
            server.home_dir,
            server.nonce,
            server.workspaces,
            real=server,
        )
        yield site


@pytest.mark.accept("K-7", "O-001.2")
async def test_a_relay_in_front_of_a_server_with_a_pinned_certificate_receives_nothing() -> None:
    async with with_tls() as site, await site.owned() as owner:
        credential = owner._calls.credential
        assert credential is not None
        own = Certificate(site.endpoint.server_name)
        ca = Certificate(site.endpoint.server_name, ca=True)
        issued = Certificate(site.endpoint.server_name, ca)
        other_name = Certificate("other.tenure.invalid")
        cases = {
            "another key": (own, site.endpoint.certificate),
            "issued by what is pinned": (issued, ca.pem),
            "another name": (other_name, other_name.pem),
        }
        for kind, (presented, pinned) in cases.items():
            relay = impostors.relay(site.endpoint.url)
            async with Impostor(relay, context=presented.context()) as impostor:
                endpoint = Endpoint(impostor.url, site.endpoint.server_name, pinned)
                async with client_of(
                    endpoint, credential.reveal(), home=site.home_dir, name=site.identity
                ) as client:
                    for call in CALLS:
                        with pytest.raises(ForeignServer) as foreign:
                            await CALLS[call](client)
                        assert foreign.value.doubt is Doubt.CERTIFICATE, kind
                assert not impostor.seen, kind
        await owner.claim()


@pytest.mark.accept("K-7")
async def test_a_plain_server_where_tls_is_expected_receives_nothing_that_it_can_read() -> None:
    pinned = Certificate("x.tenure.invalid")
    async with Impostor(impostors.echo()) as impostor:
        endpoint = Endpoint(impostor.url.replace("http:", "https:"), "x.tenure.invalid", pinned.pem)
        async with client_of(endpoint) as client:
            with pytest.raises(ControlError):
                await client.claim()
        assert not impostor.saw(CREDENTIAL)


@pytest.mark.accept("K-7")
async def test_nobody_is_followed_elsewhere() -> None:
    async with agentctl() as site, await site.owned():
        assert site.double is not None
        site.double.answers.clear()
        credential = site.double.latest

        def proven_then_elsewhere(method: str, path: str, body: bytes) -> bytes | None:
            if path == "/identity":
                return identity(site.identity)
            if path == "/ownership/prove":
                challenge = json.loads(body)["challenge"]
                return answer({"proofs": [prove(Masked(credential), challenge, site.home_dir)]})
            return answer(b"", 307, f"Location: {site.double.url}{path}")  # type: ignore[union-attr]

        for reply in (impostors.redirector(site.double.url), proven_then_elsewhere):
            async with (
                Impostor(reply) as impostor,
                client_of(impostor.url, credential, home=site.home_dir, name=site.identity) as client,
            ):
                for call in CALLS:
                    with pytest.raises((BadAnswer, ForeignServer)):
                        await CALLS[call](client)
        assert not site.double.answers


async def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with agentctl() as site, Impostor(impostors.echo()) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "https_proxy"):
            monkeypatch.setenv(name, proxy.url)
        async with await site.owned() as client:
            await client.claim()
        assert not proxy.seen


@pytest.mark.accept("O-001.3", "O-004.1", "O-002.5")
@pytest.mark.parametrize("kind", [*FOREIGN, "incompatible too"])
async def test_a_foreign_server_is_refused_for_being_foreign_whatever_it_is_capable_of(kind: str) -> None:
    incompatible = proving(lambda challenge: [challenge])

    def less(method: str, path: str, body: bytes) -> bytes | None:
        if path == "/identity":
            return identity(IDENTITY, ["something-else.v1"])
        return incompatible(method, path, body)  # type: ignore[return-value]

    async with Impostor(FOREIGN.get(kind, less)) as impostor:
        store = MemoryStore(
            Holding(IDENTITY, HOME, Endpoint(impostor.url), Masked(CREDENTIAL), adopted_by="old")
        )
        done = await Adopter(store, "new", budget=FAST).adopt()
        assert (done.outcome, done.reason) == (AdoptionOutcome.REFUSED, AdoptionReason.IDENTITY_MISMATCH)
        assert store.stores == 0
        # Nothing that could stop it, either.
        assert {path for _, path in impostor.requests} <= {"/identity", "/ownership/prove"}
        assert not impostor.saw(CREDENTIAL)


async def test_a_server_that_proved_and_then_does_not_any_more_has_dropped_us() -> None:
    async with agentctl() as site, await site.owned() as client:
        assert site.double is not None
        await client.claim()
        site.double.latest = secrets.token_hex(32)
        with pytest.raises(NotAccepted) as refused:
            await client.claim()
        assert refused.value.superseded
        with pytest.raises(ForeignServer):
            await client.prove()


async def test_the_credential_of_a_client_is_in_no_text_of_its_errors() -> None:
    async with Impostor(impostors.echo()) as impostor, client_of(impostor.url) as client:
        try:
            await client.claim()
        except ForeignServer as error:
            seen: BaseException | None = error
            while seen is not None:
                assert CREDENTIAL not in f"{seen!s}{seen!r}{vars(seen)}"
                seen = seen.__cause__ or seen.__context__
        await asyncio.sleep(0)
