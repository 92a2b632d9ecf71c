"""Agents on a real node, and the evidence of what happened to them and to their work."""

import json
from typing import Any

from examples.demo.stage import SECRET, Failed, Object, Stage
from tests.support.wait import eventually

INTERVAL = 2
IMAGE = "tenure-worker:dev"
RUN_UNDER_SHELL = "python worker.py run & echo $! > /tmp/pid; wait $!"


class Agents:
    """AgentProcesses with the example worker. Names are unique to each test, so that tests do not meet."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._made: list[str] = []

    def create(
        self, name: str, *, shell: bool = False, env: dict[str, str] | None = None, **spec: Any
    ) -> None:
        """One agent. ``shell``: under a shell that swallows SIGTERM, and with its process id in /tmp/pid."""
        variables = {"LEASE_SECONDS": "6", "POLL_SECONDS": "0.5", **(env or {})}
        container: Object = {
            "name": "agent",
            "image": IMAGE,
            "imagePullPolicy": "IfNotPresent",
            "env": [{"name": key, "value": value} for key, value in variables.items()],
        }
        if shell:
            container["command"] = ["sh", "-c", RUN_UNDER_SHELL]
        self._made.append(name)
        self.stage.apply(
            {
                "apiVersion": "tenure.dev/v1alpha1",
                "kind": "AgentProcess",
                "metadata": {"name": name, "namespace": self.stage.agents},
                "spec": {
                    "processKind": "worker",
                    "backoff": {"initialSeconds": 1},
                    "drain": {"gracePeriodSeconds": 60},
                    "liveness": {
                        "intervalSeconds": INTERVAL,
                        "credentialsSecretRef": {"name": SECRET, "key": "url"},
                    },
                    "template": {"spec": {"containers": [container]}},
                    **spec,
                },
            }
        )

    def delete_all(self) -> None:
        """Delete what the test made, and wait until it is gone."""
        if self._made:
            self.stage.kubectl("delete", "agentprocess", *self._made, "--ignore-not-found", "--wait=true")
            for name in self._made:
                selector = f"--selector=tenure.dev/agent-process={name}"
                self.stage.kubectl("wait", "pods", selector, "--for=delete", "--timeout=90s")

    def patch(self, name: str, **spec: Any) -> None:
        """Change spec."""
        self.stage.patch(name, **spec)

    def get(self, name: str) -> Object:
        """The resource."""
        found: Object = json.loads(self.stage.kubectl("get", "agentprocess", name, "-o", "json"))
        return found

    def status(self, name: str) -> Object:
        """Its status."""
        found: Object = self.get(name).get("status", {})
        return found

    def pods(self, name: str) -> list[Object]:
        """Its pods, whatever their state."""
        selector = f"--selector=tenure.dev/agent-process={name}"
        found: list[Object] = json.loads(self.stage.kubectl("get", "pods", selector, "-o", "json"))["items"]
        return found

    def wait(self, name: str, condition: str, seconds: int = 60) -> None:
        """``kubectl wait --for=condition=...``."""
        self.stage.kubectl(
            "wait", f"agentprocess/{name}", f"--for=condition={condition}", f"--timeout={seconds}s"
        )

    async def phase(self, name: str, wanted: str, within: float = 60) -> Object:
        """Wait for a phase; the status then."""

        def look() -> Object | None:
            status = self.status(name)
            return status if status.get("phase") == wanted else None

        return await eventually(look, within=within, every=0.3, what=f"{name} in phase {wanted}")

    async def busy(self, name: str) -> tuple[str, str]:
        """Wait until the agent is in the middle of a task; its pod's name and UID."""

        def look() -> tuple[str, str] | None:
            instance = self.status(name).get("instance", {})
            if not instance.get("id") or self.status(name).get("phase") != "Running":
                return None
            open_tasks = self.sql_value(
                "SELECT count(*) FROM worker_queue WHERE state = 'claimed' AND claimed_by = '{}'".format(
                    instance["id"]
                )
            )
            return (instance["podName"], instance["id"]) if open_tasks == "1" else None

        return await eventually(look, within=60, every=0.3, what=f"{name} holding a task")

    def sql_value(self, statement: str) -> str:
        """What psql prints."""
        return self.stage.sql(statement)

    def mark(self, instance: str) -> None:
        """Ask for a stop as anybody with psql would."""
        self.stage.sql(
            f"UPDATE cks_agent_liveness SET desired_state = 'stop_requested' WHERE instance_id = '{instance}'"
        )

    def row(self, instance: str) -> tuple[str, bool]:
        """The row's desired state, and whether its heartbeat says: ended."""
        found = self.stage.sql(
            "SELECT coalesce(desired_state, ''), last_heartbeat_at = to_timestamp(0)"
            f" FROM cks_agent_liveness WHERE instance_id = '{instance}'"
        )
        state, _, ended = found.partition("|")
        return state, ended == "t"

    def journal(self, instance: str) -> dict[str, int]:
        """Of one instance: how many tasks it started, finished, and lost to another."""
        found = self.stage.sql(
            "SELECT json_build_object("
            "'started', count(*) FILTER (WHERE event = 'started'),"
            "'finished', count(*) FILTER (WHERE event = 'finished'),"
            "'lost', count(*) FILTER (WHERE event = 'lost'))"
            f" FROM worker_journal WHERE instance_id = '{instance}'"
        )
        counts: dict[str, int] = json.loads(found)
        return counts

    def assert_nothing_was_cut(self, *instances: str) -> None:
        """Each task that these instances started, they finished; and nobody did one twice."""
        for instance in instances:
            counts = self.journal(instance)
            assert counts["started"] == counts["finished"] > 0, counts
            assert counts["lost"] == 0, counts
        assert self.done_twice() == 0

    def done_twice(self) -> int:
        """How many tasks have two ends, of all that were ever started."""
        return int(
            self.stage.sql(
                "SELECT count(*) FROM (SELECT task_id FROM worker_journal WHERE event = 'finished'"
                " GROUP BY task_id HAVING count(*) > 1) AS twice"
            )
        )

    def events(self, name: str) -> list[str]:
        """The reasons of the Events about the resource, in no order."""
        words = ("get", "events", f"--field-selector=involvedObject.name={name}", "-o", "json")
        return [item["reason"] for item in json.loads(self.stage.kubectl(*words))["items"]]

    def evict(self, pod: str) -> None:
        """Ask the Eviction API, as a drain does."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": self.stage.agents},
        }
        path = f"/api/v1/namespaces/{self.stage.agents}/pods/{pod}/eviction"
        self.stage.kubectl("create", f"--raw={path}", "-f", "-", stdin=json.dumps(body))

    def exists(self, pod: str) -> bool:
        """Whether the API still shows the pod."""
        try:
            self.stage.kubectl("get", "pod", pod)
        except Failed:
            return False
        return True
