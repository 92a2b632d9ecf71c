"""A server's Secret is written again only where this process has what the record tells of."""

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.control import self_signed

from tenure.cluster.errors import AlreadyExists, Refused
from tenure.cluster.server_ports import NewSecret
from tenure.model.control_server import parse_control_server
from tenure.model.masked import Masked
from tenure.model.records import SurvivalEffective
from tenure.operator.servers.attempts import Memory
from tenure.operator.servers.pass_ import ServerPass
from tenure.operator.servers.ports import OwnedServer, ServerKey
from tenure.operator.servers.restoring import PATIENCE, restore_secret
from tenure.operator.servers.secrets import read_custody
from tenure.ownership.endpoint import Endpoint
from tenure.plan.adoption.state import NoSecret
from tenure.storage.records import ControlServerRecord

NAME = "cs-1.tenure.invalid"
HELD = OwnedServer(
    object_uid="u-1",
    pod_uid="pod-1",
    pod_name="main-1",
    incarnation="backend/1",
    identity="cs-1",
    endpoint=Endpoint("https://10.0.0.1:8443", NAME, self_signed(NAME)[0]),
    home_dir="/var/lib/tenure/u-1",
    credential=Masked("ab" * 32),
    rotation_id=3,
)
RECORD = ControlServerRecord(
    installation_id="i",
    name="main",
    endpoint="https://10.0.0.1:8443",
    server_identity="cs-1",
    pod_uid="pod-1",
    credential_secret="main-1",
    capabilities=("a.v1", "b.v1"),
    diagnostic_output="/log",
    unowned_period_ms=60_000,
    rotation_id=3,
    rotation_confirmed=True,
    adopted_by="backend/1",
    recovered_by="backend/1",
    survival_effective=SurvivalEffective.ENABLED,
    updated_at=datetime(2026, 11, 30, tzinfo=UTC),
)
RAW = {
    "apiVersion": "tenure.dev/v1alpha1",
    "kind": "ControlServer",
    "metadata": {"name": "main", "namespace": "agents", "uid": "u-1", "generation": 1},
    "spec": {"server": {"image": "example.invalid/server:1"}},
}


class Scene:
    """As tools, cluster, keeper and clock."""

    def __init__(self, held: OwnedServer | None = HELD) -> None:
        self.cluster = self.keeper = self.clock = self
        self.now, self.taken, self.refuses = 1000.0, False, False
        self.created: list[NewSecret] = []
        self.replaced: list[tuple[NewSecret, str, str]] = []
        self._held = held

    def monotonic(self) -> float:
        return self.now

    def held(self, key: ServerKey) -> OwnedServer | None:
        return self._held

    async def create_secret(self, namespace: str, secret: NewSecret) -> None:
        if self.refuses:
            raise Refused(403, "Forbidden", "a quota")
        if self.taken:
            raise AlreadyExists(409, "AlreadyExists", "there is one")
        self.created.append(secret)

    async def replace_secret(
        self, namespace: str, secret: NewSecret, *, uid: str, resource_version: str
    ) -> None:
        self.replaced.append((secret, uid, resource_version))


def sight(
    record: ControlServerRecord | None = RECORD, *, secret: Any = None, terminating: bool = False
) -> Any:
    pod = SimpleNamespace(
        facts=SimpleNamespace(name="main-1", uid="pod-1", terminating=terminating),
        secret=secret,
        plan=SimpleNamespace(secret=NoSecret.UNAVAILABLE),
    )
    return SimpleNamespace(
        key=ServerKey("agents", "main"),
        record=record,
        pods={"pod-1": pod},
        resource=parse_control_server(RAW),
    )


async def after_patience(scene: Any, seen: Any) -> Memory:
    memory = Memory(uid="u-1")
    assert await restore_secret(scene, seen, memory) == PATIENCE
    assert (scene.created, scene.replaced) == ([], [])
    scene.now += PATIENCE
    await restore_secret(scene, seen, memory)
    return memory


async def test_it_is_written_with_all_that_the_next_operator_needs() -> None:
    scene = Scene()
    memory = await after_patience(scene, sight())
    (new,) = scene.created
    assert new.name == "main-1"
    assert new.owner["uid"] == "pod-1"
    custody = read_custody(new.data)
    assert custody is not None
    assert custody.credential == HELD.credential
    assert (custody.identity, custody.rotation_id, custody.adopted_by) == ("cs-1", 3, "backend/1")
    assert custody.endpoint("10.0.0.1") == HELD.endpoint
    assert (custody.capabilities, custody.home_dir) == (("a.v1", "b.v1"), "/var/lib/tenure/u-1")
    assert memory.secret_missed_at is None


async def test_one_that_is_none_is_written_over_in_place() -> None:
    scene = Scene()
    await after_patience(scene, sight(secret=SimpleNamespace(uid="s-1", resource_version="7")))
    assert [(uid, version) for _, uid, version in scene.replaced] == [("s-1", "7")]
    assert scene.created == []


@pytest.mark.parametrize(
    "seen",
    [
        sight(replace(RECORD, rotation_id=4)),
        sight(replace(RECORD, adopted_by="backend/2")),
        sight(replace(RECORD, server_identity="cs-2")),
        sight(replace(RECORD, pod_uid="pod-2")),
        sight(None),
        sight(terminating=True),
    ],
)
async def test_nothing_is_written_that_the_record_does_not_tell_of(seen: Any) -> None:
    scene = Scene()
    await after_patience(scene, seen)
    assert (scene.created, scene.replaced) == ([], [])


async def test_nothing_is_written_while_the_secret_cannot_be_read() -> None:
    scene, seen = Scene(), sight()
    seen.pods["pod-1"].plan.secret = NoSecret.UNREAD
    await after_patience(scene, seen)
    assert scene.created == []


async def test_nothing_is_written_by_a_process_that_has_nothing() -> None:
    scene = Scene(held=None)
    await after_patience(scene, sight())
    assert scene.created == []


async def test_a_refusal_holds_up_nothing_else() -> None:
    """A policy, a quota, a Secret that is immutable: the pass goes on to write its status."""
    scene: Any = Scene()
    scene.refuses, memory = True, Memory(uid="u-1", secret_missed_at=0.0)
    wait = await ServerPass._restore(cast("ServerPass", SimpleNamespace(tools=scene)), sight(), memory)
    assert wait > PATIENCE
    assert scene.created == []


async def test_one_that_somebody_else_writes_meanwhile_is_theirs() -> None:
    scene = Scene()
    scene.taken = True
    await after_patience(scene, sight())
    assert scene.created == []
