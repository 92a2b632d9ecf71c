"""``Backend``: one program's hold on the agents of its control server."""

import asyncio
import logging
import uuid
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from tenure.backend import recovering
from tenure.backend.core import Core
from tenure.backend.errors import BackendError, Final, FinalError
from tenure.backend.handover import HandOverSource
from tenure.backend.launching import Order, launch
from tenure.backend.link import Link, Peer, cancelled
from tenure.backend.mailbox import CAPACITY
from tenure.backend.refusals import translated
from tenure.backend.session import Session
from tenure.backend.turns import Turn
from tenure.model.masked import Masked
from tenure.ownership.endpoint import ReadBudget
from tenure.storage.records import Executor, Records

log = logging.getLogger("tenure.backend")

OWN = "local"
"""The installation of a server that nobody has on record."""


class Backend:
    """Drives the agents of one control server, for as long as the block runs::

        async with Backend.connect(HandOverDirectory("/handover"), database_url) as backend:
            await backend.ready()
            for session in await backend.resume_sessions():
                ...
            session = await backend.launch(session_id="s-1", task_id="t-1", ...)
            turn = await session.prompt("Fix the test.")
            print(await turn.outcome())

    Leaving the block is a *detach*: the agents go on, and whoever comes next finds them. Everything raises
    ``RetryableError`` (try again) or ``FinalError`` (do not). Bound to one event loop.
    """

    def __init__(
        self,
        source: HandOverSource,
        records: Records,
        *,
        installation: str | None = None,
        budget: ReadBudget | None = None,
        owns_records: bool = False,
    ) -> None:
        self._source = source
        self._owns_records = owns_records
        incarnation = source.incarnation or f"backend-{uuid.uuid4().hex}"
        self._installation = installation
        self._core = Core(records, Link(source, self._settle, budget), installation or OWN, incarnation)
        self._running: asyncio.Task[None] | None = None

    @classmethod
    def connect(
        cls,
        source: HandOverSource,
        store: Masked | str,
        *,
        namespace: str = "default",
        installation: str | None = None,
        budget: ReadBudget | None = None,
    ) -> Self:
        """A backend with this hand-over and the database at the URL ``store`` (``postgresql://...``, migrated by
        ``tenure migrate``). ``namespace`` and ``installation`` are those of its rows. On Kubernetes the namespace
        is the pod's; the installation is that of the server that is handed over, by the records, and need not be
        given. Without Kubernetes it is ``local`` if none is given. Connects when the block is entered."""
        url = store if isinstance(store, Masked) else Masked(store)
        records = Records(url, namespace=namespace)
        return cls(source, records, installation=installation, budget=budget, owns_records=True)

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self._core.link.run(), name="backend")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Detach from everything. No instance is stopped, and nothing is told to the control server."""
        self._core.closed = True
        for session in self.sessions:
            await session.detach()
        await cancelled(*self._core.background)
        if self._running is not None:
            await cancelled(self._running)
            self._running = None
        await self._core.link.aclose(FinalError(Final.CLOSED, "this Backend was closed"))
        await self._source.aclose()
        if self._owns_records:
            await self._core.records.aclose()

    @property
    def records(self) -> Records:
        """The records, to be read: states of sessions, turns and tasks."""
        return self._core.records

    @property
    def sessions(self) -> tuple[Session, ...]:
        """The sessions that are driven from here."""
        return tuple(self._core.sessions.values())

    @property
    def server_identity(self) -> str | None:
        """The control server in use; None while there is none. Not to be waited for by a readiness probe."""
        try:
            return self._core.link.require().name
        except BackendError:
            return None

    async def ready(self) -> None:
        """Wait until there is a control server to drive. Raises ``FinalError`` when there will be none."""
        await self._core.link.wait()

    async def launch(
        self,
        *,
        session_id: str,
        task_id: str,
        workspace_path: str,
        agent_command: str,
        env: Mapping[str, str] | None = None,
        agent_type: str = "",
        source_roots: Sequence[str] = (),
        profile: str = "",
        metadata: Mapping[str, object] | None = None,
        task_environment_id: str = "",
        worktree_id: str | None = None,
        passthrough: bool = False,
        events: bool = True,
        load: bool = True,
    ) -> Session:
        """Start an agent for a session, and return when it is ready for a prompt.

        The session and its task are made if they are not there; a session that has ended is taken up again.
        ``env`` is added to the agent's environment; its values are stored nowhere. ``metadata`` is stored.
        ``profile`` is a name in the ControlServer's ``agentProfiles``, ``default`` if none is given;
        ``task_environment_id`` is the session's former one, or its task's name, if none is given.
        ``source_roots`` are directories that the agent may use beside its workspace. ``events`` False: what
        the agent says is not wanted (see ``Session.events``).

        An agent of a session that had one before *loads* what was said in it, unless ``load`` is False; what it
        tells while it does that is in no ``events``. One that declines begins anew: ``Session.began_anew``.

        What fails is undone before this raises, or in the background: an instance is deleted, the record
        released. ``RetryableError``: recovery in progress, session in use, no hand-over, no answer, database
        unavailable. ``FinalError``: an agent that could not be stopped, a request that is not in order, an
        agent that does not start.
        """
        if self._core.closed:
            raise FinalError(Final.CLOSED, "this Backend was closed")
        return await launch(
            self._core,
            Order(
                session_id,
                task_id,
                workspace_path,
                agent_command,
                env or {},
                agent_type,
                source_roots,
                profile,
                metadata or {},
                task_environment_id,
                worktree_id,
                passthrough,
                CAPACITY if events else 0,
                load,
            ),
        )

    async def resume_sessions(self, *, events: bool = True) -> tuple[Session, ...]:
        """Attach to every session whose instance lives, and return all that are driven from here.

        Starts and resumes no agent. What a former process began and did not finish is put in order: a launch
        without an instance is released, a stop is finished. Sessions that are driven already stay as they are.
        """
        peer = self._core.link.require()
        for executor in await recovering.recover(self._core, peer, sole=self._source.sole):
            await self._resume(peer, executor, CAPACITY if events else 0)
        return self.sessions

    async def _resume(self, peer: Peer, executor: Executor, buffer: int) -> None:
        if executor.session_id in self._core.sessions or executor.session_id in self._core.launching:
            return
        record = await recovering.open_turn(self._core, executor.session_id)
        session = Session(self._core, executor, peer.name, buffer=buffer)
        session.begin(Turn(record) if record is not None else None)
        if recovering.is_stopping(executor):
            try:
                await session.stop()
            except BackendError as error:
                log.error("session %s: its stop is not finished: %s", session.id, error)
                await session.detach()

    async def _settle(self, peer: Peer) -> None:
        """Without an operator recovery is ours: before anybody uses a server that was just taken. With one, its record
        says whose server this is; it was written before the server was handed over."""
        if not self._source.sole:
            if self._installation is None:
                with translated():
                    found = await self._core.records.servers.installation_of(peer.name)
                self._core.installation = found or OWN
            return
        with translated():
            await recovering.take_record(self._core, peer)
            await recovering.recover(self._core, peer, sole=True)
            await recovering.record_recovered(self._core)
