"""The credential store in a file."""

import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.impostors import Certificate

from tenure.model.masked import Masked
from tenure.ownership.endpoint import Endpoint
from tenure.ownership.files import FileCredentialStore, StoreBusy
from tenure.ownership.holding import Holding, StoreConflict, StoreFailed

SECRET = "5e" * 32
HOLDING = Holding("cs-1", "/home", Endpoint("http://127.0.0.1:1"), Masked(SECRET), adopted_by="first")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "credential.json"


async def test_what_is_stored_is_loaded_by_the_next_process(path: Path) -> None:
    pinned = Endpoint("https://10.0.0.7:1", "cs-1.tenure.invalid", Certificate("cs-1.tenure.invalid").pem)
    async with FileCredentialStore(path) as store:
        assert await store.load() is None
        stored = await store.store(replace(HOLDING, endpoint=pinned, rotation_id=7, confirmed=False))
        assert stored.version == "1"
    async with FileCredentialStore(path) as store:
        assert await store.load() == stored
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert {p.name for p in path.parent.iterdir()} == {"credential.json", "credential.json.lock"}


async def test_only_whoever_knows_the_newest_version_stores(path: Path) -> None:
    async with FileCredentialStore(path) as store:
        first = await store.store(HOLDING)
        second = await store.store(replace(first, adopted_by="second"))
        assert second.version == "2"
        for stale in (HOLDING, replace(first, adopted_by="third")):
            with pytest.raises(StoreConflict):
                await store.store(stale)
        # The same again: its answer may have been lost.
        assert await store.store(replace(first, adopted_by="second")) == second
        assert await store.load() == second


async def test_two_owners_on_one_machine_do_not_interleave(path: Path) -> None:
    async with FileCredentialStore(path):
        with pytest.raises(StoreBusy):
            await FileCredentialStore(path).__aenter__()
    async with FileCredentialStore(path):
        pass


async def test_a_store_that_is_not_open_reads_and_writes_nothing(path: Path) -> None:
    store = FileCredentialStore(path)
    with pytest.raises(StoreFailed):
        await store.load()
    with pytest.raises(StoreFailed):
        await store.store(HOLDING)
    assert not path.exists()


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"null", b"\xff", b'{"version":1}', b"[" * 99999])
async def test_a_file_that_holds_something_else_is_a_failure_and_is_not_quoted(
    path: Path, content: bytes
) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    path.chmod(0o600)
    async with FileCredentialStore(path) as store:
        with pytest.raises(StoreFailed) as failed:
            await store.load()
        assert "version" not in str(failed.value) and failed.value.__context__ is None


@pytest.mark.parametrize("credential", [None, "", "abc", 7, "z" * 64])
async def test_a_credential_that_is_none_is_loaded_as_none(path: Path, credential: object) -> None:
    async with FileCredentialStore(path) as store:
        await store.store(HOLDING)
        path.write_text(json.dumps({**json.loads(path.read_text()), "credential": credential}))
        loaded = await store.load()
        assert loaded is not None and loaded.credential is None


async def test_a_file_that_others_can_read_or_that_is_a_link_is_not_trusted(path: Path) -> None:
    async with FileCredentialStore(path) as store:
        await store.store(HOLDING)
        path.chmod(0o640)
        with pytest.raises(StoreFailed):
            await store.load()
        path.chmod(0o600)
        path.rename(path.with_name("elsewhere"))
        path.symlink_to(path.with_name("elsewhere"))
        with pytest.raises(StoreFailed):
            await store.load()


async def test_a_write_that_fails_leaves_what_was_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with FileCredentialStore(path) as store:
        first = await store.store(HOLDING)

        def full(file: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(StoreFailed, match="No space left"):
            await store.store(replace(first, adopted_by="second"))
        assert await store.load() == first
        monkeypatch.undo()
        # What the failed write left beside it is in nobody's way.
        assert (await store.store(replace(first, adopted_by="second"))).version == "2"


async def test_nothing_shows_the_credential(path: Path) -> None:
    async with FileCredentialStore(path) as store:
        stored = await store.store(HOLDING)
        assert SECRET not in f"{stored!r}{stored!s}{store!r}{vars(store)}"
