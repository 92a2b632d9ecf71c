"""The gates of adoption: in which order one server is asked, and what its answers amount to.

``next_ask`` is called after each answer with everything answered so far. It names the next question, or the verdict:
exactly one outcome with one reason, the first that applies. That order is why a foreign server is never sent a
credential and never stopped for running another build.
"""

from dataclasses import dataclass
from enum import StrEnum

from tenure.model.adoption import AdoptionOutcome, AdoptionReason
from tenure.protocol.capabilities import missing


class Deadline(StrEnum):
    """The one deadline of adoption, enumeration and reconstruction; it starts with the first contact."""

    NOT_STARTED = "not_started"
    RUNNING = "running"
    ELAPSED = "elapsed"


class Ask(StrEnum):
    """One exchange, in the order in which they come. The two stores are exchanges, too."""

    IDENTITY = "identity"
    PROOF = "proof"
    ROTATION = "rotation"
    DETAILS = "details"
    STORE_SECRET = "store_secret"  # noqa: S105 - a step
    STORE_RECORD = "store_record"


class Failure(StrEnum):
    """An exchange that did not give what was asked for, after the retries of its budget."""

    NO_ANSWER = "no_answer"
    """Connection refused, time-out, truncated answer, another certificate: nobody can be said to have answered."""
    SHUTTING_DOWN = "shutting_down"
    """409."""
    NOT_ACCEPTED = "not_accepted"
    """401 or 403."""
    BAD_ANSWER = "bad_answer"
    """Any other status, or a body that is not what the protocol says."""


class Stored(StrEnum):
    """What became of a durable write."""

    DONE = "done"
    """Also when it is found done already, by a try whose answer was lost."""
    FAILED = "failed"
    MOVED = "moved"
    """Somebody else has written: what is known is out of date."""


@dataclass(frozen=True, slots=True)
class Advertised:
    """The answer of ``/identity``. An empty identity or an empty set is what a foreign server would say."""

    server_identity: str
    capabilities: frozenset[str]


@dataclass(frozen=True, slots=True)
class Granted:
    """The answer of ``rotate``; the credential itself stays with the caller."""

    rotation_id: int


@dataclass(frozen=True, slots=True)
class HomeDirectory:
    """The answer of ``details``."""

    path: str


@dataclass(frozen=True, slots=True)
class Contact:
    """What is recorded of a server, and what it has answered so far in this attempt. None: not asked yet."""

    recorded_identity: str
    home_dir: str
    credential_usable: bool
    """Read before any contact; what it decides comes after the identity."""
    identity: Advertised | Failure | None = None
    proven: bool | Failure | None = None
    """Whether any proof verified against the stored credential, bound to our home directory."""
    rotation: Granted | Failure | None = None
    details: HomeDirectory | Failure | None = None
    secret: Stored | None = None
    record: Stored | None = None


class FollowUp(StrEnum):
    """What comes after a verdict."""

    OURS = "ours"
    """Confirm, renew, recover."""
    FRESH = "fresh"
    """Vacate the record and make a fresh server: nobody is there to be left alone."""
    LEAVE_ALONE = "leave_alone"
    """The same, and never contact the other one again, never stop it, never delete its Secret."""
    STOP_FIRST = "stop_first"
    """Stop it; repair its records when its containers have ended; then a fresh server."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one attempt. The pair is one of ``ADOPTION_PAIRS``."""

    outcome: AdoptionOutcome
    reason: AdoptionReason
    follow_up: FollowUp


@dataclass(frozen=True, slots=True)
class LookAgain:
    """A store found that somebody else has written. Only what is durable says how to go on."""


_OUTCOMES: dict[AdoptionReason, tuple[AdoptionOutcome, FollowUp]] = {
    AdoptionReason.NONE: (AdoptionOutcome.ADOPTED, FollowUp.OURS),
    AdoptionReason.NO_RECORD: (AdoptionOutcome.NO_SERVER, FollowUp.FRESH),
    AdoptionReason.NO_ANSWER: (AdoptionOutcome.NO_SERVER, FollowUp.FRESH),
    AdoptionReason.SHUTTING_DOWN: (AdoptionOutcome.NO_SERVER, FollowUp.FRESH),
    AdoptionReason.IDENTITY_MISMATCH: (AdoptionOutcome.REFUSED, FollowUp.LEAVE_ALONE),
    AdoptionReason.CREDENTIAL_UNAVAILABLE: (AdoptionOutcome.REFUSED, FollowUp.LEAVE_ALONE),
    AdoptionReason.AUTHENTICATION_FAILED: (AdoptionOutcome.REFUSED, FollowUp.LEAVE_ALONE),
    AdoptionReason.CAPABILITY_INCOMPATIBLE: (AdoptionOutcome.REFUSED, FollowUp.STOP_FIRST),
    AdoptionReason.CREDENTIAL_ROTATION_FAILED: (AdoptionOutcome.REFUSED, FollowUp.LEAVE_ALONE),
}


def verdict_of(reason: AdoptionReason) -> Verdict:
    """The one verdict that a reason makes: outcome and follow-up are no choice of their own."""
    outcome, follow_up = _OUTCOMES[reason]
    return Verdict(outcome, reason, follow_up)


