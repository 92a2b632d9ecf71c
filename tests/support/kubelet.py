"""A stand-in for scheduler, kubelet and container runtime: pods become local processes, and their status
tells the truth.

It binds unscheduled pods to one made-up node (unless that is cordoned), starts each container's command as
a process with the container's environment, ends it with SIGTERM and, when the grace is over, SIGKILL, and
reports what happened exactly as a kubelet does: Running, then terminated with the exit code and phase
Succeeded or Failed, then the pod removed if its deletion was asked for. Volumes are directories
(``tests.support.volumes``), readiness gates are waited for, and a container whose pod says so is started again
in place, under a new ID. Every pod has an address of its own in 127.0.0.0/8, but not its own ports: a server
listens on its pod's address. What it does not do: images, probes, init containers and isolation.
"""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal, Self

import aiohttp

from tests.support.api import AdminClient, ApiError, Object, path
from tests.support.containers import Container, hostname_prefix, now
from tests.support.node import (
    ADDRESSES,
    NODE,
    Pod,
    node_status,
    pod_conditions,
    start_container,
)
from tests.support.volumes import PodVolumes, StartRefused

LEASE_SECONDS = 3.0
WATCH_SECONDS = "15"
"""A stream that went silent is noticed by the next list."""
REFRESH_SECONDS = 0.5
"""How often mounted Secrets are read again."""
_NO_ANSWER = (aiohttp.ClientError, TimeoutError, OSError)


