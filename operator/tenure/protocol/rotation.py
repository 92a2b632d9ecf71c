"""Who owns a control server: its credentials, as a state machine without memory or effects of its own.

At most two credentials are acceptable: the newest, for everything, and the one that it directly superseded,
until the newest is confirmed, to rotate and to shut down only. Each function takes the state and what was
presented and returns the next state with an outcome; the outcome knows its HTTP status. The caller puts each
call under one lock and keeps the state that it got. Source: the protocol page of the documentation.
"""

import hashlib
import hmac
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar, Literal

from tenure.model.masked import Masked
from tenure.protocol.claims import Renewal
from tenure.protocol.proof import is_challenge, prove, usable


@dataclass(frozen=True, slots=True)
class Ownership:
    """``rotation_id`` is the last one issued, 0 before the first rotation. The bootstrap nonce is kept as a
    hash, enough to tell a used one from a wrong one."""

    nonce_hash: bytes = b""
    handshaken: bool = False
    newest: Masked | None = None
    superseded: Masked | None = None
    rotation_id: int = 0
    shutting_down: bool = False


class Refusal(StrEnum):
    """Why an operation was refused."""

    NOT_AUTHENTICATED = "not_authenticated"
    SUPERSEDED = "superseded"
    RACED = "raced"
    SHUTTING_DOWN = "shutting_down"
    MALFORMED = "malformed"
    NEVER_ISSUED = "never_issued"
    NONCE_MISSING = "nonce_missing"
    NONCE_WRONG = "nonce_wrong"
    NONCE_USED = "nonce_used"


_SAID: dict[Refusal, tuple[int, str]] = {
    Refusal.NOT_AUTHENTICATED: (401, "the credential is missing or not accepted"),
    Refusal.SUPERSEDED: (401, "the credential was superseded; it may only rotate or shut down"),
    Refusal.RACED: (403, "the credential was superseded while the request waited"),
    Refusal.SHUTTING_DOWN: (409, "the server is shutting down"),
    Refusal.MALFORMED: (400, "the challenge must be exactly 64 hexadecimal digits"),
    Refusal.NEVER_ISSUED: (404, "this rotation id was never issued"),
    Refusal.NONCE_MISSING: (400, "the nonce is missing"),
    Refusal.NONCE_WRONG: (403, "the nonce is wrong"),
    Refusal.NONCE_USED: (403, "the nonce has been used"),
}


@dataclass(frozen=True, slots=True)
class Refused:
    """The state is as it was."""

    why: Refusal
    renews: ClassVar[Renewal | None] = None

    @property
    def status(self) -> int:
        """The HTTP status."""
        return _SAID[self.why][0]

    @property
    def error(self) -> str:
        """The sentence of the error body."""
        return _SAID[self.why][1]


@dataclass(frozen=True, slots=True)
class Handshaken:
    """The first credential of a fresh server."""

    token: Masked
    status: ClassVar[int] = 200
    renews: ClassVar[Renewal | None] = Renewal.HANDSHAKE


@dataclass(frozen=True, slots=True)
class Proven:
    """A proof for each acceptable credential, newest first."""

    proofs: tuple[str, ...]
    status: ClassVar[int] = 200
    renews: ClassVar[Renewal | None] = None


@dataclass(frozen=True, slots=True)
class Rotated:
    """Unless ``replayed``, every stream opened before closes before this is answered."""

    rotation_id: int
    credential: Masked
    replayed: bool
    status: ClassVar[int] = 200
    renews: ClassVar[Renewal | None] = Renewal.ROTATION


@dataclass(frozen=True, slots=True)
class Confirmed:
    """``effective`` when it dropped the superseded credential; older and repeated ones are accepted without."""

    effective: bool
    status: ClassVar[int] = 200
    renews: ClassVar[Renewal | None] = None


@dataclass(frozen=True, slots=True)
class Claimed:
    """The claim is renewed."""

    status: ClassVar[int] = 200
    renews: ClassVar[Renewal | None] = Renewal.CLAIM


@dataclass(frozen=True, slots=True)
class ShuttingDown:
    """The decision stands; ``first`` for the caller that made it."""

    first: bool
    status: ClassVar[int] = 200
    renews: ClassVar[Renewal | None] = None


class Operation(StrEnum):
    """What a credential is presented for."""

    ROTATE = "rotate"
    CONFIRM = "confirm"
    CLAIM = "claim"
    DETAILS = "details"
    SHUTDOWN = "shutdown"
    CREATE = "create"
    LIST = "list"
    INSPECT = "inspect"
    STOP = "stop"
    OUTCOME = "outcome"
    ACK = "ack"
    STREAM = "stream"


FOR_SUPERSEDED = frozenset({Operation.ROTATE, Operation.SHUTDOWN})
"""What the superseded credential may still do."""
NOT_WHILE_CLOSING = frozenset(
    {Operation.ROTATE, Operation.CONFIRM, Operation.CLAIM, Operation.CREATE, Operation.STREAM}
)
"""What a server that is shutting down answers with 409. It still reads out, stops and shuts down."""


def fresh(nonce: Masked) -> Ownership:
    """A server that starts with this one-time bootstrap nonce; an empty one lets nobody handshake."""
    return Ownership(nonce_hash=_hash(nonce) if nonce else b"")


