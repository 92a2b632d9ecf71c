"""What the operator reads of the liveness table: one query for all agents of a database."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from tenure.storage import statements
from tenure.storage.liveness import AgentLivenessRecord
from tenure.storage.pool import BoundedPool, Connection
from tenure.storage.rows import UnreadableRow, record_from_row

_RECENT = timedelta(days=2)
"""How old the last heartbeat of a row may be that is found by host name in a bulk read. Far more than any
three intervals; whole days, because in TEXT columns times with different offsets compare by their first
characters."""


@dataclass(frozen=True, slots=True)
class RowLookup:
    """How to find the row of one pod: ids under which it may be (the pod's UID, a row found earlier), else
    its name.

    ``hostname`` and ``process_kind`` find the rows of agents that make their own ids; leave ``hostname``
    empty to look by id only, as soon as the row is known.
    """

    instance_ids: tuple[str, ...]
    hostname: str
    process_kind: str


@dataclass(frozen=True, slots=True)
class LivenessSnapshot:
    """Rows as they were at ``now``, the database's clock. Which row belongs to which pod is for the reader
    to decide.

    ``unreadable``: ids of rows found that nobody can read (a time that is none, an interval of zero).
    """

    now: datetime
    rows: tuple[AgentLivenessRecord, ...]
    unreadable: tuple[str, ...] = ()


async def read_liveness(pool: BoundedPool, lookups: Sequence[RowLookup]) -> LivenessSnapshot:
    """The rows of all these pods, in one query by index. Raises ``DatabaseUnavailable``."""
    ids = _sendable(id_ for lookup in lookups for id_ in lookup.instance_ids)
    by_name = {(lookup.process_kind, lookup.hostname) for lookup in lookups if lookup.hostname}
    hosts = _sendable(host for _, host in by_name)
    kinds = _sendable(kind for kind, _ in by_name)

    async def work(connection: Connection) -> LivenessSnapshot:
        if hosts:
            row = await connection.fetchrow(snapshot_sql(), ids, kinds, hosts)
            return _snapshot(row["now"], row["known"], row["unknown"], by_name)
        row = await connection.fetchrow(statements.SNAPSHOT_BY_KEY, ids)
        return _snapshot(row["now"], row["known"], "[]", by_name)

    return await pool.run(work)


async def lookup_row(pool: BoundedPool, lookup: RowLookup) -> LivenessSnapshot:
    """Every row that may be of this one pod, however old its heartbeat. Raises ``DatabaseUnavailable``.

    For a pod that has ended, once: without a known id it reads all rows of one process kind.
    """
    ids = _sendable(lookup.instance_ids)
    searchable = lookup.hostname and _storable(lookup.hostname) and _storable(lookup.process_kind)
    by_name = {(lookup.process_kind, lookup.hostname)} if searchable else set()

    async def work(connection: Connection) -> LivenessSnapshot:
        row = await connection.fetchrow(statements.SNAPSHOT_BY_KEY, ids)
        found = _snapshot(row["now"], row["known"], "[]", by_name)
        if found.rows or not by_name:
            return found
        row = await connection.fetchrow(statements.LOOKUP, lookup.process_kind, lookup.hostname)
        by_host = _snapshot(row["now"], "[]", row["unknown"], by_name)
        return LivenessSnapshot(by_host.now, by_host.rows, found.unreadable + by_host.unreadable)

    return await pool.run(work)


def snapshot_sql() -> str:
    """The bulk read as of today: parameters are ids, process kinds, host names."""
    since = (datetime.now(UTC) - _RECENT).date().isoformat()
    return statements.SNAPSHOT.format(since=since)


def _sendable(texts: Iterable[str]) -> list[str]:
    """Without duplicates, and without what PostgreSQL would refuse: one odd name must not fail the query."""
    return sorted({text for text in texts if _storable(text)})


def _storable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def _snapshot(now: datetime, known: str, unknown: str, by_name: set[tuple[str, str]]) -> LivenessSnapshot:
    rows: dict[str, AgentLivenessRecord] = {}
    unreadable: set[str] = set()
    by_host = [row for row in json.loads(unknown) if (row["process_kind"], row["hostname"]) in by_name]
    for row in [*json.loads(known), *by_host]:
        try:
            record = record_from_row(row)
        except UnreadableRow:
            unreadable.add(str(row.get("instance_id")))
        else:
            rows[record.instance_id] = record
    return LivenessSnapshot(now, tuple(rows.values()), tuple(sorted(unreadable)))
