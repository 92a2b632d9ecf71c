"""Control servers of a small world: the protocol's own rotation machine, with the tempers of strangers and wrecks."""

from dataclasses import dataclass, field
from enum import Enum

from tenure.model.masked import Masked
from tenure.plan.adoption.gates import Advertised, Failure, Granted, HomeDirectory
from tenure.protocol import rotation
from tenure.protocol.proof import new_challenge, new_credential, verify

HOME = "/home/of/installation"
NONCE = Masked("nonce")


class Fault(Enum):
    """What befalls one effect."""

    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"
    LOST = "not done"
    ANSWER_LOST = "done, but the answer is lost"


class Crash(Exception):
    """The process dies here."""


class Unanswered(Exception):
    """The effect failed, or its answer was lost."""


class Temper(Enum):
    """How the server that was there before behaves."""

    OURS = "ours"
    FOREIGN_IDENTITY = "foreign identity"
    NO_CAPABILITIES = "no capabilities"
    WRONG_PROOF = "wrong proof"
    REFUSES = "refuses the rotation"
    OTHER_HOME = "another home"
    INCOMPATIBLE = "incompatible"
    INCOMPATIBLE_UNSTOPPABLE = "incompatible, and cannot be stopped"
    SILENT = "silent"
    SHUTTING_DOWN = "shutting down"


_CAPABILITIES = {
    Temper.NO_CAPABILITIES: (),
    Temper.INCOMPATIBLE: ("other.v1",),
    Temper.INCOMPATIBLE_UNSTOPPABLE: ("other.v1",),
}


@dataclass
class Server:
    """A control server's process, and what its answers look like to the gates."""

    identity: str
    temper: Temper = Temper.OURS
    ownership: rotation.Ownership = field(default_factory=lambda: rotation.fresh(NONCE))
    instances: tuple[str, ...] = ()

    def says(self) -> Advertised:
        """``/identity``."""
        identity = "another" if self.temper is Temper.FOREIGN_IDENTITY else self.identity
        return Advertised(identity, frozenset(_CAPABILITIES.get(self.temper, ("agent-survival.v1",))))

    def proves(self, credential: Masked) -> bool | Failure:
        """``prove``, verified."""
        challenge = new_challenge()
        answer = rotation.prove_all(self.ownership, challenge, HOME)
        if isinstance(answer, rotation.Refused):
            return Failure.SHUTTING_DOWN
        return verify(answer.proofs, credential, challenge, HOME)

    def rotates(self, credential: Masked) -> tuple[Granted | Failure, Masked | None]:
        """``rotate``, with the replacement."""
        if self.temper is Temper.REFUSES:
            return Failure.NOT_ACCEPTED, None
        self.ownership, answer = rotation.rotate(self.ownership, credential, new_credential())
        if isinstance(answer, rotation.Refused):
            return (Failure.SHUTTING_DOWN if answer.status == 409 else Failure.NOT_ACCEPTED), None
        return Granted(answer.rotation_id), answer.credential

    def details(self, credential: Masked | None) -> HomeDirectory | Failure:
        """``details``."""
        if rotation.permit(self.ownership, credential, rotation.Operation.DETAILS) is not None:
            return Failure.NOT_ACCEPTED
        return HomeDirectory("/elsewhere" if self.temper is Temper.OTHER_HOME else HOME)

    def confirms(self, credential: Masked, rotation_id: int) -> bool:
        """``confirm``."""
        self.ownership, answer = rotation.confirm(self.ownership, credential, rotation_id)
        return isinstance(answer, rotation.Confirmed)

    def handshake(self) -> Masked | None:
        """``handshake`` with the nonce; None: it was used."""
        self.ownership, answer = rotation.handshake(self.ownership, NONCE, new_credential())
        return answer.token if isinstance(answer, rotation.Handshaken) else None

    def shuts_down(self, credential: Masked | None) -> bool:
        """``shutdown``."""
        if self.temper is Temper.INCOMPATIBLE_UNSTOPPABLE:
            return False
        self.ownership, answer = rotation.shutdown(self.ownership, credential)
        return isinstance(answer, rotation.ShuttingDown)