class Kubelet:
    """``async with Kubelet(client) as kubelet``: runs every pod of the control plane until the block ends.

    ``mode="process"`` starts real processes; ``mode="fake"`` only says Running, for thousands of pods.
    ``start_delay`` is the number of seconds between binding and start, ``restart_delay`` between a container's
    end and its next start in place. ``environment`` is what each
    process has beside its container's own variables (default: PATH, HOME and LANG). Logs are in
    ``folder`` (``log()``).
    """

    def __init__(
        self,
        client: AdminClient,
        *,
        node: str = NODE,
        mode: Literal["process", "fake"] = "process",
        start_delay: float = 0.0,
        restart_delay: float = 0.1,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        concurrency: int = 32,
    ) -> None:
        self.client = client
        self.node = node
        self.mode = mode
        self.start_delay = start_delay
        self.restart_delay = restart_delay
        self._own_folder = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="tenure-kubelet-"))
        self.environment = dict(
            environment or {"PATH": os.environ["PATH"], "HOME": str(self.folder), "LANG": "C.UTF-8"}
        )
        self._prefix = hostname_prefix() if mode == "process" else ()
        self._pods: dict[str, Pod] = {}
        self._reporting = asyncio.Event()
        self._reporting.set()
        self._writes = asyncio.Semaphore(concurrency)
        self._loops: list[asyncio.Task[None]] = []
        self._waiting: set[str] = set()

    async def __aenter__(self) -> Self:
        await self._register()
        self._loops = [asyncio.create_task(self._renew(), name="kubelet-lease")]
        self._loops.append(asyncio.create_task(self._watch(), name="kubelet-watch"))
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [*self._loops, *(pod.task for pod in self._pods.values() if pod.task is not None)]
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        for pod in self._pods.values():
            for container in pod.containers:
                await container.kill()
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)
        for end in ends[: len(self._loops)]:
            # A node whose loop failed sees nothing any more: say that, and not what the test then missed.
            if isinstance(end, Exception):
                raise end

    # What tests do to it

    def kill(self, namespace: str, name: str, *, number: int = signal.SIGKILL, container: int = 0) -> None:
        """Send a signal to a container's process in place, as the kernel's out-of-memory killer does."""
        process = self.container(namespace, name, container)
        process.signal(number)

    def container(self, namespace: str, name: str, index: int = 0) -> Container:
        """The running container of a pod; raises ``LookupError`` when it has not been started."""
        for pod in self._pods.values():
            if (pod.namespace, pod.name) == (namespace, name) and len(pod.containers) > index:
                return pod.containers[index]
        raise LookupError(f"pod {namespace}/{name} has no running container {index}")

    def log(self, namespace: str, name: str, container: str = "*") -> str:
        """What the pod's containers wrote to stdout and stderr."""
        files = sorted(self.folder.glob(f"{namespace}_{name}_*_{container}.log"))
        return "".join(file.read_text(errors="replace") for file in files)

    def go_silent(self) -> None:
        """Be a node that was cut off: processes run on, nothing is reported, no deletion is noticed."""
        self._reporting.clear()

    def come_back(self) -> None:
        """End ``go_silent``: report what happened meanwhile."""
        self._reporting.set()

    def running(self) -> int:
        """The number of pods that have started and not ended."""
        return sum(1 for pod in self._pods.values() if any(not each.ended for each in pod.containers))

    def waiting(self) -> list[str]:
        """``namespace/name`` of the pods that wait for a node, this one being cordoned."""
        return sorted(self._waiting)

    # Node

    async def _register(self) -> None:
        body: Object = {"metadata": {"name": self.node, "labels": {"kubernetes.io/hostname": self.node}}}
        try:
            await self.client.create(path("nodes"), body)
        except ApiError as error:
            if error.status != 409:
                raise
        await self.client.patch(
            path("nodes", None, self.node, "status"), {"status": node_status()}, "strategic"
        )

    async def _renew(self) -> None:
        """Renew the node's Lease and Ready condition, as the node lifecycle controller wants to see it."""
        url = path("leases", "kube-node-lease", self.node)
        while True:
            await self._reporting.wait()
            spec = {"holderIdentity": self.node, "leaseDurationSeconds": 40, "renewTime": now(micro=True)}
            body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": spec}
            with suppress(ApiError, *_NO_ANSWER):
                await self.client.patch(url, body, "apply", fieldManager="kubelet", force="true")
                status = {"status": node_status()}
                await self.client.patch(path("nodes", None, self.node, "status"), status, "strategic")
            await asyncio.sleep(LEASE_SECONDS)

    # Pods

    async def _watch(self) -> None:
        """List, then watch, for ever: every change wakes the pod's own task."""
        while True:
            try:
                listed = await self.client.get(path("pods"))
                seen = {item["metadata"]["uid"] for item in listed["items"]}
                for item in listed["items"]:
                    self._observe(item)
                for pod in [pod for uid, pod in self._pods.items() if uid not in seen]:
                    self._lose(pod)
                version = listed["metadata"]["resourceVersion"]
                async for kind, item in self.client.watch(
                    path("pods"), resourceVersion=version, timeoutSeconds=WATCH_SECONDS
                ):
                    if kind == "DELETED":
                        found = self._pods.get(item["metadata"]["uid"])
                        if found is not None:
                            self._lose(found)
                    else:
                        self._observe(item)
            except (ApiError, *_NO_ANSWER):
                await asyncio.sleep(0.2)

    def _observe(self, item: Object) -> None:
        uid = item["metadata"]["uid"]
        pod = self._pods.get(uid)
        if pod is not None:
            pod.latest = item
            pod.changed.set()
            return
        assigned = item["spec"].get("nodeName")
        ended = item.get("status", {}).get("phase") in ("Succeeded", "Failed")
        mine = assigned == self.node or (assigned is None and "deletionTimestamp" not in item["metadata"])
        if mine and not ended and not item["spec"].get("schedulingGates"):
            pod = Pod(uid, item["metadata"]["namespace"], item["metadata"]["name"], item)
            self._pods[uid] = pod
            pod.task = asyncio.create_task(self._lead(pod), name=f"pod-{pod.name}")

    def _lose(self, pod: Pod) -> None:
        pod.gone = True
        pod.changed.set()

    async def _lead(self, pod: Pod) -> None:
        """One pod's whole life."""
        keeper = asyncio.create_task(self._keep_volumes(pod), name=f"volumes-{pod.name}")
        try:
            if not await self._bind(pod):
                return
            await self._sleep_unless_deleted(pod, self.start_delay)
            if not self._leaving(pod):
                await self._start(pod)
                await self._report_running(pod)
            await self._run(pod)
            await self._finish(pod)
        finally:
            keeper.cancel()
            for container in pod.containers:
                await container.kill()
            if pod.volumes is not None:
                pod.volumes.remove()
            self._pods.pop(pod.uid, None)

    async def _bind(self, pod: Pod) -> bool:
        if pod.latest["spec"].get("nodeName") == self.node:
            return True
        while await self._cordoned():
            self._waiting.add(f"{pod.namespace}/{pod.name}")
            await self._sleep_unless_deleted(pod, 0.2)
            if pod.gone:
                return False
        self._waiting.discard(f"{pod.namespace}/{pod.name}")
        target = {"apiVersion": "v1", "kind": "Node", "name": self.node}
        body = {"metadata": {"name": pod.name, "uid": pod.uid}, "target": target}
        return await self._write("POST", path("pods", pod.namespace, pod.name, "binding"), body) is not None

    async def _cordoned(self) -> bool:
        """True while the node is marked unschedulable, as ``kubectl cordon`` does; not looked at in
        fake mode."""
        if self.mode == "fake":
            return False
        with suppress(ApiError, *_NO_ANSWER):
            node = await self.client.get(path("nodes", None, self.node))
            return bool(node["spec"].get("unschedulable"))
        return True

    async def _start(self, pod: Pod) -> None:
        pod.address = next(ADDRESSES)
        folder = self.folder / "pods" / pod.uid
        pod.volumes = PodVolumes(self.client, pod.latest, folder, self.folder / "claims")
        for number, spec in enumerate(pod.latest["spec"]["containers"]):
            log = self.folder / f"{pod.namespace}_{pod.name}_{number}_{spec['name']}.log"
            container = Container(spec, log, pod.changed.set)
            pod.containers.append(container)
            if self.mode == "process":
                await self._start_process(pod, container)

    async def _start_process(self, pod: Pod, container: Container) -> None:
        """Start a container, waiting as a kubelet does for a Secret that is not there yet."""
        while not self._leaving(pod):
            with suppress(StartRefused, ApiError, *_NO_ANSWER):
                await start_container(
                    self.client, pod, container, self.environment, self.folder, self._prefix
                )
                return
            await self._sleep_unless_deleted(pod, 0.5)
        container.give_up()

    async def _keep_volumes(self, pod: Pod) -> None:
        """Bring mounted Secrets up to date for as long as the pod is there."""
        while pod.volumes is None or pod.volumes.changing:
            await asyncio.sleep(REFRESH_SECONDS)
            await self._reporting.wait()
            if pod.volumes is not None:
                # A Secret that is gone leaves what was mounted, as a kubelet does.
                with suppress(StartRefused, ApiError, *_NO_ANSWER):
                    await pod.volumes.refresh()

    async def _run(self, pod: Pod) -> None:
        """Return when no container runs any more, because each ended or was ended, and none is started again."""
        loop = asyncio.get_running_loop()
        deadline: float | None = None
        asked_grace: int | None = None
        while any(not container.ended for container in pod.containers):
            if self._leaving(pod):
                await self._reporting.wait()
                grace = 2 if pod.gone else int(pod.latest["metadata"].get("deletionGracePeriodSeconds") or 0)
                if asked_grace is None or grace < asked_grace:
                    # A second DELETE can shorten the grace; it cannot lengthen it.
                    until = loop.time() + grace
                    deadline = until if deadline is None else min(deadline, until)
                    asked_grace = grace
                    for container in pod.containers:
                        container.terminate()
                assert deadline is not None
                if loop.time() >= deadline:
                    for container in pod.containers:
                        await container.kill()
            await self._wait_for_change(pod, None if deadline is None else max(deadline - loop.time(), 0.0))
            await self._restart(pod)
            if any(not container.ended for container in pod.containers):
                await self._report_running(pod)

    async def _restart(self, pod: Pod) -> None:
        """Start the ended containers again that the pod's restart policy says so of."""
        policy = pod.latest["spec"].get("restartPolicy", "Always")
        for number, ended in enumerate(pod.containers):
            again = policy == "Always" or (policy == "OnFailure" and ended.exit_code != 0)
            if not ended.ended or not again or self._leaving(pod):
                continue
            await self._report_running(pod)
            await self._sleep_unless_deleted(pod, self.restart_delay)
            if not self._leaving(pod):
                container = Container(ended.spec, ended.log, pod.changed.set, former=ended)
                if self.mode == "process":
                    await self._start_process(pod, container)
                if not container.never_started:
                    pod.containers[number] = container

    async def _wait_for_change(self, pod: Pod, limit: float | None) -> None:
        """Return at the pod's next event or a container's end, at the latest after ``limit`` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                await pod.changed.wait()
        pod.changed.clear()

    async def _finish(self, pod: Pod) -> None:
        """Report the end; then, if its deletion was asked for, remove the pod. An ended pod's later
        DELETE needs nobody."""
        if pod.gone:
            return
        codes = [container.exit_code for container in pod.containers]
        phase = "Succeeded" if codes and all(code == 0 for code in codes) else "Failed"
        answer = await self._status(pod, phase)
        if answer is not None and "deletionTimestamp" in answer["metadata"]:
            options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}
            body = {**options, "preconditions": {"uid": pod.uid}}
            await self._write("DELETE", path("pods", pod.namespace, pod.name), body)

    async def _report_running(self, pod: Pod) -> None:
        """Say how the pod is, if that has changed."""
        pod.conditions = pod_conditions(pod.latest, pod.containers, "Running", pod.conditions)
        said = (pod.conditions, [(each.identifier, each.exit_code) for each in pod.containers])
        if said != pod.told and await self._status(pod, "Running") is not None:
            pod.told = said

    async def _status(self, pod: Pod, phase: str) -> Object | None:
        pod.conditions = pod_conditions(pod.latest, pod.containers, phase, pod.conditions)
        status: Object = {
            "phase": phase,
            "conditions": pod.conditions,
            "hostIP": "127.0.0.1",
            "startTime": pod.latest.get("status", {}).get("startTime") or now(),
            "containerStatuses": [container.status() for container in pod.containers],
        }
        if pod.address:
            status |= {"podIP": pod.address, "podIPs": [{"ip": pod.address}]}
        body = {"metadata": {"uid": pod.uid}, "status": status}
        return await self._write("PATCH", path("pods", pod.namespace, pod.name, "status"), body)

    async def _write(self, method: str, url: str, body: Object) -> Object | None:
        """One write, repeated until the API server has taken or refused it; its answer, None when
        it was refused."""
        content = "application/strategic-merge-patch+json" if method == "PATCH" else "application/json"
        delay = 0.1
        while True:
            await self._reporting.wait()
            try:
                async with self._writes:
                    return await self.client.request(method, url, body=body, content_type=content)
            except ApiError as error:
                if error.status < 500 and error.status != 429:
                    return None
            except _NO_ANSWER:
                pass
            await asyncio.sleep(delay)
            delay = min(delay * 2, 1.0)

    def _leaving(self, pod: Pod) -> bool:
        return pod.gone or "deletionTimestamp" in pod.latest["metadata"]

    async def _sleep_unless_deleted(self, pod: Pod, seconds: float) -> None:
        until = asyncio.get_running_loop().time() + seconds
        while not self._leaving(pod) and (left := until - asyncio.get_running_loop().time()) > 0:
            await self._wait_for_change(pod, left)
