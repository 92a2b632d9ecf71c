"""What the next step is decided by: what is durable, and the little that this process knows of this incarnation."""

from dataclasses import dataclass, field
from enum import StrEnum

from tenure.model.masked import Masked
from tenure.model.records import SurvivalEffective
from tenure.plan.adoption.gates import Deadline, Survivor, Verdict
from tenure.plan.adoption.survival import Survival


@dataclass(frozen=True, slots=True)
class Record:
    """The row of ``control_servers``. Vacant (no identity): make or finish a fresh server.

    ``pod_uid`` stays when the record is vacated: it names the server that was abandoned, so that the pod made in its
    place is recognised by ``vacancy``.
    """

    identity: str | None = None
    pod_uid: str | None = None
    rotation_id: int = 0
    """0: no rotation yet."""
    rotation_confirmed: bool = False
    adopted_by: str | None = None
    recovered_by: str | None = None
    survival: SurvivalEffective = SurvivalEffective.DISABLED

    @property
    def vacant(self) -> bool:
        """Whether it names no server."""
        return self.identity is None

    @property
    def about(self) -> str:
        """What a recovery is about, for ``Attempt.recovering``: the server on record, or the lack of one."""
        return self.vacancy if self.vacant else self.pod_uid or ""

    @property
    def vacancy(self) -> str:
        """What a pod that is made while the record is vacant is marked with. It never recurs: an abandoned server is
        abandoned once."""
        return f"{self.adopted_by or ''} {self.pod_uid or ''}"


@dataclass(frozen=True, slots=True)
class ServerSecret:
    """The Secret of one server, read and found whole; named from its pod and owned by it."""

    identity: str
    credential: Masked
    rotation_id: int
    adopted_by: str


class NoSecret(StrEnum):
    """There is no such Secret to go by."""

    UNAVAILABLE = "unavailable"
    """It is gone, or holds no credential."""
    UNREAD = "unread"
    """The API did not answer: nothing follows."""


class PodPhase(StrEnum):
    """How far a server's pod has come."""

    STARTING = "starting"
    REACHABLE = "reachable"
    """It runs and has an address."""
    ENDED = "ended"
    """Its containers have ended, or another one runs in the place of the one on record."""


@dataclass(frozen=True, slots=True)
class ServerPod:
    """A pod of this ControlServer, matched by owner UID, that exists."""

    uid: str
    ordinal: int
    vacancy: str
    """``Record.vacancy`` when it was made."""
    phase: PodPhase
    over: bool = False
    """It has ended, and none of its containers is started again."""
    terminating: bool = False
    secret: ServerSecret | NoSecret = NoSecret.UNAVAILABLE
    bootstrap: bool = False
    """Its bootstrap Secret is there."""
    outdated: bool = False
    """It was made of another spec or image than there is now."""


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """A bootstrap Secret whose pod does not exist: not yet, or no more."""

    ordinal: int
    vacancy: str


@dataclass(frozen=True, slots=True)
class HandOver:
    """What the hand-over Secret says; None where there is one: it is empty."""

    identity: str
    rotation_id: int
    backend_pod_uid: str


class Gate(StrEnum):
    """The readiness gate ``tenure.dev/recovered`` of the backend's pod."""

    NOT_LISTED = "not_listed"
    UNSET = "unset"
    SET = "set"


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose turn it is."""

    incarnation: str
    pod_uid: str
    gate: Gate = Gate.NOT_LISTED
    itself: bool = False
    """It is the operator, no backend being named: it has the credential, and hands it over to nobody."""


class Recovery(StrEnum):
    """How far recovery has come in this process. It is begun anew after a crash: every part of it may be repeated."""

    NOT_STARTED = "not_started"
    ENUMERATED = "enumerated"
    ENUMERATION_FAILED = "enumeration_failed"
    DECIDED = "decided"
    PUBLISHED = "published"
    RECONCILED = "reconciled"


@dataclass(frozen=True, slots=True)
class Attempt:
    """What this process knows of one incarnation. Losing it costs repetition, never correctness.

    What is about one server holds for that one only: the pod's UID goes with it.
    """

    incarnation: str = ""
    guarded: bool = False
    """The inventory was read, and its sessions are guarded."""
    deadline: Deadline = Deadline.NOT_STARTED
    contacting: str = ""
    """The pod with which an adoption is in flight, in a task of its own."""
    judged: str = ""
    verdict: Verdict | None = None
    """About the pod ``judged``."""
    stopped: str = ""
    """The pod that was sent a shutdown, with success."""
    unstoppable: str = ""
    """The pod whose shutdown used up its retries."""
    survivor: Survivor | None = None
    """What is done about the pod ``judged``, survival being off."""
    nonce_used: frozenset[str] = field(default_factory=frozenset)
    """Pods that have answered that their nonce was used."""
    repaired: str = ""
    """The pod whose rows were repaired at once, when it had ended after a stop."""
    recovering: str = ""
    """What ``recovery`` tells of: a pod's UID, or ``Record.vacancy`` while there is no server."""
    recovery: Recovery = Recovery.NOT_STARTED
    lost: bool = False
    """A server that was ours has refused us as superseded: in this incarnation nothing follows."""


@dataclass(frozen=True, slots=True)
class State:
    """Everything that the next step is made of."""

    lease: bool
    survival: Survival
    owner: Owner | None
    record: Record | None
    """None: there is no row."""
    record_read: bool = True
    """False: the store did not answer, and ``record`` means nothing."""
    pods: tuple[ServerPod, ...] = ()
    bootstraps: tuple[Bootstrap, ...] = ()
    next_ordinal: int = 1
    """One more than any that was ever used."""
    hand_over: HandOver | None = None
    attempt: Attempt = field(default_factory=Attempt)
