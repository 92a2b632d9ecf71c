"""The next step of adoption and recovery, from durable state: Secret beats record beats status.

A pass asks, does the one step, looks and asks again. Whatever was written before a crash is seen in the record, in the
Secrets and in the pods; whatever was not is done again. So there is no list of steps to be resumed in the middle of.
"""

from dataclasses import dataclass

from tenure.model.adoption import AdoptionReason
from tenure.model.records import SurvivalEffective
from tenure.plan.adoption import fresh
from tenure.plan.adoption.gates import Deadline, FollowUp, Survivor
from tenure.plan.adoption.state import (
    Attempt,
    Gate,
    HandOver,
    NoSecret,
    Owner,
    PodPhase,
    Record,
    Recovery,
    ServerPod,
    ServerSecret,
    State,
)
from tenure.plan.adoption.steps import (
    Confirm,
    Contact,
    DecideRecords,
    DismissSurvivor,
    EmptyHandOver,
    Enumerate,
    Idle,
    Nothing,
    Owed,
    PublishSet,
    ReconcileSessions,
    RecordRecovered,
    RepairRecordsOf,
    SetReadiness,
    Step,
    StopServer,
    StoreRecord,
    TakeGuards,
    Vacate,
    WriteHandOver,
)
from tenure.plan.adoption.survival import survives


@dataclass(frozen=True, slots=True)
class Plan:
    """The step, and what is owed beside it: that may fail and be tried again without holding anything up."""

    step: Step
    owed: tuple[Owed, ...] = ()


def next_step(state: State) -> Plan:
    """What to do now for one ControlServer."""
    if not state.lease:
        return Plan(Nothing(Idle.NO_LEASE))
    if not state.survival.server_possible:
        return Plan(Nothing(Idle.STALLED))
    if not state.record_read:
        return Plan(Nothing(Idle.STORE_UNREAD))
    if state.owner is None:
        return Plan(_without_backend(state))
    attempt = attempt_of(state, state.owner)
    if attempt.lost:
        return Plan(Nothing(Idle.OWNERSHIP_LOST))
    if _hand_over_is_stale(state, state.owner):
        return Plan(EmptyHandOver())
    if state.owner.gate is Gate.SET and not _begun(state, state.owner):
        return Plan(SetReadiness(state.owner.pod_uid, recovered=False))
    return _with_backend(state, state.owner, attempt)


def attempt_of(state: State, owner: Owner) -> Attempt:
    """What this process knows of the current incarnation: nothing of a former one is carried over."""
    same = state.attempt.incarnation == owner.incarnation
    return state.attempt if same else Attempt(incarnation=owner.incarnation)


def recorded_pod(state: State) -> ServerPod | None:
    """The pod of the server on record, if it exists."""
    record = state.record
    if record is None or record.vacant:
        return None
    return next((p for p in state.pods if p.uid == record.pod_uid), None)


def secret_of(record: Record, pod: ServerPod) -> ServerSecret | None:
    """The Secret of the server on record; one that names another identity holds no credential for it.

    The Secret is written before the record. One that is behind it in the same incarnation has been put back since, from
    a backup perhaps. What it holds is worth nothing to its owner, and is not handed over in place of what is good.
    """
    secret = pod.secret
    if not isinstance(secret, ServerSecret) or secret.identity != record.identity:
        return None
    put_back = secret.adopted_by == record.adopted_by and secret.rotation_id < record.rotation_id
    return None if put_back else secret


