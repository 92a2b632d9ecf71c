"""The commands that make a trial of it: prepare, start, remove. They say what happened and what to look at."""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp

from examples import database
from examples.backend import places
from examples.backend.service import agent_pid
from examples.database import CannotStart
from tenure.backend.local import default_state
from tenure.ownership.client import ControlClient
from tenure.ownership.errors import ControlError
from tenure.ownership.files import FileCredentialStore

AT_WORK = 2
"""Steps that an agent has done when ``start`` returns: it is in the middle of its turn then."""


def prepare() -> None:
    """Everything that a control server and a backend need beside each other. Raises ``CannotStart``."""
    running = database.start()
    places.WORKSPACES.mkdir(parents=True, exist_ok=True)
    if not places.NONCE.exists():
        places.write_whole(places.NONCE, secrets.token_hex(32) + "\n")
    print(f"database    PostgreSQL runs (process {running.pid}) and has the tables")
    print(f"nonce       {places.NONCE}: with it a backend will own the control server")
    print(f"workspaces  {places.WORKSPACES}: agents may work in there")
    tenure = os.path.join(os.path.dirname(_python()), "tenure")
    print("Next: start the control server:")
    print(f"            {tenure} control-server --detach --home {places.HOME} \\")
    print(f"              --nonce-file {places.NONCE} --workspace-root {places.WORKSPACES}")


async def start(prompt: str | None, *, allow: bool, follow: bool) -> None:
    """See that a backend runs, and tell what it does. Raises ``CannotStart``."""
    pid = places.backend_pid()
    if pid is None:
        pid = await _spawn(allow)
        print(f"backend     started: process {pid}, its page is {places.page()}")
    else:
        print(f"backend     runs already: process {pid}, its page is {places.page()}")
    async with aiohttp.ClientSession(places.page()) as session:
        found = await _ready(session, pid)
        print(f"server      {found['control_server']} is ours; sessions found: {found['sessions_found']}")
        if prompt is not None:
            await _begin(session, prompt)
        for one in (await _get(session, "/api/sessions"))["sessions"]:
            print(_told(one))
        if follow:
            await _follow(session)


def kill() -> None:
    """End the backend as a crash does, and tell what lives on."""
    pid = places.backend_pid()
    if pid is None:
        raise CannotStart("no backend runs")
    os.kill(pid, signal.SIGKILL)
    print(f"backend     kill -9 {pid}: it had no chance to say goodbye")
    for workspace in sorted(places.WORKSPACES.iterdir()):
        agent = agent_pid(workspace)
        if agent is not None and places.alive(agent):
            print(f"agent       process {agent} works on for {workspace.name}; what it has done so far:")
            print(f"            {_python()} examples/agent/agent.py --journal {workspace}")
    server = places.control_server()
    if server is not None:
        print(f"server      process {server.pid} keeps what its agents say until somebody comes")
    print("Next: start the backend again:")
    print(f"            {_python()} -m examples.backend start --allow --follow")


async def remove() -> None:
    """End what runs, gently, and remove the folder."""
    pid = places.backend_pid()
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        await _until(lambda: not places.alive(pid), 10, "the backend did not end")
        print(f"backend     process {pid} has ended")
    server = places.control_server()
    if server is not None:
        await _shut_down(server)
        await _until(lambda: not places.alive(server.pid), 30, "the control server did not end")
        print(f"server      {server.identity} has stopped its agents and ended")
    if await asyncio.to_thread(database.stop):
        print("database    removed")
    shutil.rmtree(database.TRY, ignore_errors=True)
    print(f"folder      {database.TRY} is gone")


