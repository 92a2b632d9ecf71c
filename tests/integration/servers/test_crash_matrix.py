"""Whenever an operator dies, the next one ends where it would have ended: adoption and what refuses it, write by write.

Each case is a server that was left with a session at work, in the state that the case is about, and a next backend. In
every run operators die one after the other; the last one lives, and what is left then has to be what is left when
nobody died. CI lets each die after its first write of a kind at which none has died before, until one finds nothing
of the sort to do; ``make test-deep`` tries every single write, and before it where that is another moment than after
the one before (``Fate.apart``).
"""

import asyncio
import os
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.integration.servers import changelings
from tests.integration.servers.fate import Fate, FatedCluster, install
from tests.integration.servers.history import container_of, incarnation, ready
from tests.integration.servers.test_false_servers import CASES, PROVE, QUICK, SHUTDOWN
from tests.integration.servers.test_ownership import hand_over, handed_over, recovered, running
from tests.integration.servers.world import WITHIN, World
from tests.support.api import Object, path
from tests.support.wait import eventually

DEEP = os.environ.get("TENURE_HYPOTHESIS") == "search"
pytestmark = pytest.mark.timeout(7200 if DEEP else 300)
AT_WORK, DONE = "at-work", "done"
INSTANCES = "GET /api/v1/instances"
MOST = 60
"""Operators of one run, at most."""
Make = Callable[[], Awaitable[World]]


@dataclass(frozen=True)
class Case:
    """How the server was left, and what has to be left in the end."""

    former: str
    """The server that was left: ``kept`` and adopted, it ``runs`` beside a fresh one, or it has ``ended``."""
    session: tuple[Any, ...]
    """Of the session at work: its state, its task's, its row's; whether it was interrupted; its turns; its agents."""
    behaviour: Mapping[str, Any] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    """For ``World.manifest``."""
    retains: bool = False
    """There is a second session whose turn ended while nobody was there."""
    trusted: bool = True
    """The server has proven itself: a credential may reach it."""


GOES_ON = ("running", "in_progress", "running", False, ("open",), 1)
LEFT = ("waiting_for_input", "review", "running", True, ("abandoned",), 1)
"""Interrupted; but its row stays, since the agent may live."""
ENDED = ("waiting_for_input", "review", "stopped", True, ("abandoned",), 0)

CASES_IN_CI = {
    "adopted": Case("kept", GOES_ON, retains=True),
    "a wrong proof": Case("runs", LEFT, CASES["a wrong proof"].behaviour, trusted=False),
    "a recycled address": Case("runs", LEFT, changelings.OTHER_CERTIFICATE, trusted=False),
    "not accepted": Case("runs", LEFT, CASES["a credential that is not accepted"].behaviour),
    "another version": Case("ended", ENDED, options={"capabilities": "other.v9"}),
    "another version that does not stop": Case(
        "runs", LEFT, options={"capabilities": "other.v9", "stubborn": True}
    ),
    "a shutdown": Case("runs", LEFT, CASES["a shutdown"].behaviour, trusted=False),
    "survival is off": Case("ended", ENDED, spec={"agentSurvival": "Disabled"}),
}
CASES_WITH_DEADLINES = {
    "a rotation that fails": Case(
        "runs", LEFT, CASES["a rotation that fails"].behaviour, spec={"recovery": QUICK}
    ),
    "silence": Case("runs", LEFT, CASES["silence"].behaviour, spec={"recovery": QUICK}, trusted=False),
    "an enumeration without an answer": Case(
        "kept", LEFT, {INSTANCES: {"silent": True}}, spec={"recovery": QUICK}
    ),
    "survival is off and the proof is wrong": Case(
        "runs", LEFT, {PROVE: {"echo": True}}, spec={"agentSurvival": "Disabled"}, trusted=False
    ),
    "survival is off and it does not stop": Case(
        "runs",
        LEFT,
        {SHUTDOWN: {"status": 500, "body": {"error": "not now"}}},
        spec={"agentSurvival": "Disabled", "recovery": QUICK},
    ),
}


