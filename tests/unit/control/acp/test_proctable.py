"""Which processes of a reading belong to an instance."""

import os

import pytest

from tenure.control.acp import proctable
from tenure.control.acp.proctable import Family, Seen


def seen(
    pid: int, *, parent: int = 1, group: int = 0, session: int = 0, mark: str = "", start: int = 0
) -> Seen:
    return Seen(pid, start or pid, "S", parent, group or pid, session or pid, mark)


def ids(family: Family, *table: Seen) -> list[int]:
    return sorted(one.pid for one in family.members(table))


def test_a_process_belongs_by_session_group_mark_or_parent() -> None:
    family = Family("m", {100: 100})
    table = [
        seen(1, parent=0),
        seen(50),
        seen(100, parent=50),
        seen(101, parent=100, group=100, session=100),
        seen(102, group=102, session=100),
        seen(103, mark="m"),
        seen(104, parent=103),
        seen(105, parent=104),
        seen(106, mark="other"),
        seen(107, parent=50),
    ]
    assert ids(family, *table) == [100, 101, 102, 103, 104, 105]


def test_who_was_seen_to_belong_still_does_when_its_parent_is_gone() -> None:
    family = Family("m", {100: 100})
    assert ids(family, seen(100), seen(200, parent=100)) == [100, 200]
    assert ids(family, seen(200, parent=1), seen(201, parent=200)) == [200, 201]
    # Another process with the same id is a stranger.
    assert ids(family, seen(201, parent=1, start=999)) == []


def test_an_id_that_came_again_leads_nobody() -> None:
    family = Family("m", {100: 100})
    assert ids(family, seen(100, start=555), seen(101, session=100)) == []
    assert family.leaders == {}


def test_neither_the_server_nor_init_ever_belongs() -> None:
    family = Family("m", {100: 100}, {(os.getpid(), 5), (1, 1)})
    table = [seen(os.getpid(), mark="m", start=5), seen(1, parent=100, mark="m"), seen(2, parent=os.getpid())]
    assert ids(family, *table) == []


def test_a_reading_shows_this_process() -> None:
    own = {one.pid: one for one in proctable.table()}[os.getpid()]
    assert own.parent == os.getppid()
    assert own.session == os.getsid(0)
    assert own.group == os.getpgrp()
    assert own.alive


def test_without_proc_the_groups_that_the_server_started_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proctable, "read", lambda pid: None)
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(proctable.os, "killpg", lambda group, number: sent.append((group, number)))
    family = Family("m", {100: 5})
    assert proctable.terminate(family, ())
    assert proctable.kill(family, 0.0)
    assert sent == [(100, 15), (100, 9)]


def test_a_signal_for_a_process_is_not_sent_to_a_later_one_with_its_id() -> None:
    own = proctable.read(os.getpid())
    assert own is not None
    # It would end this test.
    proctable.send(Seen(own.pid, own.start - 1, "S", 0, 0, 0, ""), 9)
