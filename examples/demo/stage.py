"""What the demo uses of the cluster: kubectl, helm and psql, as anybody would call them."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
CHART = ROOT / "charts" / "tenure"
SECRET = "tenure-trial-postgresql"  # noqa: S105 (the name of a Secret)
Object = dict[str, Any]


class Failed(RuntimeError):
    """A command that should have worked did not; the text is its own words."""


def run(words: Sequence[str], stdin: str | None = None) -> str:
    """The command's output. Raises ``Failed``."""
    done = subprocess.run(list(words), input=stdin, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"{' '.join(words[:6])} ...: {(done.stderr or done.stdout).strip()[-1500:]}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class Stage:
    """One installation: the release in the namespace ``system``, the agents in ``agents``; images by name and tag."""

    system: str
    agents: str
    tenure: str
    postgres: str

    def kubectl(self, *words: str, namespace: str | None = None, stdin: str | None = None) -> str:
        """kubectl in the agents' namespace, or in another. Raises ``Failed``."""
        return run(["kubectl", f"--namespace={namespace or self.agents}", *words], stdin)

    def apply(self, *objects: Object) -> None:
        """``kubectl apply``."""
        self.kubectl(
            "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        )

    def install(self, values: Mapping[str, str] | None = None) -> None:
        """Install or upgrade; returns when operator and trial PostgreSQL are ready."""
        for name in (self.system, self.agents):
            self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        settings = {
            "image.repository": self.tenure.partition(":")[0],
            "image.tag": self.tenure.partition(":")[2],
            "trialPostgresql.enabled": "true",
            "trialPostgresql.image.repository": self.postgres.partition(":")[0],
            "trialPostgresql.image.tag": self.postgres.partition(":")[2],
            "trialPostgresql.shareWith": f"{{{self.agents}}}",
            **(values or {}),
        }
        command = ["helm", "upgrade", "--install", "tenure", str(CHART), f"--namespace={self.system}"]
        run(
            [
                *command,
                # The definitions that an earlier release of another namespace left behind.
                "--take-ownership",
                "--wait",
                "--timeout=240s",
                *(f"--set={name}={value}" for name, value in settings.items()),
            ]
        )

    def uninstall(self) -> None:
        """Everything that was made: resources first, then the release, then the namespaces."""
        self.kubectl("delete", "deployments", "--all", "--wait=true", "--timeout=60s")
        self.kubectl("delete", "agentprocesses,controlservers", "--all", "--wait=true", "--timeout=90s")
        run(["helm", "uninstall", "tenure", f"--namespace={self.system}", "--wait"])
        self.kubectl("delete", "namespace", self.system, self.agents, "--wait=false")

    def processes(self) -> dict[str, Object]:
        """The AgentProcesses by name."""
        items = json.loads(self.kubectl("get", "agentprocesses", "-o", "json"))["items"]
        return {item["metadata"]["name"]: item for item in items}

    def patch(self, name: str, **spec: Any) -> None:
        """Change spec, as ``kubectl patch`` does."""
        self.kubectl("patch", "agentprocess", name, "--type=merge", "-p", json.dumps({"spec": spec}))

    def sql(self, statement: str) -> str:
        """What psql says in the trial database: one row a line, columns separated by a bar."""
        words = ("exec", f"deployment/{SECRET}", "--", "psql", "-U", "tenure", "-d", "tenure", "-qAtX", "-c")
        return self.kubectl(*words, statement, namespace=self.system).strip()

    def kill_process(self, pod: str) -> None:
        """SIGKILL for the process of /tmp/pid inside a pod, as an out-of-memory killer would do it."""
        try:
            self.kubectl("exec", pod, "--", "sh", "-c", "kill -9 $(cat /tmp/pid)")
        except Failed as error:
            # The container may end with its process before the shell in it has said so.
            if "exit code 137" not in str(error):
                raise
