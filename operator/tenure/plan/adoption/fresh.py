"""Making a fresh server while the record is vacant: bootstrap Secret, pod, handshake, the server's Secret, record.

The pod of a vacancy is recognised by its mark. A pod that no record has named yet hosts nothing, so of two that were
made for one vacancy (a create whose answer was lost) either may go.
"""

from collections.abc import Collection
from dataclasses import dataclass

from tenure.model.records import SurvivalEffective
from tenure.plan.adoption.state import (
    Attempt,
    NoSecret,
    Owner,
    PodPhase,
    Record,
    ServerPod,
    ServerSecret,
    State,
)
from tenure.plan.adoption.steps import (
    CreateBootstrap,
    CreatePod,
    DeleteBootstrap,
    DeletePod,
    Handshake,
    Idle,
    Nothing,
    Owed,
    Step,
    StoreRecord,
)


@dataclass(frozen=True, slots=True)
class Making:
    """The step, and pods that are one too many."""

    step: Step
    owed: tuple[Owed, ...] = ()


def make(state: State, owner: Owner, record: Record, attempt: Attempt) -> Making:
    """The next step towards a server that the record can name."""
    outlived = _outlived(state, record)
    candidates = [p for p in state.pods if _candidate(p, record)]
    if not candidates:
        # Below ``next_ordinal`` are those whose pod was there and has gone: their nonce may be known to somebody.
        unused = [b for b in state.bootstraps if b.ordinal >= state.next_ordinal]
        prepared = [b.ordinal for b in unused if b.vacancy == record.vacancy]
        if prepared:
            return Making(CreatePod(min(prepared), record.vacancy), outlived)
        free = max((b.ordinal + 1 for b in unused), default=state.next_ordinal)
        return Making(CreateBootstrap(free, record.vacancy), outlived)
    # The one that has come farthest, and of two alike the older one.
    chosen = min(candidates, key=lambda p: (not isinstance(p.secret, ServerSecret), p.ordinal))
    owed = tuple(DeletePod(p.uid) for p in candidates if p is not chosen)
    return Making(_finish(state, owner, record, attempt, chosen), (*owed, *outlived))


def effective_for(state: State, record: Record, incarnation: str) -> SurvivalEffective:
    """What is recorded as effective for an incarnation: what is on record for it already, else what holds now. A change
    of the flag waits for the next incarnation."""
    return record.survival if record.adopted_by == incarnation else state.survival.effective


def superfluous(state: State, current: ServerPod) -> tuple[DeletePod, ...]:
    """Pods made for the vacancy that ``current`` has filled: they landed late and host nothing."""
    return tuple(
        DeletePod(p.uid)
        for p in state.pods
        if p.uid != current.uid
        and p.vacancy == current.vacancy
        and not p.terminating
        and p.phase is not PodPhase.ENDED
    )


def used_up(state: State, spared: Collection[str]) -> tuple[DeleteBootstrap, ...]:
    """Bootstrap Secrets that nobody needs once the record names a server: its own, those of other pods, and those
    whose pod has come and gone or was never made. ``spared``: UIDs of pods that are deleted, with their Secrets."""
    kept = [p.ordinal for p in state.pods if p.bootstrap and p.uid not in spared]
    return tuple(DeleteBootstrap(ordinal) for ordinal in (*kept, *(b.ordinal for b in state.bootstraps)))


def _candidate(pod: ServerPod, record: Record) -> bool:
    return (
        pod.vacancy == record.vacancy
        and pod.uid != record.pod_uid
        and not pod.terminating
        and pod.phase is not PodPhase.ENDED
    )


def _outlived(state: State, record: Record) -> tuple[DeletePod, ...]:
    """Pods of this vacancy that have ended for good, but for the latest: its last words are what people look for. No
    record has named them, and so no row does; by pods that rows name those are known to be dead."""
    over = [p for p in state.pods if p.vacancy == record.vacancy and p.uid != record.pod_uid and p.over]
    latest = max((p.ordinal for p in over), default=0)
    return tuple(DeletePod(p.uid) for p in over if p.ordinal != latest and not p.terminating)


def _finish(state: State, owner: Owner, record: Record, attempt: Attempt, pod: ServerPod) -> Step:
    if isinstance(pod.secret, ServerSecret):
        # Written with the incarnation that made it. If that one is over, the next look adopts it as any other.
        return StoreRecord(
            pod=pod.uid,
            expected=record.adopted_by,
            identity=pod.secret.identity,
            rotation_id=pod.secret.rotation_id,
            confirmed=pod.secret.rotation_id == 0,
            adopted_by=pod.secret.adopted_by,
            survival=effective_for(state, record, pod.secret.adopted_by),
        )
    if pod.secret is NoSecret.UNREAD:
        return Nothing(Idle.SECRET_UNREAD)
    if pod.uid in attempt.nonce_used or not pod.bootstrap or pod.outdated:
        return DeletePod(pod.uid)
    if pod.phase is PodPhase.STARTING:
        return Nothing(Idle.POD_STARTING)
    return Handshake(pod.uid, owner.incarnation)