def acceptable(state: Ownership) -> tuple[Masked, ...]:
    """The acceptable credentials, newest first: none before the handshake, at most two."""
    return tuple(c for c in (state.newest, state.superseded) if c is not None)


def standing(state: Ownership, presented: Masked | None) -> Literal["newest", "superseded"] | None:
    """Which acceptable credential was presented, in constant time for every answer."""
    offered = presented if presented is not None else Masked("")
    newest = state.newest is not None and offered == state.newest
    superseded = state.superseded is not None and offered == state.superseded
    return "newest" if newest else "superseded" if superseded else None


def permit(state: Ownership, presented: Masked | None, operation: Operation) -> Refused | None:
    """None when the credential may do this now. Who is not known learns nothing, not even of a shutdown."""
    rank = standing(state, presented)
    if rank is None:
        return Refused(Refusal.NOT_AUTHENTICATED)
    if rank == "superseded" and operation not in FOR_SUPERSEDED:
        return Refused(Refusal.SUPERSEDED)
    if state.shutting_down and operation in NOT_WHILE_CLOSING:
        return Refused(Refusal.SHUTTING_DOWN)
    return None


def handshake(
    state: Ownership, nonce: Masked | None, credential: Masked
) -> tuple[Ownership, Handshaken | Refused]:
    """Exchange the bootstrap nonce, once, for ``credential``, which is a fresh one."""
    _check(credential)
    if state.shutting_down:
        return state, Refused(Refusal.SHUTTING_DOWN)
    if not nonce:
        return state, Refused(Refusal.NONCE_MISSING)
    if not state.nonce_hash or not hmac.compare_digest(_hash(nonce), state.nonce_hash):
        return state, Refused(Refusal.NONCE_WRONG)
    if state.handshaken:
        return state, Refused(Refusal.NONCE_USED)
    return replace(state, handshaken=True, newest=credential), Handshaken(credential)


def prove_all(state: Ownership, challenge: str, home_dir: str) -> Proven | Refused:
    """Proofs for whoever asks."""
    if state.shutting_down:
        return Refused(Refusal.SHUTTING_DOWN)
    if not is_challenge(challenge):
        return Refused(Refusal.MALFORMED)
    return Proven(tuple(prove(c, challenge, home_dir) for c in acceptable(state)))


def rotate(
    state: Ownership, presented: Masked | None, credential: Masked, *, admitted: bool = False
) -> tuple[Ownership, Rotated | Refused]:
    """Replace the newest credential by ``credential``, which is a fresh one.

    The superseded credential gets the unconfirmed rotation again, and ``credential`` is not used: any number
    of retries converge. The newest one begins another rotation and becomes the superseded one, confirmed or
    not. ``admitted``: the credential was accepted when the request came in, and the request then waited: a
    credential that is not accepted any more is then a lost race (403).
    """
    _check(credential)
    refused = permit(state, presented, Operation.ROTATE)
    if refused is not None:
        raced = admitted and refused.why is Refusal.NOT_AUTHENTICATED
        return state, Refused(Refusal.RACED) if raced else refused
    if standing(state, presented) == "superseded":
        assert state.newest is not None
        return state, Rotated(state.rotation_id, state.newest, replayed=True)
    if credential in acceptable(state):
        raise ValueError("a rotation needs a fresh credential")
    state = replace(state, superseded=state.newest, newest=credential, rotation_id=state.rotation_id + 1)
    return state, Rotated(state.rotation_id, credential, replayed=False)


def confirm(
    state: Ownership, presented: Masked | None, rotation_id: int
) -> tuple[Ownership, Confirmed | Refused]:
    """The owner has stored the replacement: drop the credential that it superseded."""
    refused = permit(state, presented, Operation.CONFIRM)
    if refused is not None:
        return state, refused
    if not 1 <= rotation_id <= state.rotation_id:
        return state, Refused(Refusal.NEVER_ISSUED)
    if rotation_id < state.rotation_id or state.superseded is None:
        return state, Confirmed(effective=False)
    return replace(state, superseded=None), Confirmed(effective=True)


def claim(state: Ownership, presented: Masked | None) -> Claimed | Refused:
    """Renew: the state has nothing to remember of it, the claim does (``claims.renewed``)."""
    return permit(state, presented, Operation.CLAIM) or Claimed()


def shutdown(state: Ownership, presented: Masked | None) -> tuple[Ownership, ShuttingDown | Refused]:
    """Stop by order of whoever holds an acceptable credential, without adoption, any number of times."""
    refused = permit(state, presented, Operation.SHUTDOWN)
    if refused is not None:
        return state, refused
    return begin_shutdown(state)


def begin_shutdown(state: Ownership) -> tuple[Ownership, ShuttingDown]:
    """The one-way door: by order, by SIGTERM, or because the unowned period is over. No function opens it
    again."""
    return replace(state, shutting_down=True), ShuttingDown(first=not state.shutting_down)


def _hash(nonce: Masked) -> bytes:
    return hashlib.sha256(nonce.reveal().encode("utf-8", "surrogatepass")).digest()


def _check(credential: Masked) -> None:
    if not usable(credential):
        raise ValueError("a fresh credential is 64 hexadecimal digits")
