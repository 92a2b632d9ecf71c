"""What is told of adoption and recovery: counters, Events and log lines, each after the durable write it tells of.

Nothing that a server or an agent has said is in any of them: ids, reasons from fixed sets, and numbers.
"""

from collections import Counter

from tenure.model.adoption import AdoptionOutcome, AdoptionReason, LaunchRefusal, StopReason
from tenure.model.control_server import KIND, ControlServer
from tenure.model.reasons import EventReason, ServerPhase
from tenure.operator.events import EventRecorder, regarding
from tenure.operator.servers.executions import ExecutionStore
from tenure.operator.servers.ports import ServerKey
from tenure.operator.servers.rounds import Tally
from tenure.plan.adoption.correlation import Stop
from tenure.plan.servers.troubles import Ending, ending_of
from tenure.telemetry.metrics import Metrics

UNOWNED_EXIT_CODE = 10
_MENTIONED = 10
"""Instances of one recovery that have an Event each; the others are in the counters."""

_WHY_STOPPED = {
    StopReason.NO_RECORD: "it is of no session on record",
    StopReason.PASSTHROUGH: "its session is passed through, and such sessions are never re-tracked",
    StopReason.AMBIGUOUS: "its session has several instances, and none of them can be told to be the one",
    StopReason.DUPLICATE_UNSTOPPED: "another instance of its session could not be stopped",
    StopReason.READS_EXHAUSTED: "what it is rebuilt from could not be read",
    StopReason.OUTCOME_UNREADABLE: "how its last turn ended could not be read",
    StopReason.DEADLINE_ELAPSED: "the deadline elapsed before it was re-tracked",
}


