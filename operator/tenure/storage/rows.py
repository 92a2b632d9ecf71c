"""Parsing rows of the liveness table, trusting nothing: anybody with INSERT may have written them."""

import logging
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from tenure.storage.liveness import AgentLivenessRecord

log = logging.getLogger("tenure.storage")


class UnreadableRow(ValueError):
    """A row holds a value that no reader can use. The text names the column, never the value."""


def parse_time(value: object) -> datetime:
    """A time as any writer of the table left it: aware datetime, ISO 8601 text, without an offset UTC.

    Raises ``ValueError`` for anything else, among them PostgreSQL's ``infinity`` and years before 1.
    """
    if isinstance(value, str):
        value = datetime.fromisoformat(value.strip())
    if not isinstance(value, datetime):
        raise ValueError("not a time")
    try:
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except OverflowError:
        raise ValueError("a time beyond the calendar") from None


def record_from_row(row: Mapping[str, Any]) -> AgentLivenessRecord:
    """Parse one row, trusting nothing: anybody with INSERT may have written it.

    Raises ``UnreadableRow`` for a time, interval or identity that cannot be read. A current task or a
    desired state of an unexpected type reads as None: they say less than the heartbeat and never spoil it.
    """
    return AgentLivenessRecord(
        instance_id=_text(row, "instance_id"),
        process_kind=_text(row, "process_kind"),
        hostname=_text(row, "hostname"),
        pid=_whole(row.get("pid")) or 0,
        liveness_interval_s=_interval(row),
        started_at=_time(row, "started_at"),
        last_heartbeat_at=_time(row, "last_heartbeat_at"),
        current_task_id=_whole(row.get("current_task_id")),
        current_task_type=_optional_text(row.get("current_task_type")),
        desired_state=_optional_text(row.get("desired_state")),
    )


def _text(row: Mapping[str, Any], column: str) -> str:
    value = row.get(column)
    if not isinstance(value, str):
        raise UnreadableRow(f"{column} is not a text")
    return value


def _optional_text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _interval(row: Mapping[str, Any]) -> float:
    value = row.get("liveness_interval_s")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnreadableRow("liveness_interval_s is not a number")
    try:
        seconds = float(value)
    except OverflowError:
        raise UnreadableRow("liveness_interval_s is not a number of seconds") from None
    if not math.isfinite(seconds) or seconds <= 0:
        raise UnreadableRow("liveness_interval_s is not a number of seconds above 0")
    return seconds


def _time(row: Mapping[str, Any], column: str) -> datetime:
    try:
        return parse_time(row.get(column))
    except ValueError:
        raise UnreadableRow(f"{column} is not a time") from None


def newest_first(rows: Iterable[dict[str, Any]]) -> list[AgentLivenessRecord]:
    """The readable rows, newest ``started_at`` first; the number of unreadable ones is logged."""
    records, unreadable = [], 0
    for row in rows:
        try:
            records.append(record_from_row(row))
        except UnreadableRow:
            unreadable += 1
    if unreadable:
        log.warning("%d rows of %s cannot be read and are left out", unreadable, "cks_agent_liveness")
    records.sort(key=lambda record: record.started_at, reverse=True)
    return records


def storable(text: str) -> str:
    """The text without what no database keeps: NUL and lone surrogates. For what is only shown, never for a key of
    somebody else's."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()


def fitting(number: int | None, bits: int) -> int | None:
    """The number when a signed column of this width holds it, else None."""
    return number if number is not None and -(2 ** (bits - 1)) <= number < 2 ** (bits - 1) else None
