"""Whose server it is that was handed over: the record says it."""

import asyncio

import pytest
from tests.integration.backend.owner import Owner
from tests.integration.backend.scene import WITHIN, Scene

from tenure.backend import Backend, HandOverDirectory
from tenure.model.masked import Masked
from tenure.storage.records import Records, ServerFacts


async def on_record(scene: Scene, installation: str, identity: str) -> None:
    """What an operator has written before it hands the server over."""
    records = Records(Masked(scene.database_url), namespace="default")
    try:
        await records.servers.ensure(installation, installation)
        facts = ServerFacts(identity, scene.server.url, "pod-7", "main-1", (), 60_000)
        await records.servers.record(installation, facts, adopted_by=None, incarnation="backend/1")
        await records.servers.set_recovered(installation, "backend/1", adopted_by="backend/1")
    finally:
        await records.aclose()


@pytest.mark.parametrize(
    ("given", "expected"), [({}, "theirs"), ({"installation": "mine"}, "mine")], ids=["not given", "given"]
)
async def test_it_need_not_be_given(fresh_scene: Scene, given: dict[str, str], expected: str) -> None:
    scene = fresh_scene
    owner = await Owner.of(scene.server, scene.directory / "handover", pod_uid="pod-1")
    owner.hand_over()
    try:
        await on_record(scene, "others", "another-server")
        await on_record(scene, "theirs", scene.server.identity)
        source = HandOverDirectory(owner.directory, pod_uid="pod-1", interval=0.05)
        async with Backend.connect(source, scene.database_url, **given) as backend:
            async with asyncio.timeout(WITHIN):
                await backend.ready()
            await scene.launch(backend, events=False)
            rows = await scene.fetch("SELECT installation_id FROM tenure.executors_running")
            assert rows == [(expected,)]
    finally:
        await owner.aclose()
