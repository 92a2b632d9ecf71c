"""What the parts of a pass over control servers are to each other."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from tenure.model.control_server import ControlServer
from tenure.model.masked import Masked
from tenure.model.reasons import ServerPhase
from tenure.ownership.client import ControlClient
from tenure.ownership.endpoint import Endpoint, ReadBudget
from tenure.plan.adoption.gates import Deadline
from tenure.plan.adoption.liveness import PodLife
from tenure.plan.adoption.state import Recovery
from tenure.plan.servers.facts import RecoveryReport as RecoveryReport
from tenure.plan.servers.facts import ServerSaid as ServerSaid
from tenure.storage.records import Records


@dataclass(frozen=True, slots=True, order=True)
class ServerKey:
    """A ControlServer by name, whichever object of that name it is at the moment."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"ControlServer {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class OwnedServer:
    """A control server that is ours in the incarnation ``incarnation``: everything that a call to it needs."""

    object_uid: str
    """Of the ControlServer."""
    pod_uid: str
    pod_name: str
    """The name of its Secret, too."""
    incarnation: str
    identity: str
    endpoint: Endpoint
    home_dir: str
    credential: Masked
    rotation_id: int = 0

    def client(self, budget: ReadBudget | None = None) -> ControlClient:
        """A client of its own, to be used as an async context manager."""
        return ControlClient(
            self.endpoint,
            credential=self.credential,
            home_dir=self.home_dir,
            expected_identity=self.identity,
            budget=budget,
        )


async def no_others(names: Collection[str]) -> Mapping[str, PodLife] | None:
    """Where no other pods can be."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovering:
    """One recovery, as a deed sees it. It is about a server, or about the lack of one."""

    key: ServerKey
    resource: ControlServer
    """As read just before."""
    installation_id: str
    incarnation: str
    about: str
    """``Attempt.recovering``: the pod's UID, or the vacancy while there is no server."""
    records: Records
    server: OwnedServer | None
    """None: there is no server of ours (``PublishSet`` and ``ReconcileSessions`` of a recovery without one)."""
    budget: ReadBudget
    """``spec.recovery``: the time of one read from the server, and its retries."""
    deadline: Callable[[], Deadline]
    """How the deadline stands now; ask it in the same breath as publishing."""
    present: frozenset[str] = frozenset()
    """UIDs of this ControlServer's pods that exist, by live reads."""
    ended: frozenset[str] = frozenset()
    """Those among them whose containers have ended."""
    elsewhere: Callable[[Collection[str]], Awaitable[Mapping[str, PodLife] | None]] = no_others
    """Asks for pods that are not among ``present``: those that have one of these names, and those that may be servers
    of this installation all the same. By UID; None: nobody says."""


class Recoverer(Protocol):
    """Carries out the deeds of recovery (``RECOVERY5``: ``operator/servers/recovery.py``).

    Each is one step of ``tenure.plan.adoption.steps``, begun anew after any crash, so each may be repeated. They run in
    the background, at most one at a time for each ControlServer, are cancelled when the incarnation ends or the Lease
    is lost, and look at ``recovering.deadline()`` themselves. What they know between two deeds they keep in memory by
    ``(key, about)``; when it is gone they read it again.

    They raise ``tenure.ownership.errors.ControlError`` for the server (``NotAccepted`` with ``superseded`` becomes
    OwnershipLost), ``DatabaseUnavailable``, ``RecordMoved`` and ``ApiError``: the step is then tried again.
    """

    async def take_guards(self, recovering: Recovering) -> bool:
        """Read the live inventory; False, or ``DatabaseUnavailable``, when it could not be read. ``recovered_by`` is
        NULL already, so that no launch can slip in between. Nothing is known of the server yet."""

    async def enumerate(self, recovering: Recovering) -> Recovery:
        """``Enumerate``: ``Recovery.ENUMERATED`` or ``Recovery.ENUMERATION_FAILED``."""

    async def decide(self, recovering: Recovering) -> None:
        """``DecideRecords``: every record gets its outcome, by the deadline at the latest."""

    async def publish(self, recovering: Recovering) -> None:
        """``PublishSet``."""

    async def reconcile(self, recovering: Recovering) -> None:
        """``ReconcileSessions``."""

    async def repair(self, recovering: Recovering, pod_uid: str) -> None:
        """``RepairRecordsOf``: the containers of this pod have ended."""

    async def upkeep(self, recovering: Recovering) -> float | None:
        """Called when nothing else is left to do (``Idle.UP_TO_DATE``): one enumeration, liveness of rows, repair,
        instances whose AgentProcess has gone. The seconds until it wants to be called again, or None."""

    def finished(self, recovering: Recovering) -> None:
        """``recovered_by`` is durable: events and counters of this recovery may be told, once."""

    def report(self, key: ServerKey) -> RecoveryReport:
        """For the status."""

    def forget(self, key: ServerKey) -> None:
        """The ControlServer has gone, or its incarnation has: drop what is kept about it."""


class Hooks(Protocol):
    """What is told after it has become durable: events and counters (``RECOVERY5`` fills them)."""

    def adoption_attempted(self, key: ServerKey, resource: ControlServer) -> None:
        """The first contact with a server, about to be made."""

    def adoption_ended(self, key: ServerKey, resource: ControlServer, outcome: str, reason: str) -> None:
        """One attempt, with ``AdoptionOutcome`` and ``AdoptionReason``: after the record says so."""

    def ownership_lost(self, key: ServerKey, resource: ControlServer) -> None:
        """A server that was ours refuses us as superseded."""

    def detached(self, key: ServerKey, resource: ControlServer) -> None:
        """The backend's incarnation is over, and the server lives on."""

    def stands(self, key: ServerKey, phase: ServerPhase | None, *, unconfirmed: bool) -> None:
        """How it stands after a pass; ``unconfirmed``: its rotation is stored and the server not yet told so."""

    def server_ended(
        self, resource: ControlServer, pod_uid: str, exit_code: int | None, message: str
    ) -> bool:
        """The server on record has ended; may be said again. True: it has stopped itself, and this was told."""
