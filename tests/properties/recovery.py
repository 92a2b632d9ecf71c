"""A small world in which the steps of adoption are carried out, with crashes and lost writes at chosen effects.

Servers are the protocol's own rotation machine. What is durable survives a crash: record, Secrets, pods, hand-over,
rows. The process and its ``Attempt`` do not.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, TypeVar

from tenure.model.adoption import AgentSurvival
from tenure.model.masked import Masked
from tenure.model.records import SurvivalEffective
from tenure.plan.adoption import steps
from tenure.plan.adoption.gates import (
    Advertised,
    Ask,
    Contact,
    Deadline,
    Failure,
    Granted,
    HomeDirectory,
    LookAgain,
    Stored,
    Survivor,
    Verdict,
    next_ask,
    next_ask_of_survivor,
)
from tenure.plan.adoption.next_step import attempt_of, next_step, recorded_pod, secret_of
from tenure.plan.adoption.state import (
    Attempt,
    Bootstrap,
    Gate,
    HandOver,
    Owner,
    PodPhase,
    Record,
    Recovery,
    ServerPod,
    ServerSecret,
    State,
)
from tenure.plan.adoption.survival import Survival
from tenure.protocol import rotation
from tenure.protocol.proof import new_challenge, new_credential, verify

HOME = "/home/of/installation"
T = TypeVar("T")


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


_IN_MOTION = (steps.Nothing(steps.Idle.SERVER_ENDING), steps.Nothing(steps.Idle.POD_STARTING))
"""Nothing to do, but pods will go on by themselves."""


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


@dataclass
class Server:
    """A control server's process."""

    identity: str
    temper: Temper = Temper.OURS
    ownership: rotation.Ownership = field(default_factory=lambda: rotation.fresh(Masked("nonce")))
    instances: tuple[str, ...] = ()


