"""Real helm on the project's chart, for tests."""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from tests.cluster import build
from tests.cluster.control_plane import ControlPlane

CHART = Path(__file__).resolve().parents[3] / "charts" / "tenure"
RELEASE = "tenure"
NAMESPACE = "tenure-system"
OLDEST = "1.32.0"
"""Of the versions of Kubernetes that the chart takes; what helm assumes without a cluster depends on its build."""
Object = dict[str, Any]


class HelmRefused(AssertionError):
    """Helm ended with an error; the text is what it told its user."""


class Helm:
    """``helm`` with its files in a scratch folder. Without a control plane only what needs no cluster works.

    ``TENURE_TEST_HELM`` names another helm to test with, for example one of the other major version.
    """

    def __init__(self, folder: Path, plane: ControlPlane | None = None) -> None:
        self._program = os.environ.get("TENURE_TEST_HELM") or str(build.helm())
        self._plane = plane
        # Nothing of the user's own helm or cluster: not its plugins, not its kubeconfig.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HELM_", "KUBE"))}
        self._environment = kept | {
            "HELM_CACHE_HOME": str(folder / "cache"),
            "HELM_CONFIG_HOME": str(folder / "config"),
            "HELM_DATA_HOME": str(folder / "data"),
            "KUBECONFIG": str(plane.kubeconfig if plane else folder / "no-cluster"),
        }

    def __call__(self, *arguments: object, stdin: str = "") -> str:
        """Helm's output; ``HelmRefused`` with its words when it fails."""
        done = subprocess.run(
            [self._program, *map(str, arguments)],
            env=self._environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode != 0:
            raise HelmRefused(done.stderr)
        return done.stdout

    def install(
        self,
        values: Object | None = None,
        *options: str,
        release: str = RELEASE,
        namespace: str = NAMESPACE,
        chart: Path = CHART,
    ) -> str:
        """``helm upgrade --install``, hooks left out: there is no node here to run them.

        Returns helm's notes, when both kinds are served: after a new definition that takes the server a moment.
        """
        notes = self(
            *("upgrade", "--install", release, chart, "--namespace", namespace, "--create-namespace"),
            # Without a value of its own an upgrade would keep those of the release.
            *("--no-hooks", "--reset-values", "--values", "-", *options),
            stdin=yaml.safe_dump(values or {}),
        )
        self._until_served()
        return notes

    def _until_served(self, within: float = 20.0) -> None:
        assert self._plane is not None
        until = time.monotonic() + within
        while True:
            try:
                self._plane.kubectl("get", "agentprocesses.tenure.dev", "--all-namespaces")
                self._plane.kubectl("get", "controlservers.tenure.dev", "--all-namespaces")
            except subprocess.CalledProcessError as error:
                assert time.monotonic() < until, error.stderr
                time.sleep(0.2)
            else:
                return

    def uninstall(self, release: str = RELEASE, namespace: str = NAMESPACE) -> str:
        """``helm uninstall``."""
        return self("uninstall", release, "--namespace", namespace, "--no-hooks")

    @contextlib.contextmanager
    def installed(
        self, values: Object | None = None, *, release: str = RELEASE, namespace: str = NAMESPACE
    ) -> Iterator[None]:
        """A release for the time of a ``with``."""
        self.install(values, release=release, namespace=namespace)
        try:
            yield
        finally:
            self.uninstall(release, namespace)

    def render(self, values: Object | None = None, *options: str, chart: Path = CHART) -> list[Object]:
        """The objects of the chart with these values, hooks among them."""
        text = self(
            *("template", RELEASE, chart, "--namespace", NAMESPACE, "--kube-version", OLDEST),
            *("--values", "-", *options),
            stdin=yaml.safe_dump(values or {}),
        )
        return [item for item in yaml.safe_load_all(text) if item]


def only(objects: list[Object], kind: str, name: str | None = None) -> Object:
    """The one object of a kind (and name)."""
    found = [item for item in objects if item["kind"] == kind and name in (None, item["metadata"]["name"])]
    assert len(found) == 1, f"{len(found)} objects of kind {kind} and name {name}"
    return found[0]


def pod_templates(objects: list[Object]) -> dict[str, Object]:
    """The pods that these objects are or make, as ``kind/name`` to a pod's metadata and spec."""
    found = {}
    for item in objects:
        if item["kind"] == "Pod":
            template = item
        elif item["kind"] in {"Deployment", "Job"}:
            template = item["spec"]["template"]
        else:
            continue
        found[f"{item['kind']}/{item['metadata']['name']}"] = template
    return found
