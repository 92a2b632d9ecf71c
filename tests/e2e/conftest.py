"""One installation for the whole suite, as a user makes it: image, chart, trial PostgreSQL; agents with real work."""

import os
from collections.abc import Iterator

import pytest
from examples.demo.stage import Stage
from examples.worker.task_queue import SCHEMA
from tests.cluster import images
from tests.cluster.choose import cluster
from tests.e2e.agents import Agents

TENURE, POSTGRES = "tenure:dev", "postgres:test"


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    """The release, watching every namespace, and a queue that never runs dry."""
    target = cluster()
    os.environ.setdefault("KUBECONFIG", str(target.kubeconfig))
    target.load(images.tenure(TENURE), images.worker(), images.session(), images.postgres(POSTGRES))
    found = Stage("tenure-e2e-system", "tenure-e2e", TENURE, POSTGRES)
    found.install({"trialPostgresql.resources.limits.memory": "512Mi"})
    try:
        found.sql(SCHEMA.read_text())
        found.sql("INSERT INTO worker_queue (seconds) SELECT 1 + 2 * random() FROM generate_series(1, 3000)")
        yield found
    finally:
        found.uninstall()


@pytest.fixture
def agents(stage: Stage) -> Iterator[Agents]:
    """The agents of one test; they are gone when it ends."""
    made = Agents(stage)
    yield made
    made.delete_all()
