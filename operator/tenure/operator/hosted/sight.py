"""Observe: one frozen snapshot of a hosted AgentProcess, and what acting on it needs beside."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from tenure.model.control_server import ControlServer, parse_control_server
from tenure.model.errors import InvalidResource
from tenure.model.hosted import HostedSession
from tenure.model.reasons import ConditionReason
from tenure.model.records import ExecutorStatus
from tenure.model.resources import AgentProcess, parse_agent_process
from tenure.operator.cache import ObjectCache, ObjectKey
from tenure.operator.clock import Clock
from tenure.operator.hosted.clients import Clients
from tenure.operator.hosted.executions import Execution
from tenure.operator.hosted.losses import Losses
from tenure.operator.servers.ports import OwnedServer, ServerKey
from tenure.operator.servers.rows import row_of
from tenure.ownership.client import ControlClient
from tenure.ownership.errors import ControlError, Refused
from tenure.plan.adoption.correlation import ENDED
from tenure.plan.hosted.observation import (
    InstanceView,
    Memory,
    Observation,
    ServerView,
    TurnView,
    Wanting,
)
from tenure.plan.instances import end_recorded
from tenure.storage.errors import DatabaseUnavailable
from tenure.storage.records import ControlServerRecord, Executor, Records, Turn

log = structlog.stdlib.get_logger(__name__)


@dataclass(slots=True)
class Recollection:
    """What passes remember of one object; losing it costs time, never correctness."""

    uid: str = ""
    memory: Memory = field(default_factory=Memory)
    told: object = None
    """The refusal that was counted for the launch that is due."""
    session: str = ""
    server: ServerKey | None = None


@dataclass(slots=True)
class Sight:
    """One snapshot."""

    raw: Mapping[str, Any]
    """The object as observed, or as the pass's own last write left it."""
    observation: Observation
    server_key: ServerKey
    control: ControlServer | None
    records: Records | None
    executor: Executor | None
    contact: tuple[OwnedServer, ControlClient] | None
    """The server in use, when it is the one of this ControlServer."""

    @property
    def resource(self) -> AgentProcess:
        return self.observation.resource

    @property
    def session(self) -> HostedSession:
        """``spec.session``."""
        assert self.resource.spec.session is not None
        return self.resource.spec.session

    def execution(self, instance: str) -> Execution | None:
        """How to act on an instance; None while there is nobody to ask."""
        if self.contact is None or self.records is None:
            return None
        return Execution(self.records, *self.contact, self.session.session_id, instance)


class Observer:
    """Gathers snapshots for passes. ``control_server`` is the object as last seen, or None."""

    def __init__(
        self,
        cache: ObjectCache,
        control_server: Callable[[ServerKey], Mapping[str, Any] | None],
        records_of: Callable[[str], Records | None],
        clients: Clients,
        losses: Losses,
        clock: Clock,
    ) -> None:
        self._losses = losses
        self._cache = cache
        self._control_server = control_server
        self._records_of = records_of
        self._clients = clients
        self._clock = clock

    async def look(self, key: ObjectKey, memory: Memory) -> Sight | None:
        """One snapshot; None when the cache has no such object. Raises ``InvalidResource``."""
        raw = self._cache.agent_process(key)
        if raw is None:
            return None
        resource = parse_agent_process(raw)
        session = resource.spec.session
        assert session is not None, "an agent with a pod of its own is another pass's business"
        server_key = ServerKey(key.namespace, session.control_server_ref.name)
        control, wanting = self._control(server_key)
        records = self._records_of(key.namespace)
        contact = self._contact(server_key, control)
        read = await _read(records, control, session.session_id)
        server = _server_view(server_key, control, wanting, records, read, contact)
        executor = read.executor
        row = None if executor is None else row_of(executor, server.incarnation, None)
        newest = read.turn
        observation = Observation(
            resource=resource,
            server=server,
            row=row,
            row_read=read.done,
            session=executor.session_state if executor is not None else None,
            newest_turn=TurnView(newest.id, newest.state) if newest is not None else None,
            instance=await self._instance(resource, server, executor, contact),
            drained_for=read.drained_for,
            began_anew=executor is not None and executor.began_anew,
            server_gone=await self._server_gone(resource, control, records, executor),
            now=self._clock.now(),
            clock=self._clock.monotonic(),
            memory=memory,
        )
        return Sight(raw, observation, server_key, control, records, executor, contact)

    def _control(self, key: ServerKey) -> tuple[ControlServer | None, Wanting | None]:
        raw = self._control_server(key)
        if raw is None:
            text = f"there is no ControlServer {key.name} in this namespace that this operator looks after"
            return None, Wanting(ConditionReason.CONTROL_SERVER_NOT_FOUND, text, stalled=True)
        try:
            return parse_control_server(raw), None
        except InvalidResource:
            text = f"the spec of ControlServer {key.name} is not understood"
            return None, Wanting(ConditionReason.CONTROL_SERVER_NOT_READY, text, stalled=True)

    async def _server_gone(
        self,
        resource: AgentProcess,
        control: ControlServer | None,
        records: Records | None,
        executor: Executor | None,
    ) -> bool:
        """Asked only about a row that this ControlServer is not the one to judge, and only while it matters."""
        if executor is None or records is None:
            return False
        if control is not None and control.effective_installation_id == executor.installation_id:
            return False
        untold = executor.agent_process_uid == resource.uid and not end_recorded(resource.status)
        if not executor.live and not untold:
            return False
        return await self._losses.lost(resource.namespace, records, executor)

    async def _instance(
        self,
        resource: AgentProcess,
        server: ServerView,
        executor: Executor | None,
        contact: tuple[OwnedServer, ControlClient] | None,
    ) -> InstanceView:
        """What the server says of the instance in the row. Of an agent that ends with its server the server is not the
        one to tell: whoever finds it gone does, and that of all its agents alike."""
        seen = await _asked(resource, server, executor, contact)
        began = resource.status.instance is not None and resource.status.instance.started_at is not None
        if contact is None or not began or seen not in (InstanceView.ENDED, InstanceView.ABSENT):
            return seen
        return seen if await _goes_on(contact[1]) else InstanceView.UNREAD

    def _contact(
        self, key: ServerKey, control: ControlServer | None
    ) -> tuple[OwnedServer, ControlClient] | None:
        found = self._clients.get(key)
        if found is None or control is None or found[0].object_uid != control.uid:
            return None
        return found


