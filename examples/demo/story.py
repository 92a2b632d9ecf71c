"""The story: what is done to three agents, and to a backend, and what is seen of it, as it happens."""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from examples.demo.stage import Failed, Object, Stage
from examples.demo.survival import Hosted, play
from examples.worker.task_queue import REPORT, SCHEMA

HERE = Path(__file__).resolve().parent
TASKS = 30
ADD_TASKS = "INSERT INTO worker_queue (seconds) SELECT 2 + 3 * random() FROM generate_series(1, %d)"
MARK = """
UPDATE cks_agent_liveness SET desired_state = 'stop_requested' WHERE hostname = '{pod}' RETURNING process_kind
"""
console = Console(highlight=False, soft_wrap=True)


class Late(RuntimeError):
    """Something that should have happened did not within its limit."""


@dataclass(slots=True)
class Story:
    """Watches the agents and tells what changes; everything it says has a time in front of it."""

    stage: Stage
    began: float = field(default_factory=time.monotonic)
    seen: dict[str, tuple[str, str]] = field(default_factory=dict)
    stops: dict[str, float] = field(default_factory=dict)
    finished: int = 0

    def say(self, text: str, style: str = "") -> None:
        """One line."""
        console.print(f"[dim]{time.monotonic() - self.began:6.1f} s[/dim]  {text}", style=style)

    def until(self, what: str, met: Callable[[dict[str, Object]], bool], limit: float) -> float:
        """Watch until ``met``; returns the seconds it took. Raises ``Late``."""
        start = time.monotonic()
        while time.monotonic() - start < limit:
            agents = self.stage.processes()
            self._tell(agents)
            if met(agents):
                return time.monotonic() - start
            time.sleep(0.3)
        raise Late(f"not within {limit:.0f} s: {what}")

    def _tell(self, agents: dict[str, Object]) -> None:
        for name, agent in agents.items():
            status = agent.get("status", {})
            phase = status.get("phase", "")
            news = (phase, sentence(status, phase))
            if self.seen.get(name, ("", ""))[0] != phase and phase:
                self.say(f"[bold]{name:7}[/bold] {phase:9} {news[1]}")
            self.seen[name] = news
        done = self.report()["finished"]
        if done // 5 > self.finished // 5:
            self.say(f"[dim]queue   {done} of {TASKS} tasks finished[/dim]")
        self.finished = done

    def report(self) -> dict[str, int]:
        """What became of the tasks, counted from the journal."""
        found: dict[str, int] = json.loads(self.stage.sql(REPORT))
        return found

    def pod_of(self, name: str) -> str:
        """The pod of the agent's present instance."""
        return str(self.stage.processes()[name]["status"]["instance"]["podName"])


def sentence(status: dict[str, Any], phase: str) -> str:
    """Why the agent is in this phase, in the operator's own words."""
    wanted = {"Draining": "Draining", "Stopped": "Stopped", "Failed": "Stopped"}.get(phase, "Ready")
    found: Object = next((c for c in status.get("conditions", ()) if c["type"] == wanted), {})
    task = status.get("currentTask")
    held = f" (task {task['id']} in hand)" if task and phase == "Draining" else ""
    return str(found.get("message", "")) + held


def phase(name: str, wanted: str) -> Callable[[dict[str, Object]], bool]:
    """True once the agent is in the phase."""
    return lambda agents: agents[name].get("status", {}).get("phase") == wanted


def busy(name: str) -> Callable[[dict[str, Object]], bool]:
    """True while the agent holds a task."""
    return lambda agents: "currentTask" in agents[name].get("status", {})


def stop_through_the_resource(story: Story) -> None:
    story.until("reader holds a task", busy("reader"), 60)
    story.say(
        "[cyan]kubectl patch ap reviewer -> spec.desiredState: StopRequested[/cyan]".replace(
            "reviewer", "reader"
        )
    )
    story.stage.patch("reader", desiredState="StopRequested")
    story.stops["reader, through the resource"] = story.until(
        "reader stopped", phase("reader", "Stopped"), 70
    )