def next_ask(contact: Contact, deadline: Deadline) -> Ask | Verdict | LookAgain:
    """The next question to this server, or what its answers amount to.

    A question that failed and may be repeated (rotation, details, stores) is named again while the deadline runs; after
    it, an attempt under way goes on to its end, but repeats nothing.
    """
    return (
        _identity(contact)
        or _proof(contact)
        or _rotation(contact, deadline)
        or _home(contact, deadline)
        or _capabilities(contact)
        or _store(contact.secret, Ask.STORE_SECRET, deadline)
        or _store(contact.record, Ask.STORE_RECORD, deadline)
        or verdict_of(AdoptionReason.NONE)
    )


def _identity(contact: Contact) -> Ask | Verdict | None:
    answer = contact.identity
    if answer is None:
        return Ask.IDENTITY
    if isinstance(answer, Failure):
        return _unless_gone(answer, AdoptionReason.IDENTITY_MISMATCH)
    matches = answer.server_identity == contact.recorded_identity and answer.server_identity != ""
    if not matches or not answer.capabilities:
        return verdict_of(AdoptionReason.IDENTITY_MISMATCH)
    return None


def _proof(contact: Contact) -> Ask | Verdict | None:
    if not contact.credential_usable:
        return verdict_of(AdoptionReason.CREDENTIAL_UNAVAILABLE)
    if contact.proven is None:
        return Ask.PROOF
    if isinstance(contact.proven, Failure):
        return _unless_gone(contact.proven, AdoptionReason.IDENTITY_MISMATCH)
    return None if contact.proven else verdict_of(AdoptionReason.IDENTITY_MISMATCH)


def _rotation(contact: Contact, deadline: Deadline) -> Ask | Verdict | None:
    if contact.rotation is None:
        return Ask.ROTATION
    if isinstance(contact.rotation, Failure):
        return _refused_or_again(contact.rotation, Ask.ROTATION, deadline)
    return None


def _home(contact: Contact, deadline: Deadline) -> Ask | Verdict | None:
    if contact.details is None:
        return Ask.DETAILS
    if isinstance(contact.details, Failure):
        return _refused_or_again(contact.details, Ask.DETAILS, deadline)
    # The proof was bound to it already; a server that says another is lying in one of the two.
    return None if contact.details.path == contact.home_dir else verdict_of(AdoptionReason.IDENTITY_MISMATCH)


def _capabilities(contact: Contact) -> Verdict | None:
    assert isinstance(contact.identity, Advertised)
    lacking = missing(contact.identity.capabilities)
    return verdict_of(AdoptionReason.CAPABILITY_INCOMPATIBLE) if lacking else None


def _store(stored: Stored | None, ask: Ask, deadline: Deadline) -> Ask | Verdict | LookAgain | None:
    if stored is None:
        return ask
    if stored is Stored.MOVED:
        return LookAgain()
    return None if stored is Stored.DONE else _again(ask, deadline)


def _unless_gone(failure: Failure, reason: AdoptionReason) -> Verdict:
    """Who does not answer and who shuts down is not there; any other failure is an answer, and a wrong one."""
    if failure is Failure.NO_ANSWER:
        return verdict_of(AdoptionReason.NO_ANSWER)
    if failure is Failure.SHUTTING_DOWN:
        return verdict_of(AdoptionReason.SHUTTING_DOWN)
    return verdict_of(reason)


def _refused_or_again(failure: Failure, ask: Ask, deadline: Deadline) -> Ask | Verdict:
    """Once the server is proven to be ours, silence is a failed rotation and no longer an absent server."""
    if failure is Failure.SHUTTING_DOWN:
        return verdict_of(AdoptionReason.SHUTTING_DOWN)
    if failure is Failure.NOT_ACCEPTED:
        return verdict_of(AdoptionReason.AUTHENTICATION_FAILED)
    return _again(ask, deadline)


def _again(ask: Ask, deadline: Deadline) -> Ask | Verdict:
    if deadline is Deadline.ELAPSED:
        return verdict_of(AdoptionReason.CREDENTIAL_ROTATION_FAILED)
    return ask


class Survivor(StrEnum):
    """What is done about a server left by an earlier launch when survival is off."""

    STOP = "stop"
    """It has proven to be ours: the ownership shutdown, with any acceptable credential."""
    LEAVE_ALONE = "leave_alone"
    """It answers, and does not prove it."""
    ENDING = "ending"
    """It is shutting down already."""
    GONE = "gone"
    """Nobody answers."""


def next_ask_of_survivor(contact: Contact) -> Ask | Survivor:
    """The same test as adoption up to the proof, without a rotation: a shutdown needs none, and no capability."""
    found = _identity(contact) or _proof(contact)
    if found is None:
        return Survivor.STOP
    if isinstance(found, Ask):
        return found
    if found.outcome is AdoptionOutcome.REFUSED:
        return Survivor.LEAVE_ALONE
    return Survivor.ENDING if found.reason is AdoptionReason.SHUTTING_DOWN else Survivor.GONE
