"""What a new process finds: which recorded executions live, by the server's own enumeration, and what to do about
the others. No agent is started or resumed here.

On Kubernetes the operator has decided before it handed the server over; then only what this library's former
process left half done is put in order. Without, the backend is the only one there is, and decides.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from tenure.backend.core import Core
from tenure.backend.errors import BackendError
from tenure.backend.link import Peer
from tenure.backend.refusals import translated
from tenure.model.records import ExecutorStatus, TurnState
from tenure.protocol.messages import Instance
from tenure.storage.records import Executor, ServerFacts, Turn

log = logging.getLogger("tenure.backend")

STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one session's record and instances mean. ``instance`` None: it has none."""

    instance: Instance | None
    stop: tuple[Instance, ...] = ()


def judge(record: Executor, instances: Sequence[Instance]) -> Judgement:
    """Which of the instances that report the record's session is the record's.

    Exactly one live one is, whatever its id; of several, the one that the record names; else none. Where none
    lives, the one that the record names is, though its agent has ended: its outcome is there to be read.
    """
    live = [one for one in instances if one.status != STOPPED]
    named = [one for one in instances if one.id == record.agent_execution_id]
    named_live = [one for one in named if one in live]
    winner: Instance | None = None
    if record.passthrough:
        # Its terminal was the former process's: it does not survive.
        pass
    elif len(live) == 1:
        winner = live[0]
    elif named_live:
        winner = named_live[0]
    elif not live and named:
        winner = named[0]
    return Judgement(winner, tuple(one for one in instances if one is not winner))


async def take_record(core: Core, peer: Peer) -> None:
    """Without Kubernetes: make the installation's record ours, and refuse launches until recovery is over."""
    with translated():
        found = await core.records.servers.ensure(core.installation, core.installation)
        await core.records.servers.record(
            core.installation,
            ServerFacts(
                server_identity=peer.name,
                endpoint=peer.handover.endpoint,
                pod_uid=None,
                credential_secret=None,
                capabilities=tuple(sorted(peer.identity.capabilities)),
                unowned_period_ms=peer.identity.unowned_period_ms,
                rotation_id=peer.handover.rotation_id or None,
                rotation_confirmed=True,
            ),
            adopted_by=found.adopted_by,
            incarnation=core.incarnation,
        )
        await core.records.servers.begin_recovery(core.installation, adopted_by=core.incarnation)


async def record_recovered(core: Core) -> None:
    """Every record has its outcome: launches are free."""
    with translated():
        await core.records.servers.set_recovered(
            core.installation, core.incarnation, adopted_by=core.incarnation
        )


async def recover(core: Core, peer: Peer, *, sole: bool) -> list[Executor]:
    """The records of sessions that live at ``peer`` and are not driven here yet.

    ``sole``: nobody else decides: losers and instances without a record are stopped, records without an instance
    repaired. Else only records that this library wrote, of this very server, are repaired.
    """
    with translated():
        before = {row.session_id: row for row in await core.records.inventory.live(core.installation)}
    with core.calling(peer):
        instances = await peer.client.instances()
    with translated():
        rows = {row.session_id: row for row in await core.records.inventory.live(core.installation)}
    kept = []
    for session_id, row in rows.items():
        earlier = before.get(session_id)
        driven = core.sessions.get(session_id)
        if session_id in core.launching or (driven is not None and driven.server_identity == peer.name):
            continue
        if earlier is None or earlier.agent_execution_id != row.agent_execution_id:
            # Launched while we looked: its instance may not be in what we saw.
            continue
        try:
            found = await _decide(core, peer, row, [i for i in instances if i.session_id == session_id], sole)
        except BackendError as error:
            log.error("session %s is not re-tracked: %s", session_id, error)
            continue
        if found is not None:
            kept.append(found)
    if sole:
        for one in instances:
            if one.session_id not in rows and one.session_id not in core.launching:
                await _stop(core, peer, one)
    return kept


async def open_turn(core: Core, session_id: str) -> Turn | None:
    """The session's open turn."""
    with translated():
        turns = await core.records.turns.of_session(session_id, limit=20)
    return next((turn for turn in turns if turn.state is TurnState.OPEN), None)


async def _decide(
    core: Core, peer: Peer, row: Executor, instances: list[Instance], sole: bool
) -> Executor | None:
    judgement = judge(row, instances)
    if sole:
        for one in judgement.stop:
            await _stop(core, peer, one)
    winner = judgement.instance
    if winner is None:
        if sole or (row.agent_process_uid is None and row.container_identity == peer.name):
            log.warning("session %s has no instance: its record is repaired", row.session_id)
            with translated():
                await core.records.inventory.repair((row,), even_unstopped=sole)
        return None
    if winner.id != row.agent_execution_id:
        if not sole:
            return None
        with translated():
            await core.records.inventory.retracked(row, winner.id)
            return await core.records.inventory.of_session(row.session_id)
    return row


async def _stop(core: Core, peer: Peer, instance: Instance) -> None:
    log.warning("an instance that is no session's is stopped")
    with core.calling(peer):
        await peer.client.delete(instance.id)


def is_stopping(executor: Executor) -> bool:
    """Whether a stop by this library was begun, and has to be finished."""
    return executor.status is ExecutorStatus.STOPPING and executor.agent_process_uid is None
