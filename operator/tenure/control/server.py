"""The parts of a control server put together, from listening to the end."""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import ssl
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tenure.control.acp import end_leftovers
from tenure.control.app import App
from tenure.control.files import (
    RUN_FILE,
    brands_of_the_dead,
    forget_old_servers,
    take_identity,
    write_whole,
)
from tenure.control.hardening import kill_descendants, reap_orphans
from tenure.control.instances import HostingConfig, Instances
from tenure.control.lifetime import EXIT_CODES, Door, Ending, exit_by, leave_message
from tenure.control.listener import Listener
from tenure.control.logfile import LOG_FILE, MAX_AGE_SECONDS
from tenure.control.owner import Owner
from tenure.control.routes import Routes
from tenure.control.settings import ServerSettings
from tenure.model.errors import TenureError
from tenure.model.masked import Masked
from tenure.protocol import messages
from tenure.protocol.capabilities import ADVERTISED

_CLOSING_SECONDS = 1.0
_LOOK_SECONDS = 0.5
_SPARE_SECONDS = 5.0
_AGAIN_SECONDS = 5.0
_LEFTOVERS_SECONDS = 5.0
log = logging.getLogger("tenure.control")


@dataclass(frozen=True)
class Surroundings:
    """What a server has from its process; a test may give it others.

    ``clock`` is monotonic, in seconds. ``ready`` is called with the start-up line once it listens.
    ``detached``: there is no terminal whose interrupts could be meant for it.
    """

    clock: Callable[[], float] = time.monotonic
    ready: Callable[[str], None] = lambda line: None
    detached: bool = False
    scrub: frozenset[str] = field(default_factory=frozenset)


class LeftoversLive(TenureError):
    """A second agent for the same session would be worse than no server."""


