"""The chart on a real node: what a user types, in a namespace that enforces the restricted profile.

The release watches its own namespace only, so that it can stand beside the one that the other tests use.
"""

import json
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from examples.demo.stage import Stage
from tests.cluster import build
from tests.support.wait import eventually

CHART = Path(__file__).resolve().parents[2] / "charts" / "tenure"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
Object = dict[str, Any]


def run(*words: object, stdin: str = "") -> str:
    """A command's output; its words when it fails."""
    done = subprocess.run(
        list(map(str, words)), input=stdin, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, (
        f"{' '.join(map(str, words[:4]))}: {done.stdout[-1500:]} {done.stderr[-1500:]}"
    )
    return done.stdout


@dataclass(frozen=True)
class Installed:
    """A release in a namespace of its own."""

    namespace: str
    values: tuple[str, ...]

    def helm(self, *words: object) -> str:
        """helm in the release's namespace."""
        return run(build.helm(), *words, f"--namespace={self.namespace}")

    def upgrade(self, *options: str) -> str:
        """``helm upgrade --install --wait``, hooks included."""
        return self.helm(
            *("upgrade", "--install", "tenure", CHART, "--wait", "--timeout=240s"), *self.values, *options
        )

    def kubectl(self, *words: object, stdin: str = "") -> str:
        """kubectl in the release's namespace."""
        return run(build.kubectl(), f"--namespace={self.namespace}", *words, stdin=stdin)

    def items(self, kind: str, selector: str = "") -> list[Object]:
        """Objects of a kind by label."""
        listed: list[Object] = json.loads(
            self.kubectl("get", kind, f"--selector={selector}", "--output=json")
        )["items"]
        return listed


@pytest.fixture(scope="module")
def release(stage: Stage) -> Iterator[Installed]:
    namespace = f"install-{uuid.uuid4().hex[:6]}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": RESTRICTED}}
    settings = {
        "image.repository": stage.tenure.partition(":")[0],
        "image.tag": stage.tenure.partition(":")[2],
        "trialPostgresql.enabled": "true",
        "trialPostgresql.image.repository": stage.postgres.partition(":")[0],
        "trialPostgresql.image.tag": stage.postgres.partition(":")[2],
        "watchNamespaces": f"{{{namespace}}}",
        # The suite's release watches every namespace; no agent is made here, so they do not meet.
        "overlapCheck": "false",
        "crds.install": "false",
    }
    installed = Installed(namespace, tuple(f"--set={name}={value}" for name, value in settings.items()))
    run(build.kubectl(), "apply", "--filename=-", stdin=json.dumps(body))
    try:
        installed.upgrade()
        yield installed
        installed.helm("uninstall", "tenure", "--wait")
        assert not installed.items("deployments")
    finally:
        run(build.kubectl(), "delete", "namespace", namespace, "--wait=false")


@pytest.mark.accept("K-10")
def test_the_operators_pods_run_where_the_restricted_profile_is_enforced(release: Installed) -> None:
    pods = release.items("pods", "app.kubernetes.io/component=operator")
    assert len(pods) == 2
    for pod in pods:
        (state,) = pod["status"]["containerStatuses"]
        assert state["ready"]
        assert state["restartCount"] == 0
    assert len(release.items("pods", "app.kubernetes.io/component=trial-postgresql")) == 1


def test_helm_test_reaches_the_operator_through_its_service(release: Installed) -> None:
    log = release.helm("test", "tenure", "--logs", "--timeout=120s")
    assert "/readyz through the Service: 200" in log
    assert release.helm("test", "tenure", "--logs", "--timeout=120s"), (
        "a second run meets what the first left"
    )


def test_the_migration_has_made_the_tables(release: Installed) -> None:
    question = "SELECT to_regclass('cks_agent_liveness') IS NOT NULL AND to_regclass('tenure.agent_stops') IS NOT NULL"
    psql = (
        "exec",
        "deployment/tenure-trial-postgresql",
        "--",
        "psql",
        "-U",
        "tenure",
        "-qAtX",
        "-c",
        question,
    )
    assert release.kubectl(*psql).strip() == "t"
    assert not release.items("jobs"), "a Job that went well is cleared away"


@pytest.mark.accept("K-10")
async def test_one_of_the_two_leads_without_any_cluster_role(release: Installed) -> None:
    def leaders() -> float:
        total = 0.0
        for pod in release.items("pods", "app.kubernetes.io/component=operator"):
            name = f"http:{pod['metadata']['name']}:8080"
            url = f"/api/v1/namespaces/{release.namespace}/pods/{name}/proxy/metrics"
            text = release.kubectl("get", f"--raw={url}")
            total += sum(
                float(line.split()[-1]) for line in text.splitlines() if line.startswith("tenure_leader ")
            )
        return total

    await eventually(lambda: leaders() == 1, within=30, every=1, what="exactly one leader")
    for kind in ("clusterroles", "clusterrolebindings"):
        for item in release.items(kind, "app.kubernetes.io/part-of=tenure"):
            assert item["metadata"]["annotations"]["meta.helm.sh/release-namespace"] != release.namespace
    logs = [
        release.kubectl("logs", pod["metadata"]["name"])
        for pod in release.items("pods", "app.kubernetes.io/component=operator")
    ]
    assert not [line for log in logs for line in log.splitlines() if "orbidden" in line]


async def test_an_upgrade_replaces_the_operators_and_keeps_the_trial_database(release: Installed) -> None:
    def uids(component: str) -> set[str]:
        pods = release.items("pods", f"app.kubernetes.io/component={component}")
        return {pod["metadata"]["uid"] for pod in pods if "deletionTimestamp" not in pod["metadata"]}

    operators, database = uids("operator"), uids("trial-postgresql")
    password = release.items("secrets", "app.kubernetes.io/instance=tenure")[0]["data"]
    release.upgrade("--set=operator.logLevel=DEBUG")
    # Helm waits for the new ones, and not for the last old one to be told to end.
    await eventually(
        lambda: len(uids("operator")) == 2 and not uids("operator") & operators, within=60, every=1
    )
    assert uids("trial-postgresql") == database
    assert release.items("secrets", "app.kubernetes.io/instance=tenure")[0]["data"] == password
