"""The seven conditions of a ControlServer: reason and sentence of each.

Messages hold no age and no countdown: a status that changes by itself would be written for ever. What this process does
not know yet is left as it was said before, or is Unknown.
"""

from collections.abc import Callable
from datetime import datetime

from tenure.model.adoption import AdoptionReason, SurvivalCode
from tenure.model.reasons import (
    ConditionStatus,
    ServerConditionReason,
    ServerConditionType,
    ServerPhase,
)
from tenure.model.records import SurvivalEffective
from tenure.model.redaction import one_line
from tenure.model.server_status import ServerCondition, ServerStatus
from tenure.plan.adoption.steps import Idle, Nothing
from tenure.plan.servers.facts import Facts, PodMention, impossible
from tenure.plan.servers.troubles import failure, manner, obstacle

TRUE, FALSE, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN
Reason = ServerConditionReason
Kind = ServerConditionType
Verdict = tuple[ConditionStatus, ServerConditionReason, str]

_NO_SERVER = (UNKNOWN, Reason.NOT_OBSERVED, "no server can be made here; the condition Stalled says why")
_CODES: dict[SurvivalCode, tuple[ServerConditionReason, str]] = {
    SurvivalCode.PLATFORM_WINDOWS: (
        Reason.PLATFORM_WINDOWS,
        "the server's template asks for Windows nodes (platform_windows): no agent survives its backend there",
    ),
    SurvivalCode.NO_DURABLE_STORE: (
        Reason.NO_DURABLE_STORE,
        "the operator has no database for this namespace to record servers and sessions in (no_durable_store)",
    ),
    SurvivalCode.NO_SECRET_ACCESS: (
        Reason.NO_SECRET_ACCESS,
        "the operator may not read and write Secrets in this namespace (no_secret_access)",
    ),
}
OUTCOMES: dict[AdoptionReason, tuple[ServerConditionReason, str]] = {
    AdoptionReason.NONE: (Reason.ADOPTED, "the server has proved to be ours and has a new credential"),
    AdoptionReason.NO_RECORD: (Reason.NO_RECORD, "there was no server to be adopted"),
    AdoptionReason.NO_ANSWER: (Reason.NO_ANSWER, "the server that was left did not answer"),
    AdoptionReason.SHUTTING_DOWN: (Reason.SHUTTING_DOWN, "the server that was left was shutting down"),
    AdoptionReason.IDENTITY_MISMATCH: (
        Reason.IDENTITY_MISMATCH,
        "what answered did not prove to be our server; it is left alone",
    ),
    AdoptionReason.CREDENTIAL_UNAVAILABLE: (
        Reason.CREDENTIAL_UNAVAILABLE,
        "the credential of the server that was left is gone or unreadable; the server is left alone",
    ),
    AdoptionReason.AUTHENTICATION_FAILED: (
        Reason.AUTHENTICATION_FAILED,
        "the server that was left refused our credential; it is left alone",
    ),
    AdoptionReason.CAPABILITY_INCOMPATIBLE: (
        Reason.CAPABILITY_INCOMPATIBLE,
        "the server that was left lacks what this operator needs; it is stopped",
    ),
    AdoptionReason.CREDENTIAL_ROTATION_FAILED: (
        Reason.CREDENTIAL_ROTATION_FAILED,
        "no new credential was had from the server that was left, or none could be stored, before the deadline; "
        "the server is left alone",
    ),
}
"""What became of an attempt to adopt, as a reason and a sentence."""


def conditions_of(facts: Facts, phase: ServerPhase) -> tuple[ServerCondition, ...]:
    """All seven, in a fixed order; each keeps its transition time for as long as its status stays."""
    before = {c.type: c for c in facts.resource.status.conditions}
    generation = facts.resource.metadata.generation
    found = []
    for kind, judge in _JUDGES.items():
        status, reason, message = judge(facts, phase)
        found.append(_condition(before.get(kind), kind, status, reason, message, generation, facts.now))
    return tuple(found)


def stalled_by_spec(status: ServerStatus, generation: int, why: str, now: datetime) -> ServerStatus:
    """``status`` with Stalled=True because the spec is not understood. What it says beside that stays; a first one has
    every condition, Unknown."""
    before = {c.type: c for c in status.conditions}
    found = []
    for kind in Kind:
        known = before.get(kind)
        if kind is Kind.STALLED:
            known = _condition(known, kind, TRUE, Reason.INVALID_SPEC, why, generation, now)
        elif known is None:
            unseen = "the resource is not understood"
            known = _condition(None, kind, UNKNOWN, Reason.NOT_OBSERVED, unseen, generation, now)
        found.append(known)
    return status.model_copy(
        update={
            "conditions": tuple(found),
            "observed_generation": generation,
            "phase": ServerPhase.STALLED,
        }
    )


def _condition(
    before: ServerCondition | None,
    kind: Kind,
    status: ConditionStatus,
    reason: str,
    message: str,
    generation: int,
    now: datetime,
) -> ServerCondition:
    same = before is not None and before.status is status
    return ServerCondition(
        type=kind,
        status=status,
        observed_generation=generation,
        last_transition_time=before.last_transition_time if same and before is not None else now,
        reason=reason,
        message=message,
    )


