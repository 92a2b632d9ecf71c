"""Renewing a claim: for which server, and what its answer means. Neither the store nor the Lease is needed for it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from tenure.plan.adoption.gates import Failure, FollowUp
from tenure.plan.adoption.next_step import attempt_of, secret_of
from tenure.plan.adoption.state import PodPhase, Record, ServerPod, ServerSecret, State


def renewal(state: State) -> ServerPod | None:
    """The server whose claim is to be renewed now, with the credential of its Secret; None: none.

    Neither the store nor the Lease is needed: an incarnation that goes on keeps its claim. With the store down the
    Secrets alone say which server is ours; of several the newest, never one that was refused.
    """
    owner = state.owner
    if owner is None or attempt_of(state, owner).lost:
        return None
    attempt = attempt_of(state, owner)
    refused = attempt.judged if attempt.verdict and attempt.verdict.follow_up is not FollowUp.OURS else ""
    ours = [
        p
        for p in state.pods
        if isinstance(p.secret, ServerSecret)
        and p.secret.adopted_by == owner.incarnation
        and p.phase is not PodPhase.ENDED
        and p.uid != refused
    ]
    if state.record_read:
        record = state.record or Record()
        ours = [p for p in ours if p.uid == record.pod_uid and secret_of(record, p) is not None]
    return max(ours, key=lambda p: p.ordinal, default=None)


@dataclass(frozen=True, slots=True)
class Held:
    """A server that this process renews for: with the credential of this rotation, in this incarnation."""

    pod: str
    identity: str
    incarnation: str
    rotation_id: int


def outlasts_its_secret(state: State, held: Held) -> bool:
    """Whether renewal goes on with what this process has in memory, whatever has become of the server's Secret: it may
    have been deleted, or written into by somebody else.

    Only the one operator rotates. So a Secret that does not tell of a newer rotation knows nothing better, and a server
    that is on record as ours is not left to end for the lack of it. Until the Secret is written again, it cannot be
    taken over.
    """
    owner = state.owner
    if owner is None or owner.incarnation != held.incarnation or attempt_of(state, owner).lost:
        return False
    if state.record_read:
        record = state.record or Record()
        named = (record.pod_uid, record.identity, record.adopted_by)
        if named != (held.pod, held.identity, held.incarnation):
            return False
    pod = next((p for p in state.pods if p.uid == held.pod), None)
    if pod is None or pod.phase is PodPhase.ENDED:
        return False
    secret = pod.secret
    newer = isinstance(secret, ServerSecret) and secret.rotation_id > held.rotation_id
    return not (newer and isinstance(secret, ServerSecret) and secret.identity == held.identity)


class AfterClaim(StrEnum):
    """What follows an attempt to renew."""

    GO_ON = "go_on"
    """Renewed, or not answered: the next one comes at its time. Silence is no loss."""
    LOST = "lost"
    """Superseded: stop renewing, drop the executions of this server, close its streams, say ``OwnershipLost``. It is
    not tried again, and the server is not adopted again in this incarnation (``Attempt.lost``)."""
    ENDING = "ending"
    """The server is shutting down for good: stop renewing, and wait for its pod to end."""


def after_claim(answer: Failure | None) -> AfterClaim:
    """What the answer to a renewal means; None: it was granted."""
    match answer:
        case None | Failure.NO_ANSWER | Failure.BAD_ANSWER:
            return AfterClaim.GO_ON
        case Failure.NOT_ACCEPTED:
            return AfterClaim.LOST
        case Failure.SHUTTING_DOWN:
            return AfterClaim.ENDING
    assert_never(answer)


def goes_on_without_lease(
    answer: Failure | None, *, same_incarnation: bool | None, api_answers: bool
) -> bool:
    """Whether an operator that has lost its Lease goes on renewing; where not, its process exits.

    It may for as long as nobody else can: while the API server is silent and the owner is, as far as is known
    (``same_incarnation`` None: it cannot be known now), the one that it renews for.
    """
    if api_answers or same_incarnation is False:
        return False
    return after_claim(answer) is AfterClaim.GO_ON