def _with_backend(state: State, owner: Owner, attempt: Attempt) -> Plan:
    record = state.record
    recovered = record is not None and record.recovered_by == owner.incarnation
    if record is not None and not recovered and (not attempt.guarded or record.recovered_by is not None):
        return Plan(TakeGuards(record.adopted_by))
    if record is None:
        # A store that was lost still has inventory rows, perhaps: they are guarded by a row without recovered_by.
        if not attempt.guarded:
            return Plan(TakeGuards(None))
        return Plan(_vacate(state, owner, AdoptionReason.NO_RECORD))
    if record.vacant:
        late = attempt.deadline is Deadline.ELAPSED and not recovered
        making = fresh.make(state, owner, record, attempt)
        return Plan(_conclude(record, owner, attempt) if late else making.step, making.owed)
    pod = recorded_pod(state)
    if attempt.contacting and attempt.contacting == record.pod_uid:
        # It is never cancelled. Once the deadline has elapsed it re-tracks nothing, and sessions need not wait for it.
        late = attempt.deadline is Deadline.ELAPSED and not recovered
        return Plan(_conclude(record, owner, attempt) if late else Nothing(Idle.ADOPTION_IN_FLIGHT))
    refused = _after_verdict(state, owner, record, attempt, pod)
    if refused is not None:
        return Plan(refused)
    if pod is None or pod.phase is PodPhase.ENDED:
        # The end of a server that was this incarnation's is no attempt to adopt one.
        mine = record.adopted_by == owner.incarnation
        return Plan(_vacate(state, owner, None if mine else AdoptionReason.NO_ANSWER))
    if pod.secret is NoSecret.UNREAD:
        return Plan(Nothing(Idle.SECRET_UNREAD))
    return _with_server(state, owner, record, attempt, pod)


def _after_verdict(
    state: State, owner: Owner, record: Record, attempt: Attempt, pod: ServerPod | None
) -> Step | None:
    """What follows a verdict about the server on record that this process has reached; None: there is none, or it is
    ours. No server is asked twice in one incarnation."""
    if attempt.judged != record.pod_uid:
        return None
    ended = pod is None or pod.phase is PodPhase.ENDED
    if attempt.survivor is not None:
        ending = attempt.survivor in (Survivor.STOP, Survivor.ENDING)
        ending = ending and attempt.unstoppable != attempt.judged
        if ending and not ended and attempt.deadline is not Deadline.ELAPSED:
            return Nothing(Idle.SERVER_ENDING)
        return _vacate(state, owner, None)
    verdict = attempt.verdict
    if verdict is None or verdict.follow_up is FollowUp.OURS:
        return None
    if verdict.follow_up is not FollowUp.STOP_FIRST or attempt.unstoppable == attempt.judged:
        return _vacate(state, owner, verdict.reason)
    if ended:
        done = attempt.repaired == attempt.judged
        return _vacate(state, owner, verdict.reason) if done else RepairRecordsOf(attempt.judged)
    if attempt.stopped != attempt.judged:
        return StopServer(attempt.judged)
    # It said that it shuts down. If its containers are still there at the deadline, nothing is known of its agents.
    late = attempt.deadline is Deadline.ELAPSED
    return _vacate(state, owner, verdict.reason) if late else Nothing(Idle.SERVER_ENDING)


def _with_server(state: State, owner: Owner, record: Record, attempt: Attempt, pod: ServerPod) -> Plan:
    secret = secret_of(record, pod)
    if secret is not None and _ahead(secret, record):
        return Plan(_store(state, record, pod, secret))
    if secret is None and record.adopted_by == owner.incarnation:
        recovered = record.recovered_by == owner.incarnation
        lost = Nothing(Idle.CREDENTIAL_LOST)
        return Plan(lost if recovered else _vacate(state, owner, AdoptionReason.CREDENTIAL_UNAVAILABLE))
    if secret is None or secret.adopted_by != owner.incarnation:
        if not survives(state.survival, record.survival, record.adopted_by, owner.incarnation):
            return Plan(DismissSurvivor(pod.uid))
        return Plan(Contact(pod.uid))
    return Plan(_recover(state, owner, record, attempt, pod, secret), _owed(state, record, pod, secret))


def _recover(
    state: State, owner: Owner, record: Record, attempt: Attempt, pod: ServerPod, secret: ServerSecret
) -> Step:
    if record.recovered_by != owner.incarnation:
        stage = attempt.recovery if attempt.recovering == pod.uid else Recovery.NOT_STARTED
        if stage is Recovery.NOT_STARTED:
            # An adoption that ended late: its instances are listed as untracked, and not even looked at to be stopped.
            late = attempt.deadline is Deadline.ELAPSED
            return ReconcileSessions(pod.uid) if late else Enumerate(pod.uid)
        if stage is Recovery.ENUMERATED:
            return DecideRecords(pod.uid)
        if stage in (Recovery.DECIDED, Recovery.ENUMERATION_FAILED):
            return PublishSet(pod.uid)
        if stage is Recovery.PUBLISHED:
            return ReconcileSessions(pod.uid)
        return RecordRecovered(record.adopted_by, owner.incarnation)
    if not owner.itself and state.hand_over != HandOver(secret.identity, secret.rotation_id, owner.pod_uid):
        return WriteHandOver(pod.uid, secret.identity, secret.rotation_id, owner.pod_uid)
    if owner.gate is Gate.UNSET:
        return SetReadiness(owner.pod_uid, recovered=True)
    return Nothing(Idle.UP_TO_DATE)


