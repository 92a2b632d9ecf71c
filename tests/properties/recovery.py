"""A small world in which the steps of adoption are carried out, with crashes and lost writes at chosen effects.

Servers are the protocol's own rotation machine. What is durable survives a crash: record, Secrets, pods, hand-over,
rows. The process and its ``Attempt`` do not.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
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
from tenure.plan.adoption.next_step import attempt_of, next_step, secret_of
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
from tenure.protocol.proof import new_credential
from tests.properties.recovery_durable import Durable
from tests.properties.recovery_servers import HOME, Crash, Fault, Server, Temper, Unanswered

T = TypeVar("T")


_IN_MOTION = (steps.Nothing(steps.Idle.SERVER_ENDING), steps.Nothing(steps.Idle.POD_STARTING))
"""Nothing to do, but pods will go on by themselves."""


@dataclass
class World(Durable):
    """Everything outside of the plan."""

    temper: Temper = Temper.OURS
    survival: AgentSurvival = AgentSurvival.ENABLED
    faults: dict[int, Fault] = field(default_factory=dict)
    elapses_at: int | None = None
    """The effect with which the deadline elapses."""
    owner: Owner | None = field(default_factory=lambda: Owner("new", "backend-2", Gate.UNSET))
    count: int = 0
    attempt: Attempt = field(default_factory=Attempt)
    contact: Contact | None = None
    held: Masked | None = None
    retracked: frozenset[str] = frozenset()
    log: list[tuple[str, str]] = field(default_factory=list)
    """(what was sent, to which pod)."""
    sent_at: dict[str, int] = field(default_factory=dict)
    """The number of the effect with which something was sent first."""

    def with_survivor(self) -> "World":
        """A recovered server of a former incarnation, with two sessions at work."""
        server = Server("server-1", self.temper, instances=("s1", "s2"))
        credential = server.handshake()
        assert credential is not None
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
            self.check()
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
                self.pods_go_on()
            except Crash:
                self._forget()
        raise AssertionError(f"no end of steps: {taken[-8:]}")

    def next_incarnation(self, name: str) -> None:
        """The backend's container has ended, and another one runs."""
        self.owner = Owner(name, f"backend-{name}", Gate.UNSET)
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

    # -- asking a server

    def _send(self, what: str, pod: str) -> Server:
        assert pod not in self.abandoned, f"{what} was sent to a server that had been refused"
        self.log.append((what, pod))
        self.sent_at.setdefault(what, self.count)
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
        return self._send("identity", pod).says()

    def _proof(self, pod: str) -> bool | Failure:
        return self._send("prove", pod).proves(self._credential(pod))

    def _rotate(self, pod: str) -> Granted | Failure:
        answer, self.held = self._send("rotate", pod).rotates(self._credential(pod))
        return answer

    def _details(self, pod: str) -> HomeDirectory | Failure:
        return self._send("details", pod).details(self.held)

    # -- steps

    def _owed(self, owed: steps.Owed) -> None:
        if isinstance(owed, steps.Confirm):
            self.effect(lambda: self._confirm(owed))
            self.effect(self._confirmed)
        elif isinstance(owed, steps.DeleteBootstrap):
            self.effect(lambda: self._drop_bootstrap(owed.ordinal))
        else:
            self._do(owed)

    def _confirm(self, owed: steps.Confirm) -> None:
        assert self._send("confirm", owed.pod).confirms(self._credential(owed.pod), owed.rotation_id)

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
                # What was re-tracked was so on the server that is abandoned now.
                self.retracked = frozenset()
                self.effect(lambda: self._vacate(step))
            case steps.CreateBootstrap(ordinal, vacancy):
                self.effect(lambda: self.bootstraps.add(Bootstrap(ordinal, vacancy)))
            case steps.CreatePod(ordinal, vacancy):
                self.effect(lambda: self._create_pod(ordinal, vacancy))
            case steps.DeletePod(pod):
                found = self.pods.get(pod)
                assert pod not in self.abandoned or found is None or found.over
                if found is not None and found.bootstrap:
                    self.effect(lambda: self._drop_bootstrap(found.ordinal))
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
            gate = Gate.SET if step.recovered else Gate.UNSET
            self.effect(lambda: setattr(self, "gate", gate))

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

    def _handshake(self, pod: str, incarnation: str) -> None:
        token = self.effect(lambda: self._send("handshake", pod).handshake())
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
        gone = pod not in self.pods or self.pods[pod].phase is PodPhase.ENDED
        return gone or self._read(lambda: self._send("shutdown", pod).shuts_down(credential)) is True