def stop_through_the_table(story: Story) -> None:
    story.until("writer holds a task", busy("writer"), 60)
    story.say(
        "[cyan]psql: UPDATE cks_agent_liveness SET desired_state = 'stop_requested' for the pod of writer[/cyan]"
    )
    story.stage.sql(MARK.format(pod=story.pod_of("writer")))
    story.stops["writer, through the table"] = story.until("writer stopped", phase("writer", "Stopped"), 70)


def crash(story: Story) -> None:
    story.until("tester holds a task", busy("tester"), 60)
    before = story.pod_of("tester")
    story.say("[cyan]kill -9 for the process of tester, in the middle of a task[/cyan]")
    story.stage.kill_process(before)
    story.until("tester noticed", lambda agents: not phase("tester", "Running")(agents), 30)
    story.until(
        "tester runs again", lambda a: phase("tester", "Running")(a) and story.pod_of("tester") != before, 60
    )


def start_again(story: Story) -> None:
    story.say("[cyan]kubectl patch ap reader -> Running; ap writer -> a new restartToken[/cyan]")
    story.stage.patch("reader", desiredState="Running")
    story.stage.patch("writer", restartToken="demo-2")
    story.until("reader runs", phase("reader", "Running"), 60)
    story.until("writer runs", phase("writer", "Running"), 60)


def finish(story: Story) -> None:
    story.until("the queue is empty", lambda _: story.report()["finished"] == TASKS, 180)
    story.say("[cyan]the queue is empty: all three are asked to stop[/cyan]")
    for name in ("reader", "writer", "tester"):
        story.stage.patch(name, desiredState="StopRequested")
    for name in ("reader", "writer", "tester"):
        story.until(f"{name} stopped", phase(name, "Stopped"), 90)


def summary(story: Story) -> bool:
    """Print it; True when nothing was lost and nothing done twice."""
    counted = story.report()
    table = Table(
        title="What became of the work, from the agents' own journal", title_justify="left", show_header=False
    )
    table.add_row("tasks finished", f"{counted['finished']} of {counted['seeded']}")
    table.add_row("lost", str(counted["lost"] + counted["seeded"] - counted["finished"]))
    table.add_row("done twice", str(counted["done_twice"]))
    table.add_row("cut by the crash, and done again by another", str(counted["cut"]))
    for what, seconds in story.stops.items():
        table.add_row(f"stop of {what}", f"{seconds:.1f} s, with a task in hand")
    table.add_row("instances that took part", str(counted["workers"]))
    console.print()
    console.print(table)
    return counted["finished"] == counted["seeded"] and counted["lost"] == 0 and counted["done_twice"] == 0


def second_act(story: Story) -> bool:
    """A backend killed; True when its agent lived and finished its turn."""
    console.print()
    table = play(Hosted(story.stage, story.say, wait_for))
    console.print()
    console.print(table or "[red]an agent, or its work, was lost[/red]")
    return table is not None


def wait_for(what: str, met: Callable[[], bool], limit: float) -> float:
    """Ask until ``met``; returns the seconds it took. Raises ``Late``."""
    start = time.monotonic()
    while time.monotonic() - start < limit:
        if met():
            return time.monotonic() - start
        time.sleep(0.3)
    raise Late(f"not within {limit:.0f} s: {what}")


def main(tenure: str, postgres: str) -> int:
    """The exit code: 0 when no task was lost or done twice."""
    stage = Stage("tenure-demo-system", "tenure-demo", tenure, postgres)
    story = Story(stage)
    story.say("helm install: the operator, two replicas, and a trial PostgreSQL")
    try:
        stage.install()
        stage.sql(SCHEMA.read_text())
        stage.sql(ADD_TASKS % TASKS)
        story.say(f"{TASKS} tasks of 2 to 5 seconds are in the queue; kubectl apply: three agents")
        stage.kubectl("apply", "-f", str(HERE / "agents.yaml"))
        story.until("all run", lambda a: len(a) == 3 and all(phase(n, "Running")(a) for n in a), 90)
        stop_through_the_resource(story)
        stop_through_the_table(story)
        crash(story)
        start_again(story)
        finish(story)
        good = summary(story) and second_act(story)
    except (Late, Failed) as error:
        story.say(f"[red]the demo failed: {error}[/red]")
        good = False
    story.say("taking everything away again")
    try:
        stage.uninstall()
    except Failed as error:
        story.say(f"[red]something is left behind: {error}[/red]")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
