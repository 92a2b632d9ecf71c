"""Steps of adoption and recovery, as data. Each can be done again after a crash in the middle of it."""

from dataclasses import dataclass
from enum import StrEnum

from tenure.model.adoption import AdoptionReason
from tenure.model.records import SurvivalEffective


class Idle(StrEnum):
    """Why nothing is to be done now."""

    NO_LEASE = "no_lease"
    STALLED = "stalled"
    STORE_UNREAD = "store_unread"
    SECRET_UNREAD = "secret_unread"  # noqa: S105 - a reason
    NO_BACKEND = "no_backend"
    OWNERSHIP_LOST = "ownership_lost"
    CREDENTIAL_LOST = "credential_lost"
    """Recovered, but the Secret is gone since: the backend renews with what it was handed, until the server ends."""
    ADOPTION_IN_FLIGHT = "adoption_in_flight"
    SERVER_ENDING = "server_ending"
    POD_STARTING = "pod_starting"
    UP_TO_DATE = "up_to_date"


@dataclass(frozen=True, slots=True)
class Nothing:
    """Look again when something changes."""

    why: Idle


@dataclass(frozen=True, slots=True)
class EmptyHandOver:
    """The incarnation or the server that the hand-over Secret was written for is over."""


@dataclass(frozen=True, slots=True)
class TakeGuards:
    """Read the inventory, and set ``recovered_by`` to NULL where it names another incarnation: from here on launches
    are refused. ``expected`` is ``adopted_by``, for the compare-and-set. An unreadable inventory ends the pass."""

    expected: str | None


@dataclass(frozen=True, slots=True)
class Contact:
    """Ask this server through the gates, up to a verdict. An adoption stores Secret, then record."""

    pod: str


@dataclass(frozen=True, slots=True)
class DismissSurvivor:
    """Survival is off: let this server prove that it is ours; if it does, send it the ownership shutdown."""

    pod: str


@dataclass(frozen=True, slots=True)
class StopServer:
    """Send the ownership shutdown to an own server that is not compatible, with the credential in memory."""

    pod: str


@dataclass(frozen=True, slots=True)
class RepairRecordsOf:
    """The containers of this server have ended: repair its inventory rows at once."""

    pod: str


@dataclass(frozen=True, slots=True)
class Vacate:
    """One compare-and-set on ``adopted_by`` = ``expected`` (or the insert of the first row): identity, endpoint and
    Secret become NULL, ``pod_uid`` stays, ``adopted_by`` becomes the incarnation.

    ``recovered_by`` is written as given: NULL, or the incarnation when its recovery is over already. ``reason`` None:
    survival is off, and there was no adoption to count.
    """

    expected: str | None
    incarnation: str
    reason: AdoptionReason | None
    recovered_by: str | None
    survival: SurvivalEffective


@dataclass(frozen=True, slots=True)
class CreateBootstrap:
    """Nonce, TLS key and settings for a pod that is made next."""

    ordinal: int
    vacancy: str


@dataclass(frozen=True, slots=True)
class CreatePod:
    """The pod of a fresh server, marked with the vacancy."""

    ordinal: int
    vacancy: str


@dataclass(frozen=True, slots=True)
class DeletePod:
    """A pod of this vacancy that hosts nothing: its nonce was used or has gone, it is one too many, it was made of an
    older spec, or it has ended for good. Its bootstrap Secret goes first: no nonce is given out twice."""

    pod: str


@dataclass(frozen=True, slots=True)
class Handshake:
    """Hand the nonce in and store the server's Secret with what comes back. "Used" makes the pod worthless."""

    pod: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class StoreRecord:
    """Write into the record what the pod's Secret says: the Secret was first. ``recovered_by`` stays as it is."""

    pod: str
    expected: str | None
    identity: str
    rotation_id: int
    confirmed: bool
    adopted_by: str
    survival: SurvivalEffective


@dataclass(frozen=True, slots=True)
class Enumerate:
    """Ask the server for its instances."""

    pod: str


@dataclass(frozen=True, slots=True)
class DecideRecords:
    """Correlate, stop, reconstruct, read outcomes: every record gets its outcome, each session is published."""

    pod: str


@dataclass(frozen=True, slots=True)
class PublishSet:
    """Publish the set of re-tracked sessions. ``about`` goes into ``Attempt.recovering``."""

    about: str


@dataclass(frozen=True, slots=True)
class ReconcileSessions:
    """Sessions, turns, tasks and rows that were not re-tracked."""

    about: str


@dataclass(frozen=True, slots=True)
class RecordRecovered:
    """``recovered_by`` = the incarnation, by compare-and-set on ``adopted_by`` = ``expected``."""

    expected: str | None
    incarnation: str


@dataclass(frozen=True, slots=True)
class WriteHandOver:
    """Endpoint, certificate and credential for the backend; never before recovery is recorded."""

    pod: str
    identity: str
    rotation_id: int
    backend_pod_uid: str


@dataclass(frozen=True, slots=True)
class SetReadiness:
    """The condition ``tenure.dev/recovered`` of the backend's pod: True after recovery; False again when another
    container runs in the same pod, for it has recovered nothing yet."""

    backend_pod_uid: str
    recovered: bool


Step = (
    Nothing
    | EmptyHandOver
    | TakeGuards
    | Contact
    | DismissSurvivor
    | StopServer
    | RepairRecordsOf
    | Vacate
    | CreateBootstrap
    | CreatePod
    | DeletePod
    | Handshake
    | StoreRecord
    | Enumerate
    | DecideRecords
    | PublishSet
    | ReconcileSessions
    | RecordRecovered
    | WriteHandOver
    | SetReadiness
)


@dataclass(frozen=True, slots=True)
class Confirm:
    """Confirm the rotation with the id of the Secret, then set ``rotation_confirmed``. Its failure holds nothing up."""

    pod: str
    rotation_id: int


@dataclass(frozen=True, slots=True)
class DeleteBootstrap:
    """A bootstrap Secret that nobody needs any more: its nonce has been handed in and the credential is durable, or the
    server of this ordinal will never hand it in."""

    ordinal: int


Owed = Confirm | DeleteBootstrap | DeletePod
