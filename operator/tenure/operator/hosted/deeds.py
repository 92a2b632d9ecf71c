"""Act: carry out one action of a plan, and say in a type what became of it."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import assert_never

import structlog

from tenure.cluster.errors import Refused
from tenure.cluster.ports import AgentCluster
from tenure.cluster.server_ports import ServerCluster
from tenure.model.adoption import HistorySetting, PermissionPolicy
from tenure.model.agent_profile import AgentProfile
from tenure.model.masked import Masked
from tenure.model.reasons import ConditionReason
from tenure.model.status import Status
from tenure.operator.cache import ObjectCache, ObjectKey
from tenure.operator.hosted.driver import Orders
from tenure.operator.hosted.drivers import Drivers
from tenure.operator.hosted.executions import Execution
from tenure.operator.hosted.losses import SERVER_POD_KEY, Losses
from tenure.operator.hosted.sight import Recollection, Sight
from tenure.operator.passes.writing import write_status
from tenure.operator.servers.orphans import AGENT_PROCESS_KEY
from tenure.ownership.errors import (
    SERVER_FULL,
    SESSION_IN_USE,
    ControlError,
    ForeignServer,
    NoAnswer,
    NotAccepted,
    ShuttingDown,
)
from tenure.ownership.errors import Refused as RefusedByServer
from tenure.plan.hosted.actions import Action, Bury, Drive, Finish, Launch, MarkStopping, WriteStatus
from tenure.plan.hosted.observation import (
    TOKEN_KEY,
    TURNS_KEY,
    Rejection,
    Wanting,
    turns_before,
)
from tenure.protocol.messages import CreateRequest
from tenure.storage.records import HISTORY_KEY, EntryRefused, LaunchRefused, LaunchRequest

REJECTED_FIRST, REJECTED_LONGEST = 2.0, 300.0
"""Seconds between two tries of a launch that is rejected; they double."""

log = structlog.stdlib.get_logger(__name__)


class Done(Enum):
    """What became of an action."""

    CHANGED = auto()
    """Carried out: look again."""
    QUIET = auto()
    """Carried out; nothing that a plan sees has changed."""
    LATER = auto()
    """Could not be done now, and is tried again in a while."""


class Rejected(Exception):
    """A launch cannot be granted as it was asked for."""

    def __init__(self, wanting: Wanting) -> None:
        super().__init__(wanting.sentence)
        self.wanting = wanting


@dataclass(slots=True)
class Actor:
    """Carries out actions. Raises ``ApiError`` and ``StorageError``; what a control server answers is in the type."""

    cluster: AgentCluster
    servers: ServerCluster
    cache: ObjectCache
    drivers: Drivers
    losses: Losses
    wake: Callable[[ObjectKey], None]

    async def do(self, action: Action, sight: Sight, kept: Recollection) -> Done:
        """Carry out one action."""
        try:
            match action:
                case WriteStatus():
                    return await self._write(action.status, sight)
                case Launch():
                    return await self._launch(action, sight, kept)
                case Drive():
                    return self._drive(action, sight)
                case MarkStopping():
                    return await self._mark(action, sight)
                case Finish():
                    return await self._finish(action, sight)
                case Bury():
                    return await self._bury(action, sight)
        except ControlError as error:
            session = sight.session.session_id
            log.info("a control server does not do what is asked of it", session=session, error=str(error))
            return Done.LATER
        assert_never(action)

    async def _write(self, status: Status, sight: Sight) -> Done:
        raw = await write_status(self.cluster, self.cache, sight.raw, status)
        if raw is None:
            return Done.LATER
        sight.raw = raw
        return Done.CHANGED

    # Launching

    async def _launch(self, action: Launch, sight: Sight, kept: Recollection) -> Done:
        execution = sight.execution(action.instance)
        if execution is None or sight.control is None:
            return Done.LATER
        profile = sight.control.spec.profile(sight.session.agent_profile)
        if profile is None:
            return Done.LATER
        try:
            environment = await self._environment(sight, profile)
            if not await self._take_row(action, sight, execution):
                return Done.CHANGED
            started = await self._create(sight, execution, profile, environment)
        except Rejected as rejected:
            self._reject(rejected.wanting, sight, kept)
            return Done.CHANGED
        kept.memory = replace(kept.memory, rejection=None)
        if started:
            log.info(
                "an agent was started in a control server", session=execution.session, instance=execution.id
            )
        return Done.CHANGED

    async def _take_row(self, action: Launch, sight: Sight, execution: Execution) -> bool:
        """Whether the session is this launch's, now or since before."""
        records, session, resource = execution.records, sight.session, sight.resource
        row = sight.executor
        if row is not None and row.live and row.agent_process_uid == resource.uid:
            return row.agent_execution_id == action.instance
        assert sight.control is not None
        before = await self._newest_turn(execution)
        request = LaunchRequest(
            session_id=session.session_id,
            task_id=session.task_id,
            installation_id=sight.control.effective_installation_id,
            agent_execution_id=action.instance,
            created_by=execution.server.incarnation,
            agent_profile=session.agent_profile,
            workspace_path=session.workspace_path,
            container_identity=execution.server.pod_uid,
            task_environment_id=row.task_environment_id if row is not None else session.task_id,
            agent_process_uid=resource.uid,
            grace_seconds=resource.spec.drain.grace_period_seconds,
            metadata={
                AGENT_PROCESS_KEY: resource.name,
                SERVER_POD_KEY: execution.server.pod_name,
                TOKEN_KEY: action.restart_token,
                TURNS_KEY: str(before),
                **_history(sight, session.agent_profile),
            },
        )
        try:
            taken = await records.executions.launch(request)
        except LaunchRefused as refused:
            log.info("a launch is refused", session=session.session_id, why=str(refused))
            return False
        except EntryRefused as refused:
            raise Rejected(_rejection(f"the session cannot be recorded: {refused}")) from None
        if await self._newest_turn(execution) != before:
            # Somebody else's agent came and went between the two: its turn would be taken for this one's.
            await records.executions.rolled_back(session.session_id, taken.agent_execution_id)
            return False
        sight.executor = taken
        return True

    @staticmethod
    async def _newest_turn(execution: Execution) -> int:
        turns = await execution.records.turns.of_session(execution.session, limit=1)
        return turns[0].id if turns else 0

    async def _create(
        self, sight: Sight, execution: Execution, profile: AgentProfile, environment: dict[str, Masked]
    ) -> bool:
        """Ask the server for the instance; whether its agent started. Raises ``Rejected`` when that is in vain, with
        the row free again; and ``ControlError`` when nothing is known: the row stays, and the next look asks again."""
        request = _create_request(sight, execution, profile, environment)
        try:
            await self._ask(execution, request)
            return True
        except (NoAnswer, NotAccepted, ShuttingDown, ForeignServer):
            raise
        except RefusedByServer as error:
            await execution.finish(state=None, failed=True, last_words=False)
            if error.status == 400:
                raise Rejected(_rejection(_IN_VAIN)) from None
            if error.code in (SERVER_FULL, SESSION_IN_USE):
                full = f"ControlServer {sight.server_key.name} takes no further agent at present"
                raise Rejected(Wanting(ConditionReason.CONTROL_SERVER_NOT_READY, full)) from None
            log.warning("an agent did not start", session=execution.session, status=error.status)
            return False

    @staticmethod
    async def _ask(execution: Execution, request: CreateRequest) -> None:
        try:
            await execution.client.create(request)
            return
        except RefusedByServer as error:
            if error.code != SESSION_IN_USE:
                raise
        # The row is ours, so what holds the session at the server is of a launch that came to nothing.
        for other in await execution.client.instances():
            if other.session_id == request.session_id and other.id != request.id:
                log.warning("an instance that no record names is stopped", session=request.session_id)
                await execution.client.delete(other.id)
        await execution.client.create(request)

    async def _environment(self, sight: Sight, profile: AgentProfile) -> dict[str, Masked]:
        found: dict[str, Masked] = {}
        for variable in profile.env:
            if variable.value is not None:
                found[variable.name] = Masked(variable.value)
            if variable.value_from is None:
                continue
            wanted = variable.value_from.secret_key_ref
            try:
                secret = await self.servers.get_secret(sight.resource.namespace, wanted.name)
            except Refused:
                raise Rejected(_rejection(f"Secret {wanted.name} may not be read")) from None
            value = secret.data.get(wanted.key) if secret is not None else None
            if value is None:
                raise Rejected(_rejection(f"there is no key {wanted.key} in a Secret {wanted.name}"))
            found[variable.name] = value
        return found

    def _reject(self, wanting: Wanting, sight: Sight, kept: Recollection) -> None:
        generation, before = sight.resource.metadata.generation, kept.memory.rejection
        attempts = before.attempts + 1 if before is not None and before.generation == generation else 1
        wait = min(REJECTED_LONGEST, REJECTED_FIRST * 2 ** min(attempts - 1, 10))
        retry_at = sight.observation.clock + wait
        kept.memory = replace(kept.memory, rejection=Rejection(generation, wanting, attempts, retry_at))

    # Driving and ending

    def _drive(self, action: Drive, sight: Sight) -> Done:
        executor, contact = sight.executor, sight.contact
        if executor is None or contact is None or sight.records is None:
            return Done.QUIET
        profile = sight.control.spec.profile(executor.agent_profile) if sight.control is not None else None
        key = ObjectKey(sight.resource.namespace, sight.resource.name)
        orders = Orders(
            server=sight.server_key,
            identity=contact[0].identity,
            incarnation=contact[0].incarnation,
            session=executor.session_id,
            instance=action.instance,
            records=sight.records,
            turns_before=turns_before(sight.observation.row),
            prompt=action.prompt,
            resume_token=executor.resume_token or "",
            history=profile.history if profile is not None else HistorySetting.LOAD,
            permissions=profile.permissions if profile is not None else PermissionPolicy.DENY,
        )
        self.drivers.ensure(orders, lambda: self.wake(key))
        return Done.QUIET

    async def _mark(self, action: MarkStopping, sight: Sight) -> Done:
        assert sight.records is not None
        await sight.records.executions.stopping(sight.session.session_id, action.instance)
        return Done.CHANGED

    async def _finish(self, action: Finish, sight: Sight) -> Done:
        execution = sight.execution(action.instance)
        if execution is None:
            return Done.LATER
        await self.drivers.release(sight.resource.namespace, execution.session)
        ended = await execution.finish(
            state=action.state, failed=action.failed, last_words=action.last_words, cut=action.cut
        )
        return Done.CHANGED if ended else Done.LATER

    async def _bury(self, action: Bury, sight: Sight) -> Done:
        if sight.records is None or sight.executor is None:
            return Done.LATER
        namespace = sight.resource.namespace
        buried = await self.losses.bury(namespace, sight.records, sight.executor.installation_id)
        for session in buried:
            await self.drivers.release(namespace, session)
        return Done.CHANGED if action.session in buried else Done.LATER


