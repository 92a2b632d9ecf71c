"""docs/protocol.md against the code and the server that it describes."""

import asyncio
import json
import os
import shlex
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import aiohttp
from tests.integration.examples.page import ROOT, blocks, code, read, tables
from tests.support.agents import scripted_command
from tests.support.control import RunningServer, held_program, running_server

from tenure.model.masked import Masked
from tenure.protocol import claims, frames
from tenure.protocol.capabilities import ADVERTISED
from tenure.protocol.proof import prove

PAGE = read("protocol.md")
TABLES = tables(PAGE)
STATUSES = {
    code(row[0])[0]: {int(word) for word in row[4].split()} for row in TABLES["route"]
}  # fmt: skip
UNTRIED = {("DELETE /api/v1/instances/{id}", 500)}
"""Needs a process that the kernel does not let anybody end."""


def test_the_test_vector_is_what_a_server_answers() -> None:
    vector = {row[0]: code(row[1])[0] for row in TABLES["vector"]}
    credential, challenge = Masked(vector["credential"]), vector["challenge"]
    assert prove(credential, challenge, vector["home_dir"]) == vector["proof"]
    other = next(label for label in vector if label.startswith("proof with"))
    assert prove(credential, challenge, code(other)[0]) == vector[other]
    command = next(block for block in blocks(PAGE, "sh") if "openssl" in block)
    made = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert made.stdout.strip().endswith(vector["proof"])


def test_the_claims_table_is_what_a_server_reckons() -> None:
    rows = TABLES["asked for"]
    assert rows
    for asked, idle, in_force, changes in rows:
        period = claims.effective_period(int(idle.split()[0]), int(asked))
        assert period.ms == int(in_force)
        assert [change.reason.value for change in period.changes] == code(changes)


def test_every_action_and_capability_is_on_the_page() -> None:
    assert [code(row[0])[0] for row in TABLES["action"]] == [action.value for action in frames.Action]
    assert {code(row[0])[0] for row in TABLES["capability"]} == ADVERTISED


async def test_a_changed_period_is_told_as_the_page_says() -> None:
    [shown] = [json.loads(text) for text in code(PAGE) if text.startswith('{"setting"')]
    flags = {"unowned-period": 600, "idle-timeout": 600}
    async with running_server(flags=flags) as server, aiohttp.ClientSession() as session:
        caller = Caller(server, session)
        owner = await _become_owner(caller)
        assert (await caller.call(DETAILS, 200, by=owner))["adjustments"] == [shown]
        identity = await caller.call("GET /identity", 200)
        assert identity["unowned_period_ms"] == shown["effective_ms"]


