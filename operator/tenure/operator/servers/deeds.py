"""One deed for each step. What it writes has a precondition; what it learns goes into the memory of the attempt."""

from typing import assert_never

from tenure.operator.servers.attempts import Memory
from tenure.operator.servers.handing import HandingOver
from tenure.operator.servers.inheriting import Inheriting
from tenure.operator.servers.making import Making
from tenure.operator.servers.resuming import Resuming
from tenure.operator.servers.sight import Sight
from tenure.operator.servers.tools import Tools, Went
from tenure.plan.adoption import steps


class Deeds:
    """Carries out steps."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._inherit = Inheriting(tools)
        self._make = Making(tools)
        self._resume = Resuming(tools)
        self._hand_over = HandingOver(tools)

    async def do(self, step: steps.Step, sight: Sight, memory: Memory) -> Went:
        """One step. Raises ``ApiError``, ``DatabaseUnavailable`` and ``RecordMoved``: the pass is then repeated."""
        match step:
            case steps.Nothing():
                return Went.WAIT
            case steps.EmptyHandOver():
                return await self._hand_over.empty(sight)
            case steps.TakeGuards():
                return await self._inherit.take_guards(step, sight, memory)
            case steps.Contact():
                return self._inherit.contact(step, sight, memory)
            case steps.DismissSurvivor():
                return self._inherit.dismiss(step, sight, memory)
            case steps.StopServer():
                return self._inherit.stop(step, sight, memory)
            case steps.RepairRecordsOf():
                await self._tools.recoverer.repair(self._tools.recovering(sight, memory, step.pod), step.pod)
                memory.learn(memory.attempt.incarnation, repaired=step.pod)
                return Went.ON
            case steps.Vacate():
                return await self._inherit.vacate(step, sight, memory)
            case steps.CreateBootstrap():
                return await self._make.create_bootstrap(step, sight, memory)
            case steps.CreatePod():
                return await self._make.create_pod(step, sight, memory)
            case steps.DeletePod():
                return await self._make.delete_pod(step, sight)
            case steps.Handshake():
                return self._make.handshake(step, sight, memory)
            case steps.StoreRecord():
                return await self._make.store_record(step, sight)
            case steps.Enumerate() | steps.DecideRecords() | steps.PublishSet() | steps.ReconcileSessions():
                return self._resume.recover(step, sight, memory)
            case steps.RecordRecovered():
                return await self._resume.recovered(step, sight, memory)
            case steps.WriteHandOver():
                return await self._hand_over.write(step, sight, memory)
            case steps.SetReadiness():
                return await self._hand_over.set_readiness(step, sight)
        assert_never(step)

    def catch_up(self, sight: Sight, memory: Memory) -> bool:
        """What follows from writes that are durable, whether their answer came or was lost. True: look again."""
        self._resume.finished(sight, memory)
        return self._inherit.vacated(sight, memory)

    async def owe(self, owed: steps.Owed, sight: Sight, memory: Memory) -> None:
        """Something beside the step. Raises like ``do``, and ``ControlError``."""
        match owed:
            case steps.Confirm():
                await self._resume.confirm(owed, sight, memory)
            case steps.DeleteBootstrap():
                await self._make.delete_bootstrap(owed, sight)
            case steps.DeletePod():
                await self._make.delete_pod(owed, sight)
