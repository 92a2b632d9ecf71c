"""Who owns a real server: what the routes answer to whom, what is cut, and how it ends."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from tests.support.agents import scripted_command
from tests.support.control import (
    Asker,
    RunningServer,
    asking,
    fast_program,
    held_program,
    living,
    running_server,
)
from tests.support.wait import eventually

from tenure.control.lifetime import EXIT_UNOWNED
from tenure.control.owner import Owner
from tenure.control.routes import NOT_PERMITTED
from tenure.model.masked import Masked
from tenure.protocol.capabilities import ADVERTISED
from tenure.protocol.claims import renewal_interval
from tenure.protocol.proof import new_challenge, verify

OWNERSHIP = "/api/v1/ownership"
INSTANCES = "/api/v1/instances"
AUTHENTICATED = [
    ("POST", f"{OWNERSHIP}/rotate"),
    ("POST", f"{OWNERSHIP}/confirm"),
    ("POST", f"{OWNERSHIP}/claim"),
    ("GET", f"{OWNERSHIP}/details"),
    ("POST", f"{OWNERSHIP}/shutdown"),
    ("POST", INSTANCES),
    ("GET", INSTANCES),
    ("GET", f"{INSTANCES}/x"),
    ("DELETE", f"{INSTANCES}/x"),
    ("GET", f"{INSTANCES}/x/turn-outcome"),
    ("POST", f"{INSTANCES}/x/turn-outcome/ack"),
    ("GET", f"{INSTANCES}/x/agent/stream"),
]
"""Every route but those that anyone may call."""


@pytest.fixture
async def server() -> AsyncIterator[RunningServer]:
    async with running_server() as running:
        yield running


@pytest.fixture
async def client(server: RunningServer) -> AsyncIterator[Asker]:
    async with asking(server) as asker:
        yield asker


async def rotated(client: Asker, token: str) -> tuple[int, str]:
    status, body = await client.ask("POST", f"{OWNERSHIP}/rotate", token=token)
    assert (status, set(body)) == (200, {"rotation_id", "credential"})
    return body["rotation_id"], body["credential"]


async def confirm(client: Asker, token: str, rotation_id: int) -> tuple[int, object]:
    return await client.ask("POST", f"{OWNERSHIP}/confirm", {"rotation_id": rotation_id}, token=token)


@pytest.mark.accept("O-001.11")
async def test_anybody_learns_identity_capabilities_and_period_and_nothing_else(
    server: RunningServer, client: Asker
) -> None:
    token = await client.handshake()
    for asker in (None, token, "f" * 64):
        assert await client.ask("GET", "/identity", token=asker) == (
            200,
            {
                "server_identity": server.identity,
                "capabilities": sorted(ADVERTISED),
                "unowned_period_ms": 600_000,
            },
        )


async def test_the_handshake_works_once_and_says_why_not(server: RunningServer, client: Asker) -> None:
    for body, status in (
        [{}, 400],
        [{"nonce": ""}, 400],
        [{"nonce": 5}, 400],
        [[], 400],
        [{"nonce": "no"}, 403],
    ):
        assert (await client.ask("POST", "/auth/handshake", body))[0] == status
    token = await client.handshake()
    assert len(token) == 64
    assert await client.ask("POST", "/auth/handshake", {"nonce": server.nonce.reveal()}) == (
        403,
        {"error": "the nonce has been used"},
    )


@pytest.mark.accept("O-001.10")
async def test_a_server_proves_that_it_holds_each_acceptable_credential(
    server: RunningServer, client: Asker
) -> None:
    challenge = new_challenge()
    assert await client.ask("POST", "/ownership/prove", {"challenge": challenge}) == (200, {"proofs": []})
    first = await client.handshake()
    _, second = await rotated(client, first)
    _, answer = await client.ask("POST", "/ownership/prove", {"challenge": challenge})
    newest, superseded = answer["proofs"]
    assert verify([newest], Masked(second), challenge, server.home_dir)
    assert verify([superseded], Masked(first), challenge, server.home_dir)
    for wrong in ("", challenge[:-1], challenge + "0", "z" * 64, 7, None):
        assert (await client.ask("POST", "/ownership/prove", {"challenge": wrong}))[0] == 400


@pytest.mark.accept("O-002.1")
async def test_after_the_confirmation_the_old_credential_is_refused_everywhere(client: Asker) -> None:
    old = await client.handshake()
    rotation_id, new = await rotated(client, old)
    assert await confirm(client, new, rotation_id) == (200, {"status": "confirmed"})
    for method, path in AUTHENTICATED:
        status, body = await client.ask(method, path, token=old)
        assert (status, set(body)) == (401, {"error"}), path
        status, _ = await client.ask(method, path)
        assert status == 401, path
    assert (await client.ask("POST", f"{OWNERSHIP}/claim", token=new))[0] == 200


async def test_until_the_confirmation_the_old_credential_may_rotate_and_shut_down_and_no_more(
    client: Asker,
) -> None:
    old = await client.handshake()
    first = await rotated(client, old)
    for method, path in AUTHENTICATED:
        if not path.endswith(("rotate", "shutdown")):
            assert (await client.ask(method, path, token=old))[0] == 401, path
    assert await rotated(client, old) == first


@pytest.mark.accept("O-002.6")
async def test_ids_increase_and_confirmations_are_told_apart(client: Asker) -> None:
    token = await client.handshake()
    one, token = await rotated(client, token)
    two, token = await rotated(client, token)
    assert (one, two) == (1, 2)
    assert (await confirm(client, token, 3))[0] == 404
    for rotation_id in (1, 2, 2, 1):
        assert (await confirm(client, token, rotation_id))[0] == 200
    for malformed in ({}, {"rotation_id": 0}, {"rotation_id": "2"}, {"rotation_id": 2**63}, []):
        assert (await client.ask("POST", f"{OWNERSHIP}/confirm", malformed, token=token))[0] == 400


@pytest.mark.accept("O-002.7", "O-002.10")
async def test_whoever_dies_after_any_step_of_a_rotation_shares_a_credential_with_the_server(
    server: RunningServer, client: Asker
) -> None:
    old = await client.handshake()
    # Asked, and dead before the answer: the old credential gets the same answer again, any number of times.
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = f"POST {OWNERSHIP}/rotate HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {old}\r\nContent-Length: 0\r\n\r\n"
    writer.write(head.encode())
    await writer.drain()
    writer.close()
    await eventually(lambda: any(line["event"] == "rotated" for line in server.logs()), within=60)
    rotation_id, new = await rotated(client, old)
    assert rotation_id == 1
    assert await rotated(client, old) == (rotation_id, new)
    # Stored, and dead before the confirmation: the new one is good for everything, the confirmation too.
    assert (await client.ask("GET", INSTANCES, token=new))[0] == 200
    # Confirmed, and dead before the answer: it is confirmed again.
    assert (await confirm(client, new, rotation_id))[0] == 200
    assert (await confirm(client, new, rotation_id))[0] == 200
    # And where the new one was never stored, the next rotation makes another from it.
    again, newer = await rotated(client, new)
    assert again == 2
    assert await rotated(client, new) == (again, newer)


@pytest.mark.accept("O-002.2")
async def test_a_rotation_closes_every_stream_before_it_is_answered_and_no_peer_can_hold_it_up(
    server: RunningServer, client: Asker
) -> None:
    old = await client.handshake()
    ids = [await client.create(old, scripted_command(), session_id=f"s{n}") for n in range(2)]
    bearer = {"Authorization": f"Bearer {old}"}
    polite = await client.http.ws_connect(f"{INSTANCES}/{ids[0]}/agent/stream", headers=bearer)
    # This one reads nothing, and answers no close.
    _, stalled = await asyncio.open_connection("127.0.0.1", server.port)
    stalled.write(
        (
            f"GET {INSTANCES}/{ids[1]}/agent/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {old}\r\n"
            "Upgrade: websocket\r\nConnection: upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        ).encode()
    )
    await stalled.drain()

    async def read() -> None:
        async for _ in polite:
            pass

    reading = asyncio.create_task(read())
    try:
        async with asyncio.timeout(8):
            await rotated(client, old)
        await asyncio.wait_for(reading, 1)
        assert polite.closed
        # The connections themselves go a moment after their streams: long before a mute peer would lose its own.
        await eventually(lambda: server_streams(server) == 0, within=3)
    finally:
        reading.cancel()
        stalled.close()
    refused = f"{INSTANCES}/{ids[0]}/agent/stream"
    with pytest.raises(aiohttp.WSServerHandshakeError) as error:
        await client.http.ws_connect(refused, headers=bearer)
    assert error.value.status == 401


@pytest.mark.accept("O-002.1")
async def test_a_request_whose_credential_is_superseded_while_its_body_arrives_has_no_effect(
    server: RunningServer, client: Asker
) -> None:
    old = await client.handshake()
    order = {
        "workspace_path": str(server.workspace()),
        "agent_command": scripted_command(),
        "session_id": "s",
    }
    body = json.dumps(order).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = (
        f"POST {INSTANCES} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {old}\r\n"
        f"Content-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n"
    )
    try:
        async with asyncio.timeout(20):
            writer.write(head.encode())
            # So it was permitted.
            assert b" 100 " in await reader.readline()
            writer.write(body[:10])
            _, new = await rotated(client, old)
            writer.write(body[10:])
            assert await reader.readline() == b"\r\n"
            assert b" 403 " in await reader.readline()
    finally:
        writer.close()
    assert await client.ask("GET", INSTANCES, token=new) == (200, {"instances": []})


SLOW_UPGRADES = """
import asyncio, os, sys
from tenure.control import routes
made, gate = routes.stream_socket, os.environ["GATE"]
def slow():
    socket = made()
    prepare = socket.prepare
    async def held(request):
        open(gate + ".reached", "w").close()
        while not os.path.exists(gate):
            await asyncio.sleep(0.01)
        return await prepare(request)
    socket.prepare = held
    return socket
