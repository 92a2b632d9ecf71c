"""``python -m tests.bench.node RESULT SCALE ID...``: P-3 and P-4, run where ``KUBECONFIG`` works."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import asyncpg

from tests.bench.machine import in_ms, median
from tests.bench.operator_process import OperatorProcess
from tests.bench.report import Figure
from tests.bench.say import say
from tests.bench.stage import prepare_database, side_by_side
from tests.cluster import images
from tests.cluster.say import CannotStart
from tests.support.api import AdminClient, Object, path
from tests.support.cluster import CRDS, delete_namespace, new_namespace
from tests.support.postgres import running_postgres
from tests.support.wait import eventually

RATIO = 1.3
TRIGGER_SECONDS, POLL_SECONDS = 1.0, 5.0
NAME = "tenure-bench"
_STARTS_AT_ONCE = 4
_AT_ONCE = 5
"""Pods that run side by side: a node takes only so many."""
_LONG = 3600
_REST = 4.0
"""Seconds that a pod has been ready for before it is stopped. A kubelet that has just brought a pod up waits for
its next look at the containers (one a second) before it acts on that pod again; that is not what is measured."""

# The time goes into the termination message, which the kubelet shows before the pod is gone. Node and bench
# have the same clock.
_AGENT = """
import signal, sys, time
def stop(*_):
    now = time.time()
    with open("/dev/termination-log", "w") as log:
        log.write(repr(now))
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
open("/tmp/ready", "w").close()
while True:
    signal.pause()
"""
_ROW = """
INSERT INTO cks_agent_liveness
    (instance_id, process_kind, hostname, pid, liveness_interval_s, started_at, last_heartbeat_at)
