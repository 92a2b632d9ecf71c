"""A hand-over is seen whole or not at all, only by the pod that it is for, and never in an error's text."""

import asyncio
import dataclasses
import os
import stat
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.backend.handover import HandOverDirectory, own_pod_uid, write_handover
from tenure.model.masked import Masked
from tenure.protocol.handover import HandOver, Key, UnreadableHandOver, from_data, to_data


def a_handover(rotation_id: int = 1, **changes: object) -> HandOver:
    whole = HandOver(
        endpoint="https://10.0.0.7:8443",
        credential=Masked(f"{rotation_id % 16:x}" * 64),
        server_identity="server-a",
        home_dir="/home/installation-1",
        rotation_id=rotation_id,
        server_name="server-a.tenure.invalid",
        certificate="-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----",
    )
    return dataclasses.replace(whole, **changes)  # type: ignore[arg-type]


@given(st.dictionaries(st.sampled_from([key.value for key in Key]), st.text(max_size=80)))
def test_any_texts_are_a_hand_over_or_none_or_refused_without_being_quoted(data: dict[str, str]) -> None:
    try:
        found = from_data(data)
    except UnreadableHandOver as error:
        assert error.__cause__ is None
        assert error.__context__ is None
        shown = str(error)
        for key in Key:
            shown = shown.replace(key.value, "")
        assert not [text for text in data.values() if len(text) > 8 and text in shown]
    else:
        assert found is None or from_data(to_data(found)) == found


def test_what_is_written_is_read_with_one_line_break_stripped() -> None:
    handover = a_handover(7)
    assert from_data(to_data(handover)) == handover
    assert from_data({key: text + "\n" for key, text in to_data(handover).items()}) == handover
    assert from_data({**to_data(handover), "another": "key"}) == handover


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (Key.CREDENTIAL, "ab" * 31),
        (Key.CREDENTIAL, "secret " * 9),
        (Key.CREDENTIAL, ""),
        (Key.ENDPOINT, ""),
        (Key.ROTATION_ID, "seven"),
        (Key.ROTATION_ID, "٣"),
        (Key.ROTATION_ID, "9" * 19),
        (Key.ROTATION_ID, "9" * 5000),
    ],
)
def test_a_hand_over_with_a_wrong_value_is_refused_by_the_name_of_its_key(key: Key, text: str) -> None:
    with pytest.raises(UnreadableHandOver, match=key.value) as caught:
        from_data({**to_data(a_handover()), key.value: text})
    assert not text.strip() or text not in str(caught.value)


def test_no_text_at_all_is_no_hand_over_yet() -> None:
    assert from_data({}) is None
    assert from_data({key.value: "\n" for key in Key}) is None


async def test_a_directory_gives_what_was_written_last_and_files_of_ones_own(tmp_path: Path) -> None:
    source = HandOverDirectory(tmp_path / "handover", pod_uid="")
    assert await source.current() is None
    for number in (1, 2):
        write_handover(source.path, a_handover(number))
        assert await source.current() == a_handover(number)
    assert stat.S_IMODE(source.path.stat().st_mode) == 0o700
    assert {stat.S_IMODE((source.path / key.value).stat().st_mode) for key in Key} == {0o600}
    assert len([entry for entry in source.path.iterdir() if entry.name.startswith("..")]) == 2
    write_handover(source.path, None)
    assert await source.current() is None


async def test_plain_files_are_a_hand_over_too(tmp_path: Path) -> None:
    for key, text in to_data(a_handover(3)).items():
        (tmp_path / key).write_text(text + "\n")
    assert await HandOverDirectory(tmp_path, pod_uid="").current() == a_handover(3)


async def test_a_pod_takes_only_what_is_meant_for_it(tmp_path: Path) -> None:
    write_handover(tmp_path, a_handover(backend_pod_uid="uid-1"))
    assert await HandOverDirectory(tmp_path, pod_uid="uid-2").current() is None
    assert await HandOverDirectory(tmp_path, pod_uid="").current() is None
    found = await HandOverDirectory(tmp_path, pod_uid="uid-1").current()
    assert found is not None
    assert own_pod_uid({"POD_UID": "uid-1"}) == "uid-1"
    assert own_pod_uid({}) == ""