routes.stream_socket = slow
from tenure.cli.main import app
app()
"""


@pytest.mark.accept("O-002.2")
async def test_a_stream_whose_credential_is_superseded_while_it_is_opened_is_not_attached(
    tmp_path: Path,
) -> None:
    """The rotation has closed every stream by then, and this one would be none of them."""
    gate = tmp_path / "gate"
    program = (sys.executable, "-c", SLOW_UPGRADES, "control-server")
    async with running_server(program=program, env={"GATE": str(gate)}) as server, asking(server) as client:
        old = await client.handshake()
        one = await client.create(old, scripted_command())
        bearer = {"Authorization": f"Bearer {old}"}
        path = f"{INSTANCES}/{one}/agent/stream"
        opening = asyncio.create_task(client.http.ws_connect(path, headers=bearer))
        await eventually((tmp_path / "gate.reached").exists, within=20)
        await rotated(client, old)
        gate.touch()
        async with asyncio.timeout(20):
            stream = await opening
            ended = await stream.receive()
        assert (ended.type, ended.data) == (aiohttp.WSMsgType.CLOSE, NOT_PERMITTED)
        await stream.close()


def server_streams(server: RunningServer) -> int:
    """Connections of the server's beyond the one that a client of HTTP keeps."""
    import psutil

    established = [c for c in psutil.Process(server.pid).net_connections("tcp") if c.status == "ESTABLISHED"]
    return len(established) - 1


