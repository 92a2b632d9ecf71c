"""The same commands on kind, where docker works: what the users' CI runs."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.cluster import cache
from tests.cluster.say import CannotStart, say, step

NAME = os.environ.get("TENURE_CLUSTER", "tenure")


def usable() -> bool:
    """True where docker's daemon answers and ``kind`` is installed."""
    if shutil.which("docker") is None or shutil.which("kind") is None:
        return False
    return subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0


class Kind:
    """A kind cluster called ``name``; the same methods as ``node.Node``."""

    def __init__(self, name: str = NAME) -> None:
        self.name = name
        self.kubeconfig = cache.root() / "kind" / f"{name}.kubeconfig"

    def up(self) -> None:
        """Create the cluster unless it exists."""
        if self.ready():
            say(f"the kind cluster runs already; kubeconfig {self.kubeconfig}")
            return
        self.kubeconfig.parent.mkdir(parents=True, exist_ok=True)
        with step("creating the kind cluster"):
            _run(["kind", "create", "cluster", "--wait=120s", *self._where()])

    def down(self) -> None:
        """Delete the cluster."""
        if self.kubeconfig.exists():
            with step("deleting the kind cluster"):
                _run(["kind", "delete", "cluster", *self._where()])
            self.kubeconfig.unlink(missing_ok=True)

    def ready(self) -> bool:
        """True when the cluster exists and serves."""
        if not self.kubeconfig.exists():
            return False
        words = ["kubectl", f"--kubeconfig={self.kubeconfig}", "get", "--raw=/readyz", "--request-timeout=5s"]
        return subprocess.run(words, capture_output=True, check=False).returncode == 0

    def load(self, *archives: Path) -> None:
        """Import image archives."""
        for archive in archives:
            with step(f"loading image {archive.name}"):
                _run(["kind", "load", "image-archive", str(archive), f"--name={self.name}"])

    def command(self, words: Sequence[str]) -> list[str]:
        """kind's API server is reached from the host: the words as they are."""
        return list(words)

    def environment(self) -> dict[str, str]:
        """The environment of such a command."""
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig)}

    def _where(self) -> list[str]:
        return [f"--name={self.name}", f"--kubeconfig={self.kubeconfig}"]


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        say((done.stdout + done.stderr)[-3000:])
        raise CannotStart(f"'{' '.join(command[:2])}' failed: see its words above")
