"""The backend itself: find the control server and the database, own the one, use the other, serve the page."""

import asyncio
import contextlib
import logging
import os
import shlex
import signal
import sys

from aiohttp import web

from examples import database
from examples.backend import places
from examples.backend.service import ROOT, Service
from examples.backend.web import application
from examples.database import CannotStart
from tenure.backend import Backend, LocalOwner

log = logging.getLogger("example")


def agent_command() -> str:
    """The agent of every session: ``EXAMPLE_AGENT``, or examples/agent."""
    mine = [sys.executable, str(ROOT / "examples" / "agent" / "agent.py")]
    return os.environ.get("EXAMPLE_AGENT") or shlex.join(mine)


async def serve(*, allow: bool) -> None:
    """Until SIGTERM or SIGINT. Raises ``CannotStart``."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    url = os.environ.get("TENURE_DATABASE_URL") or (running.url if (running := database.current()) else "")
    if not url:
        raise CannotStart("there is no database: run “prepare” first, or set TENURE_DATABASE_URL")
    server = await _control_server()
    source = LocalOwner(server.url, home=server.home, nonce_file=places.NONCE)
    async with Backend.connect(source, url) as backend:
        service = Service(backend, agent_command(), allow=allow)
        runner = web.AppRunner(application(service), shutdown_timeout=1, access_log=None)
        await runner.setup()
        finding = asyncio.create_task(service.run(), name="find")
        try:
            await web.TCPSite(runner, "127.0.0.1", places.port()).start()
            places.write_whole(places.PID, f"{os.getpid()}\n")
            log.info("process %d serves %s", os.getpid(), places.page())
            await _either(stop, finding)
        except OSError as error:
            raise CannotStart(
                f"cannot listen on {places.page()}: {error.strerror}; set EXAMPLE_PORT"
            ) from None
        finally:
            finding.cancel()
            await asyncio.gather(finding, return_exceptions=True)
            await service.aclose()
            await runner.cleanup()


async def _either(stop: asyncio.Event, finding: "asyncio.Task[None]") -> None:
    """Until it is stopped; a failure to find the control server ends the program."""
    stopped = asyncio.create_task(stop.wait(), name="stop")
    await asyncio.wait({stopped, finding}, return_when=asyncio.FIRST_COMPLETED)
    if not stopped.done():
        finding.result()
        await stopped


async def _control_server() -> places.ControlServer:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(10):
            while (server := places.control_server()) is None:
                await asyncio.sleep(0.1)
            return server
    raise CannotStart(f"no control server runs with the home {places.HOME}")
