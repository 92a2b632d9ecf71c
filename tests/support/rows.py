"""Rows of the inventory as the plans read them, for tests of what is written."""

from tenure.plan.adoption.guards import InventoryRow
from tenure.storage.records import Executor


def row_of(executor: Executor) -> InventoryRow:
    """What decides about repair, and no more. A flag is the writer's business."""
    return InventoryRow(
        id=str(executor.id),
        session_id=executor.session_id,
        task_id=executor.task_id,
        status=executor.status,
        agent_execution_id=executor.agent_execution_id,
        container_identity=executor.container_identity,
        created_by=executor.created_by,
        updated_at=executor.updated_at,
    )
