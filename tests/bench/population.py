"""Agents by the thousand, as the operator sees them: resources, pods that say Running, rows that heartbeat."""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import asyncpg

from tests.bench.operator_process import OperatorProcess
from tests.bench.say import say
from tests.bench.stage import REQUESTS, Stage, side_by_side
from tests.support.api import Object, path
from tests.support.wait import eventually

_INSERT = """
INSERT INTO cks_agent_liveness
    (instance_id, process_kind, hostname, pid, liveness_interval_s, started_at, last_heartbeat_at)
SELECT id, kind, host, 1, $4, now(), now() FROM unnest($1::text[], $2::text[], $3::text[]) AS w (id, kind, host)
"""
_HEARTBEAT = (
    "UPDATE cks_agent_liveness SET last_heartbeat_at = clock_timestamp() WHERE instance_id = ANY ($1::text[])"
)

_AT_ONCE = 500


class Population:
    """The agents of one namespace. ``interval``: the seconds between two heartbeats of each."""

    def __init__(self, here: Stage, namespace: str, *, interval: int) -> None:
        self.namespace = namespace
        self.interval = interval
        self.rows: list[str] = []
        self._here = here

    async def grow(self, operator: OperatorProcess, total: int) -> None:
        """Add agents until there are ``total``, all Running in the operator's eyes too."""
        say(f"making {total - len(self.rows)} agents")
        while len(self.rows) < total:
            await self._grow(operator, min(total, len(self.rows) + _AT_ONCE))

    async def _grow(self, operator: OperatorProcess, total: int) -> None:
        names = [f"agent-{number:05d}" for number in range(len(self.rows), total)]
        liveness = {"intervalSeconds": self.interval}
        await self._here.create_agents(self.namespace, names, liveness=liveness)

        async def have_pods() -> bool:
            return operator.pid > 0 and await self._here.count("pods", self.namespace) >= total

        await eventually(have_pods, within=600, every=0.5, what=f"the pods of {total} agents")
        pods = await self._pods(set(names))
        # Rows first: an agent whose pod runs without a row is one that starts.
        await self._insert(pods)
        await side_by_side(REQUESTS, pods, self._run)
        sample = 'tenure_agent_processes{phase="Running"}'

        async def all_run() -> bool:
            return operator.pid > 0 and await operator.metric(sample) >= total

        await eventually(all_run, within=300, every=1, what=f"{total} agents in phase Running")

    async def _pods(self, owners: set[str]) -> list[Object]:
        items: list[Object] = []
        token = ""
        while True:
            query = {"limit": "500", **({"continue": token} if token else {})}
            page = await self._here.client.get(path("pods", self.namespace), **query)
            items += [pod for pod in page["items"] if pod["metadata"]["ownerReferences"][0]["name"] in owners]
            token = page["metadata"].get("continue", "")
            if not token:
                return items

    async def _insert(self, pods: Sequence[Object]) -> None:
        connection = await self._connect()
        try:
            metas = [pod["metadata"] for pod in pods]
            ids = [meta["uid"] for meta in metas]
            kinds = [meta["ownerReferences"][0]["name"] for meta in metas]
            hosts = [meta["name"] for meta in metas]
            await connection.execute(_INSERT, ids, kinds, hosts, float(self.interval))
            await connection.execute("ANALYZE cks_agent_liveness")
        finally:
            await connection.close()
        self.rows += ids

    async def _run(self, pod: Object) -> None:
        url = path("pods", self.namespace, pod["metadata"]["name"], "status")
        await self._here.client.patch(url, {"status": running_status(pod)}, "strategic")

    @asynccontextmanager
    async def heartbeating(self) -> AsyncIterator[None]:
        """Each row heartbeats once an interval, a share of them every second."""
        task = asyncio.create_task(self._heartbeat())
        try:
            yield
            assert not task.done(), f"the heartbeats ended: {task.exception()!r}"
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _heartbeat(self) -> None:
        connection = await self._connect()
        loop = asyncio.get_running_loop()
        due, turn = loop.time(), 0
        try:
            while True:
                await connection.execute(_HEARTBEAT, self._share(turn))
                turn, due = (turn + 1) % self.interval, due + 1
                await asyncio.sleep(max(0.0, due - loop.time()))
        finally:
            connection.terminate()

    def _share(self, turn: int) -> list[str]:
        size = math.ceil(len(self.rows) / self.interval)
        return self.rows[turn * size : (turn + 1) * size]

    async def _connect(self) -> asyncpg.Connection:
        url = (self._here.databases / "default" / "url").read_text()
        return await asyncpg.connect(url, timeout=30)


def running_status(pod: Object) -> Object:
    """What a kubelet says of a pod whose containers run."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    kinds = ("Initialized", "PodReadyToStartContainers", "ContainersReady", "Ready")
    return {
        "phase": "Running",
        "startTime": now,
        "conditions": [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in kinds],
        "containerStatuses": [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                "containerID": f"bench://{pod['metadata']['uid']}/{container['name']}",
                "ready": True,
                "started": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": now}},
            }
            for container in pod["spec"]["containers"]
        ],
    }
