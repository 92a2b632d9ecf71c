"""What a server writes goes on being written, or is lost, but stops nothing."""

import os
import shutil
import sys

import pytest
from tests.support.control import PROGRAM, asking, running_server
from tests.support.wait import eventually


def shell(redirection: str) -> tuple[str, ...]:
    """The program with this redirection; it keeps its process id."""
    return ("sh", "-c", f'exec "$@" {redirection}', "sh", *PROGRAM)


@pytest.mark.accept("S-001.3")
@pytest.mark.parametrize("redirection", [">&- 2>&-", "</dev/full >/dev/full 2>&1", "| true"])
async def test_a_server_without_an_output_serves_and_logs_to_its_own_file(redirection: str) -> None:
    """Closed from the beginning, full, and a pipe whose reader has gone."""
    program = shell(redirection)
    if redirection.startswith("|"):
        program = ("bash", "-c", 'exec "$@" > >(true)', "bash", *PROGRAM)
    async with running_server(program=program) as server, asking(server) as client:
        token = await client.handshake()
        if redirection.startswith(">&-"):
            # Not some other file of the server's, which lines for the terminal would be written into.
            assert [os.readlink(f"/proc/{server.pid}/fd/{handle}") for handle in (1, 2)] == ["/dev/null"] * 2
        for _ in range(5):
            status, _ = await client.ask("POST", "/api/v1/ownership/rotate", token=token)
            assert status == 200
        _, rotated = await client.ask("POST", "/api/v1/ownership/rotate", token=token)
        _, details = await client.ask("GET", "/api/v1/ownership/details", token=rotated["credential"])
        assert details["diagnostic_log_path"] == str(server.server_dir / "server.log")
        await eventually(
            lambda: sum(line["event"] == "rotated" for line in server.log_file()) == 6,
            within=10,
            what="the log",
        )
        assert await server.stop() == 0


@pytest.mark.accept("S-001.3")
async def test_an_output_that_nobody_reads_holds_nothing_up() -> None:
    """A pipe that is full, and stays open."""
    program = ("bash", "-c", 'exec "$@" > >(exec sleep 60)', "bash", *PROGRAM)
    async with (
        running_server(program=program, flags={"log-level": "DEBUG"}) as server,
        asking(server) as client,
    ):
        token = await client.handshake()
        for _ in range(600):
            status, _ = await client.ask("POST", "/api/v1/ownership/rotate", token=token)
            assert status == 200
        await eventually(
            lambda: sum(line["event"] == "rotated" for line in server.log_file()) == 600,
            within=10,
            what="the log",
        )
        sleeping = server.descendants()
        assert await server.stop() == 0
        for process in sleeping:
            process.wait(10)


@pytest.mark.accept("S-001.3")
@pytest.mark.skipif(shutil.which("prlimit") is None, reason="prlimit is not installed")
async def test_a_full_disk_costs_lines_and_nothing_else() -> None:
    """A limit on the size of files stands in for the disk: the file cannot grow."""
    program = ("prlimit", "--fsize=6000", *PROGRAM)
    async with running_server(program=program) as server, asking(server) as client:
        token = await client.handshake()
        for _ in range(100):
            status, _ = await client.ask("POST", "/api/v1/ownership/rotate", token=token)
            assert status == 200
        assert (server.server_dir / "server.log").stat().st_size <= 6000
        await eventually(lambda: (server.server_dir / "server.log").stat().st_size > 5000, within=60)
        assert await server.stop() == 0


async def test_both_outputs_are_lines_of_json_that_say_the_same() -> None:
    async with running_server() as server, asking(server) as client:
        await client.handshake()
        await server.stop()
        said, kept = (
            [{**line, "time": ""} for line in lines] for lines in (server.logs(), server.log_file())
        )
        assert said == kept
        assert [line["event"] for line in server.logs()][:2] == ["listening", "handshaken"]
        assert {"time", "level", "logger"} <= set(server.logs()[0])


async def test_what_an_exception_or_a_library_says_is_in_no_output() -> None:
    text = """
import logging
from tenure.control.routes import Routes
async def health(self, call):
    logging.getLogger().error("canary of a library")
    raise ValueError("canary of an agent")
Routes.health = health
from tenure.cli.main import app
app()
"""
    async with running_server(program=(sys.executable, "-c", text, "control-server")) as server:
        async with asking(server) as client:
            assert await client.ask("GET", "/health") == (500, {"error": "an error of the server's own"})
        await server.stop()
        for lines in (server.logs(), server.log_file()):
            assert "builtins.ValueError" in str(lines)
            assert "canary" not in str(lines)
        assert "canary" not in server.stderr()