async def _spawn(allow: bool) -> int:
    places.LOG.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "examples.backend", "serve", *(["--allow"] if allow else [])]
    with places.LOG.open("ab") as log:
        process = subprocess.Popen(  # noqa: ASYNC220  # a command line: nothing else waits for this loop
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        await _until(lambda: places.backend_pid() == process.pid or process.poll() is not None, 30, "")
    except CannotStart:
        process.kill()
    if process.poll() is not None:
        last = places.LOG.read_text().strip().splitlines()[-1:]
        raise CannotStart(
            f"the backend did not start: {' '.join(last).removeprefix('examples.backend: ')} (see {places.LOG})"
        )
    return process.pid


async def _ready(session: aiohttp.ClientSession, pid: int) -> dict[str, Any]:
    """Wait until the backend has looked for what was there before."""
    async for found in _looking(session, "/api/sessions", 30):
        if found.get("sessions_found") is not None:
            return found
        if not places.alive(pid):
            break
    raise CannotStart(f"the backend does not get ready; {places.LOG} says why")


async def _begin(session: aiohttp.ClientSession, prompt: str) -> None:
    """A session, at work: the first steps are done."""
    async with session.post("/api/sessions", data={"prompt": prompt}) as answer:
        made = await answer.json()
        if answer.status != 201:
            raise CannotStart(f"the session was refused: {made.get('error')}")
    print(f"session     {made['id']}: {prompt}")
    async for found in _looking(session, f"/api/sessions/{made['id']}/events", 60):
        done = [line for line in found["events"] if line["text"].endswith(" completed")]
        if len(done) >= AT_WORK or any(line["type"] in ("complete", "error") for line in found["events"]):
            return
    raise CannotStart(f"the agent does not work; {places.LOG} says more")


async def _follow(session: aiohttp.ClientSession) -> None:
    """Print what happens until no turn is running."""
    shown: dict[str, int] = {}
    async for found in _looking(session, "/api/sessions", None):
        for one in found["sessions"]:
            lines = (await _get(session, f"/api/sessions/{one['id']}/events"))["events"]
            for line in lines[shown.get(one["id"], 0) :]:
                if line["text"]:
                    print(f"{line['at'][11:19]}    {line['type']:19}{line['text']}", flush=True)
            shown[one["id"]] = len(lines)
        if not any(one["running"] for one in found["sessions"]):
            break
    for one in (await _get(session, "/api/sessions"))["sessions"]:
        print(_told(one))
        print(f"            look at {one['workspace']}/REPORT.md, and at what the agent wrote down:")
        print(f"            {_python()} examples/agent/agent.py --journal {one['workspace']}")


def _told(one: dict[str, Any]) -> str:
    turn = one["turns"][0] if one["turns"] else None
    if turn is None:
        said = "no turn yet"
    elif turn["state"] == "open":
        said = f"turn {turn['id']} is running, for {turn['seconds']} s now"
    else:
        said = f"turn {turn['id']} is {turn['state']}, after {turn['seconds']} s"
    return f"agent       process {one['agent_pid']} works for {one['id']}: {said}"


def _python() -> str:
    """This Python, as somebody would type it."""
    with contextlib.suppress(ValueError):
        return os.path.relpath(sys.executable) if "/.venv/" in sys.executable else sys.executable
    return sys.executable


async def _shut_down(server: places.ControlServer) -> None:
    """By the ownership that the backend has stored: whoever holds it may end the server."""
    async with FileCredentialStore(default_state(server.home)) as store:
        holding = await store.load()
    if holding is None:
        os.kill(server.pid, signal.SIGTERM)
        return
    client = ControlClient(
        holding.endpoint,
        credential=holding.credential,
        home_dir=holding.home_dir,
        expected_identity=holding.server_identity,
    )
    async with client:
        try:
            await client.shutdown()
        except ControlError as error:
            raise CannotStart(f"the control server (process {server.pid}) does not end: {error}") from None


async def _looking(
    session: aiohttp.ClientSession, path: str, within: float | None
) -> AsyncIterator[dict[str, Any]]:
    """What the backend answers, again and again; not more than ``within`` seconds."""
    limit = asyncio.get_running_loop().time() + (within or float("inf"))
    while asyncio.get_running_loop().time() < limit:
        with contextlib.suppress(aiohttp.ClientError):
            yield await _get(session, path)
        await asyncio.sleep(0.2)


async def _get(session: aiohttp.ClientSession, path: str) -> dict[str, Any]:
    async with session.get(path) as answer:
        answer.raise_for_status()
        found: dict[str, Any] = await answer.json()
        return found


async def _until(done: Callable[[], bool], within: float, otherwise: str) -> None:
    limit = asyncio.get_running_loop().time() + within
    while not done():
        if asyncio.get_running_loop().time() > limit:
            raise CannotStart(otherwise)
        await asyncio.sleep(0.05)
