"""SQL that gives each role what it needs and no more.

Four roles. *operator*: reads rows, asks for stops, writes the ledger and every record. *agent*: its own
heartbeats, never a stop. *backend*: in its own namespaces it reads the ledger and the control-server records, and
writes sessions, turns, tasks and its launches. *stopper*: a person or a tool that asks for stops, nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tenure.storage.liveness import TABLE

_HEARTBEAT_COLUMNS = (
    "instance_id, process_kind, hostname, pid, liveness_interval_s, started_at, last_heartbeat_at, "
    "current_task_id, current_task_type"
)

# What a backend may change of a row that is there: never its name, and of the inventory not the flag by which
# recovery refuses launches for good.
_BACKEND_UPDATES = {
    "tasks": "state, interrupted_at, updated_at",
    "sessions": "installation_id, task_environment_id, state, passthrough, interrupted_at, updated_at",
    "executors_running": "task_id, installation_id, agent_process_uid, grace_seconds, status, agent_execution_id, "
    "agent_profile, container_identity, workspace_path, worktree_id, resume_token, metadata, created_by, "
    "last_seen_at, updated_at",
    "turns": "server_identity, control_turn_id, state, outcome, updated_at, finished_at",
}


@dataclass(frozen=True, slots=True)
class Roles:
    """Names of PostgreSQL roles; ``backend_namespaces`` are the Kubernetes namespaces whose rows the
    backend reads and writes."""

    operator: str = "tenure_operator"
    agent: str = "tenure_agent"
    backend: str = "tenure_backend"
    stopper: str = "tenure_stopper"
    backend_namespaces: tuple[str, ...] = ()


def grants_sql(roles: Roles, *, liveness: bool = True, store: bool = True) -> str:
    """Statements for ``psql``, to be run by the owner of the tables once the roles exist. Safe to repeat.

    ``liveness``: for the database with the liveness table; ``store``: for the one with the schema ``tenure``.
    """
    parts = ["-- Grants for Tenure. Run as the owner of the tables, once the roles exist.", "BEGIN;"]
    if liveness:
        parts += _liveness(roles)
    if store:
        parts += _store(roles)
    return "\n".join([*parts, "COMMIT;", ""])


def _liveness(roles: Roles) -> list[str]:
    operator, agent, stopper = map(quoted, (roles.operator, roles.agent, roles.stopper))
    return [
        "",
        "-- The operator reads rows and asks for stops. It never writes a heartbeat.",
        f"GRANT SELECT, UPDATE (desired_state) ON {TABLE} TO {operator};",
        "-- An agent writes its heartbeat and reads its row. It can neither ask for a stop nor undo one.",
        f"GRANT SELECT, INSERT ({_HEARTBEAT_COLUMNS}),",
        f"      UPDATE (last_heartbeat_at, current_task_id, current_task_type) ON {TABLE} TO {agent};",
        "-- Whoever stops agents through the table: sees them, and sets the one column.",
        f"GRANT SELECT, UPDATE (desired_state) ON {TABLE} TO {stopper};",
    ]


def _store(roles: Roles) -> list[str]:
    operator, backend = quoted(roles.operator), quoted(roles.backend)
    namespaces = ", ".join(literal(namespace) for namespace in roles.backend_namespaces)
    condition = f"namespace IN ({namespaces})" if namespaces else "false"
    own = quoted(f"{roles.backend}_own_namespaces")
    reads, writes = f"USING ({condition})", f"USING ({condition}) WITH CHECK ({condition})"
    records = ("control_servers", *_BACKEND_UPDATES)
    return [
        "",
        "-- The ledger of stops: the operator writes it, finished rows stay.",
        f"GRANT USAGE ON SCHEMA tenure TO {operator}, {backend};",
        f"GRANT SELECT ON tenure.migrations TO {operator};",
        f"GRANT SELECT, INSERT, UPDATE ON tenure.agent_stops TO {operator};",
        "-- The records of sessions: nobody deletes any.",
        *(f"GRANT SELECT, INSERT, UPDATE ON tenure.{table} TO {operator};" for table in records),
        f"GRANT USAGE ON SEQUENCE tenure.turns_id_seq TO {operator}, {backend};",
        "-- A backend launches and prompts. Whose a control server is, and which agent could not be stopped, it reads.",
        f"GRANT SELECT ON tenure.agent_stops, tenure.control_servers TO {backend};",
        *(
            f"GRANT SELECT, INSERT, UPDATE ({columns}) ON tenure.{table} TO {backend};"
            for table, columns in _BACKEND_UPDATES.items()
        ),
        "-- It sees the rows of its own namespaces"
        + (":" if namespaces else "; none was named, so it sees nothing:"),
        *_protected("agent_stops", operator, own, f"FOR SELECT TO {backend} {reads}"),
        *_protected("control_servers", operator, own, f"FOR SELECT TO {backend} {reads}"),
        *(
            line
            for table in _BACKEND_UPDATES
            for line in _protected(table, operator, own, f"FOR ALL TO {backend} {writes}")
        ),
    ]


def _protected(table: str, operator: str, backend_policy: str, backend_rule: str) -> Sequence[str]:
    """Row-level security of one table: the operator's role sees all, the backend's what its rule says."""
    return (
        f"ALTER TABLE tenure.{table} ENABLE ROW LEVEL SECURITY;",
        *_policy(
            table, quoted("tenure_operator_all"), f"FOR ALL TO {operator} USING (true) WITH CHECK (true)"
        ),
        *_policy(table, backend_policy, backend_rule),
    )


def _policy(table: str, name: str, rule: str) -> Sequence[str]:
    return (
        f"DROP POLICY IF EXISTS {name} ON tenure.{table};",
        f"CREATE POLICY {name} ON tenure.{table} {rule};",
    )


def quoted(identifier: str) -> str:
    """A PostgreSQL identifier. Raises ``ValueError`` for one that PostgreSQL would cut or refuse."""
    if not identifier or "\0" in identifier or len(identifier.encode()) > 63:
        raise ValueError("a role name has 1 to 63 bytes")
    return '"' + identifier.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A string literal that means the same whatever ``standard_conforming_strings`` says."""
    if "\\" in text or "\0" in text:
        raise ValueError("a namespace has lower-case letters, digits and dashes only")
    return "'" + text.replace("'", "''") + "'"
