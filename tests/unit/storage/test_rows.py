"""Parsing rows that anybody may have written."""

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.storage.errors import DatabaseUnavailable, loses_connection, reason_of
from tenure.storage.rows import UnreadableRow, fitting, newest_first, parse_time, record_from_row, storable

ROW: dict[str, Any] = {
    "instance_id": "one",
    "process_kind": "critic",
    "hostname": "pod-1",
    "pid": 7,
    "liveness_interval_s": 30,
    "started_at": "2026-03-01T12:00:00+00:00",
    "last_heartbeat_at": "2026-03-01T12:01:00+00:00",
    "current_task_id": None,
    "current_task_type": None,
}


@pytest.mark.parametrize(
    "text",
    [
        "2026-03-01T12:00:00+00:00",
        "2026-03-01T12:00:00Z",
        "2026-03-01 12:00:00+00",
        "2026-03-01T12:00:00",
        " 2026-03-01T13:00:00+01:00 ",
        "2026-03-01T12:00:00.000000+00:00",
    ],
)
def test_every_spelling_of_a_moment_is_that_moment(text: str) -> None:
    assert parse_time(text) == datetime(2026, 3, 1, 12, tzinfo=UTC)


@given(st.datetimes(timezones=st.sampled_from([None, UTC, timezone(timedelta(hours=5, minutes=30))])))
def test_a_time_written_as_iso_reads_as_the_same_moment_in_utc(moment: datetime) -> None:
    expected = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    try:
        read = parse_time(moment.isoformat())
    except ValueError:
        assert moment.year in (1, 9999), "only the edges of the calendar have no UTC"
        return
    assert read == expected
    assert read.utcoffset() == timedelta(0)


json_values = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers())


@given(st.dictionaries(st.sampled_from([*ROW, "desired_state", "extra"]), json_values))
def test_any_row_is_read_or_is_unreadable_and_nothing_else_happens(changes: dict[str, Any]) -> None:
    try:
        record = record_from_row(ROW | changes)
    except UnreadableRow as error:
        assert str(error).split(" ")[0] in ROW
        return
    assert math.isfinite(record.liveness_interval_s)
    assert record.liveness_interval_s > 0
    assert record.started_at.tzinfo is UTC
    record.alive(datetime.now(UTC))


def test_a_row_without_the_column_asks_for_no_stop() -> None:
    assert record_from_row(ROW).desired_state is None
    assert record_from_row(ROW | {"desired_state": "stop_requested"}).stop_requested


@pytest.mark.accept("L-5")
@pytest.mark.parametrize(
    ("seconds", "alive"), [(0, True), (90, True), (90.001, False), (10_000, False), (-500, True)]
)
def test_a_row_is_alive_for_exactly_three_of_its_own_intervals(seconds: float, alive: bool) -> None:
    record = record_from_row(ROW)
    assert record.alive(record.last_heartbeat_at + timedelta(seconds=seconds)) is alive


def test_an_unreadable_row_is_left_out_and_the_rest_sorted() -> None:
    rows = [
        ROW | {"instance_id": str(hour), "started_at": f"2026-03-01T{hour}:00:00"} for hour in (10, 12, 11)
    ]
    rows.append(ROW | {"started_at": "never"})
    assert [record.instance_id for record in newest_first(rows)] == ["12", "11", "10"]


@given(st.text())
def test_a_storable_text_can_be_stored(text: str) -> None:
    assert "\0" not in storable(text)
    storable(text).encode()


@given(st.integers() | st.none())
def test_a_fitting_number_fits(number: int | None) -> None:
    assert fitting(number, 32) in (None, number)
    assert fitting(2**31, 32) is None
    assert fitting(-(2**31), 32) == -(2**31)


class ServerError(Exception):
    def __init__(self, sqlstate: object) -> None:
        super().__init__("canary: the server's own words")
        self.sqlstate = sqlstate


@pytest.mark.accept("M-2")
@given(st.sampled_from(["25006", "28P01", "42P01", "XX000", "zzzzz", "canary", None, 7, "c;a/n"]))
def test_a_reason_never_quotes_the_server(sqlstate: object) -> None:
    assert "canary" not in reason_of(ServerError(sqlstate))


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (ServerError("25006"), True),
        (ServerError("57P01"), True),
        (ServerError("08006"), True),
        (ServerError("42P01"), False),
        (ServerError("23505"), False),
        (ConnectionResetError(), True),
        (TimeoutError(), True),
    ],
)
def test_a_connection_is_kept_only_after_a_plain_refusal(error: Exception, lost: bool) -> None:
    assert loses_connection(error) is lost


def test_an_unavailable_database_survives_pickling() -> None:
    import pickle

    error = pickle.loads(pickle.dumps(DatabaseUnavailable("main", "gone")))
    assert (error.name, error.reason, str(error)) == ("main", "gone", "database 'main': gone")