async def test_a_swap_is_never_seen_half(tmp_path: Path) -> None:
    """As kubelets do it, as fast as this disk goes, with a reader at it all the time."""
    write_handover(tmp_path, a_handover(1))
    stop = threading.Event()

    def swap() -> None:
        number = 1
        while not stop.is_set():
            number += 1
            same = a_handover(number, server_identity=f"server-{number}", home_dir=f"/home/{number}")
            write_handover(tmp_path, same)

    thread = threading.Thread(target=swap)
    thread.start()
    source, seen = HandOverDirectory(tmp_path, pod_uid=""), set()
    try:
        reads, until = 0, time.monotonic() + 60.0
        # On a disk that others use, too, hundreds of readings may come between two states.
        while reads < 300 or (len(seen) < 2 and time.monotonic() < until):
            reads += 1
            found = await source.current()
            assert found is not None
            seen.add(found.rotation_id)
            if found.rotation_id > 1:
                assert found.server_identity == f"server-{found.rotation_id}"
                assert found.home_dir == f"/home/{found.rotation_id}"
    finally:
        stop.set()
        thread.join()
    assert len(seen) > 1


async def test_waiting_takes_a_later_rotation_or_another_server_and_nothing_older(tmp_path: Path) -> None:
    write_handover(tmp_path, a_handover(5))
    source = HandOverDirectory(tmp_path, pod_uid="", interval=0.001)
    assert (await source.wait_newer(None)).rotation_id == 5
    for than, newer in ((a_handover(5), a_handover(6)), (a_handover(6), a_handover(1, server_identity="b"))):
        waiting = asyncio.create_task(source.wait_newer(than))
        for unfit in (than, dataclasses.replace(than, rotation_id=than.rotation_id - 1), None):
            write_handover(tmp_path, unfit)
            done, _ = await asyncio.wait({waiting}, timeout=0.02)
            assert not done
        write_handover(tmp_path, newer)
        assert await waiting == newer


async def test_waiting_survives_what_cannot_be_read_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "nobody-may-see-this"
    (tmp_path / "credential").write_text(secret)
    source = HandOverDirectory(tmp_path, pod_uid="", interval=0.001)
    waiting = asyncio.create_task(source.wait_newer(None))
    done, _ = await asyncio.wait({waiting}, timeout=0.05)
    assert not done
    write_handover(tmp_path, a_handover(2))
    assert (await waiting).rotation_id == 2
    assert len(caplog.records) == 1
    assert secret not in caplog.text


@pytest.mark.parametrize("content", [b"\xff\xfe\xfd nobody-may-see-this", b"x" * 300_000])
async def test_files_that_are_no_text_are_refused_without_their_content(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "credential").write_bytes(content)
    with pytest.raises(UnreadableHandOver) as caught:
        await HandOverDirectory(tmp_path, pod_uid="").current()
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert "nobody" not in str(caught.value)


def test_a_crash_between_any_two_steps_of_writing_leaves_the_former_state_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Crash(BaseException):
        pass

    def crash_at(step: int) -> bool:
        """Whether the writing came to its ``step``th call of the operating system."""
        count = 0

        def counted(real):  # type: ignore[no-untyped-def]
            def call(*args, **kwargs):  # type: ignore[no-untyped-def]
                nonlocal count
                if count == step:
                    raise Crash
                count += 1
                return real(*args, **kwargs)

            return call

        with monkeypatch.context() as patched:
            for name in ("open", "fsync"):
                patched.setattr(os, name, counted(getattr(os, name)))
            for name in ("mkdir", "symlink_to", "replace", "unlink"):
                patched.setattr(Path, name, counted(getattr(Path, name)))
            try:
                write_handover(tmp_path, a_handover(2))
            except Crash:
                return True
        return False

    step, states = 0, []
    while True:
        write_handover(tmp_path, a_handover(1))
        crashed = crash_at(step)
        found = asyncio.run(HandOverDirectory(tmp_path, pod_uid="").current())
        assert found is not None
        states.append(found.rotation_id)
        if not crashed:
            break
        step += 1
    assert states == sorted(states)
    assert states[-1] == 2
    assert step > 15
