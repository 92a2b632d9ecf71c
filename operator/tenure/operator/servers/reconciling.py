"""Reconciliation of sessions, and the liveness of rows, by one enumeration for each pass."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import structlog

from tenure.model.records import SurvivalEffective
from tenure.operator.servers.ports import OwnedServer, Recovering
from tenure.operator.servers.rows import flag_is_stale, row_of
from tenure.ownership.errors import ControlError, NotAccepted
from tenure.plan.adoption.correlation import Seen
from tenure.plan.adoption.guards import InventoryRow
from tenure.plan.adoption.liveness import Enumeration, PodLife, RowVerdict, View, judge_row
from tenure.plan.adoption.repair import reconcile
from tenure.protocol.messages import Instance
from tenure.storage.records import Executor

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Look:
    """What one pass knows. ``instances`` None: there is no server in use, or it could not be enumerated."""

    view: View
    instances: tuple[Instance, ...] | None

    @property
    def live(self) -> tuple[Instance, ...]:
        """Instances whose agent has not ended."""
        return tuple(i for i in self.instances or () if seen_of(i).live)


def seen_of(instance: Instance) -> Seen:
    """As far as correlation goes."""
    return Seen(instance.id, instance.session_id, instance.status)


async def look(
    recovering: Recovering, *, in_recovery: bool, settled: bool, stopping: frozenset[str] = frozenset()
) -> Look:
    """Enumerate once, for everything that the pass judges. ``settled``: every record has its outcome by now.

    A server that does not answer is no error: then nothing is known. Raises ``NotAccepted`` and
    ``DatabaseUnavailable``.
    """
    records, server = recovering.records, recovering.server
    record = await records.servers.get(recovering.installation_id)
    survival = record is not None and record.survival_effective is SurvivalEffective.ENABLED
    enumeration, instances = None, None
    if server is not None:
        as_of = await records.inventory.now()
        instances = await _enumerate(recovering, server)
        if instances is not None:
            live = [i for i in instances if seen_of(i).live]
            enumeration = Enumeration(
                server=frozenset({server.pod_uid, server.identity}),
                instances=frozenset(i.id for i in live),
                sessions=frozenset(i.session_id for i in live if i.session_id),
                as_of=as_of,
                settled=settled,
            )
    rows = await records.inventory.live(recovering.installation_id)
    names = {row.container_identity for row in rows if row.container_identity}
    others = await _others(recovering, server, names)
    view = View(
        incarnation=recovering.incarnation,
        survival=survival,
        enumeration=enumeration,
        recovered=not in_recovery,
        in_recovery=in_recovery,
        pods={name: _life(name, recovering, server, others) for name in names},
        stopping=stopping,
    )
    return Look(view, instances)


async def _enumerate(recovering: Recovering, server: OwnedServer) -> tuple[Instance, ...] | None:
    try:
        async with server.client(recovering.budget) as client:
            return await client.instances()
    except NotAccepted:
        raise
    except ControlError as error:
        log.warning(
            "the control server could not be enumerated", server=str(recovering.key), error=str(error)
        )
        return None


async def _others(
    recovering: Recovering, server: OwnedServer | None, names: set[str]
) -> Mapping[str, PodLife] | None:
    """Pods beside those that were seen: asked for when a row names one that was not."""
    seen = set(recovering.present) | ({server.identity} if server is not None else set())
    return await recovering.elsewhere(names - seen) if names - seen else {}


def _life(
    name: str, recovering: Recovering, server: OwnedServer | None, elsewhere: Mapping[str, PodLife] | None
) -> PodLife:
    """``name`` is a pod's UID, or a server's identity, which is all that some launchers know."""
    if server is not None and name == server.identity:
        name = server.pod_uid
    if name in recovering.present:
        return PodLife.ENDED if name in recovering.ended else PodLife.RUNNING
    if elsewhere is None:
        return PodLife.UNKNOWN
    if name in elsewhere:
        return elsewhere[name]
    others = recovering.present - recovering.ended - ({server.pod_uid} if server is not None else set())
    others |= {uid for uid, life in elsewhere.items() if life is PodLife.RUNNING}
    # An identity of some other server: that of a pod which still runs, perhaps. Where none runs, it has ended.
    return PodLife.UNKNOWN if others else PodLife.ABSENT


async def settle_rows(
    recovering: Recovering,
    executors: Iterable[Executor],
    look_: Look,
    *,
    dead_for_sure: bool = False,
) -> tuple[Executor, ...]:
    """What becomes of sessions that were not re-tracked, each in one transaction of its own; returns those whose row
    is known to be dead. ``dead_for_sure``: their pod has ended."""
    dead: list[Executor] = []
    for executor in executors:
        row = row_of(executor, recovering.incarnation, None)
        verdict = RowVerdict.DEAD if dead_for_sure else judge_row(row, look_.view)
        if verdict is RowVerdict.DEAD:
            dead.append(executor)
        await _settle(recovering, executor, row, verdict)
    return tuple(dead)


async def _settle(recovering: Recovering, executor: Executor, row: InventoryRow, verdict: RowVerdict) -> None:
    await recovering.records.inventory.reconcile(
        executor,
        lambda view: reconcile(view, row, retracked=False, verdict=verdict),
        even_unstopped=flag_is_stale(executor, recovering.incarnation),
    )
