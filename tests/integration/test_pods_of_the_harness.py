"""What the kubelet stand-in gives to pods: volumes, addresses, restarts in place, readiness."""

import base64
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from tests.support.api import AdminClient, Object, path
from tests.support.cluster import api, control_plane, namespace
from tests.support.containers import Container, hostname_prefix
from tests.support.kubelet import Kubelet
from tests.support.volumes import CHECKOUT, require_mounts
from tests.support.wait import eventually

__all__ = ["api", "control_plane", "namespace"]

_SLEEP = "import time; print('working', flush=True); time.sleep(600)"
_SHOWS_FILES = """
import os, sys, time
last = None
while True:
    files = sorted(name for name in os.listdir("/run/tenure/bootstrap") if not name.startswith(".."))
    shown = [(name, open(f"/run/tenure/bootstrap/{name}").read()) for name in files]
    if shown != last:
        print("files", shown, flush=True)
    last = shown
    time.sleep(0.02)
"""
_COUNTS_STARTS = """
import os, signal, time
for folder in ("/tmp", "/var/lib/tenure-home"):
    with open(f"{folder}/starts", "a+") as file:
        file.write("x")
        file.seek(0)
        print("starts in", folder, len(file.read()), flush=True)
time.sleep(600)
"""
_SERVES = """
import http.server, os
print("working", flush=True)
http.server.HTTPServer((os.environ["POD_IP"], 18473), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
_HAS_A_CHILD = """
import subprocess, time
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
print("child", child.pid, flush=True)
time.sleep(600)
"""


@pytest_asyncio.fixture
async def kubelet(api: AdminClient) -> AsyncIterator[Kubelet]:
    async with Kubelet(api) as running:
        yield running


def pod(
    name: str, program: str, *, mounts: dict[str, str] | None = None, volumes: Any = (), **spec: Any
) -> Object:
    """A pod of one Python program; ``mounts``: volume names by path."""
    container: Object = {
        "name": "main",
        "image": "none",
        "command": [sys.executable, "-c", program],
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "volumeMounts": [{"name": volume, "mountPath": at} for at, volume in (mounts or {}).items()],
    }
    fields = {"containers": [container], "volumes": list(volumes), "automountServiceAccountToken": False}
    return {"metadata": {"name": name}, "spec": {"restartPolicy": "Never", **fields, **spec}}


def secret(**texts: str) -> Object:
    data = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
    return {"metadata": {"name": "bootstrap"}, "data": data}


async def said(kubelet: Kubelet, namespace: str, name: str, text: str) -> None:
    await eventually(lambda: text in kubelet.log(namespace, name), within=20, what=f"{name} says {text!r}")


async def test_an_optional_secret_is_mounted_followed_and_gone_again(
    api: AdminClient, kubelet: Kubelet, namespace: str
) -> None:
    require_mounts()
    volume = {"name": "bootstrap", "secret": {"secretName": "bootstrap", "optional": True}}
    shown = pod("shows", _SHOWS_FILES, mounts={"/run/tenure/bootstrap": "bootstrap"}, volumes=[volume])
    await api.create(path("pods", namespace), shown)
    await said(kubelet, namespace, "shows", "files []")
    await api.create(path("secrets", namespace), secret(nonce="one"))
    await said(kubelet, namespace, "shows", "files [('nonce', 'one')]")
    await api.replace(path("secrets", namespace, "bootstrap"), secret(nonce="two", key="k"))
    await said(kubelet, namespace, "shows", "files [('key', 'k'), ('nonce', 'two')]")
    await api.delete(path("secrets", namespace, "bootstrap"))
    await eventually(lambda: kubelet.log(namespace, "shows").count("files []") == 2, within=20)
    assert not Path("/run/tenure/bootstrap").exists(), "the machine's own directories were changed"


async def test_a_pod_waits_for_a_secret_that_is_not_optional(
    api: AdminClient, kubelet: Kubelet, namespace: str
) -> None:
    require_mounts()
    volume = {"name": "bootstrap", "secret": {"secretName": "bootstrap"}}
    shown = pod("waits", _SHOWS_FILES, mounts={"/run/tenure/bootstrap": "bootstrap"}, volumes=[volume])
    await api.create(path("pods", namespace), shown)
    await eventually(lambda: _bound(api, namespace, "waits"), within=10)
    assert kubelet.log(namespace, "waits") == ""
    await api.create(path("secrets", namespace), secret(nonce="one"))
    await said(kubelet, namespace, "waits", "files [('nonce', 'one')]")


async def test_a_pod_that_mounts_over_the_checkout_still_finds_its_programs(
    api: AdminClient, kubelet: Kubelet, namespace: str
) -> None:
    require_mounts()
    above = str(CHECKOUT.parent)
    program = f"import os; print('sees', os.listdir({above!r}), os.path.isfile({str(CHECKOUT)!r} + '/pyproject.toml'))"
    volumes = [{"name": "tmp", "emptyDir": {}}]
    await api.create(path("pods", namespace), pod("over", program, mounts={above: "tmp"}, volumes=volumes))
    await said(kubelet, namespace, "over", f"sees ['{CHECKOUT.name}'] True")
    assert (CHECKOUT / "pyproject.toml").is_file()


async def test_a_claim_outlives_pods_and_an_empty_directory_only_restarts(
    api: AdminClient, kubelet: Kubelet, namespace: str
) -> None:
    require_mounts()
    claim = {
        "metadata": {"name": "home"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    await api.create(path("persistentvolumeclaims", namespace), claim)
    volumes = [
        {"name": "home", "persistentVolumeClaim": {"claimName": "home"}},
        {"name": "tmp", "emptyDir": {}},
    ]
    mounts = {"/tmp": "tmp", "/var/lib/tenure-home": "home"}
    first = pod("first", _COUNTS_STARTS, mounts=mounts, volumes=volumes, restartPolicy="Always")
    await api.create(path("pods", namespace), first)
    await said(kubelet, namespace, "first", "starts in /var/lib/tenure-home 1")
    kubelet.kill(namespace, "first")
    await said(kubelet, namespace, "first", "starts in /var/lib/tenure-home 2")
    assert "starts in /tmp 2" in kubelet.log(namespace, "first")
    await api.delete(path("pods", namespace, "first"), grace=1)
    second = pod("second", _COUNTS_STARTS, mounts=mounts, volumes=volumes)
    await api.create(path("pods", namespace), second)
    await said(kubelet, namespace, "second", "starts in /var/lib/tenure-home 3")
    assert "starts in /tmp 1" in kubelet.log(namespace, "second")


async def test_every_pod_listens_on_one_port_at_an_address_of_its_own(
    api: AdminClient, kubelet: Kubelet, namespace: str
) -> None:
    for name in ("one", "two"):
        await api.create(path("pods", namespace), pod(name, _SERVES))
    pods = [await eventually(lambda n=name: _ready(api, namespace, n), within=20) for name in ("one", "two")]
    addresses = {each["status"]["podIP"] for each in pods}
    assert len(addresses) == 2
    async with aiohttp.ClientSession() as session:
        for address in addresses:

            async def answered(at: str = address) -> bool:
                try:
                    async with session.get(f"http://{at}:18473/") as answer:
                        return answer.status == 200
                except aiohttp.ClientError:
                    return False

            await eventually(answered, within=20, what=f"{address} answers")


async def test_a_container_starts_again_in_place_under_a_new_id(
    api: AdminClient, kubelet: Kubelet, namespace: str
) -> None:
    created = await api.create(path("pods", namespace), pod("again", _SLEEP, restartPolicy="Always"))
    before = _container(await eventually(lambda: _ready(api, namespace, "again"), within=20))
    kubelet.kill(namespace, "again")
    seen: list[Object] = []

    async def restarted() -> Object | None:
        found = await _ready(api, namespace, "again")
        return found if found and _container(found)["restartCount"] == 1 else None

    async for _, item in api.watch(
        path("pods", namespace),
        resourceVersion=created["metadata"]["resourceVersion"],
        timeoutSeconds="20",
    ):
        seen.append(item)
        if _condition(item, "Ready") == "True" and _container(item)["restartCount"] == 1:
            break
    after = seen[-1]
    assert after["metadata"]["uid"] == created["metadata"]["uid"]
    assert _container(after)["containerID"] != before["containerID"]
    assert _container(after)["lastState"]["terminated"]["exitCode"] == 137
    assert _container(after)["lastState"]["terminated"]["containerID"] == before["containerID"]
    ready = [_condition(item, "Ready") for item in seen if _condition(item, "Ready")]
    assert ready == ["True", "False", "True"]
    assert kubelet.container(namespace, "again").identifier == _container(after)["containerID"]
    await api.delete(path("pods", namespace, "again"), grace=1)
    await eventually(lambda: _gone(api, namespace, "again"), within=20)


async def test_ready_waits_for_the_conditions_that_the_pod_names(
    api: AdminClient, kubelet: Kubelet, namespace: str
) -> None:
    gates = [{"conditionType": "tenure.dev/recovered"}]
    await api.create(path("pods", namespace), pod("gated", _SLEEP, readinessGates=gates))
    status = path("pods", namespace, "gated", "status")

    async def containers_ready() -> Object | None:
        found = await api.get(path("pods", namespace, "gated"))
        return found if _condition(found, "ContainersReady") == "True" else None

    found = await eventually(containers_ready, within=20)
    assert _condition(found, "Ready") == "False"
    for value in ("True", "False", "True"):
        patch = {"status": {"conditions": [{"type": "tenure.dev/recovered", "status": value}]}}
        await api.patch(status, patch, "strategic")

        async def follows(wanted: str = value) -> bool:
            return _condition(await api.get(path("pods", namespace, "gated")), "Ready") == wanted

        await eventually(follows, within=20, what=f"Ready={value}")


async def test_what_a_container_started_ends_with_its_first_process(
    api: AdminClient, kubelet: Kubelet, namespace: str
) -> None:
    await api.create(path("pods", namespace), pod("parent", _HAS_A_CHILD))
    await said(kubelet, namespace, "parent", "child")
    child = int(kubelet.log(namespace, "parent").split()[-1])
    assert os.path.exists(f"/proc/{child}")
    kubelet.kill(namespace, "parent")
    await eventually(lambda: not _lives(child), within=20, what="the child is gone")


async def test_a_script_with_a_trap_has_started_when_the_trap_is_set(tmp_path: Path) -> None:
    spec = {"name": "main", "command": ["sh", "-c", "sleep 0.3; trap 'exit 7' TERM; sleep 600 & wait"]}
    container = Container(spec, tmp_path / "log", lambda: None)
    await container.start({"PATH": os.environ["PATH"]}, tmp_path, [])
    try:
        container.terminate()
        await eventually(lambda: container.ended, within=10)
        assert container.exit_code == 7
    finally:
        await container.kill()


def _lives(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def _container(item: Object) -> Object:
    found: Object = item["status"]["containerStatuses"][0]
    return found


def _condition(item: Object, kind: str) -> str:
    conditions = item.get("status", {}).get("conditions") or []
    return next((each["status"] for each in conditions if each["type"] == kind), "")


async def _ready(api: AdminClient, namespace: str, name: str) -> Object | None:
    found = await api.get(path("pods", namespace, name))
    return found if _condition(found, "Ready") == "True" else None


async def _bound(api: AdminClient, namespace: str, name: str) -> bool:
    return "nodeName" in (await api.get(path("pods", namespace, name)))["spec"]


async def _gone(api: AdminClient, namespace: str, name: str) -> bool:
    return await api.find(path("pods", namespace, name)) is None


async def test_a_container_that_starts_while_another_ends_is_not_taken_for_it(tmp_path: Path) -> None:
    prefix = hostname_prefix()
    if not prefix:
        pytest.skip("containers have no namespace of their own here")
    environment = {"PATH": os.environ["PATH"]}
    spec = {"name": "main", "command": ["sleep", "600"]}
    first = Container(spec, tmp_path / "log", lambda: None)
    await first.start(environment, tmp_path, [*prefix, "first"])
    assert first.pid is not None
    # From here to the next await the stand-in does not hear of it, and the kernel is done with its namespace.
    os.kill(first.pid, signal.SIGKILL)
    while _lives(first.pid):
        time.sleep(0.001)
    next_one = subprocess.Popen([*prefix, "next", *spec["command"]])
    try:
        number = os.stat("/proc/self/ns/uts").st_ino
        while os.stat(f"/proc/{next_one.pid}/ns/uts").st_ino == number:
            time.sleep(0.001)
        await eventually(lambda: first.ended, within=10)
        assert next_one.poll() is None
        assert first.exit_code == 137
    finally:
        next_one.kill()
        next_one.wait()


def _lives(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