def _said_before(facts: Facts, kind: Kind) -> Verdict | None:
    """What was said of it last, if that was something."""
    found = next((c for c in facts.resource.status.conditions if c.type == kind), None)
    if found is None or found.status is UNKNOWN or found.reason not in set(Reason):
        return None
    return found.status, Reason(found.reason), found.message


def _ready(facts: Facts, phase: ServerPhase) -> Verdict:
    status, reason, message = _ready_in(facts, phase)
    first = not any(c.type == Kind.READY for c in facts.resource.status.conditions)
    # The first status says nothing yet, so that whoever waits for Ready does not take it for a failure.
    return (UNKNOWN if first and status is FALSE else status), reason, message


def _ready_in(facts: Facts, phase: ServerPhase) -> Verdict:
    match phase:
        case ServerPhase.STALLED:
            _, reason, message = _stalled(facts, phase)
            return FALSE, reason, message
        case ServerPhase.LOST:
            return FALSE, Reason.SUPERSEDED, "another owner has taken the server"
        case ServerPhase.UNKNOWN:
            return UNKNOWN, *_unknown(facts)
        case ServerPhase.STOPPING:
            return FALSE, Reason.SERVER_ENDING, "the server stops its agents and itself"
        case ServerPhase.STARTING:
            return _starting(facts)
        case ServerPhase.ADOPTING:
            return FALSE, Reason.ADOPTION_IN_FLIGHT, "the server that was left is being taken over"
        case ServerPhase.RECOVERING:
            return FALSE, Reason.RECOVERY_IN_PROGRESS, "the sessions of the server are being decided about"
        case ServerPhase.DETACHED:
            return FALSE, Reason.NO_BACKEND, "no backend runs; the server lives on for its unowned period"
        case ServerPhase.PENDING:
            if facts.server_gone:
                return _ended(facts, Kind.READY, "no backend runs, and the next one gets a fresh server")
            message = (
                "no backend runs, and no server is needed before one does: a backend is a pod that "
                "spec.backend.selector matches, that has the label tenure.dev/role=backend, and whose "
                "main container (spec.backend.container, or else the first) runs"
            )
            return FALSE, Reason.NO_BACKEND, message
        case ServerPhase.RUNNING:
            return _running(facts)


def _running(facts: Facts) -> Verdict:
    if facts.step == Nothing(Idle.CREDENTIAL_LOST):
        return (
            FALSE,
            Reason.CREDENTIAL_LOST,
            "the server's Secret is gone; the backend goes on with what it has",
        )
    if facts.outdated:
        message = "spec or image have changed since the server was made; it is replaced once it is empty"
        return TRUE, Reason.SERVER_OUTDATED, message
    return TRUE, Reason.SERVING, "a backend owns the server, and recovery is over"


def _unknown(facts: Facts) -> tuple[ServerConditionReason, str]:
    if not facts.state.record_read:
        return Reason.DATABASE_UNAVAILABLE, "the store does not answer; claims are renewed without it"
    if facts.secret_unread:
        return Reason.NOT_OBSERVED, "the server's Secret cannot be read at present"
    return Reason.SERVER_SILENT, "the server's pod runs, and the server does not answer"


def _starting(facts: Facts) -> Verdict:
    if facts.server_gone:
        return _ended(facts, Kind.READY, "a fresh one is due")
    return FALSE, Reason.SERVER_STARTING, _start(facts.pod, facts.failed)


def _start(pod: PodMention | None, failed: PodMention | None) -> str:
    """How far a fresh server is."""
    if pod is not None and pod.ended:
        return f"the server has ended at its start{failure(pod)}; it is tried again, later and later"
    found = obstacle(pod) if pod is not None else ""
    if found:
        return found
    before = f"; the one before ended at its start{failure(failed)}" if failed is not None else ""
    if pod is None:
        return f"a fresh server is being made{before}"
    why = one_line(pod.reason, 64)
    told = f" ({why})" if why else ""
    return f"the pod of a fresh server is there, and is not in use yet{told}{before}"


def _ended(facts: Facts, kind: Kind, then: str) -> Verdict:
    """The server on record has ended. Once its pod has gone nobody can tell any more how: what was said then stays."""
    before = _said_before(facts, kind)
    pod, record = facts.server_pod, facts.state.record
    same = record is not None and facts.resource.status.server_identity == record.identity
    if pod is None and same and before is not None and before[1] is Reason.SERVER_ENDED:
        return before
    how = manner(pod) if pod is not None else "its pod has gone"
    return FALSE, Reason.SERVER_ENDED, f"the server has ended{f' ({how})' if how else ''}; {then}"


