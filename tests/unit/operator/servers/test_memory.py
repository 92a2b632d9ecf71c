"""What a pass remembers, keeps in its cache and reads from Secrets and pods."""

import asyncio
from typing import Any

import pytest
from tests.support.wait import eventually

from tenure.cluster.server_ports import SecretObject
from tenure.model.masked import Masked
from tenure.model.selector import Selector
from tenure.operator.servers.attempts import Memory
from tenure.operator.servers.background import Background
from tenure.operator.servers.cache import ServerCache
from tenure.operator.servers.pods import read_backend, read_server_pod
from tenure.operator.servers.ports import ServerKey
from tenure.operator.servers.secrets import Custody, read_custody, read_hand_over
from tenure.plan.adoption.backend import MainContainer
from tenure.plan.adoption.gates import Deadline
from tenure.plan.adoption.state import Gate, HandOver, NoSecret, PodPhase, ServerSecret

KEY = ServerKey("agents", "main")
CREDENTIAL = "ab" * 32
CUSTODY = Custody(
    identity="cs-1",
    credential=Masked(CREDENTIAL),
    rotation_id=3,
    adopted_by="pod/container",
    certificate="-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n",
    home_dir="/var/lib/tenure/x",
    port=8443,
    capabilities=("agent-survival.v1",),
    unowned_period_ms=600_000,
)


def control_server(uid: str = "u", name: str = "main", version: int = 1, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "tenure.dev/v1alpha1",
        "kind": "ControlServer",
        "metadata": {
            "name": name,
            "namespace": "agents",
            "uid": uid,
            "resourceVersion": str(version),
            "creationTimestamp": f"2026-01-01T00:00:0{version}Z",
        },
        "spec": {"backend": {"selector": {"matchLabels": {"app": "backend"}}}, **spec},
    }


def pod(uid: str = "p", *, role: str = "server", version: int = 1, **status: Any) -> dict[str, Any]:
    owner = {"kind": "ControlServer", "name": "main", "uid": "u", "controller": True}
    return {
        "metadata": {
            "name": f"pod-{uid}",
            "namespace": "agents",
            "uid": uid,
            "resourceVersion": str(version),
            "labels": {"tenure.dev/role": role, "app": "backend"},
            "ownerReferences": [owner] if role == "server" else [],
            "annotations": {"tenure.dev/vacancy": "somebody some-pod"},
        },
        "spec": {"containers": [{"name": "main"}, {"name": "side"}]},
        "status": status,
    }


def container(state: str, name: str = "main", **more: Any) -> dict[str, Any]:
    return {"name": name, "state": {state: {}}, "containerID": f"c://{name}", **more}


class TestPods:
    def test_a_server_is_reachable_when_its_container_runs_and_has_an_address(self) -> None:
        running = container("running")
        assert read_server_pod(pod()).phase is PodPhase.STARTING
        assert read_server_pod(pod(containerStatuses=[running])).phase is PodPhase.STARTING
        found = read_server_pod(pod(containerStatuses=[running], podIP="10.0.0.1"))
        assert (found.phase, found.address) == (PodPhase.REACHABLE, "10.0.0.1")
        assert found.vacancy == "somebody some-pod"

    @pytest.mark.parametrize(
        "status",
        [
            {"phase": "Failed"},
            {"containerStatuses": [container("terminated")], "podIP": "10.0.0.1"},
            {"containerStatuses": [container("running", restartCount=1)], "podIP": "10.0.0.1"},
        ],
    )
    def test_a_server_has_ended_with_its_container_and_when_another_runs_in_its_place(
        self, status: dict[str, Any]
    ) -> None:
        assert read_server_pod(pod(**status)).phase is PodPhase.ENDED

    def test_the_main_container_of_a_backend_is_the_named_one_or_the_first(self) -> None:
        statuses = [container("running"), container("terminated", "side")]
        found = read_backend(pod(role="backend", containerStatuses=statuses))
        assert found.seen(None).incarnation == "p/c://main"
        assert found.seen("side").main is MainContainer.ENDED
        assert found.seen("nobody").main is MainContainer.WAITING
        assert read_backend(pod(role="backend", phase="Failed")).seen(None).main is MainContainer.ENDED

    def test_the_readiness_gate_is_read_only_where_the_pod_lists_it(self) -> None:
        raw = pod(role="backend", conditions=[{"type": "tenure.dev/recovered", "status": "True"}])
        assert read_backend(raw).gate is Gate.NOT_LISTED
        raw["spec"]["readinessGates"] = [{"conditionType": "tenure.dev/recovered"}]
        assert read_backend(raw).gate is Gate.SET
        raw["status"]["conditions"][0]["status"] = "False"
        assert read_backend(raw).gate is Gate.UNSET


