"""Two owners, one control server, a store with compare-and-set, and a network that loses, repeats and reorders.

The owners follow the protocol as the recovery page tells it: read the store, rotate, write the Secret, write
the record, confirm, claim. They may crash between any two steps, and both may try at once, although a Lease
forbids that: the promises do not rest on it.
"""

from dataclasses import dataclass, field, replace
from typing import TypeVar

from tenure.model.masked import Masked
from tenure.protocol import claims, rotation
from tenure.protocol.claims import Claim
from tenure.protocol.proof import verify
from tenure.protocol.rotation import Confirmed, Handshaken, Operation, Ownership, Refusal, Refused, Rotated

PERIOD_MS = 60_000
HOME = "/installation"
T = TypeVar("T")
Answer = rotation.Handshaken | Rotated | Confirmed | rotation.Claimed | rotation.ShuttingDown | Refused


@dataclass(frozen=True)
class Request:
    """One call on its way. ``attempt`` tells an owner which of its tries an answer belongs to."""

    owner: int
    attempt: int
    epoch: int
    operation: Operation
    credential: Masked
    rotation_id: int = 0


@dataclass(frozen=True)
class Stored:
    """What is durable: the Secret and the record, each with the version that compare-and-set needs."""

    credential: Masked | None = None
    rotation_id: int = 0
    secret_version: int = 0
    record_version: int = 0


@dataclass
class Owner:
    """``step``: idle, rotating, rotated, secret, owner, lost (for this incarnation)."""

    attempt: int = 0
    step: str = "idle"
    read: Stored = field(default_factory=Stored)
    credential: Masked | None = None
    rotation_id: int = 0


