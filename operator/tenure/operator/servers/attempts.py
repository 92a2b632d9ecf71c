"""What this process remembers of each ControlServer between looks. Losing it costs repetition, never correctness."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tenure.model.masked import Masked
from tenure.operator.servers.ports import ServerKey, ServerSaid
from tenure.plan.adoption.gates import Deadline, Verdict
from tenure.plan.adoption.state import Attempt
from tenure.plan.adoption.steps import Vacate

REDO_SECONDS = 1.0
LONGEST_REDO = 15.0
FIRST_START_PAUSE = 5.0
LONGEST_START_PAUSE = 300.0
STEADY_SECONDS = 600.0
"""A server that lived this long did not crash at its start."""


@dataclass(slots=True)
class Memory:
    """About one object; another object of the same name starts anew."""

    uid: str = ""
    attempt: Attempt = field(default_factory=Attempt)
    read_for: str = ""
    """The incarnation since whose start the object has been read."""
    holder: str | None = None
    """The incarnation whose turn it was at the last look."""
    contact_began: float | None = None
    """When the deadline of this attempt started, by the operator's monotonic clock."""
    deadline_seconds: float = 30.0
    top_ordinal: int = 0
    """The highest ordinal that was ever given out, as far as this process has seen."""
    swept: int = -1
    """``top_ordinal`` when no bootstrap Secret was left that nobody needs."""
    credentials: dict[str, Masked] = field(default_factory=dict, repr=False)
    """By pod UID: a replacement that was rotated in and never stored, for a server that is about to be stopped."""
    said: ServerSaid = field(default_factory=ServerSaid)
    verdict: Verdict | None = None
    """The latest one about a server, for people."""
    refused: str = ""
    """Why the API server takes no pod of ours, in its own words."""
    namespace_terminating: bool = False
    foreign: str = ""
    """The name of a child that somebody else has."""
    vacating: tuple[Vacate, bool] | None = None
    """A write that vacates the record, until it is known to be durable; and whether it gives up a server that was ours
    in this incarnation."""
    crashed: bool = False
    """The server that is being replaced ended by itself, in the incarnation that it was made for."""
    starts: int = 0
    """Pods that were made shortly after each other."""
    started_at: float | None = None
    """When the latest one was made, by the monotonic clock."""
    rival: str = ""
    """An older ControlServer of the same installation."""
    failures: int = 0
    """Of background work in a row."""
    detaching: bool = False
    """The backend has just ended: whether the server lives on, the next plan says."""
    superseded: bool = False
    """A renewal was refused; the next pass draws the conclusion."""
    secret_missed_at: float | None = None
    """Since when the Secret of the server in use is gone, by the monotonic clock."""
    upkeep_due: float = 0.0
    """When what nothing else asks for is looked after again, by the monotonic clock."""

    def begin(self, incarnation: str) -> None:
        """Nothing of another incarnation is carried over."""
        if self.attempt.incarnation != incarnation:
            self.attempt = Attempt(incarnation=incarnation)
            self.contact_began, self.superseded, self.upkeep_due = None, False, 0.0
            self.verdict, self.crashed, self.vacating = None, False, None
            self.credentials.clear()

    def restart(self) -> None:
        """The server of this incarnation has ended, and all of it begins anew; a lost ownership stays lost."""
        self.attempt = Attempt(incarnation=self.attempt.incarnation, lost=self.attempt.lost)
        self.contact_began = None
        self.credentials.clear()

    def learn(self, incarnation: str, **facts: Any) -> None:
        """Set fields of the attempt, unless another incarnation's has begun since."""
        if self.attempt.incarnation == incarnation:
            self.attempt = replace(self.attempt, **facts)

    def contact(self, now: float) -> None:
        """The deadline starts with the first contact."""
        if self.contact_began is None:
            self.contact_began = now

    def deadline(self, now: float) -> Deadline:
        """How it stands at ``now``."""
        if self.contact_began is None:
            return Deadline.NOT_STARTED
        return Deadline.ELAPSED if now - self.contact_began >= self.deadline_seconds else Deadline.RUNNING

    def deadline_of(self, incarnation: str, now: float) -> Deadline:
        """The same for an attempt of this incarnation: when another one has begun, its time is over."""
        return self.deadline(now) if self.attempt.incarnation == incarnation else Deadline.ELAPSED

    def until_deadline(self, now: float) -> float | None:
        """Seconds; None when it does not run."""
        if self.deadline(now) is not Deadline.RUNNING or self.contact_began is None:
            return None
        return self.contact_began + self.deadline_seconds - now

    def started(self, now: float) -> None:
        """A pod of a server was made."""
        steady = self.started_at is not None and now - self.started_at >= STEADY_SECONDS
        self.starts = 1 if steady else self.starts + 1
        self.started_at = now

    def start_wait(self, now: float) -> float:
        """Seconds until another pod may follow one that ended by itself: more and more of them, like those of a
        container in a crash loop."""
        if self.started_at is None:
            return 0.0
        pause = min(FIRST_START_PAUSE * 2.0 ** min(self.starts - 1, 10), LONGEST_START_PAUSE)
        return max(0.0, self.started_at + pause - now)

    def redo_after(self) -> float:
        """Seconds until background work that has failed is begun again."""
        return min(REDO_SECONDS * 2.0 ** min(self.failures, 10), LONGEST_REDO)


class Attempts:
    """The memories of all ControlServers."""

    def __init__(self, on_forget: Callable[[ServerKey], None] = lambda key: None) -> None:
        self._memories: dict[ServerKey, Memory] = {}
        self._on_forget = on_forget

    def of(self, key: ServerKey, uid: str) -> Memory:
        """The memory of this very object."""
        found = self._memories.get(key)
        if found is None or found.uid != uid:
            if found is not None:
                self._on_forget(key)
            found = self._memories[key] = Memory(uid)
        return found

    def peek(self, key: ServerKey) -> Memory | None:
        """The memory of this name, if there is one."""
        return self._memories.get(key)

    def forget(self, key: ServerKey) -> None:
        """There is no such object any more."""
        if self._memories.pop(key, None) is not None:
            self._on_forget(key)
