"""The program starts, tells who it is, and ends when it is told to; or it says why it does not start."""

import asyncio
import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.support.agents import hostile_command, scripted_command
from tests.support.control import PROGRAM, asking, clean_environment, command_line, living, running_server
from tests.support.wait import eventually


def refused(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *words], capture_output=True, text=True, timeout=60, env=clean_environment() | (env or {})
    )


def flags_in(directory: Path) -> dict[str, object]:
    (directory / "nonce").write_text("n" * 32)
    return {"home": directory / "home", "nonce-file": directory / "nonce", "port": 0}


@pytest.mark.parametrize("tls", [False, True])
async def test_a_server_starts_gives_its_nonces_holder_a_credential_and_ends_on_sigterm(tls: bool) -> None:
    async with running_server(tls=tls) as server, asking(server) as client:
        status, health = await client.ask("GET", "/health")
        assert (status, health["status"], set(health)) == (200, "ok", {"status", "timestamp"})
        token = await client.handshake()
        status, details = await client.ask("GET", "/api/v1/ownership/details", token=token)
        assert (status, details["home_dir"]) == (200, server.home_dir)
        assert details["diagnostic_log_path"] == str(server.server_dir / "server.log")
        assert details["adjustments"] == []
        assert await server.stop() == 0
        assert server.url in server.stderr()
        assert json.loads(server.termination_message.read_text())["ended"] == "terminated"


@pytest.mark.parametrize("tls", [False, True])
async def test_no_secret_is_in_anything_that_it_writes(tls: bool) -> None:
    async with running_server(tls=tls) as server, asking(server) as client:
        token = await client.handshake()
        _, rotated = await client.ask("POST", "/api/v1/ownership/rotate", token=token)
        await client.ask("POST", "/auth/handshake", {"nonce": server.nonce.reveal()})
        await client.ask("POST", "/auth/handshake", {"nonce": "a-canary-that-is-no-nonce"})
        await client.ask("POST", f"/{token}", data=b"{" + token.encode(), token=token)
        await server.stop()
        written = [server.stderr()] + [
            file.read_text()
            for file in (*server.home.rglob("*"), server.directory / "stdout")
            if file.is_file()
        ]
        for secret in (token, rotated["credential"], server.nonce.reveal(), "a-canary-that-is-no-nonce"):
            assert not [text for text in written if secret in text]


async def test_the_nonce_may_be_gone_once_it_listens() -> None:
    async with running_server() as server, asking(server) as client:
        (server.directory / "nonce").unlink()
        assert await client.handshake()


@pytest.mark.accept("S-001.8")
@pytest.mark.parametrize("limit", ["0", "10001"])
def test_a_retention_limit_out_of_range_ends_with_a_sentence_and_code_2(tmp_path: Path, limit: str) -> None:
    done = refused(*command_line(flags_in(tmp_path) | {"retention-limit": limit}))
    assert done.returncode == 2
    assert "--retention-limit (TENURE_SERVER_RETENTION_LIMIT) must be" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "home").exists()


def test_every_wrong_variable_is_named_in_a_line_of_its_own_and_none_is_quoted() -> None:
    env = {"TENURE_SERVER_PORT": "tcp://10.0.0.1:80", "TENURE_SERVER_IDLE_TIMEOUT": "hunter2"}
    done = refused(env=env)
    assert done.returncode == 2
    assert [line.split()[2] for line in done.stderr.splitlines()] == [
        "--port",
        "--nonce-file",
        "--idle-timeout",
    ]
    assert "hunter2" not in done.stderr + done.stdout


def test_a_library_that_is_not_installed_is_named_with_its_extra(tmp_path: Path) -> None:
    program = "import sys; sys.modules['acp'] = None; from tenure.cli.main import app; app()"
    done = subprocess.run(
        [sys.executable, "-c", program, "control-server", *command_line(flags_in(tmp_path))],
        capture_output=True,
        text=True,
        timeout=60,
        env=clean_environment(),
    )
    assert done.returncode == 1
    assert "pip install 'tenure[server]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_told_with_code_1(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = refused(*command_line(flags_in(tmp_path) | {"port": taken.getsockname()[1]}))
    assert done.returncode == 1
    assert "cannot listen on 127.0.0.1" in done.stderr


async def test_an_identity_does_not_live_twice(tmp_path: Path) -> None:
    async with running_server(directory=tmp_path, identity="cs-once") as server:
        await server.stop()
    done = refused(*command_line(flags_in(tmp_path) | {"identity": "cs-once"}))
    assert done.returncode == 2
    assert "--identity" in done.stderr


async def test_sigterm_stops_the_instances_within_the_grace() -> None:
    async with running_server() as server, asking(server) as client:
        await client.create(await client.handshake(), scripted_command())
        agents = server.descendants()
        assert agents
        assert await server.stop() == 0
        assert not [agent for agent in agents if living(agent)]
        # In good order, and not by the last sweep.
        assert "instance stopped" in [line["event"] for line in server.logs()]


