"""A backend without Kubernetes owns its server itself: one process at a time, and none after it was superseded."""

import asyncio
import contextlib
import json
import stat
from pathlib import Path

import pytest
from tests.integration.backend.scene import WITHIN, Scene
from tests.support.control import running_server
from tests.support.impostors import Impostor, answer
from tests.support.postgres import free_port
from tests.support.wait import eventually

from tenure.backend import Backend, Final, FinalError, LocalOwner, Over, RetryableError
from tenure.model.masked import Masked
from tenure.ownership.client import ControlClient
from tenure.ownership.endpoint import Endpoint
from tenure.storage.migrations import migrate_schema


def credential(scene: Scene) -> Masked:
    return Masked(str(json.loads(scene.state.read_text())["credential"]))


async def test_a_second_process_waits_until_the_first_has_gone_and_then_has_its_sessions(
    scene: Scene,
) -> None:
    async with contextlib.AsyncExitStack() as first:
        backend = await first.enter_async_context(scene.backend())
        session = await scene.launch(backend, events=False)
        before = credential(scene)
        async with Backend.connect(scene.owner(), scene.database_url) as second:
            ready = asyncio.create_task(second.ready())
            done, _ = await asyncio.wait({ready}, timeout=0.5)
            assert not done
            assert session.attached
            await first.aclose()
            async with asyncio.timeout(WITHIN):
                await ready
            assert credential(scene) != before
            assert [one.instance_id for one in await second.resume_sessions()] == [session.instance_id]
    assert stat.S_IMODE(scene.state.stat().st_mode) == 0o600


async def test_an_owner_that_was_superseded_drops_everything_and_does_not_try_again(
    fresh_scene: Scene,
) -> None:
    scene = fresh_scene
    async with scene.backend() as backend:
        session = await scene.launch(backend, events=False)
        turn = await session.prompt("wait never")
        async with ControlClient(
            Endpoint(scene.server.url),
            credential=credential(scene),
            home_dir=scene.server.home_dir,
            expected_identity=scene.server.identity,
        ) as thief:
            answer = await thief.rotate()
            thief.use(answer.credential)
            await thief.confirm(answer.rotation_id)
            async with asyncio.timeout(WITHIN):
                with pytest.raises(FinalError) as lost:
                    await turn.outcome()
            assert lost.value.reason is Final.OWNERSHIP_LOST
            assert session.over is Over.FAILED
            with pytest.raises(FinalError):
                await backend.ready()
            with pytest.raises(FinalError):
                await scene.launch(backend, "session-2")
            # It was its end, and not the agent's.
            (instance,) = await thief.instances()
            assert instance.id == session.instance_id
            assert instance.status == "running"


async def test_a_nonce_that_was_used_by_somebody_else_is_final(fresh_scene: Scene) -> None:
    scene = fresh_scene
    async with ControlClient(
        Endpoint(scene.server.url), credential=None, home_dir=scene.server.home_dir, expected_identity=None
    ) as thief:
        await thief.handshake(scene.server.nonce)
    async with Backend.connect(scene.owner(), scene.database_url) as backend:
        async with asyncio.timeout(WITHIN):
            with pytest.raises(FinalError) as lost:
                await backend.ready()
        assert lost.value.reason is Final.OWNERSHIP_LOST


async def test_a_server_that_comes_later_is_waited_for(database_url: str, tmp_path: Path) -> None:
    await migrate_schema(Masked(database_url))
    port, where = free_port("127.0.0.1"), tmp_path / "installation"
    owner = LocalOwner(
        f"http://127.0.0.1:{port}",
        home=where / "home",
        nonce_file=where / "nonce",
        state=tmp_path / "owner" / "credential.json",
        interval=0.05,
    )
    async with Backend.connect(owner, database_url) as backend:
        ready = asyncio.create_task(backend.ready())
        done, _ = await asyncio.wait({ready}, timeout=0.3)
        assert not done
        async with running_server(directory=where, flags={"port": port}) as server:
            async with asyncio.timeout(WITHIN):
                await ready
            assert backend.server_identity == server.identity


async def test_a_program_that_has_the_address_between_two_servers_is_no_owner_and_is_waited_out(
    database_url: str, tmp_path: Path
) -> None:
    await migrate_schema(Masked(database_url))
    port, where = free_port("127.0.0.1"), tmp_path / "installation"

    def owner() -> LocalOwner:
        return LocalOwner(
            f"http://127.0.0.1:{port}",
            home=where / "home",
            nonce_file=where / "nonce",
            state=tmp_path / "owner" / "credential.json",
            interval=0.05,
        )

    def stranger() -> Impostor:
        return Impostor(lambda method, path, body: answer({"error": "no such page"}, 404), port=port)

    async with contextlib.AsyncExitStack() as first:
        backend = await first.enter_async_context(Backend.connect(owner(), database_url))
        async with running_server(directory=where, flags={"port": port}) as server:
            async with asyncio.timeout(WITHIN):
                await backend.ready()
            assert backend.server_identity == server.identity
        async with stranger() as other:
            with pytest.raises(RetryableError):
                await backend.resume_sessions()
            await eventually(lambda: other.connections > 10, within=WITHIN, what="it asks the stranger")
            waiting = asyncio.create_task(backend.ready())
            done, _ = await asyncio.wait({waiting}, timeout=0.2)
            assert not done
            await first.aclose()
            await asyncio.wait({waiting})
            async with Backend.connect(owner(), database_url) as second:
                before, ready = other.connections, asyncio.create_task(second.ready())
                await eventually(lambda: other.connections > before + 10, within=WITHIN, what="it asks again")
                assert not ready.done()
                await other.__aexit__(None, None, None)
                async with running_server(directory=where, flags={"port": port}) as server:
                    async with asyncio.timeout(WITHIN):
                        await ready
                    assert second.server_identity == server.identity
        with contextlib.suppress(FinalError):
            waiting.result()