class TestSecrets:
    def test_custody_is_read_as_it_was_written(self) -> None:
        assert read_custody(CUSTODY.to_data()) == CUSTODY
        assert CUSTODY.seen() == ServerSecret("cs-1", Masked(CREDENTIAL), 3, "pod/container")

    @pytest.mark.parametrize("key", ["certificate", "server-identity", "home-dir", "port", "rotation-id"])
    def test_a_secret_that_is_not_whole_is_none_to_go_by(self, key: str) -> None:
        assert read_custody({k: v for k, v in CUSTODY.to_data().items() if k != key}) is None

    def test_without_a_credential_the_rest_is_still_known(self) -> None:
        found = read_custody({**CUSTODY.to_data(), "credential": Masked("abc")})
        assert found is not None
        assert found.seen() is NoSecret.UNAVAILABLE
        assert found.home_dir == CUSTODY.home_dir

    def test_nothing_shows_a_credential(self) -> None:
        assert CREDENTIAL not in repr(CUSTODY) + str(CUSTODY.seen()) + repr(CUSTODY.to_data())

    def test_a_hand_over_that_cannot_be_read_says_nothing_true(self) -> None:
        def secret(**data: str) -> SecretObject:
            return SecretObject("s", "u", "1", "o", {k: Masked(v) for k, v in data.items()})

        assert read_hand_over(None) is None
        assert read_hand_over(secret()) is None
        assert read_hand_over(secret(endpoint="", credential="")) is None
        assert read_hand_over(secret(endpoint="https://x")) == HandOver("", 0, "")


class TestCache:
    def test_pods_of_a_server_and_of_its_backends_wake_it(self) -> None:
        woken: list[ServerKey] = []
        cache = ServerCache(woken.append)
        assert cache.put_control_server(control_server())
        assert cache.put_pod(pod("p"))
        assert cache.put_pod(pod("b", role="backend"))
        assert woken == [KEY] * 3
        assert [each.uid for each in cache.pods_of("u")] == ["p"]
        selector = Selector.model_validate({"matchLabels": {"app": "backend"}})
        assert [each.uid for each in cache.backends("agents", selector)] == ["b"]
        assert not cache.put_pod(pod("a", role="agent"))
        assert len(cache) == 3

    def test_what_is_gone_does_not_come_back_by_a_late_event_but_by_a_live_read(self) -> None:
        cache = ServerCache()
        cache.put_pod(pod(version=1))
        assert not cache.put_pod(pod(version=1)), "no news"
        assert cache.drop_pod(pod(version=2))
        assert not cache.put_pod(pod(version=1))
        assert cache.pods_of("u") == ()
        assert cache.put_pod(pod(version=3), found=True)
        assert len(cache.pods_of("u")) == 1

    def test_a_list_drops_what_it_does_not_show_and_was_not_seen_since(self) -> None:
        now = 0.0
        cache = ServerCache(clock=lambda: now)
        cache.put_control_server(control_server())
        cache.put_pod(pod("old"))
        now = 10.0
        cache.put_pod(pod("new"))
        assert cache.drop_missing_pods([], 5.0) == 1
        assert [each.uid for each in cache.pods_of("u")] == ["new"]
        assert cache.drop_missing_control_servers([], 5.0) == 1
        assert cache.control_server(KEY) is None

    def test_of_two_objects_of_one_installation_the_older_one_has_it(self) -> None:
        cache = ServerCache()
        cache.put_control_server(control_server("u1", "main", 1, installationID="one"))
        cache.put_control_server(control_server("u2", "copy", 2, installationID="one"))
        cache.put_control_server(control_server("u3", "other", 3, installationID="two"))
        assert cache.rival(KEY, "u1") == ""
        assert cache.rival(ServerKey("agents", "copy"), "u2") == "main"
        assert cache.rival(ServerKey("agents", "other"), "u3") == ""


