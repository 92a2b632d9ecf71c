"""The whole status of a ControlServer, from what a pass has seen and decided and from what was said before."""

from collections.abc import Iterable

from tenure.model.server_status import (
    ADJUSTMENTS_KEPT,
    CAPABILITIES_KEPT,
    INSTANCES_KEPT,
    BackendStatus,
    InstanceMention,
    RecoveryStatus,
    ServerPodStatus,
    ServerStatus,
    SurvivalStatus,
)
from tenure.plan.servers.conditions import conditions_of
from tenure.plan.servers.facts import Facts, phase_of


def status_of(facts: Facts) -> ServerStatus:
    """The status to be written, if ``differs`` says so. It follows from ``facts`` alone: the same facts twice make the
    same status."""
    before, phase = facts.resource.status, phase_of(facts)
    # While the store is silent, what is on record is still what was said last.
    known = _on_record(facts) if facts.state.record_read else before
    return known.model_copy(
        update={
            "observed_generation": facts.resource.metadata.generation,
            "phase": phase,
            "installation_id": facts.resource.effective_installation_id,
            "pod": _pod(facts),
            "backend": _backend(facts),
            "survival": _survival(facts),
            "recovery": _recovery(facts),
            "unstopped_instances": _instances(facts, facts.report.unstopped, before.unstopped_instances),
            "untracked_instances": _instances(facts, facts.report.untracked, before.untracked_instances),
            "conditions": conditions_of(facts, phase),
        }
    )


def differs(before: ServerStatus, after: ServerStatus) -> bool:
    """Whether ``after`` has to be written: nothing is, when nothing has changed."""
    return before.to_wire() != after.to_wire()


def _on_record(facts: Facts) -> ServerStatus:
    """Fields that are about the server on record."""
    record, before, said = facts.state.record, facts.resource.status, facts.said
    if record is None:
        return ServerStatus()
    owners = {"adopted_by": record.adopted_by, "recovered_by": record.recovered_by}
    if record.vacant:
        return ServerStatus.model_validate(owners)
    same = before.server_identity == record.identity
    found: dict[str, object] = {
        **owners,
        "server_identity": record.identity,
        "endpoint": facts.endpoint or (before.endpoint if same else None),
    }
    if said.capabilities:
        found["capabilities"] = tuple(dict.fromkeys(said.capabilities))[:CAPABILITIES_KEPT]
    elif same:
        found["capabilities"] = before.capabilities
    if said.diagnostic_output:
        # What the server adjusted comes in the same answer as its log file.
        found["diagnostic_output"] = said.diagnostic_output
        found["adjustments"] = tuple(said.adjustments)[:ADJUSTMENTS_KEPT]
    elif same:
        found["diagnostic_output"] = before.diagnostic_output
        found["adjustments"] = before.adjustments
    return ServerStatus.model_validate(found)


def _pod(facts: Facts) -> ServerPodStatus | None:
    before = facts.resource.status.pod
    ordinal = max(facts.ordinal, before.ordinal if before is not None else 0)
    if facts.pod is None and ordinal == 0:
        return None
    if facts.pod is None:
        return ServerPodStatus(ordinal=ordinal)
    return ServerPodStatus(name=facts.pod.name, uid=facts.pod.uid, ordinal=ordinal)


def _backend(facts: Facts) -> BackendStatus | None:
    if facts.incarnation is None:
        return None
    return BackendStatus(pod_name=facts.backend_pod or None, incarnation=facts.incarnation)


def _survival(facts: Facts) -> SurvivalStatus:
    now = facts.state.survival
    return SurvivalStatus(requested=now.requested, effective=facts.survival, reason_code=now.code)


def _recovery(facts: Facts) -> RecoveryStatus | None:
    report = facts.report
    if report.started_at is None:
        return facts.resource.status.recovery
    return RecoveryStatus(
        started_at=report.started_at,
        finished_at=report.finished_at,
        retracked=report.retracked,
        not_retracked=report.not_retracked,
        refused=report.refused,
        stopped=report.stopped,
    )


def _instances(
    facts: Facts, told: Iterable[InstanceMention], before: tuple[InstanceMention, ...]
) -> tuple[InstanceMention, ...]:
    """Each once. What was said in this incarnation stays until this process has looked for itself."""
    kept = before if facts.report.started_at is None and facts.same_incarnation else ()
    found = {mention.id: mention for mention in (*kept, *told)}
    return tuple(found[id_] for id_ in sorted(found))[:INSTANCES_KEPT]
