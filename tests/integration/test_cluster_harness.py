"""The harness itself: what the other integration tests stand on."""

import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from tests.cluster import cache
from tests.cluster.control_plane import SCRATCH, ControlPlane, sweep
from tests.cluster.processes import Processes, Program
from tests.support.api import AdminClient, ApiError, Object, path
from tests.support.cluster import api, control_plane, kubectl, namespace
from tests.support.kubelet import Kubelet
from tests.support.wait import eventually

__all__ = ["api", "control_plane", "namespace"]

_DRAINING = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("draining", flush=True), time.sleep(0.3), sys.exit(0)))
print("working", os.environ["WHO"], os.environ["HOSTNAME"], os.environ["ID"], flush=True)
while True:
    time.sleep(0.05)
"""
_DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("working", flush=True)
time.sleep(600)
"""


@pytest_asyncio.fixture
async def kubelet(api: AdminClient) -> AsyncIterator[Kubelet]:
    async with Kubelet(api) as running:
        yield running


def pod(name: str, program: str) -> Object:
    """A pod of one Python program."""
    environment = [
        {"name": "WHO", "value": "$(HOME_OF)-agent"},
        {"name": "ID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
    ]
    container = {
        "name": "agent",
        "image": "none",
        "command": [sys.executable, "-c", program],
        "env": [{"name": "HOME_OF", "value": "test"}, *environment],
    }
    return {"metadata": {"name": name}, "spec": {"restartPolicy": "Never", "containers": [container]}}


async def working(api: AdminClient, kubelet: Kubelet, namespace: str, name: str) -> Object:
    """The pod, once its program says that it works."""
    await eventually(lambda: "working" in kubelet.log(namespace, name), within=20, what=f"{name} works")
    return await api.get(path("pods", namespace, name))


async def test_the_control_plane_serves_kubectl_and_refuses_a_stranger(
    control_plane: ControlPlane, api: AdminClient, namespace: str
) -> None:
    names = [item["metadata"]["name"] for item in await api.list(path("namespaces"))]
    assert {"default", namespace} <= set(names)
    assert f"namespace/{namespace}" in kubectl(control_plane, "get", "namespaces", "--output=name")
    stranger = AdminClient(control_plane.server, control_plane.authority, "wrong")
    async with stranger:
        try:
            await stranger.get(path("namespaces"))
        except ApiError as error:
            assert error.status == 401
        else:
            raise AssertionError("a wrong token was taken")


async def test_a_deleted_pod_gets_sigterm_ends_by_itself_and_is_gone(
    api: AdminClient, kubelet: Kubelet, namespace: str
) -> None:
    created = await api.create(path("pods", namespace), pod("one", _DRAINING))
    await working(api, kubelet, namespace, "one")
    assert f"working test-agent one {created['metadata']['uid']}" in kubelet.log(namespace, "one")
    running = await eventually(lambda: _in_phase(api, namespace, "one", "Running"), within=10)
    assert running["status"]["containerStatuses"][0]["state"]["running"]
    await api.delete(path("pods", namespace, "one"), grace=30)
    ends = [
        item["status"]
        async for kind, item in _until_deleted(api, namespace, running["metadata"]["resourceVersion"])
        if kind in ("MODIFIED", "DELETED") and item["status"]["phase"] == "Succeeded"
    ]
    assert ends[0]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
    assert "draining" in kubelet.log(namespace, "one")
    assert await api.find(path("pods", namespace, "one")) is None


async def test_a_deaf_pod_is_killed_when_its_grace_ends(
    api: AdminClient, kubelet: Kubelet, namespace: str
) -> None:
    await api.create(path("pods", namespace), pod("deaf", _DEAF))
    running = await working(api, kubelet, namespace, "deaf")
    await api.delete(path("pods", namespace, "deaf"), grace=1)
    codes = [
        item["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"]
        async for _, item in _until_deleted(api, namespace, running["metadata"]["resourceVersion"])
        if item["status"]["phase"] == "Failed"
    ]
    assert codes[0] == 137


async def test_a_program_killed_in_place_leaves_a_failed_pod(
    api: AdminClient, kubelet: Kubelet, namespace: str
) -> None:
    await api.create(path("pods", namespace), pod("killed", _DRAINING))
    await working(api, kubelet, namespace, "killed")
    kubelet.kill(namespace, "killed")
    failed = await eventually(lambda: _in_phase(api, namespace, "killed", "Failed"), within=10)
    assert failed["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 137


async def test_a_silent_node_reports_what_happened_when_it_comes_back(
    api: AdminClient, kubelet: Kubelet, namespace: str
) -> None:
    await api.create(path("pods", namespace), pod("cut-off", _DRAINING))
    await working(api, kubelet, namespace, "cut-off")
    await eventually(lambda: _in_phase(api, namespace, "cut-off", "Running"), within=10)
    kubelet.go_silent()
    kubelet.kill(namespace, "cut-off")
    await eventually(lambda: kubelet.container(namespace, "cut-off").ended, within=10)
    assert (await api.get(path("pods", namespace, "cut-off")))["status"]["phase"] == "Running"
    kubelet.come_back()
    await eventually(lambda: _in_phase(api, namespace, "cut-off", "Failed"), within=10)


async def test_pods_survive_an_api_server_that_goes_away_and_returns(
    control_plane: ControlPlane, api: AdminClient, kubelet: Kubelet, namespace: str
) -> None:
    await api.create(path("pods", namespace), pod("steady", _DRAINING))
    await working(api, kubelet, namespace, "steady")
    control_plane.stop_api_server()
    control_plane.start_api_server()
    control_plane.wait_until_served()
    await eventually(lambda: _in_phase(api, namespace, "steady", "Running"), within=20)
    kubelet.kill(namespace, "steady")
    await eventually(lambda: _in_phase(api, namespace, "steady", "Failed"), within=20)


async def test_a_cordoned_node_takes_no_new_pod(api: AdminClient, kubelet: Kubelet, namespace: str) -> None:
    node = path("nodes", None, kubelet.node)
    await api.patch(node, {"spec": {"unschedulable": True}})
    await api.create(path("pods", namespace), pod("waits", _DRAINING))
    await eventually(lambda: kubelet.waiting() == [f"{namespace}/waits"], within=10)
    assert "nodeName" not in (await api.get(path("pods", namespace, "waits")))["spec"]
    await api.patch(node, {"spec": {"unschedulable": None}})
    await working(api, kubelet, namespace, "waits")


def test_what_a_killed_test_run_left_is_ended_by_the_next() -> None:
    folder = Path(tempfile.mkdtemp(prefix=SCRATCH))
    crashed = f"""
from pathlib import Path
from tests.cluster.processes import Processes
print(Processes(Path({str(folder)!r})).start("sleeper", ["sleep", "600"]).pid)
"""
    words = [sys.executable, "-c", crashed]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=cache.REPOSITORY)
    left = Processes.left_in(folder).programs[0]
    assert left.pid == int(done.stdout)
    assert left.alive()
    sweep()
    assert not left.alive()
    assert not folder.exists()


def test_a_program_is_known_by_more_than_its_number(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    sleeper = processes.start("sleeper", ["sleep", "600"])
    stranger = Program("etcd", sleeper.pid, sleeper.started - 1)
    processes.stop(stranger, patience=0.0)
    assert sleeper.alive(), "a stranger that got the same pid was ended"
    processes.stop(sleeper)
    assert not sleeper.alive()


def test_a_program_deaf_to_sigterm_is_killed(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    deaf = processes.start("deaf", [sys.executable, "-c", _DEAF])
    log = tmp_path / "logs" / "deaf.log"
    wait_for(lambda: "working" in log.read_text())
    processes.stop(deaf, patience=0.2)
    assert not deaf.alive()


def test_an_artefact_is_made_once_for_all_clones_of_a_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []

    def make(target: Path) -> None:
        made.append(target)
        target.write_text("content")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.delenv("TENURE_CACHE", raising=False)
    for clone in ("one", "one", "two"):
        monkeypatch.setattr(cache, "REPOSITORY", tmp_path / clone)
        assert cache.artefact("bin", "thing-1", make).read_text() == "content"
    assert len(made) == 1
    assert cache.digest(["a", "b"]) != cache.digest(["ab", ""])


def wait_for(probe: Callable[[], bool], within: float = 10.0) -> None:
    """As ``eventually``, for a test that is no coroutine."""
    until = time.monotonic() + within
    while not probe():
        assert time.monotonic() < until, "the program does not start"
        time.sleep(0.02)


async def _in_phase(api: AdminClient, namespace: str, name: str, phase: str) -> Object | None:
    found = await api.get(path("pods", namespace, name))
    return found if found["status"].get("phase") == phase else None


async def _until_deleted(api: AdminClient, namespace: str, version: str) -> AsyncIterator[tuple[str, Object]]:
    async for kind, item in api.watch(path("pods", namespace), resourceVersion=version, timeoutSeconds="20"):
        yield kind, item
        if kind == "DELETED":
            return
