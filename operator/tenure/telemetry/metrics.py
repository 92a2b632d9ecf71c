"""The operator's metrics: exact names, bounded labels, every legal label value there from the start with 0.

One ``Metrics`` object for a process, passed to whoever measures. Nothing is registered globally, so that two
operators in one test process do not share numbers. Source of names: docs, "Metrics and events".
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from tenure import __version__
from tenure.model.adoption import (
    ADOPTION_PAIRS,
    AdoptionOutcome,
    AdoptionReason,
    LaunchRefusal,
    ReconstructionInput,
    RecoveryRead,
)
from tenure.model.reasons import Phase, ServerPhase, StopOrigin

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

_DRAIN_BUCKETS = (0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 14400, 86400)
_HEARTBEAT_BUCKETS = (1, 5, 10, 15, 30, 45, 60, 90, 120, 300, 900, 3600)
_RECOVERY_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 45, 60, 120, 300)
_REMEMBERED_PODS = 10_000
_PASS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Graceful(StrEnum):
    """Label of ``tenure_stops_total``."""

    TRUE = "true"
    FALSE = "false"
    UNKNOWN = "unknown"


class PassError(StrEnum):
    """Label of ``tenure_reconcile_errors_total``: what made a pass fail."""

    API = "api"
    """The API server did not answer, or refused."""
    CONFLICT = "conflict"
    """Something changed meanwhile; the pass is run again."""
    DATABASE = "database"
    UNREADABLE = "unreadable"
    """An object whose shape is not understood."""
    UNEXPECTED = "unexpected"
    """A bug."""


class ClaimResult(StrEnum):
    """Label of ``tenure_claims_total``."""

    GRANTED = "granted"
    NO_ANSWER = "no_answer"
    """Also an answer that is none of the protocol; the next renewal comes at its time."""
    SUPERSEDED = "superseded"
    SHUTTING_DOWN = "shutting_down"


class WatchedResource(StrEnum):
    """Label of ``tenure_watch_age_seconds``."""

    AGENT_PROCESSES = "agentprocesses"
    CONTROL_SERVERS = "controlservers"
    PODS = "pods"


class Metrics:
    """All metrics of one operator, with a method for each thing that can happen."""

    def __init__(self, version: str = __version__) -> None:
        self.registry = CollectorRegistry()
        self._define_agents()
        self._define_operator(version)
        self._define_adoption()

    def _define_agents(self) -> None:
        r = self.registry
        self._stop_requests = Counter(
            "tenure_stop_requests_total", "Stops that were asked for, by origin.", ["origin"], registry=r
        )
        self._stops = Counter(
            "tenure_stops_total", "Agents that ended after a stop was asked for.", ["graceful"], registry=r
        )
        self._drain = Histogram(
            "tenure_drain_duration_seconds",
            "From the request to stop to the end of the agent's process.",
            buckets=_DRAIN_BUCKETS,
            registry=r,
        )
        self._agent_processes = Gauge(
            "tenure_agent_processes", "AgentProcess resources, by phase.", ["phase"], registry=r
        )
        self._heartbeat_age = Histogram(
            "tenure_heartbeat_age_seconds",
            "Age of running agents' heartbeats, by the database's clock, whenever they are read.",
            buckets=_HEARTBEAT_BUCKETS,
            registry=r,
        )
        for origin in StopOrigin:
            self._stop_requests.labels(origin)
        for graceful in Graceful:
            self._stops.labels(graceful)
        for phase in Phase:
            self._agent_processes.labels(phase)

    def _define_operator(self, version: str) -> None:
        r = self.registry
        self._reconcile = Histogram(
            "tenure_reconcile_duration_seconds",
            "Duration of one pass over one object.",
            buckets=_PASS_BUCKETS,
            registry=r,
        )
        self._reconcile_errors = Counter(
            "tenure_reconcile_errors_total", "Passes that failed, by kind of error.", ["kind"], registry=r
        )
        self._database_errors = Counter(
            "tenure_database_errors_total", "Database calls that failed.", registry=r
        )
        self._watch_age = Gauge(
            "tenure_watch_age_seconds",
            "Seconds since a watch showed anything; 0 while this operator does not lead.",
            ["resource"],
            registry=r,
        )
        self._leader = Gauge("tenure_leader", "1 while this operator holds the Lease.", registry=r)
        build = Gauge("tenure_build_info", "Always 1; the label tells the version.", ["version"], registry=r)
        build.labels(version).set(1)
        for kind in PassError:
            self._reconcile_errors.labels(kind)
        for resource in WatchedResource:
            self._watch_age.labels(resource)

    def _define_adoption(self) -> None:
        r = self.registry
        self.adoptions = Counter(
            "tenure_adoptions_total",
            "Attempts to adopt a control server.",
            ["outcome", "reason"],
            registry=r,
        )
        self.instances_retracked = Counter(
            "tenure_instances_retracked_total", "Instances re-tracked after adoption.", registry=r
        )
        self.instances_refused_missing_input = Counter(
            "tenure_instances_refused_missing_input_total",
            "Instances refused because an input of reconstruction was absent.",
            ["input"],
            registry=r,
        )
        self.instances_deadline_elapsed = Counter(
            "tenure_instances_deadline_elapsed_total",
            "Instances not re-tracked because the deadline elapsed.",
            registry=r,
        )
        self.reconstruction_reads_exhausted = Counter(
            "tenure_reconstruction_reads_exhausted_total",
            "Reads that used up their retries.",
            ["input"],
            registry=r,
        )
        self.duplicate_instances_stopped = Counter(
            "tenure_duplicate_instances_stopped_total", "Losers stopped after a tiebreak.", registry=r
        )
        self.launches_refused = Counter(
            "tenure_launches_refused_total", "Launches refused.", ["reason"], registry=r
        )
        self.superseded_credential_rejections = Counter(
            "tenure_superseded_credential_rejections_total",
            "Operations rejected for a superseded credential.",
            registry=r,
        )
        self.ambiguous_correlations = Counter(
            "tenure_ambiguous_correlations_total",
            "Sessions whose instances could not be told apart.",
            registry=r,
        )
        self.unowned_shutdowns = Counter(
            "tenure_unowned_shutdowns_total", "Control servers that stopped themselves.", registry=r
        )
        self._define_servers()
        for outcome, reason in ADOPTION_PAIRS:
            self.adoptions.labels(outcome, reason)
        for missing in ReconstructionInput:
            self.instances_refused_missing_input.labels(missing)
        for read in RecoveryRead:
            self.reconstruction_reads_exhausted.labels(read)
        for refusal in LaunchRefusal:
            self.launches_refused.labels(refusal)

    def _define_servers(self) -> None:
        r = self.registry
        self._control_servers = Gauge(
            "tenure_control_servers", "ControlServer resources, by phase.", ["phase"], registry=r
        )
        self._recovery = Histogram(
            "tenure_recovery_duration_seconds",
            "From the first contact with a server that was left to the end of recovery.",
            buckets=_RECOVERY_BUCKETS,
            registry=r,
        )
        self._claims = Counter(
            "tenure_claims_total", "Renewals of claims on control servers, by result.", ["result"], registry=r
        )
        self._unconfirmed = Gauge(
            "tenure_unconfirmed_rotations",
            "Control servers of ours that were not yet told that their new credential is stored.",
            registry=r,
        )
        self._unowned: dict[str, None] = {}
        for phase in ServerPhase:
            self._control_servers.labels(phase)
        for result in ClaimResult:
            self._claims.labels(result)

    # What happens to control servers, each after the durable write that it tells of

    def adoption_ended(self, outcome: AdoptionOutcome, reason: AdoptionReason) -> None:
        """One attempt. Raises ``ValueError`` for a pair that is not one of ``ADOPTION_PAIRS``."""
        if (outcome, reason) not in ADOPTION_PAIRS:
            raise ValueError(f"{outcome} is never for the reason {reason}")
        self.adoptions.labels(outcome, reason).inc()

    def launch_refused(self, refusal: LaunchRefusal | None) -> None:
        """A launch was refused; None ("in use") is no failure of recovery and is not counted."""
        if refusal is not None:
            self.launches_refused.labels(refusal).inc()

    def control_servers(self, counts: Mapping[ServerPhase, int]) -> None:
        """How many resources are in each phase now; a phase left out has none."""
        for phase in ServerPhase:
            self._control_servers.labels(phase).set(counts.get(phase, 0))

    def recovery_took(self, seconds: float) -> None:
        """A recovery has finished."""
        self._recovery.observe(max(0.0, seconds))

    def claimed(self, result: ClaimResult) -> None:
        """One attempt to renew a claim."""
        self._claims.labels(result).inc()

    def unowned_shutdown(self, pod_uid: str) -> bool:
        """The control server in this pod has stopped itself. Counted once for each pod, whoever leads when; False: it
        was counted before."""
        if pod_uid in self._unowned:
            return False
        self._unowned[pod_uid] = None
        if len(self._unowned) > _REMEMBERED_PODS:
            del self._unowned[next(iter(self._unowned))]
        self.unowned_shutdowns.inc()
        return True

    def unconfirmed_rotations(self, count: int) -> None:
        """How many rotations are stored and not yet confirmed, of all servers."""
        self._unconfirmed.set(count)

    # What happens to agents

    def stop_requested(self, origin: StopOrigin) -> None:
        """A stop was recorded; call it after the status write."""
        self._stop_requests.labels(origin).inc()

    def stopped(self, graceful: bool | None, drain_seconds: float | None) -> None:
        """An agent ended after a request; None as ``graceful`` when nobody can tell."""
        label = Graceful.UNKNOWN if graceful is None else Graceful.TRUE if graceful else Graceful.FALSE
        self._stops.labels(label).inc()
        if drain_seconds is not None:
            self._drain.observe(max(0.0, drain_seconds))

    def agent_processes(self, counts: Mapping[Phase, int]) -> None:
        """How many resources are in each phase now; a phase left out has none."""
        for phase in Phase:
            self._agent_processes.labels(phase).set(counts.get(phase, 0))

    def heartbeat_age(self, seconds: float) -> None:
        """The age of one running agent's heartbeat, as read."""
        self._heartbeat_age.observe(max(0.0, seconds))

    # What happens to the operator

    @contextmanager
    def reconcile(self) -> Iterator[None]:
        """Measure one pass, failed or not."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._reconcile.observe(time.perf_counter() - began)

    def reconcile_failed(self, kind: PassError) -> None:
        """A pass failed."""
        self._reconcile_errors.labels(kind).inc()

    def database_failed(self) -> None:
        """A database call failed."""
        self._database_errors.inc()

    def leader(self, leading: bool) -> None:
        """Whether this operator holds the Lease."""
        self._leader.set(1 if leading else 0)

    def watch_age(self, resource: WatchedResource, seconds: Callable[[], float]) -> None:
        """Ask ``seconds`` for the age of a watch whenever the metrics are read."""
        self._watch_age.labels(resource).set_function(seconds)

    def render(self) -> bytes:
        """The Prometheus text format, version 0.0.4 (``CONTENT_TYPE``)."""
        return generate_latest(self.registry)
