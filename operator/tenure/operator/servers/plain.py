"""The smallest recovery there is: it knows servers without sessions, and decides about nothing else."""

from tenure.model.control_server import ControlServer
from tenure.model.reasons import ServerPhase
from tenure.operator.servers.ports import Recovering, RecoveryReport, ServerKey
from tenure.ownership.errors import ControlError, NotAccepted
from tenure.plan.adoption.state import Recovery


class PlainRecoverer:
    """``ports.Recoverer`` for installations whose sessions nobody recovers: instances and rows are left alone."""

    def __init__(self) -> None:
        self._reports: dict[ServerKey, RecoveryReport] = {}

    async def take_guards(self, recovering: Recovering) -> bool:
        """Guards are the live rows themselves."""
        await recovering.records.inventory.live(recovering.installation_id)
        return True

    async def enumerate(self, recovering: Recovering) -> Recovery:
        """How many instances there are."""
        assert recovering.server is not None
        try:
            async with recovering.server.client(recovering.budget) as client:
                hosted = len(await client.instances())
        except NotAccepted:
            raise
        except ControlError:
            self._reports[recovering.key] = RecoveryReport(enumeration_failed=True)
            return Recovery.ENUMERATION_FAILED
        self._reports[recovering.key] = RecoveryReport(hosted=hosted)
        return Recovery.ENUMERATED

    async def decide(self, recovering: Recovering) -> None:
        """Nothing."""

    async def publish(self, recovering: Recovering) -> None:
        """Nothing."""

    async def reconcile(self, recovering: Recovering) -> None:
        """Nothing."""

    async def repair(self, recovering: Recovering, pod_uid: str) -> None:
        """Rows of a pod that has ended."""
        rows = await recovering.records.inventory.live(recovering.installation_id)
        await recovering.records.inventory.repair(r for r in rows if r.container_identity == pod_uid)

    async def upkeep(self, recovering: Recovering) -> float | None:
        """Nothing."""
        return None

    def finished(self, recovering: Recovering) -> None:
        """Nothing."""

    def report(self, key: ServerKey) -> RecoveryReport:
        """What is known."""
        return self._reports.get(key, RecoveryReport())

    def forget(self, key: ServerKey) -> None:
        """Forget it."""
        self._reports.pop(key, None)


class SilentHooks:
    """``ports.Hooks`` that tell nobody."""

    def adoption_attempted(self, key: ServerKey, resource: ControlServer) -> None:
        """Nothing."""

    def adoption_ended(self, key: ServerKey, resource: ControlServer, outcome: str, reason: str) -> None:
        """Nothing."""

    def ownership_lost(self, key: ServerKey, resource: ControlServer) -> None:
        """Nothing."""

    def detached(self, key: ServerKey, resource: ControlServer) -> None:
        """Nothing."""

    def stands(self, key: ServerKey, phase: ServerPhase | None, *, unconfirmed: bool) -> None:
        """Nothing."""

    def server_ended(
        self, resource: ControlServer, pod_uid: str, exit_code: int | None, message: str
    ) -> bool:
        """Nothing."""
        return False