async def test_curl_pins_a_certificate_as_the_page_says() -> None:
    [command] = [block for block in blocks(PAGE, "sh") if "--cacert" in block]
    async with running_server(tls=True) as server:
        # The page has an address and a port of its own.
        here = command.replace("10.1.2.3", "127.0.0.1").replace("7443", str(server.port))
        run = await asyncio.create_subprocess_shell(
            here.replace("server.pem", str(server.directory / "tls.crt")),
            env={**os.environ, "IDENTITY": server.identity},
            executable="/bin/bash",
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        output, _ = await run.communicate()
    assert json.loads(output)["server_identity"] == server.identity


class Caller:
    """Calls routes as the page names them, and keeps what came back."""

    def __init__(self, server: RunningServer, session: aiohttp.ClientSession) -> None:
        self.server, self.session = server, session
        self.seen: dict[str, set[int]] = defaultdict(set)

    async def call(
        self, route: str, status: int, *, by: str = "", body: object = None, instance: str = "one"
    ) -> Any:
        method, path = route.split(" ")
        headers = {"Authorization": f"Bearer {by}"} if by else {}
        url = self.server.url + path.replace("{id}", instance)
        async with self.session.request(method, url, headers=headers, json=body) as answer:
            text = await answer.text()
            assert answer.status == status, f"{route}: {answer.status}, {text}"
        self.seen[route].add(status)
        found = json.loads(text)
        assert status < 400 or list(found) == ["error"], f"{route} {status}: {text}"
        return found

    async def stream(self, by: str) -> None:
        url = f"{self.server.url}/api/v1/instances/one/agent/stream"
        async with self.session.ws_connect(url, headers={"Authorization": f"Bearer {by}"}):
            self.seen["GET /api/v1/instances/{id}/agent/stream"].add(101)

    async def overtaken(self, route: str, by: str, body: bytes) -> str:
        """The request is admitted, then the credential is replaced, then its body arrives: the new credential."""
        method, path = route.split(" ")
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        head = [
            f"{method} {path.replace('{id}', 'one')} HTTP/1.1", "Host: x", f"Authorization: Bearer {by}",
            f"Content-Length: {len(body)}", "Expect: 100-continue", "", "",
        ]  # fmt: skip
        writer.write("\r\n".join(head).encode())
        assert b" 100 " in await reader.readline()
        fresh = await self.taken_over(by)
        writer.write(body)
        assert await reader.readline() == b"\r\n"
        status = int((await reader.readline()).split()[1])
        writer.close()
        await writer.wait_closed()
        assert status == 403
        self.seen[route].add(status)
        return fresh

    async def taken_over(self, by: str) -> str:
        rotated = await self.call(ROTATE, 200, by=by)
        fresh = str(rotated["credential"])
        await self.call(CONFIRM, 200, by=fresh, body={"rotation_id": rotated["rotation_id"]})
        return fresh


ROTATE, CONFIRM = "POST /api/v1/ownership/rotate", "POST /api/v1/ownership/confirm"
CLAIM, SHUTDOWN = "POST /api/v1/ownership/claim", "POST /api/v1/ownership/shutdown"
CREATE, LIST = "POST /api/v1/instances", "GET /api/v1/instances"
ONE, STOP = "GET /api/v1/instances/{id}", "DELETE /api/v1/instances/{id}"
ACK, STREAM = "POST /api/v1/instances/{id}/turn-outcome/ack", "GET /api/v1/instances/{id}/agent/stream"
OUTCOME, DETAILS = "GET /api/v1/instances/{id}/turn-outcome", "GET /api/v1/ownership/details"
HANDSHAKE, PROVE = "POST /auth/handshake", "POST /ownership/prove"
OPEN = {"GET /health", "GET /identity", HANDSHAKE, PROVE}


async def test_each_route_gives_each_status_of_its_row(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    program = held_program(gate)
    async with (
        running_server(program=program, flags={"shutdown-grace": 60}) as server,
        aiohttp.ClientSession() as session,
    ):
        caller = Caller(server, session)
        owner = await _become_owner(caller)
        for route in STATUSES.keys() - OPEN:
            await caller.call(route, 401)
            await caller.call(route, 401, by="0" * 64)
        owner = await _own(caller, owner)
        owner = await _host(caller, owner)
        await _shut_down(caller, owner)
        gate.touch()
        assert await server.ended(within=60) == 0
    wanted = {route: statuses - {s for r, s in UNTRIED if r == route} for route, statuses in STATUSES.items()}
    assert caller.seen == wanted


async def _become_owner(caller: Caller) -> str:
    await caller.call("GET /health", 200)
    identity = await caller.call("GET /identity", 200)
    assert set(identity) == {"server_identity", "capabilities", "unowned_period_ms"}
    assert await caller.call(PROVE, 200, body={"challenge": "0" * 64}) == {"proofs": []}
    await caller.call(PROVE, 400, body={"challenge": "0" * 62})
    await caller.call(HANDSHAKE, 400, body={})
    await caller.call(HANDSHAKE, 403, body={"nonce": "guessed-" * 4})
    nonce = {"nonce": caller.server.nonce.reveal()}
    owner = (await caller.call(HANDSHAKE, 200, body=nonce))["token"]
    await caller.call(HANDSHAKE, 403, body=nonce)
    return str(owner)


async def _own(caller: Caller, owner: str) -> str:
    details = await caller.call(DETAILS, 200, by=owner)
    assert set(details) == {"home_dir", "diagnostic_log_path", "adjustments"}
    await caller.call(CLAIM, 200, by=owner)
    challenge = "ab" * 32
    first = await caller.call(ROTATE, 200, by=owner)
    assert await caller.call(ROTATE, 200, by=owner) == first
    proofs = (await caller.call(PROVE, 200, body={"challenge": challenge}))["proofs"]
    assert proofs == [prove(Masked(c), challenge, details["home_dir"]) for c in (first["credential"], owner)]
    for route in STATUSES.keys() - OPEN - {ROTATE, SHUTDOWN}:
        await caller.call(route, 401, by=owner)
    owner = first["credential"]
    await caller.call(CONFIRM, 400, by=owner, body={"rotation_id": 0})
    await caller.call(CONFIRM, 404, by=owner, body={"rotation_id": 2})
    for _ in range(2):
        await caller.call(CONFIRM, 200, by=owner, body={"rotation_id": 1})
    return await caller.overtaken(CONFIRM, owner, b'{"rotation_id": 1}')


async def _host(caller: Caller, owner: str) -> str:
    workspace = str(caller.server.workspace())
    request = {"id": "one", "session_id": "s", "workspace_path": workspace, "auto_start": True,
               "agent_command": scripted_command()}  # fmt: skip
    await caller.call(CREATE, 400, by=owner, body={**request, "workspace_path": "/"})
    await caller.call(CREATE, 400, by=owner, body={})
    await caller.call(CREATE, 500, by=owner, body={**request, "agent_command": "/no/such/program"})
    made = await caller.call(CREATE, 201, by=owner, body=request)
    assert made == {"id": "one", "port": caller.server.port}
    in_use = await caller.call(CREATE, 409, by=owner, body={**request, "id": "two"})
    assert in_use == {"error": "session_in_use"}
    same = await caller.call(CREATE, 409, by=owner, body={**request, "session_id": ""})
    assert same == {"error": "id_in_use"}
    await caller.call(LIST, 200, by=owner)
    await caller.call(ONE, 200, by=owner)
    assert await caller.call(OUTCOME, 200, by=owner) == {"retained": False}
    await caller.call(ACK, 400, by=owner, body={"turn_id": 0})
    await caller.call(ACK, 200, by=owner, body={"turn_id": 1})
    await caller.call(ACK, 200, by=owner, body={"turn_id": 1}, instance="unknown")
    for route in (ONE, STOP, OUTCOME, STREAM):
        await caller.call(route, 404, by=owner, instance="unknown")
    await caller.call(STREAM, 400, by=owner)
    await caller.stream(owner)
    other = {**request, "id": "two", "session_id": "t"}
    await caller.call(CREATE, 201, by=owner, body=other)
    assert await caller.call(STOP, 200, by=owner, instance="two") == {"status": "stopped"}
    owner = await caller.overtaken(CREATE, owner, json.dumps(other).encode())
    return await caller.overtaken(ACK, owner, b'{"turn_id": 1}')


async def _shut_down(caller: Caller, owner: str) -> None:
    rotated = await caller.call(ROTATE, 200, by=owner)
    await caller.call(SHUTDOWN, 200, by=owner)
    owner, challenge = rotated["credential"], "0" * 64
    refused = [route for route, statuses in STATUSES.items() if 409 in statuses]
    await asyncio.gather(
        *(
            caller.call(route, 409, by=owner, body={"challenge": challenge} if route == PROVE else None)
            for route in refused
        ),
        *(caller.call(route, 200, by=owner) for route in ("GET /identity", DETAILS, LIST, SHUTDOWN)),
    )


def shape(value: object) -> object:
    """What a value is made of: the names of its fields, and the kinds of what is in them."""
    match value:
        case dict():
            return {name: shape(one) for name, one in value.items()}
        case list():
            return [shape(one) for one in value[:1]]
        case _:
            return type(value).__name__


async def test_the_session_by_hand_goes_as_it_is_shown() -> None:
    agent = shlex.join([sys.executable, str(ROOT / "examples/agent/agent.py"), "--step-seconds", "0"])
    consoles = blocks(PAGE, "console")
    async with running_server() as server:
        (server.workspace() / "one.txt").write_text("one two three\n")
        env = {
            **os.environ, "URL": server.url, "NONCE": server.nonce.reveal(),
            "WORK": str(server.workspace()), "AGENT": agent,
        }  # fmt: skip
        for console in consoles[:-1]:
            await _retrace(console, env)
        await _converse(server, env["TOKEN"], next(block for block in blocks(PAGE, "json")))
        await _retrace(consoles[-1], env)
        assert await server.ended(within=60) == 0


async def _typed(command: str, env: dict[str, str]) -> str:
    run = await asyncio.create_subprocess_shell(
        command, env=env, executable="/bin/bash", stdout=subprocess.PIPE
    )
    return (await run.communicate())[0].decode()


async def _retrace(console: str, env: dict[str, str]) -> None:
    """Run the commands; each answer has the shape that is shown. A credential in it is the one from then on."""
    for part in console.split("$ curl")[1:]:
        command, shown = ("curl" + part).split("\n", 1)
        output = await _typed(command, env)
        if "DELETE" in command and "try again" in output:
            # On a machine this busy the agent may outlast the budget: the page says that it may be repeated.
            output = await _typed(command, env)
        if not shown.strip():
            assert not output
            continue
        answer = json.loads(output)
        assert shape(answer) == shape(json.loads(shown)), f"{command}: {answer.get('error')}"
        env["TOKEN"] = answer.get("token") or answer.get("credential") or env.get("TOKEN", "")


async def _converse(server: RunningServer, token: str, shown: str) -> None:
    """Say what is said on the page, and hear what is heard there, among other frames, in that order."""
    url = f"{server.url}/api/v1/instances/words/agent/stream?ack=1"
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session,
        session.ws_connect(url, heartbeat=None) as socket,
        asyncio.timeout(150),
    ):
        for line in shown.splitlines():
            frame = json.loads(line[2:])
            if line.startswith(">"):
                await socket.send_str(line[2:])
                continue
            while True:
                heard = json.loads((await socket.receive()).data)
                same = ("type", "id") if "id" in frame else ("type", "seq")
                if all(heard.get(name) == frame.get(name) for name in same) or (
                    heard["type"] == frame["type"] and frame["type"] in ("permission_request", "complete")
                ):
                    break
            assert shape(heard) == shape(frame)
