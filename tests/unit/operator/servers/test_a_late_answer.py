"""The answer to a write about a pod that the watch has told the end of meanwhile brings nothing back."""

from typing import Any

import pytest

from tenure.model.selector import Selector
from tenure.operator.servers.cache import ServerCache

SELECTOR = Selector(match_labels={"app": "backend"})


def backend(version: int) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "alone",
            "namespace": "agents",
            "uid": "u-1",
            "resourceVersion": str(version),
            "labels": {"app": "backend", "tenure.dev/role": "backend"},
        },
        "spec": {"containers": [{"name": "backend"}]},
        "status": {"phase": "Running"},
    }


def test_a_backend_that_was_deleted_while_its_readiness_was_written_stays_deleted() -> None:
    cache = ServerCache()
    cache.put_pod(backend(5))
    cache.drop_pod(backend(9))
    assert not cache.put_pod(backend(7), found=True)
    assert cache.backends("agents", SELECTOR) == ()


@pytest.mark.parametrize("version", [9, 12])
def test_one_that_had_only_left_the_selector_is_found_again(version: int) -> None:
    cache = ServerCache()
    cache.put_pod(backend(5))
    cache.drop_pod(backend(9))
    assert cache.put_pod(backend(version), found=True)
    assert len(cache.backends("agents", SELECTOR)) == 1


def test_one_whose_absence_alone_was_seen_is_found_again() -> None:
    cache = ServerCache()
    cache.put_pod(backend(5))
    cache.drop_pod_uid("u-1")
    assert cache.put_pod(backend(5), found=True)
