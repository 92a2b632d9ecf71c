"""The second act: a backend is killed in the middle of a turn, and its agent never hears of it."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

from examples.demo.stage import Failed, Object, Stage

HERE = Path(__file__).resolve().parent
ACT = HERE / "session.yaml"
JOURNAL = ("python", "/agent/agent.py", "--journal", "/var/lib/tenure/work/demo")
COUNTERS = {
    "adoptions": 'tenure_adoptions_total{outcome="adopted",reason="none"}',
    "adoptions refused": 'tenure_adoptions_total{outcome="refused"',
    "agents that went on (re-tracked)": "tenure_instances_retracked_total",
    "agents lost at the deadline": "tenure_instances_deadline_elapsed_total",
    "servers that stopped themselves": "tenure_unowned_shutdowns_total",
}
_STEP = re.compile(r"pid (\d+)\s+turn \d+\s+finished\s+(\S+)")


@dataclass(slots=True)
class Hosted:
    """The ControlServer ``main``, its backend, and the one session that it hosts."""

    stage: Stage
    say: Callable[..., None]
    until: Callable[[str, Callable[[], bool], float], float]
    pids: dict[str, str] = field(default_factory=dict)

    def set_up(self) -> None:
        """Apply it, and wait until the backend has its server."""
        self.stage.kubectl("apply", "-f", str(ACT))
        self.until("the control server is ready", lambda: self.condition("Ready") == "True", 120)
        self.stage.kubectl("rollout", "status", "deployment/backend", "--timeout=90s")

    def status(self) -> Object:
        """Of the ControlServer."""
        found: Object = json.loads(self.stage.kubectl("get", "controlserver", "main", "-o", "json"))
        status: Object = found.get("status", {})
        return status

    def condition(self, kind: str) -> str:
        """A condition's status; empty while there is none."""
        found = (c["status"] for c in self.status().get("conditions", ()) if c["type"] == kind)
        return str(next(found, ""))

    def backend(self) -> Object:
        """The newest pod of the backend that is not on its way out."""
        pods = json.loads(self.stage.kubectl("get", "pods", "-l", "app=backend", "-o", "json"))["items"]
        living = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        newest: Object = max(living, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
        return newest

    def journal(self) -> str:
        """What the agent wrote down: lines, and what they prove."""
        pod = self.status()["pod"]["name"]
        try:
            return self.stage.kubectl("exec", pod, "-c", "server", "--", *JOURNAL)
        except Failed:
            return ""

    def steps(self) -> list[tuple[str, str]]:
        """Process id and name of each step that the agent finished."""
        return _STEP.findall(self.journal())

    def agent(self) -> str:
        """The process id of the agent, by its latest step."""
        return self.steps()[-1][0]

    def turn(self) -> str:
        """The state of the session's latest turn, from the database."""
        return self.stage.sql(
            "SELECT state FROM tenure.turns WHERE session_id = 'demo' ORDER BY id DESC LIMIT 1"
        )

    def kill_backend(self) -> None:
        """SIGKILL for its process; the kubelet starts the container again."""
        self.stage.kill_process(self.backend()["metadata"]["name"])

    def recovered_after(self, incarnation: str) -> bool:
        """Whether recovery is over for another backend than that."""
        by = self.status().get("recoveredBy")
        return by is not None and by != incarnation

    def counters(self) -> dict[str, int]:
        """From the operator that leads."""
        words = ("get", "pods", "-l", "app.kubernetes.io/component=operator", "-o", "name")
        for name in self.stage.kubectl(*words, namespace=self.stage.system).split():
            pod = name.partition("/")[2]
            url = f"/api/v1/namespaces/{self.stage.system}/pods/{pod}:8080/proxy/metrics"
            page = self.stage.kubectl("get", "--raw", url)
            if re.search(r"^tenure_leader 1", page, re.MULTILINE):
                return {what: _total(page, sample) for what, sample in COUNTERS.items()}
        raise Failed("no operator leads")


def _total(page: str, sample: str) -> int:
    lines = (line for line in page.splitlines() if line.startswith(sample))
    return int(sum(float(line.rpartition(" ")[2]) for line in lines))


def play(hosted: Hosted) -> Table | None:
    """The act; what is seen in the end, or None when an agent or its work was lost."""
    hosted.say("kubectl apply: a ControlServer with agentSurvival: Enabled, and a backend with a session")
    hosted.set_up()
    hosted.until("the agent works", lambda: len(hosted.steps()) >= 1, 90)
    before, life = hosted.agent(), str(hosted.status()["adoptedBy"])
    hosted.say(f"session   the agent, process {before}, is in the middle of its turn ({hosted.turn()})")
    hosted.say("[cyan]kill -9 for the backend's process[/cyan]")
    hosted.kill_backend()
    took = hosted.until("the next backend has the agent", lambda: hosted.recovered_after(life), 90)
    hosted.say(f"session   adopted for the next backend after {took:.1f} s; the turn is {hosted.turn()}")
    hosted.say("[cyan]kubectl delete pod, that of the backend[/cyan]")
    life = str(hosted.status()["adoptedBy"])
    hosted.stage.kubectl("delete", "pod", hosted.backend()["metadata"]["name"], "--wait=false")
    hosted.until("the third backend has the agent", lambda: hosted.recovered_after(life), 90)
    hosted.until("the turn is over", lambda: hosted.turn() == "completed", 120)
    after, proof = hosted.agent(), hosted.journal().strip().splitlines()[-1]
    table = Table(title="What became of the session", title_justify="left", show_header=False)
    table.add_row("process of the agent, before and after", f"{before}, {after}")
    table.add_row("its turn", hosted.turn())
    table.add_row("its own journal", proof)
    for what, count in hosted.counters().items():
        table.add_row(what, str(count))
    return table if before == after and "Done twice: none" in proof and "Unfinished: none" in proof else None
