"""Which cluster the commands mean: the one KUBECONFIG names, kind where docker works, else the embedded node."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tests.cluster.kind import Kind, usable
from tests.cluster.node import Node
from tests.cluster.say import CannotStart, say


class Cluster(Protocol):
    """What the demo, the end-to-end tests and the command line need of a cluster."""

    kubeconfig: Path

    def up(self) -> None:
        """Start it unless it runs."""

    def down(self) -> None:
        """End it."""

    def ready(self) -> bool:
        """True while it can be used."""

    def load(self, *archives: Path) -> None:
        """Make images known to it."""

    def command(self, words: Sequence[str]) -> list[str]:
        """The words that run a command where the cluster's addresses can be reached."""

    def environment(self) -> dict[str, str]:
        """The environment of such a command, KUBECONFIG included."""


class Given:
    """A cluster that somebody else runs; its images come from wherever its nodes find them."""

    def __init__(self, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig

    def up(self) -> None:
        """Check that it answers."""
        if not self.ready():
            raise CannotStart(f"the cluster of KUBECONFIG={self.kubeconfig} does not answer")
        say(f"using the cluster of KUBECONFIG={self.kubeconfig}")

    def down(self) -> None:
        """Leave it alone."""
        say(f"the cluster of KUBECONFIG={self.kubeconfig} is left as it is")

    def ready(self) -> bool:
        """True when the API server answers."""
        words = ["kubectl", f"--kubeconfig={self.kubeconfig}", "get", "--raw=/readyz", "--request-timeout=5s"]
        return subprocess.run(words, capture_output=True, check=False).returncode == 0

    def load(self, *archives: Path) -> None:
        """Say that this is the user's part."""
        names = ", ".join(archive.name for archive in archives)
        say(f"push the images yourself where the cluster of KUBECONFIG finds them: {names}")

    def command(self, words: Sequence[str]) -> list[str]:
        """The words as they are."""
        return list(words)

    def environment(self) -> dict[str, str]:
        """The environment as it is."""
        return dict(os.environ)


def cluster() -> Cluster:
    """The cluster to use. ``TENURE_CLUSTER_KIND`` set to ``given``, ``kind`` or ``embedded`` decides by hand."""
    wish = os.environ.get("TENURE_CLUSTER_KIND", "")
    kubeconfig = os.environ.get("KUBECONFIG", "")
    embedded = Node()
    if wish == "embedded" or (not wish and kubeconfig == str(embedded.kubeconfig)):
        # Inside "exec" KUBECONFIG is the embedded node's own.
        return embedded
    if wish == "kind":
        return Kind()
    if kubeconfig:
        return Given(Path(kubeconfig))
    return Kind() if usable() else embedded