@dataclass(frozen=True, slots=True)
class _Rows:
    done: bool
    record: ControlServerRecord | None = None
    executor: Executor | None = None
    turn: Turn | None = None
    drained_for: float | None = None


async def _read(records: Records | None, control: ControlServer | None, session: str) -> _Rows:
    if records is None:
        return _Rows(done=True)
    try:
        record = None
        if control is not None:
            record = await records.servers.get(control.effective_installation_id)
        executor = await records.inventory.of_session(session)
        # After the row: a turn of an execution that is not in the row yet would be taken for an earlier one's.
        turns = await records.turns.of_session(session, limit=1)
        drained_for = None
        if executor is not None and executor.status is ExecutorStatus.STOPPING:
            drained_for = (await records.inventory.now() - executor.updated_at).total_seconds()
    except DatabaseUnavailable:
        return _Rows(done=False)
    return _Rows(True, record, executor, turns[0] if turns else None, drained_for)


def _server_view(
    key: ServerKey,
    control: ControlServer | None,
    wanting: Wanting | None,
    records: Records | None,
    read: _Rows,
    contact: tuple[OwnedServer, ControlClient] | None,
) -> ServerView:
    record = read.record
    incarnation = record.adopted_by or "" if record is not None else ""
    recovered_by = record.recovered_by if record is not None else None
    if contact is not None:
        incarnation = contact[0].incarnation
    if wanting is None and records is None:
        text = "no durable store is configured for this namespace, and without one no session can be hosted"
        wanting = Wanting(ConditionReason.NO_DURABLE_STORE, text, stalled=True)
    if wanting is None and contact is None:
        text = f"ControlServer {key.name} has no server in use at present"
        wanting = Wanting(ConditionReason.CONTROL_SERVER_NOT_READY, text)
    if wanting is None and recovered_by != incarnation:
        text = f"the recovery of ControlServer {key.name} is not over"
        wanting = Wanting(ConditionReason.CONTROL_SERVER_NOT_READY, text)
    return ServerView(
        name=key.name,
        wanting=wanting,
        incarnation=incarnation,
        recovered_by=recovered_by,
        names=frozenset({contact[0].pod_uid, contact[0].identity}) if contact is not None else frozenset(),
        backend=control is not None and control.spec.backend is not None,
        profiles=tuple(profile.name for profile in control.spec.agent_profiles) if control else (),
    )


async def _goes_on(client: ControlClient) -> bool:
    """Whether the server is not on its way out, by its own word, which only its owner is given: it stops its agents
    after it has begun to refuse claims."""
    try:
        await client.claim()
    except ControlError as error:
        log.info("a server may be ending", error=type(error).__name__)
        return False
    return True


async def _asked(
    resource: AgentProcess,
    server: ServerView,
    executor: Executor | None,
    contact: tuple[OwnedServer, ControlClient] | None,
) -> InstanceView:
    """What the server says of the instance in the row, if that is this object's."""
    if executor is None or contact is None or executor.agent_process_uid != resource.uid:
        return InstanceView.UNREAD
    if not executor.live or executor.container_identity not in server.names:
        return InstanceView.UNREAD
    try:
        found = await contact[1].instance(executor.agent_execution_id)
    except Refused as error:
        return InstanceView.ABSENT if error.status == 404 else InstanceView.UNREAD
    except ControlError:
        return InstanceView.UNREAD
    return InstanceView.ENDED if found.status == ENDED else InstanceView.LIVE