def _conclude(record: Record, owner: Owner, attempt: Attempt) -> Step:
    """Step 8 for a recovery that the deadline has ended before there was a server of ours."""
    if attempt.recovering == record.about and attempt.recovery is Recovery.RECONCILED:
        return RecordRecovered(record.adopted_by, owner.incarnation)
    return ReconcileSessions(record.about)


def _owed(state: State, record: Record, pod: ServerPod, secret: ServerSecret) -> tuple[Owed, ...]:
    owed: list[Owed] = []
    if secret.rotation_id and not record.rotation_confirmed:
        owed.append(Confirm(pod.uid, secret.rotation_id))
    superfluous = fresh.superfluous(state, pod)
    return (*owed, *superfluous, *fresh.used_up(state, [each.pod for each in superfluous]))


def _ahead(secret: ServerSecret, record: Record) -> bool:
    """Whether the Secret knows of a rotation that the record does not: it is written first."""
    if secret.rotation_id == record.rotation_id:
        return secret.adopted_by != record.adopted_by
    return secret.rotation_id > record.rotation_id


def _store(state: State, record: Record, pod: ServerPod, secret: ServerSecret) -> StoreRecord:
    return StoreRecord(
        pod=pod.uid,
        expected=record.adopted_by,
        identity=secret.identity,
        rotation_id=secret.rotation_id,
        confirmed=secret.rotation_id == 0,
        adopted_by=secret.adopted_by,
        survival=fresh.effective_for(state, record, secret.adopted_by),
    )


def _hand_over_is_stale(state: State, owner: Owner) -> bool:
    if state.hand_over is None:
        return False
    record = state.record
    current = record is not None and not record.vacant and record.recovered_by == owner.incarnation
    return owner.itself or not current or state.hand_over.backend_pod_uid != owner.pod_uid


def _begun(state: State, owner: Owner) -> bool:
    """Whether the record knows of this incarnation, as adopting or as recovered."""
    return state.record is not None and owner.incarnation in (
        state.record.adopted_by,
        state.record.recovered_by,
    )


def _vacate(state: State, owner: Owner, reason: AdoptionReason | None) -> Vacate:
    """A fresh server begins here. Sessions of a server that was ours are recovered anew; those that the deadline has
    decided about while the adoption was still in flight are not."""
    record = state.record or Record()
    late = record.adopted_by != owner.incarnation and record.recovered_by == owner.incarnation
    if state.survival.effective is not SurvivalEffective.ENABLED:
        reason = None
    return Vacate(
        expected=record.adopted_by,
        incarnation=owner.incarnation,
        reason=reason,
        recovered_by=owner.incarnation if late else None,
        survival=fresh.effective_for(state, record, owner.incarnation),
    )


def _without_backend(state: State) -> Step:
    """Nobody drives the server. It survives that, or it is dismissed at once."""
    if state.hand_over is not None:
        return EmptyHandOver()
    record, pod = state.record, recorded_pod(state)
    if record is None or pod is None or pod.phase is PodPhase.ENDED:
        return Nothing(Idle.NO_BACKEND)
    if survives(state.survival, record.survival, record.adopted_by, None):
        return Nothing(Idle.NO_BACKEND)
    attempt = state.attempt
    if attempt.judged == pod.uid and attempt.survivor is not None and attempt.unstoppable != pod.uid:
        left = attempt.survivor is Survivor.LEAVE_ALONE
        return Nothing(Idle.NO_BACKEND if left else Idle.SERVER_ENDING)
    return DismissSurvivor(pod.uid)
