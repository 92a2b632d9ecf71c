"""What the story uses of the cluster: kubectl, helm and psql, as anybody would call them."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
SYSTEM, AGENTS = "tenure-demo-system", "tenure-demo"
DATABASE = "deployment/tenure-trial-postgresql"


class Failed(RuntimeError):
    """A command that should have worked did not; the text is its own words."""


def run(words: Sequence[str], stdin: str | None = None) -> str:
    """The command's output. Raises ``Failed``."""
    done = subprocess.run(list(words), input=stdin, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"{' '.join(words[:4])} ...: {(done.stderr or done.stdout).strip()[-1500:]}")
    return done.stdout


def kubectl(*words: str, namespace: str = AGENTS, stdin: str | None = None) -> str:
    """kubectl in one namespace. Raises ``Failed``."""
    return run(["kubectl", f"--namespace={namespace}", *words], stdin)


def install(tenure: str, postgres: str) -> None:
    """The chart, with the trial PostgreSQL; returns when operator and database are ready."""
    for name in (SYSTEM, AGENTS):
        kubectl(
            "apply",
            "-f",
            "-",
            stdin=json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}),
        )
    values = {
        "image.repository": tenure.partition(":")[0],
        "image.tag": tenure.partition(":")[2],
        "trialPostgresql.enabled": "true",
        "trialPostgresql.image.repository": postgres.partition(":")[0],
        "trialPostgresql.image.tag": postgres.partition(":")[2],
        "trialPostgresql.shareWith": "{" + AGENTS + "}",
    }
    settings = [f"--set={name}={value}" for name, value in values.items()]
    chart = str(ROOT / "charts" / "tenure")
    run(
        [
            "helm",
            "upgrade",
            "--install",
            "tenure",
            chart,
            f"--namespace={SYSTEM}",
            "--wait",
            "--timeout=180s",
            *settings,
        ]
    )


def uninstall() -> None:
    """Everything that the demo made: resources first, then the release, then the namespaces."""
    kubectl("delete", "agentprocesses", "--all", "--wait=true", "--timeout=60s")
    run(["helm", "uninstall", "tenure", f"--namespace={SYSTEM}", "--wait"])
    kubectl("delete", "namespace", SYSTEM, AGENTS, "--wait=false")


def agents() -> dict[str, dict[str, Any]]:
    """The AgentProcesses by name."""
    items = json.loads(kubectl("get", "agentprocesses", "-o", "json"))["items"]
    return {item["metadata"]["name"]: item for item in items}


def sql(statement: str) -> str:
    """What psql says in the trial database: one row a line, columns separated by a bar."""
    words = ("exec", DATABASE, "--", "psql", "-U", "tenure", "-d", "tenure", "-qAtX", "-c", statement)
    return kubectl(*words, namespace=SYSTEM).strip()


def kill_worker(pod: str) -> None:
    """SIGKILL for the agent's process inside its pod, as an out-of-memory killer would do it."""
    kubectl("exec", pod, "--", "sh", "-c", "kill -9 $(cat /tmp/pid)")