class Telling:
    """``ports.Hooks``, and what recovery tells."""

    def __init__(self, metrics: Metrics, events: EventRecorder, store: ExecutionStore) -> None:
        self._metrics = metrics
        self._events = events
        self._store = store
        self._standing: dict[ServerKey, tuple[ServerPhase, bool]] = {}

    # Hooks

    def adoption_attempted(self, key: ServerKey, resource: ControlServer) -> None:
        """The first contact with a server, about to be made."""
        self._emit(
            resource, EventReason.ADOPTION_ATTEMPTED, "the control server that was left is asked whose it is"
        )

    def adoption_ended(self, key: ServerKey, resource: ControlServer, outcome: str, reason: str) -> None:
        """One attempt, after the record says so."""
        found, why = AdoptionOutcome(outcome), AdoptionReason(reason)
        self._metrics.adoption_ended(found, why)
        if found is AdoptionOutcome.ADOPTED:
            self._emit(resource, EventReason.ADOPTED, "the control server goes on with this backend")
        elif found is AdoptionOutcome.REFUSED:
            note = f"the control server is not adopted: {why.value}; another one is started"
            self._emit(resource, EventReason.ADOPTION_REFUSED, note, warning=True)

    def ownership_lost(self, key: ServerKey, resource: ControlServer) -> None:
        """A server that was ours refuses us as superseded: its executions are dropped."""
        self._store.drop(key)
        self._metrics.superseded_credential_rejections.inc()
        note = "the control server refuses this backend as superseded: somebody else owns it now"
        self._emit(resource, EventReason.OWNERSHIP_LOST, note, warning=True)

    def detached(self, key: ServerKey, resource: ControlServer) -> None:
        """The backend's incarnation is over, and the server lives on."""
        self._store.drop(key)
        self._emit(
            resource, EventReason.DETACHED, "the backend has ended; the control server and its agents go on"
        )

    # Servers and launches

    def stands(self, key: ServerKey, phase: ServerPhase | None, *, unconfirmed: bool) -> None:
        """How a ControlServer stands after a pass, its status written; None: it has gone."""
        if phase is None:
            self._standing.pop(key, None)
        else:
            self._standing[key] = (phase, unconfirmed)
        self._metrics.control_servers(Counter(phase for phase, _ in self._standing.values()))
        self._metrics.unconfirmed_rotations(sum(waits for _, waits in self._standing.values()))

    def leaves(self) -> None:
        """Somebody else leads from now on, and shows how they stand."""
        self._standing.clear()
        self._metrics.control_servers({})
        self._metrics.unconfirmed_rotations(0)

    def server_ended(
        self, resource: ControlServer, pod_uid: str, exit_code: int | None, message: str
    ) -> bool:
        """The server's container in this pod has ended. True, counted and told, once for each pod: it has stopped
        itself, because no claim came for its whole unowned period."""
        if not stopped_itself(exit_code, message) or not self._metrics.unowned_shutdown(pod_uid):
            return False
        note = (
            "no claim came for the whole unowned period: the control server has stopped its agents and itself"
        )
        self._emit(resource, EventReason.UNOWNED_SHUTDOWN, note, warning=True)
        return True

    def launch_refused(self, about: dict[str, str], session: str, refusal: LaunchRefusal | None) -> None:
        """A launch of the operator was refused; ``about`` is the object that the Event is about. "In use" (None) is
        no failure of recovery, and neither counted nor told."""
        if refusal is None:
            return
        self._metrics.launch_refused(refusal)
        note = f"session {session} is not launched: {refusal.value}"
        final = refusal is LaunchRefusal.UNSTOPPED_AGENT
        self._events.emit(about, EventReason.LAUNCH_REFUSED, note, warning=final)

    # Recovery

    def stop_failed(self, resource: ControlServer, instance: str, session: str) -> None:
        """An instance could not be stopped: after the flag is durable."""
        note = f"instance {instance} of session {session} could not be stopped; nothing is launched for its session"
        self._emit(resource, EventReason.INSTANCE_STOP_FAILED, note, warning=True)

    def recovered(self, resource: ControlServer, tally: Tally, seconds: float | None) -> None:
        """``recovered_by`` is durable."""
        metrics = self._metrics
        metrics.instances_retracked.inc(tally.retracked)
        metrics.instances_deadline_elapsed.inc(tally.deadline_elapsed)
        metrics.ambiguous_correlations.inc(tally.ambiguous)
        metrics.duplicate_instances_stopped.inc(tally.duplicates)
        for read, count in tally.exhausted.items():
            metrics.reconstruction_reads_exhausted.labels(read).inc(count)
        for refused in tally.refused:
            metrics.instances_refused_missing_input.labels(refused.missing).inc()
        if seconds is not None:
            metrics.recovery_took(seconds)
        for refused in tally.refused[:_MENTIONED]:
            note = f"instance {refused.instance} of session {refused.session} was stopped: it has no {refused.missing}"
            self._emit(resource, EventReason.INSTANCE_STOPPED, note, warning=True)
        for stop in tally.stopped[:_MENTIONED]:
            self._stopped(resource, stop)
        if tally.deadline_elapsed:
            note = f"the deadline of recovery elapsed: {tally.deadline_elapsed} sessions are not re-tracked"
            self._emit(resource, EventReason.RECOVERY_DEADLINE_ELAPSED, note, warning=True)

    def stopped_late(self, resource: ControlServer, tally: Tally) -> None:
        """Stops that ended after recovery was recorded."""
        self._metrics.duplicate_instances_stopped.inc(tally.duplicates)
        for stop in tally.stopped[:_MENTIONED]:
            self._stopped(resource, stop)

    def _stopped(self, resource: ControlServer, stop: Stop) -> None:
        if stop.why is StopReason.DUPLICATE:
            note = f"instance {stop.instance} was stopped: another one is its session's"
            self._emit(resource, EventReason.INSTANCE_DUPLICATE_STOPPED, note)
        elif stop.why in _WHY_STOPPED:
            note = f"instance {stop.instance} was stopped: {_WHY_STOPPED[stop.why]}"
            self._emit(resource, EventReason.INSTANCE_STOPPED, note)

    def _emit(
        self, resource: ControlServer, reason: EventReason, note: str, *, warning: bool = False
    ) -> None:
        about = regarding(KIND, resource.namespace, resource.name, resource.uid)
        self._events.emit(about, reason, note, warning=warning)


def stopped_itself(exit_code: int | None, message: str) -> bool:
    """Whether a server's container ended because nobody claimed it: its exit code and its last words say so both."""
    return exit_code == UNOWNED_EXIT_CODE and ending_of(message) is Ending.UNOWNED
