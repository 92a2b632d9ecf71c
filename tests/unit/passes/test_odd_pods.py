"""Pods as a tenant may make them: whatever the API server stores must be read, or one tenant stops everybody."""

import pytest
from tests.support.builders import NOW, process, raw_pod

from tenure.model.pods import read_pod, read_time

LONGEST = 2**63 - 1


@pytest.mark.accept("K-9")
@pytest.mark.parametrize("grace", [10**11, LONGEST])
def test_a_grace_that_no_calendar_holds_is_read(grace: int) -> None:
    """``kubectl delete pod --grace-period`` takes any 64-bit number, and the sweep of the whole cluster reads it."""
    raw = raw_pod(process(), deleted=0)
    raw["metadata"]["deletionGracePeriodSeconds"] = grace
    view = read_pod(raw)
    assert view.terminating
    assert view.terminating_since is not None
    assert view.terminating_since >= NOW
    assert view.grace_seconds == grace


def test_a_time_beyond_the_calendar_is_none() -> None:
    assert read_time("0001-01-01T00:00:00+23:00") is None
