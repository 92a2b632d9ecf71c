"""Launches: the row first, then the instance under the id that the row names, and back when it comes to nothing."""

import asyncio
import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from tenure.backend.core import Core
from tenure.backend.errors import BackendError, Final, FinalError, Retry, RetryableError
from tenure.backend.link import Peer, delays
from tenure.backend.refusals import translated
from tenure.backend.session import Session
from tenure.model.adoption import HistorySetting
from tenure.ownership.errors import SESSION_IN_USE, Refused
from tenure.protocol.messages import CreateRequest
from tenure.storage.records import HISTORY_KEY, EntryRefused, Executor, LaunchRefused, LaunchRequest

log = logging.getLogger("tenure.backend")

UNDONE_WITHIN = 5.0
"""Seconds for which a failed launch waits for its undoing, so that the next try finds the session free."""


@dataclass(frozen=True)
class Order:
    """What ``Backend.launch`` was asked for."""

    session_id: str
    task_id: str
    workspace_path: str
    agent_command: str
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    agent_type: str = ""
    source_roots: Sequence[str] = ()
    profile: str = ""
    metadata: Mapping[str, object] = field(default_factory=dict)
    task_environment_id: str = ""
    worktree_id: str | None = None
    passthrough: bool = False
    buffer: int = 0
    load: bool = True


async def launch(core: Core, order: Order) -> Session:
    """A session that is attached and ready. See ``Backend.launch``."""
    if order.session_id in core.launching:
        raise RetryableError(Retry.SESSION_IN_USE, "the session is being launched, or a failed launch undone")
    peer = core.link.require()
    request = _create_request(order)
    core.launching.add(order.session_id)
    executor = await _take_row(core, peer, order, request)
    try:
        session = await _bring_up(core, peer, request, executor, order.buffer)
    except BaseException as error:
        undoing = _undo_later(core, peer, request)
        if undoing is not None and isinstance(error, BackendError):
            await asyncio.wait({undoing}, timeout=UNDONE_WITHIN)
        raise
    core.launching.discard(order.session_id)
    return session


async def _take_row(core: Core, peer: Peer, order: Order, request: CreateRequest) -> Executor:
    assert request.id is not None
    with translated():
        try:
            return await core.records.executions.launch(
                LaunchRequest(
                    session_id=order.session_id,
                    task_id=order.task_id,
                    installation_id=core.installation,
                    agent_execution_id=request.id,
                    created_by=await _incarnation(core),
                    agent_profile=order.profile,
                    workspace_path=order.workspace_path,
                    container_identity=peer.name,
                    task_environment_id=order.task_environment_id,
                    worktree_id=order.worktree_id,
                    passthrough=order.passthrough,
                    metadata=_metadata(order),
                )
            )
        except (LaunchRefused, EntryRefused):
            core.launching.discard(order.session_id)
            raise
        except BaseException:
            # It may have been written all the same.
            _undo_later(core, peer, request)
            raise


def _metadata(order: Order) -> Mapping[str, object]:
    """With what the next process has to know, if this one ends before the agent has begun its session."""
    return order.metadata if order.load else {**order.metadata, HISTORY_KEY: HistorySetting.DISCARD.value}


async def _incarnation(core: Core) -> str:
    """Who launches, in the words of whoever adopted the server for us: so recovery knows what was made here."""
    record = await core.records.servers.get(core.installation)
    return record.adopted_by if record is not None and record.adopted_by else core.incarnation


async def _bring_up(
    core: Core, peer: Peer, request: CreateRequest, executor: Executor, buffer: int
) -> Session:
    await _create(core, peer, request)
    session = Session(core, executor, peer.name, buffer=buffer)
    session.begin()
    try:
        await session.ready()
    except BaseException:
        await session.detach()
        raise
    return session


async def _create(core: Core, peer: Peer, request: CreateRequest) -> None:
    with core.calling(peer):
        try:
            await peer.client.create(request)
            return
        except Refused as error:
            if error.status == 500:
                raise FinalError(Final.AGENT_FAILED, "the agent did not start") from None
            if error.code != SESSION_IN_USE:
                raise
        # The row is ours, so nobody has launched this session but us: what holds it at the server is of a launch
        # that came to nothing, and arrived after it had been undone.
        for other in await peer.client.instances():
            if other.session_id == request.session_id and other.id != request.id:
                log.warning("session %s: an instance that no record names is stopped", request.session_id)
                await peer.client.delete(other.id)
        await peer.client.create(request)


def _undo_later(core: Core, peer: Peer, request: CreateRequest) -> "asyncio.Task[None] | None":
    if core.closed:
        # A detach, like every other end: whoever comes next goes on with what is there.
        return None
    return core.spawn(_undo(core, peer.name, request), f"undoing the launch of {request.session_id}")


async def _undo(core: Core, server_identity: str, request: CreateRequest) -> None:
    """Delete the instance, then release the row, for as long as it takes. A process that ends before leaves a
    live row, which ``resume_sessions`` of the next one finds without an instance, or with one that is ours."""
    assert request.id is not None
    try:
        for wait in delays():
            try:
                await core.link.wait()
                await core.stop_instance(request.id, server_identity)
                with translated():
                    await core.records.executions.rolled_back(request.session_id, request.id)
                return
            except RetryableError as error:
                log.info("session %s: a launch is not undone yet: %s", request.session_id, error)
            except FinalError as error:
                log.error("session %s: a launch cannot be undone: %s", request.session_id, error)
                return
            await asyncio.sleep(wait)
    finally:
        core.launching.discard(request.session_id)


def _create_request(order: Order) -> CreateRequest:
    problem = ""
    try:
        if not order.session_id or not order.task_id:
            problem = "a launch needs a session and a task"
        # Validated as texts, so that the values of variables are looked at too.
        request = CreateRequest.model_validate(
            {
                "id": f"i-{uuid.uuid4().hex}",
                "workspace_path": order.workspace_path,
                "agent_command": order.agent_command,
                "agent_type": order.agent_type,
                "env": dict(order.env),
                "auto_start": True,
                "session_id": order.session_id,
                "task_id": order.task_id,
                "workspace_source_roots": tuple(order.source_roots),
            }
        )
        if not problem and len(request.to_wire()) > CreateRequest.max_bytes:
            problem = "the environment is too long"
    except ValidationError as error:
        # Names of fields only: the values may be keys.
        fields = {str(next(iter(found["loc"]), "")) for found in error.errors(include_input=False)}
        problem = f"the launch has values that no control server takes: {', '.join(sorted(fields))}"
    except (TypeError, ValueError):
        problem = "the environment is names and texts"
    if problem:
        raise FinalError(Final.BAD_REQUEST, problem)
    return request