@dataclass
class Fates:
    """Whose fate holds now: one operator lives at a time."""

    now: Fate = field(default_factory=Fate)


@pytest.fixture
def fates(monkeypatch: pytest.MonkeyPatch) -> Fates:
    """Every store and client of this process shares the fate of its operator."""
    held = Fates()
    install(monkeypatch.setattr, lambda: held.now)
    return held


@pytest.fixture
def new_world(make_world: Callable[..., Awaitable[World]], postgres_server: Any) -> Make:
    """Makes worlds on the shared database server."""

    async def make() -> World:
        return await make_world(postgres_server)

    return make


@dataclass
class Run:
    """One world of one case."""

    world: World
    case: Case
    server: Object
    agents: list[int]
    kept: str
    """The credential of the server that was left."""
    other: changelings.Changeling
    backend: Object

    async def left(self) -> Mapping[str, Any]:
        """What is there now, as far as it is to be the same in every run."""
        world, former = self.world, self.server["metadata"]
        record, given = await world.record(), await hand_over(world)
        secrets = {s["metadata"]["name"]: s for s in await world.api.list(path("secrets", world.namespace))}
        own = b64decode(secrets[record["credential_secret"]]["data"]["credential"]).decode()
        pods = [p for p in world.server_pods() if _runs(p)]
        pid = world.kubelet.container(world.namespace, self.backend["metadata"]["name"]).pid
        found = world.evidence.backend("found", pid=pid)
        return {
            "recovered": record["recovered_by"] == record["adopted_by"] == incarnation(self.backend),
            "former": self._former(record, pods),
            "servers": len(pods),
            "rotation": (record["rotation_id"] or 0, record["rotation_confirmed"]),
            "former Secret": await self._secret(secrets.get(former["name"])),
            "bootstraps": [name for name in secrets if name.endswith("-bootstrap")],
            "hand-over": (given.get("server-identity"), given.get("credential"))
            == (record["server_identity"], own),
            "ready": ready(await self._pod(), "tenure.dev/recovered"),
            AT_WORK: await self._session(AT_WORK),
            DONE: await self._session(DONE) if self.case.retains else None,
            "found by the backend": sorted(found[-1]["sessions"]) if found else None,
        }

    @property
    def expected(self) -> Mapping[str, Any]:
        """What has to be left."""
        kept = self.case.former == "kept"
        again = ("waiting_for_input", "review", "running", False, ("completed",), 1)
        here = [AT_WORK] if self.case.session == GOES_ON else []
        found = sorted([*here, *([DONE] if self.case.retains else [])])
        return {
            "recovered": True,
            "former": self.case.former,
            "servers": 1 if self.case.former != "runs" else 2,
            "rotation": (1, True) if kept else (0, True),
            "former Secret": "other" if kept else self.case.former != "ended" and "same",
            "bootstraps": [],
            "hand-over": True,
            "ready": True,
            AT_WORK: self.case.session,
            DONE: again if self.case.retains else None,
            # The backend asks the same server, and has no more of an answer.
            "found by the backend": None if INSTANCES in self.case.behaviour else found,
        }

    async def over(self) -> None:
        """Wait until all that has to be left is left, and nothing else."""
        seen: Mapping[str, Any] = {}

        async def look() -> bool:
            nonlocal seen
            with suppress(LookupError):
                seen = await self.left()
            return not self.differences(seen)

        try:
            await eventually(look, within=WITHIN, every=0.2)
        except AssertionError:
            raise AssertionError(f"(is, should be): {self.differences(seen)}") from None

    def differences(self, seen: Mapping[str, Any]) -> Mapping[str, tuple[Any, Any]]:
        """What is otherwise, and how it should be."""
        wanted = self.expected
        if self.case.former == "ended":
            # Its pod, and with it the Secret, may be collected at any time.
            wanted = {**wanted, "former Secret": seen.get("former Secret")}
        return {key: (seen.get(key), wanted[key]) for key in wanted if seen.get(key) != wanted[key]}

    def _former(self, record: Object, running: list[Object]) -> str:
        uid = self.server["metadata"]["uid"]
        if record["pod_uid"] == uid:
            return "kept"
        return "runs" if uid in [pod["metadata"]["uid"] for pod in running] else "ended"

    async def _secret(self, secret: Object | None) -> str:
        if secret is None:
            return "gone"
        return "same" if b64decode(secret["data"]["credential"]).decode() == self.kept else "other"

    async def _pod(self) -> Object:
        name = self.backend["metadata"]["name"]
        return await self.world.api.get(path("pods", self.world.namespace, name))

    async def _session(self, name: str) -> tuple[Any, ...]:
        row = await self.world.session(name)
        alive = [pid for pid in self.world.evidence.living(name) if pid in self.agents]
        interrupted = row["interrupted_at"] is not None
        turns = tuple(await self.world.turns(name))
        return (row["state"], row["task"], row["status"], interrupted, turns, len(alive))