async def test_agents_that_outlive_a_killed_server_are_ended_by_the_next_one_of_its_home_before_it_listens(
    tmp_path: Path,
) -> None:
    """And nobody else's: a server of the same home lives beside it."""
    file = tmp_path / "ids"
    stubborn = hostile_command("ignores-term")
    async with running_server(directory=tmp_path) as neighbour, asking(neighbour) as its_client:
        await its_client.create(await its_client.handshake(), stubborn)
        untouched = neighbour.descendants()
        async with running_server(directory=tmp_path) as server, asking(server) as client:
            token = await client.handshake()
            await client.create(token, stubborn, session_id="s-1")
            child = f"{shlex.quote(sys.executable)} -c {shlex.quote(PARENT)} {shlex.quote(str(file))}"
            await client.create(token, child, session_id="s-2")
            await eventually(lambda: file.exists() and file.read_text(), within=20)
            left = server.descendants()
            await server.kill()
        assert len(left) >= 3
        assert [one for one in left if living(one)], "they go on, or this says nothing"
        async with running_server(directory=tmp_path):
            assert not [one for one in left if living(one)]
            assert untouched
            assert all(living(one) for one in untouched)


PARENT = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(600)
"""


async def test_whatever_hangs_the_end_comes() -> None:
    """A thread in a system call that does not return, and which the event loop waits for at its end."""
    text = """
import asyncio, time
from tenure.control.instances import Instances
async def stop_all(self):
    await asyncio.to_thread(time.sleep, 3600)
Instances.stop_all = stop_all
from tenure.cli.main import app
app()
"""
    program = (sys.executable, "-c", text, "control-server")
    async with (
        running_server(program=program, flags={"shutdown-grace": 1}) as server,
        asking(server) as client,
    ):
        await client.create(await client.handshake(), scripted_command())
        agents = server.descendants()
        assert await server.stop(within=15) == 0
        assert not [agent for agent in agents if living(agent)]


async def test_a_hang_up_of_the_terminal_is_passed_over_and_not_inherited() -> None:
    async with running_server() as server, asking(server) as client:
        token = await client.handshake()
        await client.create(token, scripted_command())
        server.signal(signal.SIGHUP)
        assert (await client.ask("POST", "/api/v1/ownership/claim", token=token))[0] == 200
        (agent,) = server.descendants()
        status = Path(f"/proc/{agent.pid}/status").read_text()
        ignored = int(next(line for line in status.splitlines() if line.startswith("SigIgn")).split()[1], 16)
        assert not ignored & 1 << (signal.SIGHUP - 1)


async def test_the_death_of_whoever_started_it_changes_nothing(tmp_path: Path) -> None:
    """Its parent, the leader of their session, is killed, and with it goes the pipe that standard output is."""
    flags = flags_in(tmp_path) | {"identity": "cs-orphan"}
    parent = (
        "import subprocess, sys\n"
        f"p = subprocess.Popen({[*PROGRAM, *command_line(flags)]!r}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)\n"
        "p.stderr.readline()\nprint(p.pid, flush=True)\nsys.stdin.read()"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", parent],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=clean_environment(),
        start_new_session=True,
    )
    with started:
        assert started.stdout is not None
        server = psutil.Process(int(await asyncio.to_thread(started.stdout.readline)))
        started.kill()
    try:
        run = json.loads((tmp_path / "home/servers/cs-orphan/run.json").read_text())
        log = tmp_path / "home/servers/cs-orphan/server.log"
        # It is written by a thread of its own.
        await eventually(lambda: log.exists() and "listening" in log.read_text(), within=10, what="its log")
        before = log.read_text()
        server.send_signal(signal.SIGHUP)
        await eventually(lambda: len(log.read_text()) > len(before), within=10, what="the log to go on")
        with socket.create_connection(("127.0.0.1", run["port"]), timeout=10) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
    finally:
        await ended(server)


async def ended(server: psutil.Process) -> None:
    """End a server that is no child of ours."""
    with contextlib.suppress(psutil.NoSuchProcess):
        server.terminate()

    try:
        await eventually(lambda: not living(server), within=20, what="the server's end")
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            server.kill()


async def test_a_detached_server_returns_when_it_listens_and_lives_in_a_session_of_its_own(
    tmp_path: Path,
) -> None:
    flags = flags_in(tmp_path) | {"identity": "cs-detached"}
    done = await asyncio.to_thread(refused, "--detach", *command_line(flags))
    assert done.returncode == 0, done.stderr
    assert "listens on http://127.0.0.1:" in done.stderr
    run = json.loads((tmp_path / "home/servers/cs-detached/run.json").read_text())
    server = psutil.Process(run["pid"])
    try:
        assert os.getsid(run["pid"]) == run["pid"] != os.getsid(0)
        server.send_signal(signal.SIGINT)
        server.send_signal(signal.SIGHUP)
        with socket.create_connection(("127.0.0.1", run["port"]), timeout=10) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        links = [os.readlink(f"/proc/{run['pid']}/fd/{handle}") for handle in (0, 1, 2)]
        assert links == ["/dev/null"] * 3
    finally:
        await ended(server)


def test_a_detached_server_that_does_not_start_says_so_in_the_foreground(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = refused("--detach", *command_line(flags_in(tmp_path) | {"port": taken.getsockname()[1]}))
    assert done.returncode == 1
    assert "cannot listen" in done.stderr
    (tmp_path / "nonce").write_text("short")
    done = refused("--detach", *command_line({**flags_in(tmp_path), "nonce-file": tmp_path / "none"}))
    assert done.returncode == 2
