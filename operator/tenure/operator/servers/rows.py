"""Rows of the recovery inventory as the plans of recovery read them."""

from tenure.model.control_server import ControlServer
from tenure.plan.adoption.guards import InventoryRow
from tenure.plan.adoption.reconstruction import Profile
from tenure.storage.records import Executor


def row_of(executor: Executor, incarnation: str, port: int | None) -> InventoryRow:
    """``port``: of the endpoint on record, where one port serves all instances; None: there is no server. The flag
    of a former incarnation is none: this one tries the stop again."""
    texts = tuple((key, value) for key, value in executor.metadata.items() if isinstance(value, str))
    return InventoryRow(
        id=str(executor.id),
        session_id=executor.session_id,
        task_id=executor.task_id,
        status=executor.status,
        agent_execution_id=executor.agent_execution_id,
        container_identity=executor.container_identity,
        created_by=executor.created_by,
        updated_at=executor.updated_at,
        workspace_path=executor.workspace_path or None,
        runtime=executor.runtime.value,
        instance_port=port,
        metadata=texts,
        agent_profile=executor.agent_profile or None,
        agent_process_uid=executor.agent_process_uid,
        passthrough=executor.passthrough,
        unstopped=executor.unstopped_by == incarnation,
    )


def flag_is_stale(executor: Executor, incarnation: str) -> bool:
    """Whether another incarnation has flagged it: that one's failure decides nothing any more."""
    return executor.unstopped_by is not None and executor.unstopped_by != incarnation


def profiles_of(resource: ControlServer) -> dict[str, Profile]:
    """``spec.agentProfiles`` as they are now."""
    return {
        profile.name: Profile(profile.command, profile.continue_args, profile.history.value)
        for profile in resource.spec.agent_profiles
    }
