"""Instances with real agents behind real WebSockets, in the test's own loop; the routes are not part of it.

async with hosting(tmp_path) as host:
    reader = await host.attached(await host.made())
    turn = await reader.prompt("say hello")
"""

import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import WSCloseCode, WSMsgType, web
from tests.support.agents import scripted_command
from tests.support.wait import eventually

from tenure.control.acp import Link
from tenure.control.instances import (
    Hosted,
    HostingConfig,
    Instances,
    Timing,
    stream_socket,
    wants_acknowledgement,
)
from tenure.control.instances.hosted import StartAgent
from tenure.protocol.messages import CreateRequest

SOON = 30.0
"""The limit of every wait: reached by what is broken, never by what is slow."""
Json = dict[str, Any]


class Clock:
    """Seconds that only pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Closed(Exception):
    """The server closed the stream, with this code."""

    def __init__(self, code: int | None) -> None:
        super().__init__(f"closed with {code}")
        self.code = code


class Reader:
    """A backend's side of one stream, without any help from the product's own client."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        self.ws = ws
        self._ids = itertools.count(1)
        self.events: list[Json] = []
        """Events that came while an answer was waited for, and were not taken."""
        self.answers: dict[str, Json] = {}

    async def send(self, action: str, payload: object = None) -> str:
        number = str(next(self._ids))
        await self.ws.send_str(
            json.dumps({"id": number, "type": "request", "action": action, "payload": payload})
        )
        return number

    async def acknowledge(self, seq: int) -> None:
        """``agent.events.ack``."""
        told = {"type": "notification", "action": "agent.events.ack", "payload": {"seq": seq}}
        await self.ws.send_str(json.dumps(told))

    async def answer(self, number: str) -> Json:
        """The frame that answers a request."""
        while number not in self.answers:
            await self._read()
        return self.answers.pop(number)

    async def asked(self, action: str, payload: object = None) -> Json:
        """Ask, and the answering frame."""
        return await self.answer(await self.send(action, payload))

    async def granted(self, action: str, payload: object = None) -> Any:
        """Ask for what has to be granted: the payload of the answer."""
        answer = await self.asked(action, payload)
        assert answer["type"] == "response", answer
        return answer.get("payload")

    async def refused(self, action: str, payload: object = None) -> str:
        """Ask for what has to be refused: the code."""
        answer = await self.asked(action, payload)
        assert answer["type"] == "error", answer
        return str(answer["payload"]["code"])

    async def prompt(self, text: str, **more: object) -> int:
        """Begin a turn: its id."""
        return int((await self.granted("agent.prompt", {"text": text, **more}))["turn_id"])

    async def opened(self) -> str:
        """Initialize the agent and open a session: the provider's id."""
        await self.granted("agent.initialize")
        return str((await self.granted("agent.session.new"))["session_id"])

    async def event(self) -> Json:
        """The next event."""
        while not self.events:
            await self._read()
        return self.events.pop(0)

    async def until(self, type_: str) -> list[Json]:
        """The events up to the first one of this type, which is the last one returned."""
        seen = [await self.event()]
        while seen[-1]["type"] != type_:
            seen.append(await self.event())
        return seen

    async def closed(self) -> int | None:
        """Read until the server closes: the code."""
        try:
            while True:
                await self._read()
        except Closed as closed:
            return closed.code

    async def aclose(self) -> None:
        """Detach."""
        await self.ws.close()

    def abort(self) -> None:
        """Vanish as a killed process does."""
        connection = self.ws.get_extra_info("socket")
        transport = self.ws._response.connection.transport  # type: ignore[union-attr]
        assert connection is not None
        assert transport is not None
        transport.abort()

    async def _read(self) -> None:
        try:
            message = await self.ws.receive(SOON)
        except ConnectionError:
            # A ping that came before, to be answered on a connection that was severed since.
            raise Closed(WSCloseCode.ABNORMAL_CLOSURE) from None
        if message.type is not WSMsgType.TEXT:
            raise Closed(message.data if message.type is WSMsgType.CLOSE else self.ws.close_code)
        frame = json.loads(message.data)
        if frame["type"] == "response" or (frame["type"] == "error" and "action" in frame):
            self.answers[frame["id"]] = frame
        else:
            self.events.append(frame)


class Host:
    """The instances, and ways to reach them."""

    def __init__(self, instances: Instances, directory: Path) -> None:
        self.instances, self.directory = instances, directory
        self.url = ""
        self.http = aiohttp.ClientSession()
        self._readers: list[Reader] = []

    def workspace(self, name: str = "work") -> Path:
        path = self.directory / "workspaces" / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def journal(self) -> Path:
        return self.directory / "journal"

    def request(self, **fields: Any) -> CreateRequest:
        """A request that is in order, for a scripted agent."""
        given = {
            "workspace_path": str(self.workspace()),
            "agent_command": scripted_command(self.journal),
            **fields,
        }
        return CreateRequest.model_validate_json(json.dumps(given))

    async def made(self, **fields: Any) -> Hosted:
        """An instance whose agent runs."""
        hosted = self.instances.admit(self.request(**{"auto_start": True, **fields}))
        await self.instances.launch(hosted)
        return hosted

    async def attached(self, hosted: Hosted, *, ack: bool = False, **options: Any) -> Reader:
        """A reader on its stream."""
        query = {"ack": "1"} if ack else {}
        ws = await self.http.ws_connect(f"{self.url}/{hosted.id}", params=query, **options)
        await eventually(lambda: hosted.attached, within=SOON, every=0.005)
        reader = Reader(ws)
        self._readers.append(reader)
        return reader

    async def ready(self, **fields: Any) -> tuple[Hosted, Reader]:
        """An instance with a session open, and its reader."""
        hosted = await self.made(**fields)
        reader = await self.attached(hosted)
        await reader.opened()
        return hosted, reader

    async def detached(self, hosted: Hosted, reader: Reader) -> None:
        """The reader goes away, and the server knows it."""
        await reader.aclose()
        await eventually(lambda: not hosted.attached, within=SOON, every=0.005)

    async def aclose(self) -> None:
        for reader in self._readers:
            with contextlib.suppress(Exception):
                await reader.ws.close()
        await self.http.close()


@contextlib.asynccontextmanager
async def hosting(
    directory: Path,
    *,
    clock: Callable[[], float] = time.monotonic,
    timing: Timing | None = None,
    start_agent: StartAgent = Link.start,
    **config: Any,
) -> AsyncIterator[Host]:
    """Instances whose workspaces have to be in ``directory/workspaces``."""
    directory = directory.resolve()
    roots = (directory / "workspaces",)
    roots[0].mkdir(exist_ok=True)
    settings = HostingConfig(roots, timing=timing or Timing(), **config)
    instances = Instances(settings, port=lambda: 4321, clock=clock, start_agent=start_agent)
    host = Host(instances, directory)

    async def stream(request: web.Request) -> web.WebSocketResponse:
        ws = stream_socket()
        await ws.prepare(request)
        hosted = instances.find(request.match_info["id"])
        assert hosted is not None
        await hosted.attach(ws, acknowledges=wants_acknowledgement(request.query)).run()
        return ws

    app = web.Application()
    app.router.add_get("/{id}", stream)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield host
    finally:
        # On a full machine the budget of one stop may be too little: it goes on, and is asked for again.
        await eventually(lambda: _all_stopped(instances), within=SOON, what="every agent to end")
        await host.aclose()
        await runner.cleanup()


async def _all_stopped(instances: Instances) -> bool:
    await instances.stop_all()
    return not instances.enumerate()