class TestMemory:
    def test_the_deadline_starts_with_the_first_contact_and_not_again(self) -> None:
        memory = Memory(deadline_seconds=30)
        assert memory.deadline(1000) is Deadline.NOT_STARTED
        memory.contact(1000)
        memory.contact(1020)
        assert memory.deadline(1029.9) is Deadline.RUNNING
        assert memory.deadline(1030) is Deadline.ELAPSED
        assert memory.until_deadline(1020) == 10

    def test_nothing_of_an_incarnation_is_carried_into_the_next(self) -> None:
        memory = Memory()
        memory.begin("one")
        memory.learn("one", lost=True, guarded=True)
        memory.contact(5)
        memory.begin("one")
        assert memory.attempt.lost
        memory.begin("two")
        assert (memory.attempt.lost, memory.attempt.guarded, memory.contact_began) == (False, False, None)
        memory.learn("one", judged="pod")
        assert memory.attempt.judged == "", "what ends late is about another"

    def test_a_second_server_of_one_incarnation_begins_anew_but_a_loss_stays(self) -> None:
        memory = Memory()
        memory.begin("one")
        memory.learn("one", lost=True, guarded=True, judged="pod")
        memory.restart()
        assert (memory.attempt.lost, memory.attempt.guarded, memory.attempt.judged) == (True, False, "")

    def test_servers_that_end_at_their_start_follow_each_other_more_and_more_slowly(self) -> None:
        memory = Memory()
        assert memory.start_wait(0) == 0
        memory.started(100)
        assert memory.start_wait(101) == 4
        memory.started(105)
        assert memory.start_wait(105) == 10
        for _ in range(20):
            memory.started(200)
        assert memory.start_wait(200) == 300
        memory.started(900)
        assert memory.start_wait(900) == 5, "the one before had lived for long"


class TestBackground:
    async def test_one_piece_at_a_time_for_each_server(self) -> None:
        ends: list[tuple[str, bool]] = []
        background = Background(lambda key, name, error: ends.append((name, error is None)))
        gate = asyncio.Event()

        async def wait() -> None:
            await gate.wait()

        async def fail() -> None:
            raise RuntimeError

        assert background.start(KEY, "one", "i", wait)
        assert not background.start(KEY, "two", "i", fail)
        assert background.start(ServerKey("agents", "other"), "three", "i", fail)
        gate.set()
        await eventually(lambda: len(ends) == 2, within=5)
        assert sorted(ends) == [("one", True), ("three", False)]
        assert background.busy(KEY) is None

    async def test_the_end_of_an_incarnation_ends_its_work_but_never_an_adoption(self) -> None:
        ends: list[str] = []
        background = Background(lambda key, name, error: ends.append(name))

        async def wait() -> None:
            await asyncio.Event().wait()

        other = ServerKey("agents", "other")
        background.start(KEY, "adoption", "one", wait, finishes=True)
        background.start(other, "recovery", "one", wait)
        for key in (KEY, other):
            background.outdate(key, "one")
        assert background.busy(other) is not None
        for key in (KEY, other):
            background.outdate(key, "two")
        await eventually(lambda: ends == ["recovery"], within=5)
        assert background.busy(KEY) is not None
        await background.aclose()
        await eventually(lambda: background.busy(KEY) is None, within=5)