def _adopted(facts: Facts, phase: ServerPhase) -> Verdict:
    before = _said_before(facts, Kind.ADOPTED)
    if facts.rival or impossible(facts) is not None:
        return _NO_SERVER
    if not facts.state.record_read:
        return before or (UNKNOWN, Reason.DATABASE_UNAVAILABLE, "the store does not answer")
    if facts.state.owner is None:
        return before or (UNKNOWN, Reason.NOT_OBSERVED, "no backend has begun yet")
    record = facts.state.record
    if record is not None and facts.owned and record.rotation_id > 0:
        return TRUE, *OUTCOMES[AdoptionReason.NONE]
    fresh = facts.owned or record is None or record.vacant
    if fresh or facts.dismissing:
        return FALSE, *_not_adopted(facts, before)
    return UNKNOWN, Reason.ADOPTION_IN_FLIGHT, "the server that was left is being asked whether it is ours"


def _not_adopted(facts: Facts, before: Verdict | None) -> tuple[ServerConditionReason, str]:
    verdict = facts.verdict if facts.survival is SurvivalEffective.ENABLED else None
    if verdict is not None and verdict.reason is not AdoptionReason.NONE:
        return OUTCOMES[verdict.reason]
    if facts.survival is not SurvivalEffective.ENABLED or facts.dismissing:
        return Reason.SURVIVAL_OFF, "survival is off: no server outlives its backend"
    if before is not None and before[0] is FALSE and facts.same_incarnation:
        return before[1], before[2]
    return Reason.FRESH_SERVER, "the server is made for this backend"


def _recovered(facts: Facts, phase: ServerPhase) -> Verdict:
    before = _said_before(facts, Kind.RECOVERED)
    if facts.rival or impossible(facts) is not None:
        return _NO_SERVER
    if not facts.state.record_read:
        return before or (UNKNOWN, Reason.DATABASE_UNAVAILABLE, "the store does not answer")
    if facts.server_gone:
        # Also what keeps another operator from telling of this end again (``plan.servers.events``).
        return _ended(facts, Kind.RECOVERED, "its sessions are decided about for the next one")
    if facts.state.owner is None:
        return FALSE, Reason.NO_BACKEND, "no backend runs for which anything could be recovered"
    if not facts.recovered:
        return FALSE, Reason.RECOVERY_IN_PROGRESS, "launches are refused until recovery is over"
    report = facts.report
    if report.started_at is None and before is not None and before[0] is TRUE and facts.same_incarnation:
        return before
    if report.enumeration_failed:
        message = "the server did not tell its instances: nothing was recovered, and nothing was stopped"
        return TRUE, Reason.ENUMERATION_FAILED, message
    if report.deadline_elapsed:
        message = "recovery is over; sessions without an outcome at the deadline wait for input"
        return TRUE, Reason.DEADLINE_ELAPSED, message
    if report.retracked or report.not_retracked or report.stopped:
        counts = f"sessions re-tracked: {report.retracked}, not re-tracked: {report.not_retracked}"
        return TRUE, Reason.RECOVERED, f"recovery is over; {counts}"
    return TRUE, Reason.NOTHING_TO_RECOVER, "there was nothing to be recovered"


def _survival(facts: Facts, phase: ServerPhase) -> Verdict:
    code = facts.state.survival.code
    if code is not None:
        return FALSE, *_CODES[code]
    return TRUE, Reason.AVAILABLE, "agents can outlive their backend here"


def _stalled(facts: Facts, phase: ServerPhase) -> Verdict:
    code = impossible(facts)
    if code is not None:
        return TRUE, *_CODES[code]
    if facts.rival:
        message = (
            f"ControlServer {facts.rival} is older and has installation {facts.resource.effective_installation_id}: "
            "an installation has one server; delete one of the two, or make this one with another installationID"
        )
        return TRUE, Reason.FOREIGN_CHILD, message
    if facts.foreign:
        name = one_line(facts.foreign, 253)
        return TRUE, Reason.FOREIGN_CHILD, f"{name} exists and is somebody else's; it is not touched"
    if facts.namespace_terminating:
        return TRUE, Reason.NAMESPACE_TERMINATING, "the namespace is being deleted"
    if facts.refused:
        return TRUE, Reason.TEMPLATE_REJECTED, one_line(facts.refused, 1024)
    return FALSE, Reason.PROGRESSING, "nothing is in the way"


def _overlap(facts: Facts, phase: ServerPhase) -> Verdict:
    if facts.overlap:
        message = "several pods of one revision match the backend's selector; one drives, the others stand by"
        return TRUE, Reason.SEVERAL_BACKENDS, message
    return FALSE, Reason.ONE_BACKEND, "no two pods of one revision match the backend's selector"


def _lost(facts: Facts, phase: ServerPhase) -> Verdict:
    if facts.lost:
        message = "another owner has rotated the server's credential; nothing more is sent to it"
        return TRUE, Reason.SUPERSEDED, message
    if facts.owned:
        return FALSE, Reason.OWNED, "the server is owned by the backend whose turn it is"
    return FALSE, Reason.NOT_OWNED, "no backend owns a server at present"


_JUDGES: dict[ServerConditionType, Callable[[Facts, ServerPhase], Verdict]] = {
    Kind.READY: _ready,
    Kind.ADOPTED: _adopted,
    Kind.RECOVERED: _recovered,
    Kind.SURVIVAL_AVAILABLE: _survival,
    Kind.STALLED: _stalled,
    Kind.BACKEND_OVERLAP: _overlap,
    Kind.OWNERSHIP_LOST: _lost,
}