VALUES ($1, $2, $3, 1, $4, now(), now())
"""
_MARK = "UPDATE cks_agent_liveness SET desired_state = 'stop_requested' WHERE instance_id = $1"


def main(words: list[str]) -> int:
    """Exit code 3 with a sentence in the file when this cluster cannot be used."""
    result, scale, wanted = Path(words[0]), float(words[1]), frozenset(words[2:])
    try:
        figures = asyncio.run(_measure(scale, wanted))
    except CannotStart as error:
        result.write_text(str(error))
        return 3
    result.write_text(json.dumps([asdict(figure) for figure in figures]))
    return 0


@dataclass
class _Node:
    client: AdminClient
    database: asyncpg.Connection
    namespace: str
    pods: dict[str, Object] = field(default_factory=dict)
    """The latest of each pod, by the agent's name."""
    seen: dict[str, float] = field(default_factory=dict)
    """When each agent saw SIGTERM, by its own clock."""
    rested: dict[str, float] = field(default_factory=dict)
    """From when on each may be stopped."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def watch(self) -> None:
        async for _, pod in self.client.watch(path("pods", self.namespace)):
            meta = pod["metadata"]
            name = (meta.get("ownerReferences") or [meta])[0]["name"]
            self.pods[name] = pod
            for status in pod.get("status", {}).get("containerStatuses") or ():
                message = status["state"].get("terminated", {}).get("message")
                if message:
                    self.seen.setdefault(name, float(message))

    async def agents(self, names: list[str]) -> None:
        """Agents by the operator, with their rows; returns when all are ready for SIGTERM."""

        async def one(name: str) -> None:
            spec = {"template": {"spec": _pod_spec()}, "liveness": {"intervalSeconds": _LONG}}
            manifest = {"apiVersion": "tenure.dev/v1alpha1", "kind": "AgentProcess", "spec": spec}
            await self.client.create(
                path("agentprocesses", self.namespace), {**manifest, "metadata": {"name": name}}
            )
            meta = (await self.ready(name))["metadata"]
            async with self.turn:  # one connection takes one statement at a time
                await self.database.execute(_ROW, meta["uid"], name, meta["name"], float(_LONG))

        await side_by_side(_STARTS_AT_ONCE, names, one)

    async def bare(self, names: list[str]) -> None:
        """The same pods without an operator."""

        async def one(name: str) -> None:
            spec = {**_pod_spec(), "restartPolicy": "Never"}
            await self.client.create(path("pods", self.namespace), {"metadata": {"name": name}, "spec": spec})
            await self.ready(name)

        await side_by_side(_STARTS_AT_ONCE, names, one)

    async def ready(self, name: str) -> Object:
        def look() -> Object | None:
            pod = self.pods.get(name, {})
            conditions = pod.get("status", {}).get("conditions") or ()
            ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
            return pod if ready else None

        pod = await eventually(look, within=120, what=f"the pod of {name} is ready")
        self.rested[name] = time.monotonic() + _REST
        return pod

    async def taken(
        self, name: str, ask: Callable[[], Awaitable[object]], *, from_answer: bool = False
    ) -> float:
        """Seconds from the request (or its answer) to SIGTERM; returns when the pod is gone."""
        await asyncio.sleep(max(0.0, self.rested[name] - time.monotonic()))
        began = time.time()
        await ask()
        if from_answer:
            began = time.time()
        at = await eventually(lambda: self.seen.get(name), within=60, what=f"SIGTERM in {name}")
        uid = self.pods[name]["metadata"]["uid"]

        async def gone() -> bool:
            found = await self.client.find(path("pods", self.namespace, self.pods[name]["metadata"]["name"]))
            over = found is not None and found["status"]["phase"] in ("Succeeded", "Failed")
            return found is None or found["metadata"]["uid"] != uid or over

        await eventually(gone, within=60, what=f"the end of {name}'s pod")
        return at - began

    async def stop_by_resource(self, name: str, *, kubectl: bool = False) -> float:
        wish = {"spec": {"desiredState": "StopRequested"}}
        url = path("agentprocesses", self.namespace, name)
        words = ("patch", "agentprocess", name, "--type=merge", f"--patch={json.dumps(wish)}")
        return await self.taken(
            name, lambda: self._kubectl(*words) if kubectl else self.client.patch(url, wish)
        )

    async def delete_bare(self, name: str, *, kubectl: bool = False) -> float:
        url, words = path("pods", self.namespace, name), ("delete", "pod", name, "--wait=false")
        return await self.taken(name, lambda: self._kubectl(*words) if kubectl else self.client.delete(url))

    async def _kubectl(self, *words: str) -> None:
        quiet = asyncio.subprocess.DEVNULL
        command = ("kubectl", f"--namespace={self.namespace}", *words)
        process = await asyncio.create_subprocess_exec(*command, stdout=quiet)
        assert await process.wait() == 0, " ".join(command)

    async def stop_by_table(self, name: str) -> float:
        uid = self.pods[name]["metadata"]["uid"]
        return await self.taken(name, lambda: self.database.execute(_MARK, uid), from_answer=True)


async def _measure(scale: float, wanted: frozenset[str]) -> list[Figure]:
    count, marks, polls = max(5, round(25 * scale)), max(4, round(15 * scale)), max(4, round(10 * scale))
    async with _node() as here:
        say(f"{count} stops by resource, and as many bare deletions")
        ours, floor = await _by_resource(here, "direct", count, kubectl=False)
        figures = []
        if "P-3" in wanted:
            say("the same by kubectl")
            figures.append(
                _resource_figure("kubectl patch", *await _by_resource(here, "kubectl", count, kubectl=True))
            )
            figures.append(_resource_figure("one bare request", ours, floor))
        if "P-4" in wanted:
            say(f"{marks} stops by table with the trigger, {polls} without")
            told = await _by_table(here, "told", marks, spread=0.0)
            await here.database.execute("DROP TRIGGER tenure_stop_notify ON cks_agent_liveness")
            polled = await _by_table(here, "polled", polls, spread=POLL_SECONDS)
            figures.append(_table_figure("by the trigger", told, floor, TRIGGER_SECONDS))
            figures.append(_table_figure("by polling every 5 s", polled, floor, POLL_SECONDS))
    return figures


async def _by_resource(
    here: _Node, prefix: str, count: int, *, kubectl: bool
) -> tuple[list[float], list[float]]:
    """Turn about, so that both see the same machine."""
    agents, bare = [f"stop-{prefix}-{n}" for n in range(count)], [f"bare-{prefix}-{n}" for n in range(count)]
    ours, floor = [], []
    for first in range(0, count, _AT_ONCE):
        few = slice(first, first + _AT_ONCE)
        await here.agents(agents[few])
        await here.bare(bare[few])
        for agent, pod in zip(agents[few], bare[few], strict=True):
            floor.append(await here.delete_bare(pod, kubectl=kubectl))
            ours.append(await here.stop_by_resource(agent, kubectl=kubectl))
    return ours, floor


async def _by_table(here: _Node, prefix: str, count: int, *, spread: float) -> list[float]:
    """``spread``: the marks are made at moments that are evenly spread over so many seconds of waiting, as
    whoever marks a row knows nothing of the rhythm of the polling."""
    taken: list[float] = []
    names = [f"{prefix}-{number}" for number in range(count)]
    for first in range(0, count, _AT_ONCE):
        await here.agents(names[first : first + _AT_ONCE])
        for name in names[first : first + _AT_ONCE]:
            await asyncio.sleep(spread * len(taken) / count)
            taken.append(await here.stop_by_table(name))
    return taken


def _resource_figure(how: str, ours: list[float], floor: list[float]) -> Figure:
    ratio = median(ours) / median(floor)
    return Figure(
        id="P-3",
        what=f"StopRequested by {how} to SIGTERM seen in the process, on a node, median of {len(ours)}",
        measured=in_ms(median(ours)),
        floor=f"deletion of a bare pod the same way: {in_ms(median(floor))}",
        ratio=ratio,
        target=f"ratio <= {RATIO}",
        met=ratio <= RATIO,
        detail={"seconds": ours, "floor_seconds": floor},
    )


def _table_figure(how: str, taken: list[float], floor: list[float], allowed: float) -> Figure:
    limit = median(floor) + allowed
    return Figure(
        id="P-4",
        what=f"stop committed in the table to SIGTERM seen, {how}, {len(taken)} times",
        measured=f"median {in_ms(median(taken))}, longest {in_ms(max(taken))}",
        floor=f"deletion of a bare pod: {in_ms(median(floor))}",
        ratio=median(taken) / median(floor),
        target=f"longest <= floor + {allowed:g} s",
        met=max(taken) <= limit,
        detail={"seconds": taken},
    )


def _pod_spec() -> Object:
    return {
        "automountServiceAccountToken": False,
        "containers": [
            {
                "name": "agent",
                "image": images.BASE,
                "imagePullPolicy": "Never",
                "command": ["python3", "-c", _AGENT],
                "startupProbe": {
                    "exec": {"command": ["test", "-e", "/tmp/ready"]},
                    "periodSeconds": 1,
                    "failureThreshold": 100,
                },
            }
        ],
    }


@asynccontextmanager
async def _node() -> AsyncIterator[_Node]:
    """An operator of the bench's own, for one namespace that is removed in the end."""
    kubeconfig = Path(os.environ["KUBECONFIG"])
    if _kubectl(
        "get", "deployments", "--all-namespaces", "--selector=app.kubernetes.io/name=tenure", "-oname"
    ):
        raise CannotStart("a Tenure is installed in this cluster; P-3 and P-4 bring an operator of their own")
    _kubectl(
        "apply",
        "--server-side",
        "--force-conflicts",
        *(f"--filename={f}" for f in sorted(CRDS.glob("*.yaml"))),
    )
    _kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd/agentprocesses.tenure.dev")
    with tempfile.TemporaryDirectory(prefix="tenure-bench-") as scratch, running_postgres() as server:
        folder = Path(scratch)
        url = await server.fresh_database("bench")
        databases = prepare_database(url, folder)
        async with _client(folder) as client:
            namespace = await new_namespace(client, prefix="bench")
            operator = OperatorProcess(
                kubeconfig=kubeconfig,
                databases=databases,
                log=folder / "operator.log",
                namespaces=[namespace],
            )
            database = await asyncpg.connect(url, timeout=10)
            here = _Node(client, database, namespace)
            watch = asyncio.create_task(here.watch())
            try:
                async with operator:
                    await operator.leading()
                    yield here
            finally:
                watch.cancel()
                await asyncio.wait([watch])
                database.terminate()
                await delete_namespace(client, namespace)


@asynccontextmanager
async def _client(folder: Path) -> AsyncIterator[AdminClient]:
    """Whatever the kubeconfig's credential is, a ServiceAccount's token serves the bare client."""
    view = json.loads(_kubectl("config", "view", "--raw", "--minify", "--output=json"))
    facts = view["clusters"][0]["cluster"]
    authority = folder / "ca.crt"
    authority.write_bytes(b64decode(facts["certificate-authority-data"]))
    binding = f"clusterrolebinding/{NAME}"
    account = f"kube-system:{NAME}"
    _kubectl("create", "serviceaccount", NAME, "--namespace=kube-system")
    try:
        _kubectl("create", *binding.split("/"), "--clusterrole=cluster-admin", f"--serviceaccount={account}")
        token = _kubectl("create", "token", NAME, "--namespace=kube-system", "--duration=2h").strip()
        async with AdminClient(facts["server"], authority, token, limit=60) as client:
            yield client
    finally:
        _kubectl("delete", binding, f"serviceaccount/{NAME}", "--namespace=kube-system", "--ignore-not-found")


def _kubectl(*words: str) -> str:
    done = subprocess.run(["kubectl", *words], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr.strip()}"
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
