"""Whether the agent of an inventory row lives: judged by its own instance or its own pod, never by "the server is up".

Whatever is not known is *unknown*: a row called dead by mistake gets a second agent, and one called live by mistake is
never repaired.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from tenure.plan.adoption.guards import InventoryRow

LAUNCH_LIMIT = timedelta(seconds=60)
"""A row of this incarnation comes before its instance; for this long the instance may be still on its way."""


class RowVerdict(StrEnum):
    """Whether the agent of a row lives."""

    LIVE = "live"
    DEAD = "dead"
    UNKNOWN = "unknown"


class PodLife(StrEnum):
    """What is known of a server's pod, by a live read of the API."""

    RUNNING = "running"
    """Its object is there and says so; its node may be lost all the same."""
    ENDED = "ended"
    """Its containers have ended, or another one runs in the place of the one on record."""
    ABSENT = "absent"
    UNKNOWN = "unknown"
    """The API did not answer."""


@dataclass(frozen=True, slots=True)
class Enumeration:
    """One successful enumeration of the server in use. Each pass takes its own; none is kept for later.

    ``server``: the names under which rows know it, pod UID and identity. ``as_of``: the database's clock before the
    request was sent. ``settled``: every record had its outcome by then, so what recovery itself stopped is not in it.
    """

    server: frozenset[str]
    instances: frozenset[str]
    """Ids of the instances whose agent has not ended."""
    sessions: frozenset[str]
    """Their sessions."""
    as_of: datetime
    settled: bool


@dataclass(frozen=True, slots=True)
class View:
    """What a pass knows when it classifies rows."""

    incarnation: str
    survival: bool
    """Off: the pod decides."""
    enumeration: Enumeration | None
    """None: no server in use, or it could not be enumerated."""
    recovered: bool
    """This incarnation's recovery has finished; before that, whoever asks from outside of it gets *unknown*."""
    in_recovery: bool = False
    """Asked by recovery itself, in step 8."""
    pods: Mapping[str, PodLife] = field(default_factory=dict)
    """By pod UID, and by server identity. A server that is not in here was not looked up; one that is known to have no
    pod any more is in here as absent."""
    stopping: frozenset[str] = frozenset()
    """Ids of rows of which a stop is in flight."""


def judge_row(row: InventoryRow, view: View) -> RowVerdict:
    """Whether the agent of a live row lives."""
    if row.id in view.stopping or not (view.recovered or view.in_recovery):
        return RowVerdict.UNKNOWN
    if not row.container_identity:
        # No server was ever chosen for it. A launch that is choosing one right now is not to be disturbed.
        return RowVerdict.UNKNOWN if _young(row, view) else RowVerdict.DEAD
    life = view.pods.get(row.container_identity, PodLife.UNKNOWN)
    if life in (PodLife.ABSENT, PodLife.ENDED):
        return RowVerdict.DEAD
    if not view.survival:
        return RowVerdict.LIVE if life is PodLife.RUNNING else RowVerdict.UNKNOWN
    seen = view.enumeration
    if seen is None or not seen.settled or row.container_identity not in seen.server:
        # A server that does not answer, or was not adopted, may host its agent all the same.
        return RowVerdict.UNKNOWN
    if row.agent_execution_id in seen.instances or row.session_id in seen.sessions:
        return RowVerdict.LIVE
    return RowVerdict.UNKNOWN if _young(row, view) else RowVerdict.DEAD


def _young(row: InventoryRow, view: View) -> bool:
    """Launched in this incarnation, and so shortly before that its instance need not be there yet. Nobody else's
    launch can still be on its way: the rotation has ended the credential that it was sent with."""
    if row.created_by != view.incarnation:
        return False
    seen = view.enumeration
    return seen is None or row.updated_at > seen.as_of - LAUNCH_LIMIT
