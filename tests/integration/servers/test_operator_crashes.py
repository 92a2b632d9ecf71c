"""An operator ends right before or right after one of its writes; the next one goes on, and nothing is left over."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.integration.servers.history import incarnation
from tests.integration.servers.test_ownership import handed_over, recovered, running
from tests.integration.servers.world import WITHIN, World
from tests.integration.servers.wrapping import Wrapping
from tests.support.api import path
from tests.support.wait import eventually

pytestmark = pytest.mark.timeout(180)
THE_SERVER = "the Secret of the server on record"


@dataclass
class Dying(Wrapping):
    """A ``ServerCluster`` whose operator ends around the first call of ``method`` whose subject ends with ``ending``:
    from then on nothing is sent any more."""

    method: str = ""
    ending: str = ""
    after: bool = False
    died: asyncio.Event = field(default_factory=asyncio.Event)

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self.inner, name)

        async def call(*arguments: Any, **options: Any) -> Any:
            await self._alive()
            due = name == self.method and _subject(arguments).endswith(self.ending)
            if due and not self.after:
                await self._die()
            answer = await inner(*arguments, **options)
            if due:
                await self._die()
            return answer

        return call

    async def _die(self) -> None:
        self.died.set()
        await self._alive()

    async def _alive(self) -> None:
        if self.died.is_set():
            await asyncio.Event().wait()


def _subject(arguments: tuple[Any, ...]) -> str:
    """The name that a call is about."""
    about = arguments[1] if len(arguments) > 1 else ""
    if isinstance(about, dict):
        return str(about["metadata"]["name"])
    return about if isinstance(about, str) else str(getattr(about, "name", about))


async def in_order(world: World, backend: Any) -> dict[str, Any]:
    """The backend has one server, which is the one on record; no other pod of a server is left running."""
    life = incarnation(backend)
    record = await recovered(world, by=life)
    given = await handed_over(world, backend, rotation_id=record["rotation_id"] or 0)
    assert given["server-identity"] == record["server_identity"]
    await world.attached(backend)

    def alone() -> bool:
        return [p["metadata"]["uid"] for p in _going_on(world)] == [record["pod_uid"]]

    await eventually(alone, within=WITHIN, what="one server is left")
    return record


def _going_on(world: World) -> list[Any]:
    """Pods of servers that have not ended and are not asked to."""
    return [
        pod
        for pod in world.server_pods()
        if "deletionTimestamp" not in pod["metadata"]
        and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed")
    ]


@pytest.mark.parametrize(
    ("method", "ending", "after"),
    [
        ("create_secret", "-bootstrap", True),
        ("create_pod", "", False),
        ("create_pod", "", True),
        ("create_secret", "-1", False),
        ("create_secret", "-1", True),
        ("delete_secret", "-bootstrap", False),
        ("create_secret", "-handover", False),
        ("create_secret", "-handover", True),
        ("set_pod_condition", "", False),
    ],
)
async def test_a_fresh_server_is_finished_or_made_again(
    world: World, method: str, ending: str, after: bool
) -> None:
    dying = Dying(method, ending, after)
    async with world.operator(wrap_servers=dying):
        await world.create()
        await world.alone()
        await asyncio.wait_for(dying.died.wait(), WITHIN)
    async with world.operator():
        backend = await running(world)
        record = await in_order(world, backend)
    assert record["rotation_id"] is None, "nothing was rotated"


async def test_bootstrap_secrets_that_were_left_are_found_again_and_those_of_others_are_not_touched(
    world: World,
) -> None:
    async with world.operator():
        await world.create()
        await world.alone()
        backend = await running(world)
        first = await in_order(world, backend)
        world.kill_server(await world.server_pod())

        async def another() -> bool:
            return (await world.record())["pod_uid"] != first["pod_uid"]

        await eventually(another, within=WITHIN, what="another server is on record")
        second = await in_order(world, backend)
    stem, ordinal = second["credential_secret"].rsplit("-", 1)
    mine = [f"{stem}-{number}-bootstrap" for number in range(1, int(ordinal) + 2)]
    stranger = f"{stem}-{int(ordinal) + 2}-bootstrap"
    owner = world.history.resources["main"]["metadata"]
    reference = {
        "apiVersion": "tenure.dev/v1alpha1",
        "kind": "ControlServer",
        "name": "main",
        "uid": owner["uid"],
        "controller": True,
    }
    for name in (*mine, stranger):
        owners = {} if name == stranger else {"ownerReferences": [reference]}
        await world.api.create(path("secrets", world.namespace), {"metadata": {"name": name, **owners}})
    async with world.operator():

        async def swept() -> bool:
            left = [s["metadata"]["name"] for s in await world.api.list(path("secrets", world.namespace))]
            return stranger in left and not set(mine) & set(left)

        await eventually(swept, within=WITHIN, what="no bootstrap Secret is left but the stranger's")


@pytest.mark.accept("O-002.7", "O-002.10")
@pytest.mark.parametrize(
    ("method", "ending", "after"),
    [
        ("replace_secret", THE_SERVER, False),
        ("replace_secret", THE_SERVER, True),
        ("replace_secret", "-handover", False),
        ("replace_secret", "-handover", True),
        ("set_pod_condition", "", False),
    ],
)
async def test_an_adoption_is_finished_with_one_rotation(
    world: World, method: str, ending: str, after: bool
) -> None:
    dying = Dying()
    async with world.operator(wrap_servers=dying):
        await world.create()
        await world.alone()
        backend = await running(world)
        before = await in_order(world, backend)
        # On a busy machine the server on record need not be the first that was made.
        dying.ending = before["credential_secret"] if ending == THE_SERVER else ending
        dying.method, dying.after = method, after
        former = world.kill_backend(backend)
        await asyncio.wait_for(dying.died.wait(), WITHIN)
    async with world.operator():
        backend = await running(world, other_than=former)
        after_it = await in_order(world, backend)
    assert after_it["server_identity"] == before["server_identity"]
    assert after_it["rotation_id"] == 1, "asked again, the rotation gives the same answer"
