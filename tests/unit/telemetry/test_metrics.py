"""Metrics have their exact names, and every legal label value from the start."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tenure import __version__
from tenure.model.reasons import Phase, StopOrigin
from tenure.telemetry.metrics import Metrics, PassError, WatchedResource

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]

COUNTERS: dict[str, set[tuple[tuple[str, str], ...]]] = {
    "tenure_adoptions_total": {
        (("outcome", outcome), ("reason", reason))
        for outcome, reasons in {
            "adopted": ("none",),
            "no_server": ("no_record", "no_answer", "shutting_down"),
            "refused": (
                "identity_mismatch",
                "credential_unavailable",
                "authentication_failed",
                "capability_incompatible",
                "credential_rotation_failed",
            ),
        }.items()
        for reason in reasons
    },
    "tenure_instances_retracked_total": {()},
    "tenure_instances_deadline_elapsed_total": {()},
    "tenure_duplicate_instances_stopped_total": {()},
    "tenure_launches_refused_total": {
        (("reason", "recovery_in_progress"),),
        (("reason", "unstopped_agent"),),
    },
    "tenure_superseded_credential_rejections_total": {()},
    "tenure_ambiguous_correlations_total": {()},
    "tenure_unowned_shutdowns_total": {()},
    "tenure_stop_requests_total": {
        (("origin", origin),) for origin in ("Deletion", "Resource", "Replacement", "Table", "Disruption")
    },
    "tenure_stops_total": {(("graceful", value),) for value in ("true", "false", "unknown")},
    "tenure_database_errors_total": {()},
    "tenure_reconcile_errors_total": {(("kind", str(kind)),) for kind in PassError},
}
WITH_INPUTS = ("tenure_instances_refused_missing_input_total", "tenure_reconstruction_reads_exhausted_total")


def samples(metrics: Metrics) -> Samples:
    """What a scrape reads, without the creation times."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


@pytest.mark.parametrize("name", [*COUNTERS, *WITH_INPUTS])
def test_a_counter_exists_with_every_legal_label_at_zero(name: str) -> None:
    found = {labels: value for (sample, labels), value in samples(Metrics()).items() if sample == name}
    assert found
    assert set(found.values()) == {0.0}
    if name in COUNTERS:
        assert set(found) == COUNTERS[name]
    else:
        assert all(dict(labels).keys() == {"input"} for labels in found)


def test_the_gauges_and_histograms_exist_from_the_start() -> None:
    names = {name for name, _ in samples(Metrics())}
    assert {
        "tenure_drain_duration_seconds_count",
        "tenure_heartbeat_age_seconds_bucket",
        "tenure_reconcile_duration_seconds_count",
        "tenure_leader",
        "tenure_watch_age_seconds",
    } <= names
    assert samples(Metrics())[("tenure_build_info", (("version", __version__),))] == 1


def test_a_stop_is_counted_by_origin_and_grace() -> None:
    metrics = Metrics()
    metrics.stop_requested(StopOrigin.TABLE)
    metrics.stopped(True, 3.0)
    metrics.stopped(None, None)
    found = samples(metrics)
    assert found[("tenure_stop_requests_total", (("origin", "Table"),))] == 1
    assert found[("tenure_stop_requests_total", (("origin", "Resource"),))] == 0
    assert found[("tenure_stops_total", (("graceful", "true"),))] == 1
    assert found[("tenure_stops_total", (("graceful", "unknown"),))] == 1
    assert found[("tenure_drain_duration_seconds_count", ())] == 1
    assert found[("tenure_drain_duration_seconds_sum", ())] == 3.0


def test_a_phase_that_nobody_is_in_any_more_reads_zero() -> None:
    metrics = Metrics()
    metrics.agent_processes({Phase.RUNNING: 2, Phase.DRAINING: 1})
    metrics.agent_processes({Phase.STOPPED: 3})
    found = {
        dict(labels)["phase"]: value
        for (name, labels), value in samples(metrics).items()
        if name == "tenure_agent_processes"
    }
    assert found == {str(phase): 3.0 if phase is Phase.STOPPED else 0.0 for phase in Phase}


def test_a_failed_pass_is_measured_like_any_other() -> None:
    metrics = Metrics()
    with pytest.raises(LookupError), metrics.reconcile():
        raise LookupError
    assert samples(metrics)[("tenure_reconcile_duration_seconds_count", ())] == 1


def test_the_age_of_a_watch_is_asked_for_when_it_is_read() -> None:
    metrics = Metrics()
    ages = iter([4.0, 9.0])
    metrics.watch_age(WatchedResource.PODS, lambda: next(ages))
    key = ("tenure_watch_age_seconds", (("resource", "pods"),))
    assert samples(metrics)[key] == 4.0
    assert samples(metrics)[key] == 9.0


def test_two_operators_in_one_process_do_not_share_numbers() -> None:
    one, other = Metrics(), Metrics()
    one.leader(True)
    assert samples(one)[("tenure_leader", ())] == 1
    assert samples(other)[("tenure_leader", ())] == 0