def _runs(pod: Object) -> bool:
    return "running" in container_of(pod).get("state", {}) and "deletionTimestamp" not in pod["metadata"]


async def begin(world: World, case: Case) -> Run:
    """Everything up to the moment at which the next backend wants its server. No operator runs."""
    sessions = [AT_WORK, *([DONE] if case.retains else [])]
    async with world.operator():
        await changelings.create(world, **case.options)
        pod = await world.alone("first")
        backend = await running(world)
        await recovered(world, by=incarnation(backend))
        await handed_over(world, backend)
        server = await world.server_pod()
        for session in sessions:
            await world.launched(session)
            await world.working(session)
    name = server["metadata"]["name"]
    secret = await world.api.get(path("secrets", world.namespace, name))
    await world.api.delete(path("pods", world.namespace, pod["metadata"]["name"]), grace=0)
    await eventually(lambda: not world.backends(), within=WITHIN, what="the first backend has gone")
    if case.retains:
        world.open_gate(DONE)
        await eventually(lambda: world.evidence.agent(DONE, "finished"), within=WITHIN)
    other = await changelings.change(world, server, case.behaviour)
    if case.spec:
        await world.change(**case.spec)
    agents = [pid for session in sessions for pid in world.evidence.living(session)]
    assert len(agents) == len(sessions)
    await world.alone("next")
    next_one = await running(world)
    kept = b64decode(secret["data"]["credential"]).decode()
    return Run(world, case, server, agents, kept, other, next_one)


async def live(run: Run, fates: Fates, fate: Fate) -> bool:
    """One operator, until it has died (False) or all is as it should be (True)."""
    fates.now = fate
    options = {"wrap_servers": lambda inner: FatedCluster(inner, fate)}
    async with run.world.operator(**options):
        over = asyncio.create_task(run.over())
        dead = asyncio.create_task(fate.died.wait())
        try:
            await asyncio.wait({over, dead}, return_when=asyncio.FIRST_COMPLETED)
            if over.done():
                over.result()
            return over.done()
        finally:
            for task in (over, dead):
                task.cancel()
            await asyncio.gather(over, dead, return_exceptions=True)


async def finish(run: Run) -> None:
    """What lives goes on to its end, and whoever proved nothing has seen nothing."""
    if run.case.session == GOES_ON:
        run.world.open_gate(AT_WORK)
        await eventually(
            lambda: run.world.evidence.backend("outcome", session=AT_WORK),
            within=WITHIN,
            what="the turn ends, and the backend hears of it",
        )
        assert await run.world.turns(AT_WORK) == ["completed"]
    assert run.case.trusted or not run.other.saw(run.kept)


