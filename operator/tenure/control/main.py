"""A control server from its settings to its exit code."""

import asyncio
import logging
from dataclasses import replace

from tenure.control.files import make_private_dir, read_nonce
from tenure.control.hardening import harden, hold_standard_handles, scrub_environment
from tenure.control.lifetime import EXIT_CODES, EXIT_FAILED, Ending, say
from tenure.control.logfile import log_to
from tenure.control.server import LeftoversLive, Server, Surroundings
from tenure.control.settings import ServerSettings
from tenure.control.tls import server_context

log = logging.getLogger("tenure.control")


def run(settings: ServerSettings, around: Surroundings | None = None) -> int:
    """Run a control server to its end, as this process, and return the exit code.

    Raises ``InvalidSettings`` before anything has begun: a nonce, a certificate or a home that is no use.
    """
    around = around or Surroundings()
    hold_standard_handles()
    nonce = read_nonce(settings.nonce_file)
    context = None
    if settings.tls_cert is not None and settings.tls_key is not None:
        context = server_context(settings.tls_cert, settings.tls_key)
    make_private_dir(settings.server_dir, settings.home)
    harden()
    around = replace(around, scrub=around.scrub | scrub_environment())

    servers: list[Server] = []

    async def serve() -> Ending:
        servers.append(Server(settings, nonce, context, around))
        return await servers[0].run()

    logs = log_to(settings.server_dir, settings.log_level, stdout=not around.detached)
    try:
        ending = asyncio.run(serve())
        log.info("ended")
        return EXIT_CODES[ending]
    except OSError as error:
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        where = f"{host}:{settings.port}"
        log.error("cannot listen on %s: %s", where, error.strerror)
        say(f"tenure control-server: cannot listen on {where}: {error.strerror}")
        return EXIT_FAILED
    except LeftoversLive as error:
        log.error("not started: %s", error)
        say(f"tenure control-server: {error}")
        return EXIT_FAILED
    finally:
        logs.close()
        for server in servers:
            if server.last_resort is not None:
                server.last_resort.cancel()