class Server:
    """One control server. Make it inside of the event loop that runs it."""

    def __init__(
        self, settings: ServerSettings, nonce: Masked, context: ssl.SSLContext | None, around: Surroundings
    ) -> None:
        self._settings = settings
        self._around = around
        self._door = Door()
        self.last_resort: threading.Timer | None = None
        self._port = settings.port
        self._brand = secrets.token_hex(16)
        self._instances = Instances(
            _hosting(settings, around.scrub, self._brand), port=lambda: self._port, clock=around.clock
        )
        self._owner = Owner(
            nonce,
            settings.period.ms,
            str(settings.home),
            self._door,
            close_streams=self._instances.close_streams,
            clock=around.clock,
        )
        routes = Routes(
            self._owner, self._instances, _identity(settings), _details(settings), lambda: self._port
        )
        self._listener = Listener(App(self._owner, routes), context=context)

    async def run(self) -> Ending:
        """Listen, serve, and end for the reason that is returned. Raises ``OSError`` when it cannot listen,
        ``InvalidSettings`` when its identity is not its own, and ``LeftoversLive``."""
        asyncio.get_running_loop().set_exception_handler(_log_without_content)
        self._handle_signals()
        self._port = self._listener.open(self._settings.host, self._settings.port)
        lived: int | None = None
        try:
            lived = take_identity(self._settings.server_dir, self._settings.identity, self._brand)
            await self._end_leftovers()
            self._listener.start()
            return await self._serve()
        finally:
            await self._listener.aclose(_CLOSING_SECONDS)
            if lived is not None:
                os.close(lived)

    async def _end_leftovers(self) -> None:
        """Agents of a server of this home that was killed: their sessions are begun anew here, and not twice."""
        servers = self._settings.server_dir.parent
        brands = await asyncio.to_thread(brands_of_the_dead, servers)
        if not await asyncio.to_thread(end_leftovers, brands, _LEFTOVERS_SECONDS):
            raise LeftoversLive("agents of an earlier server of this home cannot be ended")
        await asyncio.to_thread(forget_old_servers, servers, MAX_AGE_SECONDS)

    async def _serve(self) -> Ending:
        tasks = [
            asyncio.create_task(_kept_up("idle scan", self._instances.run), name="idle scan"),
            asyncio.create_task(_kept_up("unowned timer", self._watch_claim), name="unowned timer"),
            asyncio.create_task(_kept_up("reaper", reap_orphans), name="reaper"),
        ]
        self._announce()
        try:
            ending = await self._door.passed()
            self.last_resort = exit_by(self._settings.shutdown_grace + _SPARE_SECONDS, EXIT_CODES[ending])
            leave_message(
                self._settings.termination_message_file,
                ending,
                self._settings.identity,
                self._settings.period.ms,
            )
            log.info("shutting down: %s", ending.value, extra={"ending": ending.value})
            await self._teardown()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return ending

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._owner.end, Ending.TERMINATED)
        # Handled and not ignored: what is ignored, agents would inherit.
        loop.add_signal_handler(signal.SIGHUP, log.info, "a hang-up of the terminal is passed over")
        if self._around.detached:
            loop.add_signal_handler(signal.SIGINT, log.info, "an interrupt is passed over")
        else:
            loop.add_signal_handler(signal.SIGINT, self._owner.end, Ending.TERMINATED)

    def _announce(self) -> None:
        settings = self._settings
        scheme = "https" if settings.encrypted else "http"
        host = f"[{self._listener.host}]" if ":" in self._listener.host else self._listener.host
        url = f"{scheme}://{host}:{self._port}"
        log_file = settings.server_dir / LOG_FILE
        run = {
            "server_identity": settings.identity,
            "url": url,
            "port": self._port,
            "pid": os.getpid(),
            "home_dir": str(settings.home),
            "diagnostic_log_path": str(log_file),
        }
        try:
            write_whole(settings.server_dir / RUN_FILE, run)
        except OSError as error:
            log.warning("the run file could not be written: %s", error.strerror)
        log.info("listening", extra={key: value for key, value in run.items() if key != "home_dir"})
        for change in settings.period.changes:
            log.warning(
                "the unowned period is %d ms instead of %d: %s",
                change.after_ms,
                change.before_ms,
                change.reason.value,
            )
        self._around.ready(
            f"control server {settings.identity} listens on {url}, home {settings.home}, log {log_file}"
        )

    async def _watch_claim(self) -> None:
        """Let the clock speak even if nobody asks anything. It is looked at often instead of slept for: the
        claim's clock and the loop's need not be the same."""
        while not self._owner.expire():
            await asyncio.sleep(min(self._owner.left(), _LOOK_SECONDS))

    async def _teardown(self) -> None:
        """Stop all instances within the grace. Questions are answered meanwhile."""
        try:
            async with asyncio.timeout(self._settings.shutdown_grace):
                await self._instances.stop_all()
        except TimeoutError:
            log.error("not every instance stopped within the grace")
        except Exception as error:  # the end comes nevertheless
            log.error("stopping the instances failed", exc_info=error)
        await kill_descendants()
        await self._owner.aclose()
        with contextlib.suppress(OSError):
            (self._settings.server_dir / RUN_FILE).unlink()


def _hosting(settings: ServerSettings, scrub: frozenset[str], brand: str) -> HostingConfig:
    return HostingConfig(
        roots=tuple(root.resolve() for root in settings.workspace_roots),
        retention_limit=settings.retention_limit,
        idle_timeout=settings.idle_timeout,
        scrub=scrub,
        brand=brand,
    )


def _identity(settings: ServerSettings) -> messages.Identity:
    return messages.Identity(
        server_identity=settings.identity,
        capabilities=tuple(sorted(ADVERTISED)),
        unowned_period_ms=settings.period.ms,
    )


def _details(settings: ServerSettings) -> messages.Details:
    return messages.Details(
        home_dir=str(settings.home),
        diagnostic_log_path=str(settings.server_dir / LOG_FILE),
        adjustments=messages.adjustments_of(settings.period),
    )


async def _kept_up(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run background work to its end, beginning again when it fails: a server without it looks healthy."""
    while True:
        try:
            return await work()
        except Exception as error:  # whatever it is
            log.error("the %s failed and is begun again", name, exc_info=error)
        await asyncio.sleep(_AGAIN_SECONDS)


def _log_without_content(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """asyncio's own report shows tasks, transports and the arguments of callbacks, with what they hold."""
    error = context.get("exception")
    log.error(
        "in the event loop: %s",
        str(context.get("message", "")).partition(" callback ")[0],
        exc_info=error if isinstance(error, BaseException) else None,
    )