@pytest.mark.accept("O-002.9")
@pytest.mark.parametrize("which", ["newest", "superseded"])
async def test_either_credential_orders_the_end_which_is_answered_before_it_comes(
    server: RunningServer, client: Asker, which: str
) -> None:
    old = await client.handshake()
    _, new = await rotated(client, old)
    await client.create(new, scripted_command())
    agents = server.descendants()
    token = new if which == "newest" else old
    assert await client.ask("POST", f"{OWNERSHIP}/shutdown", token=token) == (
        200,
        {"status": "shutting_down"},
    )
    assert await server.ended() == 0
    assert not [agent for agent in agents if living(agent)]
    assert json.loads(server.termination_message.read_text())["ended"] == "ordered"


@pytest.mark.accept("O-003.9")
async def test_a_server_that_is_ending_says_so_and_cannot_be_talked_out_of_it(
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    async with (
        running_server(program=held_program(gate), flags={"shutdown-grace": 60}) as server,
        asking(server) as client,
    ):
        token = await client.handshake()
        await client.create(token, scripted_command())
        assert (await client.ask("POST", f"{OWNERSHIP}/shutdown", token=token))[0] == 200
        answers = {
            path: (await client.ask(method, path, body, token=token))[0]
            for method, path, body in [
                ("POST", f"{OWNERSHIP}/claim", None),
                ("POST", f"{OWNERSHIP}/rotate", None),
                ("POST", f"{OWNERSHIP}/confirm", {"rotation_id": "malformed"}),
                ("POST", "/ownership/prove", {"challenge": "malformed"}),
                ("POST", "/auth/handshake", {}),
                ("POST", INSTANCES, {}),
            ]
        }
        assert set(answers.values()) == {409}, answers
        assert (await client.ask("GET", "/identity"))[0] == 200
        assert (await client.ask("POST", f"{OWNERSHIP}/shutdown", token=token))[0] == 200
        assert (await client.ask("POST", f"{OWNERSHIP}/claim", token="0" * 64))[0] == 401
        assert server.process.poll() is None
        gate.touch()
        assert await server.ended() == 0


SPEED = 30.0
MINUTE = {"unowned-period": 60}


@pytest.mark.accept("O-003.1")
@pytest.mark.parametrize("handshaken", [True, False])
async def test_a_server_that_nobody_claims_stops_its_instances_and_itself_and_says_why(
    handshaken: bool,
) -> None:
    async with running_server(program=fast_program(SPEED), flags=MINUTE) as server, asking(server) as client:
        agents = []
        if handshaken:
            await client.create(await client.handshake(), scripted_command())
            agents = server.descendants()
            assert agents
        assert await server.ended() == EXIT_UNOWNED
        assert not [agent for agent in agents if living(agent)]
        assert json.loads(server.termination_message.read_text()) == {
            "ended": "unowned",
            "server_identity": server.identity,
            "unowned_period_ms": 60_000,
        }


@pytest.mark.accept("O-003.2")
async def test_an_owner_that_renews_keeps_its_server_though_two_of_three_renewals_fail() -> None:
    async with running_server(program=fast_program(SPEED), flags=MINUTE) as server, asking(server) as client:
        token = await client.handshake()
        begin = time.monotonic()
        # On the server's clock: four periods, claimed at every third renewal only.
        while time.monotonic() - begin < 4 * 60 / SPEED:
            assert (await client.ask("POST", f"{OWNERSHIP}/claim", token=token))[0] == 200
            await asyncio.sleep(3 * renewal_interval(60_000) / SPEED * 0.8)
        assert server.process.poll() is None
        assert await server.ended() == EXIT_UNOWNED


@pytest.mark.accept("O-003.8")
async def test_a_busy_stranger_and_an_owner_that_only_looks_renew_nothing() -> None:
    async with running_server(program=fast_program(SPEED), flags=MINUTE) as server, asking(server) as client:
        token = await client.handshake()
        with pytest.raises((aiohttp.ClientError, AssertionError)):
            for _ in range(10_000):
                for method, path in [("GET", "/health"), ("GET", INSTANCES), ("GET", f"{OWNERSHIP}/details")]:
                    assert (await client.ask(method, path, token=token))[0] == 200
                assert (await client.ask("POST", "/ownership/prove", {"challenge": new_challenge()}))[
                    0
                ] == 200
                await asyncio.sleep(0.02)
        assert await server.ended() == EXIT_UNOWNED


@pytest.mark.accept("O-003.4")
async def test_a_changed_period_is_advertised_and_told_to_the_owner() -> None:
    flags = {"unowned-period": 600, "idle-timeout": 400}
    async with running_server(flags=flags) as server, asking(server) as client:
        assert (await client.ask("GET", "/identity"))[1]["unowned_period_ms"] == 200_000
        _, details = await client.ask("GET", f"{OWNERSHIP}/details", token=await client.handshake())
        assert details["adjustments"] == [
            {
                "setting": "unowned_period",
                "requested_ms": 600_000,
                "effective_ms": 200_000,
                "reason": "not_shorter_than_idle_timeout",
            }
        ]
        assert server.process.poll() is None


def test_the_owner_lives_on_a_monotonic_clock_unless_told_otherwise() -> None:
    import inspect

    assert inspect.signature(Owner).parameters["clock"].default is time.monotonic