class World:
    """Every method is something that may happen at any time; ``check`` is what must hold after each."""

    def __init__(self) -> None:
        self.now = 0.0
        self.made = 0
        self.epoch = 0
        self.owners = [Owner(), Owner()]
        self.requests: list[Request] = []
        self.answers: list[tuple[Request, Answer]] = []
        self.seen = {
            "adopted": 0,
            "replayed": 0,
            "confirmed": 0,
            "superseded": 0,
            "expired": 0,
            "both at once": 0,
        }
        self.fresh_server(lost=0)

    # the server

    def fresh_server(self, lost: int) -> None:
        """Another server, after ``lost`` that had to be replaced because the handshake's answer never came."""
        for _ in range(lost + 1):
            self.epoch += 1
            nonce = Masked(f"nonce-{self.epoch}")
            self.server: Ownership = rotation.fresh(nonce)
            self.claim: Claim = claims.started(PERIOD_MS, self.now)
            self.server, outcome = rotation.handshake(self.server, nonce, self._new())
            assert isinstance(outcome, Handshaken)
            self._renew(outcome)
            _, again = rotation.handshake(self.server, nonce, self._new())
            assert again == Refused(Refusal.NONCE_USED)
        old = getattr(self, "stored", Stored())
        self.stored = Stored(outcome.token, 0, old.secret_version + 1, old.record_version + 1)
        self.by_id: dict[int, Masked] = {}
        self.history = [outcome.token]
        for owner in self.owners:
            self.crash(owner)

    def deliver(self, index: int, repeat: bool) -> None:
        """A request arrives, possibly not for the last time."""
        request = self._take(self.requests, index, repeat)
        if request is None or request.epoch != self.epoch:
            return
        before = self.server
        answer = self._serve(request)
        self._renew(answer)
        self.answers.append((request, answer))
        assert self.server.rotation_id >= before.rotation_id
        assert self.server.shutting_down >= before.shutting_down
        if isinstance(answer, Refused):
            assert self.server is before

    def _serve(self, request: Request) -> Answer:
        answer: Answer
        match request.operation:
            case Operation.ROTATE:
                before = self.server.rotation_id
                self.server, answer = rotation.rotate(self.server, request.credential, self._new())
                if isinstance(answer, Rotated):
                    self._note(answer, before)
            case Operation.CONFIRM:
                self.server, answer = rotation.confirm(self.server, request.credential, request.rotation_id)
                self.seen["confirmed"] += isinstance(answer, Confirmed) and answer.effective
            case Operation.CLAIM:
                answer = rotation.claim(self.server, request.credential)
            case _:
                self.server, answer = rotation.shutdown(self.server, request.credential)
        return answer

    def _note(self, answer: Rotated, before: int) -> None:
        if answer.replayed:
            assert answer.rotation_id == before
            assert self.by_id[before] == answer.credential
        else:
            assert answer.rotation_id == before + 1
            assert answer.credential not in self.history
            self.by_id[answer.rotation_id] = answer.credential
            self.history.append(answer.credential)
        self.seen["replayed"] += answer.replayed

    def pass_time(self, seconds: float) -> None:
        """The clock goes on; a server that nobody owns any more begins to shut down."""
        self.now += seconds
        if claims.expired(self.claim, self.now):
            self.server, _ = rotation.begin_shutdown(self.server)
            self.seen["expired"] += 1
            self.check()
            self.fresh_server(lost=0)

    def _renew(self, answer: Answer) -> None:
        before = self.claim
        if answer.renews is not None:
            self.claim = claims.renewed(self.claim, answer.renews, self.now)
        assert answer.renews is None or not self.server.shutting_down
        assert self.claim.renewed_at >= before.renewed_at

    # the owners

    def adopt(self, which: int) -> None:
        """Read the store, ask for the proof, and rotate with the credential that was read."""
        owner = self.owners[which]
        if owner.step != "idle" or self.stored.credential is None:
            return
        owner.step, owner.read, owner.attempt = "rotating", self.stored, owner.attempt + 1
        self.send_again(which)

    def send_again(self, which: int) -> None:
        """Retry whatever an owner waits for: the rotation, or as an owner confirmation and claim."""
        owner = self.owners[which]
        if owner.step == "rotating":
            assert owner.read.credential is not None
            if self.proven(owner.read.credential):
                self._send(which, Operation.ROTATE, owner.read.credential)
        elif owner.step == "owner":
            assert owner.credential is not None
            self._send(which, Operation.CONFIRM, owner.credential, owner.rotation_id)
            self._send(which, Operation.CLAIM, owner.credential)

    def write(self, which: int) -> None:
        """The next of the two durable writes; whoever finds another version has not adopted."""
        owner = self.owners[which]
        if owner.step == "rotated":
            if self.stored.secret_version != owner.read.secret_version:
                owner.step = "lost"
                return
            self.stored = replace(
                self.stored,
                credential=owner.credential,
                rotation_id=owner.rotation_id,
                secret_version=self.stored.secret_version + 1,
            )
            owner.step = "secret"
        elif owner.step == "secret":
            if self.stored.record_version != owner.read.record_version:
                owner.step = "lost"
                return
            self.stored = replace(self.stored, record_version=self.stored.record_version + 1)
            owner.step = "owner"
            self.seen["adopted"] += 1

    def receive(self, index: int, repeat: bool) -> None:
        """An answer arrives: late, again, or in time."""
        taken = self._take(self.answers, index, repeat)
        if taken is None:
            return
        request, answer = taken
        owner = self.owners[request.owner]
        if request.attempt != owner.attempt or request.epoch != self.epoch:
            return
        if isinstance(answer, Rotated) and owner.step == "rotating":
            owner.step, owner.credential, owner.rotation_id = "rotated", answer.credential, answer.rotation_id
        elif isinstance(answer, Refused) and answer.status == 401:
            self.seen["superseded"] += owner.step == "owner"
            owner.step, owner.credential = "lost", None

    def crash(self, owner: Owner | int) -> None:
        """The next incarnation begins with what is durable, and nothing else."""
        owner = self.owners[owner] if isinstance(owner, int) else owner
        owner.step, owner.credential, owner.rotation_id, owner.attempt = "idle", None, 0, owner.attempt + 1

    def act(self, which: int) -> None:
        """An owner does whatever comes next for it."""
        match self.owners[which].step:
            case "idle":
                self.adopt(which)
            case "rotated" | "secret":
                self.write(which)
            case _:
                self.send_again(which)

    def hurry(self, which: int, stages: int) -> None:
        """An owner gets on without bad luck, for a while: its last request and the last answer do not wait."""
        for _ in range(stages):
            self.act(which)
            self.deliver(-1, repeat=False)
            self.receive(-1, repeat=False)

    def confused(self, rotation_id: int) -> None:
        """The holder of the newest credential confirms something else than the newest rotation."""
        newest = self.server.rotation_id
        if rotation_id == newest:
            return
        after, answer = rotation.confirm(self.server, self.server.newest, rotation_id)
        assert after is self.server
        if not self.server.shutting_down:
            issued = 1 <= rotation_id < newest
            assert answer == (Confirmed(effective=False) if issued else Refused(Refusal.NEVER_ISSUED))

    def shut_down(self, which: int) -> None:
        """A holder of the stored credential orders the end, without adoption."""
        assert self.stored.credential is not None
        self._send(which, Operation.SHUTDOWN, self.stored.credential)

    def stranger(self, index: int, operation: Operation) -> None:
        """Somebody with a credential of the past, or with none, tries something."""
        known = [*self.history, Masked(""), Masked("00" * 32)]
        presented = known[index % len(known)]
        verdict = rotation.permit(self.server, presented, operation)
        if presented not in rotation.acceptable(self.server):
            assert verdict == Refused(Refusal.NOT_AUTHENTICATED)
        elif presented != self.server.newest and operation not in (Operation.ROTATE, Operation.SHUTDOWN):
            assert verdict == Refused(Refusal.SUPERSEDED)

    def lose(self, index: int, *, answers: bool) -> None:
        """The network loses something."""
        self._take(self.answers if answers else self.requests, index, repeat=False)

    def proven(self, credential: Masked) -> bool:
        """Whether the server proves that it holds the credential."""
        challenge = f"{self.made:064x}"
        proven = rotation.prove_all(self.server, challenge, HOME)
        return isinstance(proven, rotation.Proven) and verify(proven.proofs, credential, challenge, HOME)

    # the promises

    def check(self) -> None:
        """What holds at all times."""
        acceptable = rotation.acceptable(self.server)
        assert 1 <= len(acceptable) <= 2, "more than two credentials, or none, are acceptable"
        assert len(set(acceptable)) == len(acceptable)
        assert acceptable[0] == self.history[-1], "the newest credential is not the one issued last"
        if len(acceptable) == 2:
            assert acceptable[1] == self.history[-2], "the other one is not what it directly superseded"
        able = [
            owner
            for owner in self.owners
            if owner.step == "owner"
            and isinstance(rotation.claim(self.server, owner.credential), rotation.Claimed)
        ]
        assert len(able) <= 1, "two owners can claim"
        self.seen["both at once"] += all(owner.step == "rotating" for owner in self.owners)
        assert self.stored.credential is not None
        recoverable = rotation.standing(self.server, self.stored.credential) is not None
        assert recoverable, "no credential is left that both sides hold"
        if self.server.shutting_down:
            assert rotation.claim(self.server, self.server.newest) == Refused(Refusal.SHUTTING_DOWN)
        else:
            assert self.proven(self.stored.credential)

    def end_well(self) -> None:
        """Whatever happened: a new incarnation without bad luck adopts, and becomes the one owner."""
        if self.server.shutting_down:
            return
        self.requests.clear()
        self.answers.clear()
        self.crash(0)
        self.crash(1)
        self.adopt(0)
        for _ in range(2):
            self.deliver(0, repeat=False)
            self.receive(0, repeat=False)
            self.write(0)
            self.write(0)
            self.send_again(0)
        self.deliver(0, repeat=False)
        assert self.owners[0].step == "owner"
        assert rotation.claim(self.server, self.owners[0].credential) == rotation.Claimed()
        assert rotation.acceptable(self.server) == (self.owners[0].credential,)

    def _new(self) -> Masked:
        self.made += 1
        return Masked(f"{self.made:064x}")

    def _send(self, which: int, operation: Operation, credential: Masked, rotation_id: int = 0) -> None:
        attempt = self.owners[which].attempt
        self.requests.append(Request(which, attempt, self.epoch, operation, credential, rotation_id))

    @staticmethod
    def _take(queue: list[T], index: int, repeat: bool) -> T | None:
        if not queue:
            return None
        index %= len(queue)
        return queue[index] if repeat else queue.pop(index)
