"""A double of agentctl, the control server of another project, for tests of Tenure's client.

A real HTTP server on loopback with agentctl's ways: plain HTTP, a port for each instance with the stream on it,
a ``prove`` that refuses only an absent challenge, a proof of nothing before the handshake, fields that are
left out when they are empty, a turn 0 where no outcome is retained, details without adjustments, a DELETE that
may take its time. It keeps a state machine of its own: what it shares with Tenure's is the protocol.
"""

import asyncio
import hashlib
import hmac
import json
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from aiohttp import WSMsgType, web

Json = dict[str, Any]
_UNAUTHORIZED = "invalid auth token"
_CLOSING = "control server is shutting down"


@dataclass
class DoubleInstance:
    """One instance, on a port of its own."""

    info: Json
    runner: web.AppRunner
    stream: web.WebSocketResponse | None = None
    waiting: list[Json] = field(default_factory=list)
    outcome: tuple[int, Json] | None = None
    turn: int = 0
    requests: list[Json] = field(default_factory=list)

    async def emit(self, event: Json) -> None:
        """An event of the agent's: to the stream, or kept for the next one."""
        if self.stream is None or self.stream.closed:
            self.waiting.append(event)
        else:
            await self.stream.send_str(json.dumps(event))


class Agentctl:
    """The double; an async context manager that listens on 127.0.0.1.

    ``lose[path]``: how many answers of that path are lost after they took effect: the connection is cut.
    ``delete_seconds``: how long a DELETE takes. ``answers`` counts requests by path, ``claims`` the renewals.
    ``refuse[method, path]``: the status of every answer there, nothing taking effect. ``hold[method, path]``: requests
    there wait for the event before they take effect.
    """

    def __init__(self, *, period_ms: int = 600_000, home_dir: str = "/home/agentctl") -> None:
        self.identity = f"agentctl-{secrets.token_hex(8)}"
        self.home_dir = home_dir
        self.nonce = secrets.token_hex(32)
        self.capabilities = ["agent-survival.v1"]
        self.period_ms = period_ms
        self.delete_seconds = 0.0
        self.lose: Counter[str] = Counter()
        self.refuse: dict[tuple[str, str], int] = {}
        self.hold: dict[tuple[str, str], asyncio.Event] = {}
        self.answers: Counter[str] = Counter()
        self.instances: dict[str, DoubleInstance] = {}
        self.latest = ""
        self.superseded = ""
        self.rotation = 0
        self.renewals = 0
        self.closing = False
        self.port = 0
        self._used = False
        self._turns = 0
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """The control port's."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def acceptable(self) -> tuple[str, ...]:
        """The credentials that it accepts for anything, newest first."""
        return tuple(c for c in (self.latest, self.superseded) if c)

    async def __aenter__(self) -> Self:
        routes = web.Application(middlewares=[self._middleware], client_max_size=8 * 2**20)
        add = routes.router.add_route
        add("GET", "/health", self._health)
        add("GET", "/identity", self._identity)
        add("POST", "/auth/handshake", self._handshake)
        add("POST", "/ownership/prove", self._prove)
        for word in ("rotate", "confirm", "claim", "shutdown"):
            add("POST", f"/api/v1/ownership/{word}", getattr(self, f"_{word}"))
        add("GET", "/api/v1/ownership/details", self._details)
        add("POST", "/api/v1/instances", self._create)
        add("GET", "/api/v1/instances", self._list)
        add("GET", "/api/v1/instances/{id}", self._get)
        add("DELETE", "/api/v1/instances/{id}", self._delete)
        add("GET", "/api/v1/instances/{id}/turn-outcome", self._outcome)
        add("POST", "/api/v1/instances/{id}/turn-outcome/ack", self._ack)
        self._runner, self.port = await _listen(routes, self.port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for instance in tuple(self.instances.values()):
            await instance.runner.cleanup()
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        self.answers[request.path] += 1
        asked = (request.method, request.path)
        refused = self._authenticate(request)
        if refused is None and asked in self.hold:
            await self.hold[asked].wait()
        if refused is None and asked in self.refuse:
            refused = _error(self.refuse[asked], "refused by the test")
        answer = await handler(request) if refused is None else refused
        if self.lose[request.path] > 0:
            self.lose[request.path] -= 1
            assert request.transport is not None
            request.transport.abort()
        return answer

    def _authenticate(self, request: web.Request) -> web.Response | None:
        path = request.path
        if not self.latest or path in ("/health", "/identity", "/auth/handshake", "/ownership/prove"):
            return None
        token = _bearer(request)
        either = path in ("/api/v1/ownership/rotate", "/api/v1/ownership/shutdown")
        accepted = self.acceptable if either else (self.latest,)
        return None if token in accepted else _error(401, _UNAUTHORIZED)

    async def _health(self, request: web.Request) -> web.Response:
        now = "2026-05-01T10:00:00Z"
        return web.json_response({"status": "ok", "timestamp": now, "max_instances": 10})

    async def _identity(self, request: web.Request) -> web.Response:
        told = {"server_identity": self.identity, "capabilities": self.capabilities}
        return web.json_response({**told, "unowned_period_ms": self.period_ms})

    async def _handshake(self, request: web.Request) -> web.Response:
        if self.closing:
            return _error(409, _CLOSING)
        nonce = (await _body(request)).get("nonce")
        if not nonce:
            return _error(400, "missing nonce")
        if nonce != self.nonce or self._used:
            return _error(403, "invalid nonce")
        self._used = True
        self.latest = secrets.token_hex(32)
        self.renewals += 1
        return web.json_response({"token": self.latest})

    async def _prove(self, request: web.Request) -> web.Response:
        if self.closing:
            return _error(409, _CLOSING)
        challenge = (await _body(request)).get("challenge")
        if not challenge:
            return _error(400, "missing or invalid challenge")
        proofs = [self._proof(c, challenge) for c in self.acceptable] or [""]
        return web.json_response({"proofs": proofs})

    def _proof(self, credential: str, challenge: str) -> str:
        message = f"{challenge}\0{self.home_dir}".encode()
        return hmac.new(credential.encode(), message, hashlib.sha256).hexdigest()

    async def _rotate(self, request: web.Request) -> web.Response:
        if self.closing:
            return _error(409, _CLOSING)
        if _bearer(request) != self.superseded:
            self.superseded, self.latest = self.latest, secrets.token_hex(32)
            self.rotation += 1
            for instance in self.instances.values():
                if instance.stream is not None:
                    await instance.stream.close(code=1000)
        self.renewals += 1
        return web.json_response({"rotation_id": self.rotation, "credential": self.latest})

    async def _confirm(self, request: web.Request) -> web.Response:
        if self.closing:
            return _error(409, _CLOSING)
        asked = (await _body(request)).get("rotation_id")
        if not isinstance(asked, int):
            return _error(400, "missing or invalid rotation_id")
        if not 0 < asked <= self.rotation:
            return _error(404, "rotation identifier not issued")
        if asked == self.rotation:
            self.superseded = ""
        return web.json_response({"status": "confirmed"})

    async def _claim(self, request: web.Request) -> web.Response:
        if self.closing:
            return _error(409, _CLOSING)
        self.renewals += 1
        return web.json_response({"status": "claimed"})

    async def _details(self, request: web.Request) -> web.Response:
        told = {"home_dir": self.home_dir, "diagnostic_log_path": f"{self.home_dir}/log"}
        return web.json_response({**told, "process_identity": {"pid": 7, "start": "x"}})

    async def _shutdown(self, request: web.Request) -> web.Response:
        self.closing = True
        return web.json_response({"status": "shutting_down"})

    async def _create(self, request: web.Request) -> web.Response:
        asked = await _body(request)
        if not asked.get("workspace_path"):
            return _error(400, "workspace_path is required")
        session = asked.get("session_id")
        live = [i for i in self.instances.values() if session and i.info.get("session_id") == session]
        if live:
            return _error(409, "session_in_use")
        name = asked.get("id") or secrets.token_hex(8)
        routes = web.Application(middlewares=[self._instance_middleware])

        async def stream(request: web.Request) -> web.StreamResponse:
            return await self._stream(name, request)

        routes.router.add_route("GET", "/api/v1/agent/stream", stream)
        runner, port = await _listen(routes, 0)
        kept = ("workspace_path", "agent_command", "env", "session_id", "task_id", "workspace_source_roots")
        info = {key: asked[key] for key in kept if asked.get(key)}
        info |= {
            "id": name,
            "port": port,
            "status": "running",
            "agent_command": asked.get("agent_command", ""),
        }
        self.instances[name] = DoubleInstance({**info, "created_at": "2026-05-01T10:00:00.5Z"}, runner)
        return web.json_response({"id": name, "port": port}, status=201)

    async def _list(self, request: web.Request) -> web.Response:
        return web.json_response({"instances": [i.info for i in self.instances.values()]})

    async def _get(self, request: web.Request) -> web.Response:
        found = self.instances.get(request.match_info["id"])
        return web.json_response(found.info) if found else _error(404, "instance not found")

    async def _delete(self, request: web.Request) -> web.Response:
        found = self.instances.get(request.match_info["id"])
        if found is None:
            return _error(404, "instance not found")
        await asyncio.sleep(self.delete_seconds)
        self.instances.pop(found.info["id"], None)
        if found.stream is not None:
            await found.stream.close(code=1000, message=b"agent_exited")
        await found.runner.cleanup()
        return web.json_response({"message": "instance stopped successfully"})

    async def _outcome(self, request: web.Request) -> web.Response:
        found = self.instances.get(request.match_info["id"])
        if found is None:
            return _error(404, "instance not found")
        if found.outcome is None:
            return web.json_response({"retained": False, "turn_id": 0, "event": {"type": ""}})
        turn, event = found.outcome
        return web.json_response({"retained": True, "turn_id": turn, "event": event})

    async def _ack(self, request: web.Request) -> web.Response:
        turn = (await _body(request)).get("turn_id")
        if not turn:
            return _error(400, "turn_id is required")
        found = self.instances.get(request.match_info["id"])
        if found is not None and found.outcome is not None and found.outcome[0] == turn:
            found.outcome = None
        return web.json_response({"status": "acked"})

    # The instance's own port

    @web.middleware
    async def _instance_middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        self.answers[f"instance {request.path}"] += 1
        if _bearer(request) != self.latest:
            return _error(401, _UNAUTHORIZED)
        return await handler(request)

    async def _stream(self, name: str, request: web.Request) -> web.StreamResponse:
        instance = self.instances[name]
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        older, instance.stream = instance.stream, socket
        if older is not None:
            await older.close(code=1000)
        waiting, instance.waiting = instance.waiting, []
        for event in waiting:
            await socket.send_str(json.dumps(event))
        async for message in socket:
            if message.type is not WSMsgType.TEXT:
                break
            asked = json.loads(message.data)
            instance.requests.append(asked)
            await self._act(instance, asked)
        return socket

    async def _act(self, instance: DoubleInstance, asked: Json) -> None:
        if asked.get("type") != "request" or instance.stream is None:
            return
        head = {"id": asked["id"], "action": asked["action"], "timestamp": "2026-05-01T10:00:00Z"}
        if asked["action"] != "agent.prompt":
            refused = {"code": "UNKNOWN_ACTION", "message": "unknown action"}
            await instance.stream.send_str(json.dumps({**head, "type": "error", "payload": refused}))
            return
        self._turns += 1
        instance.turn, instance.outcome = self._turns, None
        answer = {**head, "type": "response", "payload": {"success": True, "turn_id": self._turns}}
        await instance.stream.send_str(json.dumps(answer))

    async def finish(self, name: str) -> int:
        """The running turn of an instance ends: retained, and told. Returns its id."""
        instance = self.instances[name]
        event = {"type": "complete", "control_turn_id": instance.turn, "stop_reason": "end_turn"}
        instance.outcome = (instance.turn, event)
        await instance.emit(event)
        return instance.turn


async def _listen(routes: web.Application, port: int) -> tuple[web.AppRunner, int]:
    runner = web.AppRunner(routes, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    return runner, int(runner.addresses[0][1])


async def _body(request: web.Request) -> Json:
    try:
        found = await request.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _bearer(request: web.Request) -> str:
    return request.headers.get("Authorization", "").removeprefix("Bearer ")


def _error(status: int, text: str) -> web.Response:
    return web.json_response({"error": text}, status=status)
