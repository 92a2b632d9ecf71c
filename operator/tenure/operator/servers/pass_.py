"""The pass over one ControlServer: observe, plan, do one thing, look again, until nothing is left to do now."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from tenure.cluster.errors import ApiError
from tenure.model.errors import InvalidResource, TenureError
from tenure.operator.servers.attempts import Attempts, Memory
from tenure.operator.servers.deeds import Deeds
from tenure.operator.servers.ports import OwnedServer, ServerKey
from tenure.operator.servers.protecting import protect
from tenure.operator.servers.reporting import Reporter
from tenure.operator.servers.restoring import restore_secret
from tenure.operator.servers.shutdowns import tell_of_shutdowns
from tenure.operator.servers.sight import Observer, Sight
from tenure.operator.servers.tools import Tools, Went
from tenure.ownership.errors import ControlError
from tenure.ownership.renewal import Ended
from tenure.plan.adoption.claims import Held, outlasts_its_secret
from tenure.plan.adoption.next_step import Plan, next_step
from tenure.plan.adoption.steps import Contact, CreateBootstrap, Idle, Nothing, Owed, WriteHandOver
from tenure.storage.errors import StorageError

LOOKS = 40
"""Deeds of one pass, at most. From nothing to a server in use it takes some ten."""
SOON = 1.0
AGAIN = 5.0
"""Seconds until something that failed beside the step, or could not be read, is tried again."""
UPKEEP = 60.0

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPass:
    """Callable with a key; the seconds until it wants to see the key again, or None."""

    observer: Observer
    tools: Tools
    deeds: Deeds
    attempts: Attempts
    reporter: Reporter
    wake: Callable[[ServerKey], None]
    wake_after: Callable[[ServerKey, float], None]

    async def __call__(self, key: ServerKey) -> float | None:
        """One pass. Raises ``ApiError``, ``StorageError`` and ``InvalidResource``."""
        raw = await self.observer.read(key)
        if raw is None or _is_leaving(raw):
            # Its pod is owned by it, and is deleted by the garbage collector; the server takes that for a shutdown.
            self._gone(key, "" if raw is None else raw["metadata"]["uid"])
            return None
        memory = self.attempts.of(key, raw["metadata"]["uid"])
        try:
            return await self._go_round(key, raw, memory)
        except InvalidResource as error:
            # What it has is left as it is, renewals included: nobody knows what its author wants.
            await self.reporter.complain(key, raw, error)
            return None

    async def _go_round(self, key: ServerKey, raw: Mapping[str, Any], memory: Memory) -> float | None:
        waits: list[float] = []
        memory.rival = self.tools.cache.rival(key, memory.uid)
        if memory.rival:
            # One record, one server: the other object was first.
            self.tools.keeper.release(key)
            sight = await self.observer.look(key, raw, memory)
            await self.reporter.write(sight.of_rival(), Nothing(Idle.STALLED), memory)
            return 3 * AGAIN
        # Whatever is in the way is met again.
        memory.refused, memory.foreign, memory.namespace_terminating = "", "", False
        for _ in range(LOOKS):
            sight = await self.observer.look(key, raw, memory)
            owner = sight.state.owner
            if owner is not None and memory.read_for != owner.incarnation:
                # What was said before an incarnation began holds for it, and what this pass has read may be older.
                memory.read_for = owner.incarnation
                fresh = await self.observer.read(key)
                if fresh is None or fresh["metadata"]["uid"] != memory.uid or _is_leaving(fresh):
                    return SOON
                raw = fresh
                continue
            self.tools.background.outdate(key, owner.incarnation if owner is not None else "")
            self._keep(sight, memory)
            if self.deeds.catch_up(sight, memory):
                continue
            plan = next_step(sight.state)
            self._tell(plan, sight, memory)
            await tell_of_shutdowns(self.tools, sight)
            told = await self.reporter.tell_end(sight, plan.step, memory)
            if told is not None:
                raw = told
                continue
            waits = await self._owe(plan, sight, memory)
            if plan.step == Nothing(Idle.CREDENTIAL_LOST):
                waits.append(await self._restore(sight, memory))
            else:
                memory.secret_missed_at = None
            if await self.deeds.do(plan.step, sight, memory) is Went.WAIT:
                break
        else:
            waits.append(SOON)
        waits += self._waits(plan, sight, memory)
        await self.reporter.write(sight, plan.step, memory)
        return min(waits, default=None)

    def ended(self, key: ServerKey, name: str, error: Exception | None) -> None:
        """A piece of background work has ended: look what follows from it."""
        memory = self.attempts.peek(key)
        if memory is None:
            return
        if error is None:
            memory.failures = 0
            self.wake(key)
            return
        memory.failures += 1
        facts = {"server": str(key), "what": name, "again_in": memory.redo_after()}
        if isinstance(error, TenureError):
            log.warning("work on a control server failed and is tried again", error=str(error), **facts)
        else:
            log.error("work on a control server failed in a way nobody foresaw", exc_info=error, **facts)
        self.wake_after(key, memory.redo_after())

    def claim_ended(self, key: ServerKey, server: OwnedServer, how: Ended) -> None:
        """The keeper was told that a server is not to be renewed for any more."""
        memory = self.attempts.peek(key)
        mine = memory is not None and memory.attempt.incarnation == server.incarnation
        if memory is not None and mine and how is Ended.SUPERSEDED:
            memory.superseded = True
        self.wake(key)

    def _gone(self, key: ServerKey, uid: str) -> None:
        self.tools.keeper.release(key)
        self.tools.background.outdate(key, "")
        if not uid:
            self.attempts.forget(key)

    def _keep(self, sight: Sight, memory: Memory) -> None:
        key, owner, held = sight.key, sight.state.owner, self.tools.keeper.held(sight.key)
        if memory.superseded and owner is not None:
            memory.superseded = False
            self.tools.lose(sight, memory, owner.incarnation)
            return
        server = sight.owned()
        if held is not None and (server is None or server.credential != held.credential):
            mine = Held(held.pod_uid, held.identity, held.incarnation, held.rotation_id)
            if held.object_uid == sight.uid and outlasts_its_secret(sight.state, mine):
                return
        if server is not None:
            self.tools.keeper.keep(key, server)
            return
        if held is None or sight.refused:
            return
        self.tools.keeper.release(key)
        memory.detaching = owner is None

    async def _owe(self, plan: Plan, sight: Sight, memory: Memory) -> list[float]:
        """What may fail and be tried again without holding anything up."""
        waits: list[float] = []
        for owed in plan.owed:
            try:
                await self.deeds.owe(owed, sight, memory)
            except (ApiError, ControlError, StorageError) as error:
                self._regret(sight, owed, error)
                waits.append(AGAIN)
        return waits

    async def _restore(self, sight: Sight, memory: Memory) -> float:
        """It holds nothing up either: whoever may not write the Secret goes on without."""
        try:
            return await restore_secret(self.tools, sight, memory)
        except ApiError as error:
            log.info("a server's Secret is not written again yet", server=str(sight.key), error=str(error))
            return 3 * AGAIN

    def _tell(self, plan: Plan, sight: Sight, memory: Memory) -> None:
        if memory.detaching and plan.step == Nothing(Idle.NO_BACKEND):
            self.tools.hooks.detached(sight.key, sight.resource)
        if sight.state.owner is not None or isinstance(plan.step, Nothing):
            memory.detaching = False

    @staticmethod
    def _regret(sight: Sight, owed: Owed, error: Exception) -> None:
        log.info(
            "something is owed to a control server and is tried again",
            server=str(sight.key),
            what=type(owed).__name__,
            error=str(error),
        )

    def _waits(self, plan: Plan, sight: Sight, memory: Memory) -> list[float]:
        waits = []
        now = self.tools.clock.monotonic()
        record, owner = sight.state.record, sight.state.owner
        recovered = record is not None and owner is not None and record.recovered_by == owner.incarnation
        until = memory.until_deadline(now)
        if until is not None and not recovered:
            waits.append(max(until, 0.05))
        if isinstance(plan.step, CreateBootstrap) and not memory.refused:
            waits.append(max(memory.start_wait(now), 0.5))
        if isinstance(plan.step, Contact):
            waits.append(AGAIN)
        if isinstance(plan.step, Nothing) and plan.step.why in (Idle.STORE_UNREAD, Idle.SECRET_UNREAD):
            waits.append(AGAIN)
        # Somebody else's Secret in the place of the hand-over takes nothing away from the sessions that there are.
        barred = isinstance(plan.step, WriteHandOver) and memory.foreign
        if barred or plan.step == Nothing(Idle.UP_TO_DATE):
            waits.append(self._upkeep(sight, memory, now))
        if memory.refused or memory.foreign or sight.refused:
            waits.append(3 * AGAIN)
        return waits

    def _upkeep(self, sight: Sight, memory: Memory, now: float) -> float:
        """Look after what nothing else asks for, in the background, when it is due."""
        assert sight.state.owner is not None
        if now < memory.upkeep_due:
            return memory.upkeep_due - now
        recovering = self.tools.recovering(sight, memory, (sight.record and sight.record.pod_uid) or "")

        async def work() -> None:
            again = await self.tools.recoverer.upkeep(recovering)
            await protect(self.tools, sight)
            memory.upkeep_due = self.tools.clock.monotonic() + (UPKEEP if again is None else again)

        # Not before it is through: the end of it wakes the key.
        if self.tools.background.start(sight.key, "upkeep", sight.state.owner.incarnation, work):
            memory.upkeep_due = now + UPKEEP
        return UPKEEP


def _is_leaving(raw: Mapping[str, Any]) -> bool:
    return "deletionTimestamp" in raw["metadata"]