_IN_VAIN = (
    "the control server takes no such agent: workspacePath and workspaceSourceRoots have to be existing directories "
    "that it is permitted to use, and the profile's command a program and its arguments"
)


def _rejection(sentence: str) -> Wanting:
    return Wanting(ConditionReason.LAUNCH_REJECTED, sentence, stalled=True)


def _history(sight: Sight, name: str) -> dict[str, str]:
    """What whoever drives the agent has to know of its profile: a backend does not see ``spec.agentProfiles``."""
    profile = sight.control.spec.profile(name) if sight.control is not None else None
    discard = profile is not None and profile.history is HistorySetting.DISCARD
    return {HISTORY_KEY: HistorySetting.DISCARD.value} if discard else {}


def _create_request(
    sight: Sight, execution: Execution, profile: AgentProfile, environment: dict[str, Masked]
) -> CreateRequest:
    session, executor = sight.session, sight.executor
    assert executor is not None
    again = profile.continue_args if executor.resume_token else ()
    return CreateRequest(
        id=execution.id,
        workspace_path=session.workspace_path,
        agent_command=shlex.join((*profile.command, *again)),
        env=environment,
        auto_start=True,
        session_id=session.session_id,
        task_id=session.task_id,
        workspace_source_roots=session.workspace_source_roots,
    )