async def clear_away(run: Run) -> None:
    """Of many runs in one test, none is to take anything from the next."""
    for pod in (*run.world.backends(), *run.world.server_pods()):
        await run.world.api.delete(path("pods", run.world.namespace, pod["metadata"]["name"]), grace=5)
    await eventually(lambda: not run.world.server_pods(), within=WITHIN, what="its pods have gone")


async def die_in_turn(world: World, case: Case, fates: Fates, deaths: Iterable[Fate]) -> list[Fate]:
    """These operators one after the other, and then one that lives; all that there were."""
    run, lived = await begin(world, case), []
    try:
        for fate in deaths:
            lived.append(fate)
            if await live(run, fates, fate):
                break
        lived.append(Fate())
        assert await live(run, fates, lived[-1])
        await finish(run)
    except AssertionError as error:
        raise AssertionError(f"{error}; written, one operator a line:\n{_lines(lived)}") from None
    finally:
        fates.now = Fate()
        await clear_away(run)
    print(f"written, one operator a line:\n{_lines(lived)}")
    return lived


def _lines(lived: list[Fate]) -> str:
    return "\n".join(f"{fate}: {', '.join(fate.writes)}" for fate in lived)


def at_each_kind_of_write() -> Iterator[Fate]:
    """Each dies after its first write of a kind at which none has died before."""
    spent: set[str] = set()
    return (Fate(after=True, spent=spent) for _ in range(MOST))


def around_each_write(undisturbed: Fate) -> Iterator[Fate]:
    """Each dies at another moment of what this one did: after every write, and before those that stand apart."""
    for number in range(1, len(undisturbed.writes) + 1):
        if number in undisturbed.apart:
            yield Fate(number)
        yield Fate(number, after=True)


@pytest.mark.accept("K-2", "O-002.7", "O-002.10", "S-002.9", "S-004.4")
@pytest.mark.parametrize("case", CASES_IN_CI.values(), ids=[name.replace(" ", "-") for name in CASES_IN_CI])
async def test_operators_that_die_one_after_the_other_leave_what_one_would_have_left(
    new_world: Make, fates: Fates, case: Case
) -> None:
    lived = await die_in_turn(await new_world(), case, fates, at_each_kind_of_write())
    assert len(lived) > 7, "some have died"


if DEEP:  # one run for each write of each case, or two: an hour

    @pytest.mark.parametrize(
        "case",
        [*CASES_IN_CI.values(), *CASES_WITH_DEADLINES.values()],
        ids=[name.replace(" ", "-") for name in (*CASES_IN_CI, *CASES_WITH_DEADLINES)],
    )
    async def test_an_operator_may_die_before_and_after_each_of_its_writes(
        new_world: Make, fates: Fates, case: Case
    ) -> None:
        (undisturbed,) = await die_in_turn(await new_world(), case, fates, ())
        assert len(undisturbed.writes) > 5
        failures = []
        for fate in around_each_write(undisturbed):
            try:
                await die_in_turn(await new_world(), case, fates, [fate])
            except AssertionError as error:
                failures.append(f"{fate}: {error}")
        assert not failures, "\n\n".join(failures)


@pytest.mark.accept("K-2")
@pytest.mark.parametrize(
    "number", range(1, 16) if DEEP else (2, 5, 8), ids=lambda number: f"at-write-{number}"
)
async def test_an_operator_that_is_killed_in_the_middle_of_an_adoption_is_followed_by_the_next(
    new_world: Make, fates: Fates, number: int
) -> None:
    run = await begin(await new_world(), CASES_IN_CI["adopted"])
    folder = run.world.evidence.folder / "operators"
    run.world.logs.append(folder)
    command = ("-m", "tests.integration.servers.fate", "after", str(number))
    async with run.world.operator_process(command=command) as operator:
        await eventually(
            lambda: operator.process.poll() is not None, within=WITHIN, what="the operator kills itself"
        )
    assert await live(run, fates, Fate())
    await finish(run)