@dataclass
class World:
    """Everything outside of the plan."""

    temper: Temper = Temper.OURS
    survival: AgentSurvival = AgentSurvival.ENABLED
    faults: dict[int, Fault] = field(default_factory=dict)
    elapses_at: int | None = None
    """The effect with which the deadline elapses."""
    record: Record | None = None
    pods: dict[str, ServerPod] = field(default_factory=dict)
    servers: dict[str, Server] = field(default_factory=dict)
    highest: int = 0
    """The highest ordinal of any pod that was ever seen."""
    bootstraps: set[Bootstrap] = field(default_factory=set)
    hand_over: HandOver | None = None
    gate: Gate = Gate.UNSET
    rows: dict[str, str] = field(default_factory=dict)
    """Live rows: session to pod."""
    sessions: dict[str, str] = field(default_factory=dict)
    owner: Owner | None = field(default_factory=lambda: Owner("new", "backend-2", Gate.UNSET))
    count: int = 0
    attempt: Attempt = field(default_factory=Attempt)
    contact: Contact | None = None
    held: Masked | None = None
    retracked: frozenset[str] = frozenset()
    log: list[tuple[str, str]] = field(default_factory=list)
    """(what was sent, to which pod)."""
    abandoned: set[str] = field(default_factory=set)
    """Pods that were on record when the record was vacated."""

    def with_survivor(self) -> "World":
        """A recovered server of a former incarnation, with two sessions at work."""
        credential = new_credential()
        server = Server("server-1", self.temper, instances=("s1", "s2"))
        server.ownership, _ = rotation.handshake(server.ownership, Masked("nonce"), credential)
        if self.temper is Temper.WRONG_PROOF:
            server.ownership = replace(server.ownership, newest=new_credential())
        if self.temper is Temper.SHUTTING_DOWN:
            server.ownership, _ = rotation.begin_shutdown(server.ownership)
        secret = ServerSecret("server-1", credential, 0, "old")
        self.pods["pod-1"] = ServerPod("pod-1", 1, "old", PodPhase.REACHABLE, secret=secret)
        self.servers["pod-1"], self.highest = server, 1
        self.record = Record("server-1", "pod-1", 0, True, "old", "old", SurvivalEffective.ENABLED)
        self.hand_over = HandOver("server-1", 0, "backend-1")
        self.rows = {"s1": "pod-1", "s2": "pod-1"}
        self.sessions = {"s1": "running", "s2": "running"}
        return self

    # -- what the plan sees

    def state(self) -> State:
        """The observation."""
        return State(
            lease=True,
            survival=Survival(self.survival, SurvivalEffective(self.survival.value)),
            owner=replace(self.owner, gate=self.gate) if self.owner is not None else None,
            record=self.record,
            pods=tuple(self.pods.values()),
            bootstraps=tuple(self.bootstraps),
            next_ordinal=1 + self.highest,
            hand_over=self.hand_over,
            attempt=self.attempt,
        )

    # -- the process

    def run(self, limit: int = 400) -> list[steps.Step]:
        """Passes until nothing is left to do; the steps that were taken."""
        taken: list[steps.Step] = []
        for _ in range(limit):
            if self.owner is not None:
                self.attempt = attempt_of(self.state(), self.owner)
            self._check()
            plan = next_step(self.state())
            try:
                idle = isinstance(plan.step, steps.Nothing) and not plan.owed and self.contact is None
                if idle and plan.step not in _IN_MOTION:
                    return taken
                for owed in plan.owed:
                    self._attempt(lambda owed=owed: self._owed(owed))  # type: ignore[misc]
                if self.contact is not None:
                    self._go_on_asking()
                taken.append(plan.step)
                self._attempt(lambda plan=plan: self._do(plan.step))  # type: ignore[misc]
                self._pods_go_on()
            except Crash:
                self._forget()
        raise AssertionError(f"no end of steps: {taken[-8:]}")

    def next_incarnation(self, name: str) -> None:
        """The backend's container has ended, and another one runs."""
        self.owner = Owner(name, f"backend-{name}", Gate.UNSET)
        self.gate = Gate.UNSET
        self.contact, self.held, self.retracked = None, None, frozenset()

    def _forget(self) -> None:
        self.attempt, self.contact, self.held, self.retracked = Attempt(), None, None, frozenset()

    def _attempt(self, deed: Callable[[], None]) -> None:
        try:
            deed()
        except Unanswered:
            # The pass ends here, and is woken again.
            return

    def effect(self, deed: Callable[[], T]) -> T:
        """One thing that is done to the world outside, or asked of it."""
        self.count += 1
        fault = self.faults.get(self.count)
        if fault is Fault.CRASH_BEFORE:
            raise Crash
        if fault is Fault.LOST:
            raise Unanswered
        result = deed()
        if fault is Fault.CRASH_AFTER:
            raise Crash
        if fault is Fault.ANSWER_LOST:
            raise Unanswered
        return result

    @property
    def deadline(self) -> Deadline:
        """The process's own."""
        started = self.attempt.deadline is not Deadline.NOT_STARTED
        if started and self.elapses_at is not None and self.count >= self.elapses_at:
            self.attempt = replace(self.attempt, deadline=Deadline.ELAPSED)
        return self.attempt.deadline

    def _know(self, **facts: Any) -> None:
        self.attempt = replace(self.attempt, **facts)
        _ = self.deadline

    def _check(self) -> None:
        """What holds between any two steps."""
        record = self.record
        assert record is None or record.vacant or record.pod_uid not in self.abandoned
        handshaken = [
            uid
            for uid, pod in self.pods.items()
            if isinstance(pod.secret, ServerSecret)
            and uid not in self.abandoned
            and pod.phase is not PodPhase.ENDED
        ]
        assert len(handshaken) <= 1, "two servers are current"
        if self.hand_over is not None and record is not None and record.recovered_by == "new":
            assert record.adopted_by == "new"
            assert self.hand_over.identity == record.identity or self.hand_over.backend_pod_uid != "backend-2"

    def _pods_go_on(self) -> None:
        """What happens by itself: pods start, and servers that shut down end."""
        for uid, pod in list(self.pods.items()):
            if pod.terminating:
                del self.pods[uid]
            elif self.servers[uid].ownership.shutting_down and pod.phase is not PodPhase.ENDED:
                self.pods[uid] = replace(pod, phase=PodPhase.ENDED)
            elif pod.phase is PodPhase.STARTING:
                self.pods[uid] = replace(pod, phase=PodPhase.REACHABLE)

    # -- asking a server

    def _send(self, what: str, pod: str) -> Server:
        assert pod not in self.abandoned, f"{what} was sent to a server that had been refused"
        self.log.append((what, pod))
        if self.attempt.deadline is Deadline.NOT_STARTED:
            self._know(deadline=Deadline.RUNNING)
        server = self.servers.get(pod)
        gone = pod not in self.pods or self.pods[pod].phase is PodPhase.ENDED
        if server is None or gone or server.temper is Temper.SILENT:
            raise Unanswered
        return server

    def _read(self, deed: Callable[[], T]) -> T | Failure:
        """A read with its retries."""
        for _ in range(3):
            try:
                return self.effect(deed)
            except Unanswered:
                continue
        return Failure.NO_ANSWER

    def _begin(self, pod: str) -> Contact:
        assert self.record is not None
        assert self.record.identity is not None
        secret = secret_of(self.record, self.pods[pod])
        self.held = None
        return Contact(self.record.identity, HOME, secret is not None)

    def _go_on_asking(self) -> None:
        contact, pod = self.contact, self.attempt.contacting
        assert contact is not None
        answer = next_ask(contact, self.deadline)
        if isinstance(answer, LookAgain):
            self.contact = None
            self._know(contacting="")
        elif isinstance(answer, Verdict):
            self.contact = None
            self._know(contacting="", judged=pod, verdict=answer)
        else:
            self.contact = self._answered(contact, answer, pod)

    def _answered(self, contact: Contact, ask: Ask, pod: str) -> Contact:
        if ask is Ask.IDENTITY:
            return replace(contact, identity=self._read(lambda: self._identity(pod)))
        if ask is Ask.PROOF:
            return replace(contact, proven=self._read(lambda: self._proof(pod)))
        if ask is Ask.ROTATION:
            return replace(contact, rotation=self._once(lambda: self._rotate(pod)))
        if ask is Ask.DETAILS:
            return replace(contact, details=self._once(lambda: self._details(pod)))
        if ask is Ask.STORE_SECRET:
            assert isinstance(contact.rotation, Granted)
            assert self.held is not None
            assert self.owner is not None
            secret = ServerSecret(
                contact.recorded_identity, self.held, contact.rotation.rotation_id, self.owner.incarnation
            )
            return replace(contact, secret=self._stored(lambda: self._write_secret(pod, secret)))
        step = next_step(replace(self.state(), attempt=replace(self.attempt, contacting=""))).step
        if not isinstance(step, steps.StoreRecord):
            # The write was done by the try whose answer was lost.
            return replace(contact, record=Stored.DONE)
        return replace(contact, record=self._stored(lambda: self._store_record(step)))

    def _once(self, deed: Callable[[], T]) -> T | Failure:
        try:
            return self.effect(deed)
        except Unanswered:
            return Failure.NO_ANSWER

    def _stored(self, deed: Callable[[], None]) -> Stored:
        try:
            self.effect(deed)
        except Unanswered:
            return Stored.FAILED
        return Stored.DONE

    def _credential(self, pod: str) -> Masked:
        secret = self.pods[pod].secret
        assert isinstance(secret, ServerSecret)
        return secret.credential

    def _identity(self, pod: str) -> Advertised:
        server = self._send("identity", pod)
        names = {Temper.NO_CAPABILITIES: (), Temper.INCOMPATIBLE: ("other.v1",)}
        names[Temper.INCOMPATIBLE_UNSTOPPABLE] = ("other.v1",)
        identity = "another" if server.temper is Temper.FOREIGN_IDENTITY else server.identity
        return Advertised(identity, frozenset(names.get(server.temper, ("agent-survival.v1",))))

    def _proof(self, pod: str) -> bool | Failure:
        challenge = new_challenge()
        answer = rotation.prove_all(self._send("prove", pod).ownership, challenge, HOME)
        if isinstance(answer, rotation.Refused):
            return Failure.SHUTTING_DOWN
        return verify(answer.proofs, self._credential(pod), challenge, HOME)

    def _rotate(self, pod: str) -> Granted | Failure:
        server = self._send("rotate", pod)
        if server.temper is Temper.REFUSES:
            return Failure.NOT_ACCEPTED
        server.ownership, answer = rotation.rotate(server.ownership, self._credential(pod), new_credential())
        if isinstance(answer, rotation.Refused):
            return Failure.SHUTTING_DOWN if answer.status == 409 else Failure.NOT_ACCEPTED
        self.held = answer.credential
        return Granted(answer.rotation_id)

    def _details(self, pod: str) -> HomeDirectory | Failure:
        server = self._send("details", pod)
        refused = rotation.permit(server.ownership, self.held, rotation.Operation.DETAILS)
        if refused is not None:
            return Failure.NOT_ACCEPTED
        return HomeDirectory("/elsewhere" if server.temper is Temper.OTHER_HOME else HOME)

    def _write_secret(self, pod: str, secret: ServerSecret) -> None:
        self.pods[pod] = replace(self.pods[pod], secret=secret)

    def _store_record(self, step: steps.StoreRecord) -> None:
        assert self.record is not None
        assert self.record.adopted_by == step.expected
        self.record = replace(
            self.record,
            identity=step.identity,
            pod_uid=step.pod,
            rotation_id=step.rotation_id,
            rotation_confirmed=step.confirmed,
            adopted_by=step.adopted_by,
            survival=step.survival,
        )

    # -- steps

    def _owed(self, owed: steps.Owed) -> None:
        if isinstance(owed, steps.Confirm):
            self.effect(lambda: self._confirm(owed))
            self.effect(self._confirmed)
        elif isinstance(owed, steps.DeleteBootstrap):
            self.effect(lambda: self._update(owed.pod, bootstrap=False))
        else:
            self._do(owed)

    def _confirm(self, owed: steps.Confirm) -> None:
        server = self._send("confirm", owed.pod)
        server.ownership, answer = rotation.confirm(
            server.ownership, self._credential(owed.pod), owed.rotation_id
        )
        assert isinstance(answer, rotation.Confirmed)

    def _confirmed(self) -> None:
        assert self.record is not None
        self.record = replace(self.record, rotation_confirmed=True)

    def _update(self, pod: str, **facts: Any) -> None:
        if pod in self.pods:
            self.pods[pod] = replace(self.pods[pod], **facts)

    def _do(self, step: steps.Step) -> None:
        match step:
            case steps.Nothing() | steps.SetReadiness() | steps.EmptyHandOver() | steps.WriteHandOver():
                self._kubernetes(step)
            case steps.TakeGuards():
                self.effect(lambda: self._take_guards(step))
                self._know(guarded=True)
            case steps.Contact(pod):
                self._know(contacting=pod)
                self.contact = self._begin(pod)
            case steps.DismissSurvivor(pod):
                self._dismiss(pod)
            case steps.StopServer(pod):
                ok = self._shutdown(pod, self.held)
                self._know(**{"stopped" if ok else "unstoppable": pod})
            case steps.RepairRecordsOf(pod):
                self.effect(lambda: self._repair(pod))
                self._know(repaired=pod)
            case steps.Vacate():
                self.effect(lambda: self._vacate(step))
            case steps.CreateBootstrap(ordinal, vacancy):
                self.effect(lambda: self.bootstraps.add(Bootstrap(ordinal, vacancy)))
            case steps.CreatePod(ordinal, vacancy):
                self.effect(lambda: self._create_pod(ordinal, vacancy))
            case steps.DeletePod(pod):
                assert pod not in self.abandoned
                self.effect(lambda: self._update(pod, terminating=True))
            case steps.Handshake(pod, incarnation):
                self._handshake(pod, incarnation)
            case steps.StoreRecord():
                self.effect(lambda: self._store_record(step))
            case _:
                self._recovery(step)

    def _kubernetes(self, step: steps.Step) -> None:
        if isinstance(step, steps.EmptyHandOver):
            self.effect(lambda: setattr(self, "hand_over", None))
        elif isinstance(step, steps.WriteHandOver):
            told = HandOver(step.identity, step.rotation_id, step.backend_pod_uid)
            self.effect(lambda: setattr(self, "hand_over", told))
        elif isinstance(step, steps.SetReadiness):
            self.effect(lambda: setattr(self, "gate", Gate.SET))

    def _recovery(self, step: steps.Step) -> None:
        match step:
            case steps.Enumerate(pod):
                found = self._read(lambda: self._send("list", pod).instances)
                failed = isinstance(found, Failure)
                stage = Recovery.ENUMERATION_FAILED if failed else Recovery.ENUMERATED
                self._know(recovering=pod, recovery=stage)
            case steps.DecideRecords(pod):
                for session, host in sorted(self.rows.items()):
                    if host == pod and session in self.servers[pod].instances:
                        self._decide(session, pod)
                self._know(recovery=Recovery.DECIDED)
            case steps.PublishSet(about):
                self._know(recovering=about, recovery=Recovery.PUBLISHED)
            case steps.ReconcileSessions(about):
                for session in sorted(self.sessions):
                    self.effect(lambda session=session: self._reconcile(session))  # type: ignore[misc]
                self._know(recovering=about, recovery=Recovery.RECONCILED)
            case steps.RecordRecovered(expected, incarnation):
                self.effect(lambda: self._recovered(expected, incarnation))
            case _:
                raise AssertionError(step)

    def _decide(self, session: str, pod: str) -> None:
        if self.deadline is Deadline.ELAPSED:
            self.effect(lambda: self._stop_instance(session, pod))
        else:
            self.retracked |= {session}

    def _stop_instance(self, session: str, pod: str) -> None:
        server = self._send("stop", pod)
        server.instances = tuple(i for i in server.instances if i != session)

    def _reconcile(self, session: str) -> None:
        if session in self.retracked:
            return
        self.sessions[session] = "waiting"
        self._repair_if_dead(session)

    def _repair_if_dead(self, session: str) -> None:
        host = self.rows.get(session, "")
        gone = host not in self.pods or self.pods[host].phase is PodPhase.ENDED
        absent = (
            self.record is not None
            and self.record.pod_uid == host
            and not self.record.vacant
            and session not in self.servers[host].instances
        )
        if host and (gone or absent):
            del self.rows[session]

    def _repair(self, pod: str) -> None:
        for session, host in list(self.rows.items()):
            if host == pod:
                del self.rows[session]

    def _recovered(self, expected: str | None, incarnation: str) -> None:
        assert self.record is not None
        assert self.record.adopted_by == expected
        self.record = replace(self.record, recovered_by=incarnation)

    def _take_guards(self, step: steps.TakeGuards) -> None:
        if self.record is not None:
            assert self.record.adopted_by == step.expected
            self.record = replace(self.record, recovered_by=None)

    def _vacate(self, step: steps.Vacate) -> None:
        record = self.record or Record()
        assert record.adopted_by == step.expected
        if record.pod_uid is not None:
            self.abandoned.add(record.pod_uid)
        # What was re-tracked was so on the server that is abandoned now.
        self.retracked = frozenset()
        self.record = Record(
            pod_uid=record.pod_uid,
            adopted_by=step.incarnation,
            recovered_by=step.recovered_by,
            survival=step.survival,
        )

    def _create_pod(self, ordinal: int, vacancy: str) -> None:
        uid = f"pod-{ordinal}"
        if uid not in self.pods:
            self.pods[uid] = ServerPod(uid, ordinal, vacancy, PodPhase.STARTING, bootstrap=True)
            self.servers[uid] = Server(f"server-{ordinal}")
        self.highest = max(self.highest, ordinal)
        self.bootstraps.discard(Bootstrap(ordinal, vacancy))

    def _handshake(self, pod: str, incarnation: str) -> None:
        def exchange() -> Masked | None:
            server = self._send("handshake", pod)
            server.ownership, answer = rotation.handshake(server.ownership, Masked("nonce"), new_credential())
            return answer.token if isinstance(answer, rotation.Handshaken) else None

        token = self.effect(exchange)
        if token is None:
            self._know(nonce_used=self.attempt.nonce_used | {pod})
            return
        secret = ServerSecret(self.servers[pod].identity, token, 0, incarnation)
        self.effect(lambda: self._write_secret(pod, secret))

    def _dismiss(self, pod: str) -> None:
        contact = self._begin(pod)
        while isinstance(ask := next_ask_of_survivor(contact), Ask):
            if ask is Ask.IDENTITY:
                contact = replace(contact, identity=self._read(lambda: self._identity(pod)))
            else:
                contact = replace(contact, proven=self._read(lambda: self._proof(pod)))
        if ask is Survivor.STOP and not self._shutdown(pod, self._credential(pod)):
            self._know(unstoppable=pod)
        self._know(judged=pod, survivor=ask)

    def _shutdown(self, pod: str, credential: Masked | None) -> bool:
        def send() -> bool:
            server = self._send("shutdown", pod)
            if server.temper is Temper.INCOMPATIBLE_UNSTOPPABLE:
                return False
            server.ownership, answer = rotation.shutdown(server.ownership, credential)
            return isinstance(answer, rotation.ShuttingDown)

        gone = pod not in self.pods or self.pods[pod].phase is PodPhase.ENDED
        return gone or self._read(send) is True

    # -- the end

    def outcome(self) -> tuple[object, ...]:
        """What a run has come to, without the accidents of ordinals and random credentials."""
        record, pod = self.record, recorded_pod(self.state())
        assert record is not None
        confirmed = not record.vacant and (record.rotation_confirmed or record.rotation_id == 0)
        return (
            "adopted" if pod is not None and pod.vacancy == "old" else "fresh",
            record.vacant,
            record.adopted_by,
            record.recovered_by,
            confirmed,
            pod is not None and self.hand_over is not None and self.hand_over.identity == record.identity,
            self.gate,
            tuple(sorted(self.sessions.items())),
            tuple(sorted(self.rows.items())),
            [(p.uid, p.phase) for p in self.pods.values() if p.vacancy == "old"],
        )
